"""What a host does for ranks that serve."""

from __future__ import annotations

import pytest
from role_kit import role_plan

from dljob.master.state.actions import RankStart
from dljob.plan.serving import ProbePlan
from dljob.runtime.serving.ports import HostPorts, PortTakenError
from dljob.runtime.worker.serving import HostServing, port_taken

START = RankStart(2, 1, 0, 1, 0)


def serving(ready: list[tuple[int, int]], **role: object) -> HostServing:
    plan = role_plan("r", ("module", "m"), **role)
    return HostServing(plan, "u", lambda: "127.0.0.1", lambda *who: ready.append(who))


def test_a_rank_finds_its_address_and_its_ports() -> None:
    env = serving([], ports=(("http", 0), ("side-car", 0))).environment(START)
    assert set(env) == {"DLJOB_HOST", "DLJOB_PORT_HTTP", "DLJOB_PORT_SIDE_CAR"}
    assert env["DLJOB_HOST"] == "127.0.0.1"
    assert serving([]).environment(START) == {}


def test_a_rank_without_a_probe_is_ready_at_once() -> None:
    ready: list[tuple[int, int]] = []
    own = serving(ready)
    own.started(2, 1)
    own.ended(2)
    assert ready == [(2, 1)]


def test_a_rank_with_a_probe_is_not_ready_before_it() -> None:
    ready: list[tuple[int, int]] = []
    own = serving(ready, readiness=ProbePlan("tcp", port="1", delay_s=3600))
    own.started(2, 1)
    own.ended(2)
    assert ready == []


def test_a_taken_port_is_the_end_of_a_rank() -> None:
    (port,) = (other := HostPorts()).take(0, [("http", 0)], "x", {}).values()
    with pytest.raises(PortTakenError) as error:
        serving([], ports=(("http", port),)).environment(START)
    said = port_taken(error.value)
    assert (said.ok, said.error_type) == (False, "PortTakenError")
    assert f"port {port}" in said.message
    other.take(0, [], "x", {})
