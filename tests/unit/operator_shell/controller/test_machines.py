"""Kubernetes nodes are looked at live, only where a pod does not go, and not again and again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from shell_kit import shell

from dljob.reconcile.policies.machines import FORCE_SECONDS
from dljob.reconcile.state.model import Pod
from dljob_operator.controller import machines
from dljob_operator.controller.machines import START_SECONDS, Machines
from dljob_operator.watch.clock import OperatorClock

NOW = 1_800_000_000.0


def pod(name: str = "p", *, ends: float | None = NOW - FORCE_SECONDS, node: str = "n1") -> Pod:
    return Pod(name, name, False, "g", "Running", False, node=node, leaving=ends is not None, ends=ends)


def node(**conditions: str) -> dict[str, Any]:
    said = [{"type": kind, "status": status} for kind, status in conditions.items()]
    return {"metadata": {"name": "n1"}, "status": {"conditions": said}}


@pytest.mark.parametrize(
    ("body", "state"),
    [
        (node(Ready="True"), "Ready"),
        (node(Ready="False"), "NotReady"),
        (node(Ready="Unknown", DiskPressure="True"), "NotReady"),
        (node(), "NotReady"),
        (None, "Gone"),
    ],
)
async def test_the_conditions_of_a_node_give_the_state_of_its_machine(body: dict[str, Any] | None, state: str) -> None:
    async with shell() as it:
        if body:
            it.fake.put("nodes", body, "")
        (seen,) = await Machines(it.kube, OperatorClock(wall=lambda: NOW)).with_node_states([pod()])
        assert seen.machine == state


async def test_nodes_of_pods_that_have_time_are_not_looked_at() -> None:
    async with shell() as it:
        pods = [pod(ends=None), pod(ends=NOW), pod(node="")]
        assert await Machines(it.kube, OperatorClock(wall=lambda: NOW)).with_node_states(pods) == tuple(pods)
        assert it.fake.calls == []


async def test_the_node_of_a_head_is_looked_at_that_should_be_ready_by_now() -> None:
    head = replace(pod(ends=None), head=True, created=NOW - START_SECONDS)
    new, back = replace(head, created=NOW - 1.0), replace(head, ready=True)
    async with shell() as it:
        it.fake.put("nodes", node(Ready="Unknown"), "")
        seen = await Machines(it.kube, OperatorClock(wall=lambda: NOW)).with_node_states([head, new, back])
        assert [each.machine for each in seen] == ["NotReady", "", ""]


async def test_a_node_is_looked_at_once_for_all_its_pods_and_again_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with shell() as it:
        it.fake.put("nodes", node(Ready="True"), "")
        known = Machines(it.kube, OperatorClock(wall=lambda: NOW))
        await known.with_node_states([pod("a"), pod("b")])
        await known.with_node_states([pod("a")])
        assert len(it.fake.calls) == 1
        monkeypatch.setattr(machines, "KEEP_SECONDS", -1.0)
        known = Machines(it.kube, OperatorClock(wall=lambda: NOW))
        await known.with_node_states([pod("a")])
        await known.with_node_states([pod("a")])
        assert len(it.fake.calls) == 3


async def test_an_operator_that_may_not_read_nodes_asks_once_and_knows_nothing() -> None:
    async with shell() as it:
        it.fake.fail("GET", "nodes", 403, times=9)
        known = Machines(it.kube, OperatorClock(wall=lambda: NOW))
        for _ in range(2):
            (seen,) = await known.with_node_states([pod()])
            assert seen.machine == "Unknown"
        assert len(it.fake.calls) == 1


async def test_the_state_of_a_machine_is_empty_while_the_api_server_does_not_answer() -> None:
    async with shell() as it:
        it.fake.fail("GET", "nodes", 400)
        (seen,) = await Machines(it.kube, OperatorClock(wall=lambda: NOW)).with_node_states([pod()])
        assert seen.machine == ""
