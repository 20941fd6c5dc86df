"""Servers of simulated jobs: drawn ones are valid, their seeds break no law, and each kind of trouble happens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from dljob.master.failure import restart
from dljob.master.placement import departures
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import HostId
from dljob.master.status import endpoints
from dljob.spec.loading.load import load
from dljob.telemetry import reasons
from dljob.testing.explore.worlds import MODULE, job, role
from dljob.testing.simulate.drive import Case, Driver, Durations, case_of, simulate
from dljob.testing.world import servers
from dljob.testing.world.fault_schedule import Timed
from dljob.testing.world.model import FaultMove
from dljob.testing.world.state import EPOCH_S

HEAD = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob"}
PROBE = {"tcpSocket": {"port": "http"}}
SERVER = role(
    "s",
    entrypoint=MODULE,
    driver=False,
    ports=[{"name": "http"}],
    readinessProbe=PROBE,
    drain={"signal": "SIGUSR1", "timeoutSeconds": 60},
)
AT = 100.0
RESTART = FaultMove("command", 0, 1.0, "restart s")


def with_servers(count: int) -> list[int]:
    return [seed for seed in range(count) if any(each.get("ports") for each in case_of(seed).manifest["spec"]["roles"])]


def story(*faults: FaultMove) -> Driver:
    """A server and its caller, with faults after 100 s."""
    made = Driver(
        Case(0, job(SERVER, role("d", dependsOn=[{"role": "s"}])), tuple(Timed(AT, fault) for fault in faults)),
        pace=Durations(work=(600.0, 600.0), total=400.0),
    )
    result = made.run()
    assert (result.problems, result.phase) == ((), "Succeeded")
    return made


def noted(made: Driver, reason: str) -> list[float]:
    return [at - EPOCH_S for at, note in made.world.notes if note.reason == reason]


def test_drawn_servers_are_valid_and_of_each_kind() -> None:
    drawn = [case_of(seed).manifest for seed in with_servers(400)]
    roles: list[dict[str, Any]] = []
    for manifest in drawn:
        load(json.dumps({**HEAD, **manifest}))
        roles += [each for each in manifest["spec"]["roles"] if each.get("ports")]
    assert 60 < len(roles) < 140
    assert {bool(each.get("drain")) for each in roles} == {True, False}
    assert {each["name"] for each in roles} == {"s", "e"}, "fleets become servers, too"
    assert {"class" in each["entrypoint"] for each in roles} == {True, False}


def test_seeds_with_servers_break_no_law_whatever_goes_wrong() -> None:
    seeds = with_servers(120)
    ended = [simulate(case_of(seed)) for seed in seeds]
    assert [(seed, result.problems) for seed, result in zip(seeds, ended, strict=True) if result.problems] == []
    told = {note.reason for result in ended if result.world for _, note in result.world.notes}
    assert reasons.READINESS_CHANGED in told
    assert "Unhealthy" in {fault.reason for result in ended if result.world for fault in result.world.known.faults}


def test_words_of_a_server_that_arrive_in_another_order_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "in_order", lambda w, arrival: arrival)
    ended = (simulate(case_of(seed)) for seed in with_servers(400))
    assert any(result.problems and result.problems[0].startswith("endpoints:") for result in ended)


def test_a_server_that_fails_its_readiness_is_no_endpoint_until_it_is_ready_again() -> None:
    made = story(FaultMove("unready", 0, 20.0))
    out, back = noted(made, reasons.READINESS_CHANGED)
    assert AT <= out < AT + 9
    assert AT + 20 <= back < AT + 29
    assert not made.world.known.restarts


def test_a_server_that_fails_its_liveness_restarts_and_its_caller_goes_on() -> None:
    made = story(FaultMove("unhealthy"))
    (fault,) = made.world.known.faults
    assert (fault.reason, fault.level, fault.rank) == ("Unhealthy", "Process", "s/0")
    assert made.world.known.ranks["d", 0].incarnation == 1


def test_a_server_that_drains_is_no_endpoint_and_ends_by_its_deadline() -> None:
    made = Driver(
        Case(0, job(SERVER, role("d")), (Timed(AT, FaultMove("stubborn")), Timed(AT, RESTART))),
        pace=Durations(work=(600.0, 600.0), total=400.0),
    )
    made._schedule()
    made._until(EPOCH_S + AT + 40)
    assert endpoints(made.world.known) == {"s": []}
    assert made.world.draining
    made._until(EPOCH_S + AT + 60 + 30 + 10 + 20)
    (row,) = endpoints(made.world.known)["s"]
    assert row["incarnation"] == 2
    assert not made.world.problems


def test_a_server_without_another_place_is_no_endpoint_when_its_node_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def departs() -> Driver:
        faults = (Timed(AT, FaultMove("drain", 0, 150.0)),)
        return Driver(Case(0, job(SERVER, role("d")), faults), pace=Durations(work=(600.0, 600.0), total=400.0))

    made = departs()
    made._schedule()
    made._until(EPOCH_S + AT + 50)
    assert len(endpoints(made.world.known)["s"]) == 1, "it serves while there is time"
    made._until(EPOCH_S + AT + 200)
    assert not made.world.problems
    monkeypatch.setattr(departures, "_drain_at", lambda d, name, own: None)
    (problem,) = departs().run().problems
    assert problem.startswith("drain: s/0 serves when")


def test_a_server_that_is_killed_at_work_by_an_order_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def kills(d: StateTransaction, host: HostId, ranks: Sequence[int], number: int, *, leaves_group: bool) -> bool:
        restart.kill_host(d, host)
        for rank in ranks:
            restart._mark_as_waiting_member(d, (host.role, rank), number)
        return False

    monkeypatch.setattr(restart, "_stop_host_ranks", kills)
    made = Driver(Case(0, job(SERVER, role("d")), (Timed(AT, RESTART),)), pace=Durations(work=(600.0, 600.0)))
    assert made.run().problems[0] == "drain: s/0 is killed at work, nobody asked it to drain"


def test_a_server_that_waits_for_another_role_to_complete_is_drained_by_a_restart_of_the_job() -> None:
    later = {**SERVER, "dependsOn": [{"role": "first", "condition": "Complete"}]}
    roles = (role("first", driver=False), later, role("d", dependsOn=[{"role": "s"}]))
    again = (Timed(AT, FaultMove("command", 0, 1.0, "restart job")),)
    made = Driver(Case(0, job(*roles), again), pace=Durations(work=(50.0, 60.0), total=400.0))
    assert made.run().problems == ()
    assert made.world.known.restarts["Job"] == 1
    assert made.world.known.ranks["s", 0].incarnation == 2
