"""Nodes are checked before a torch world starts on them: really, with gloo, in processes that are gone afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from prime_help import Job, eventually

from dljob.telemetry import reasons

pytestmark = [pytest.mark.ray, pytest.mark.torch, pytest.mark.timeout(600)]


@pytest.fixture
def node(ray_here: Any) -> Iterator[Any]:
    """Adds nodes that alone have what the job needs, with an environment of their own."""
    made: list[Any] = []

    def add(**env: str) -> Any:
        made.append(ray_here.add_node(resources={"ck": 1}, env_vars=env))
        return made[-1]

    yield add
    for each in made:
        ray_here.remove_node(each)


def start(job: Job, replicas: int = 2) -> None:
    """A torch world of a rank a node."""
    role = job.role("t", "prime_user.until_told", type="Elastic", replicas=replicas)
    role |= {"comm": {"backend": "gloo", "preCheck": True, "initProcessGroup": False}}
    role |= {"resources": {"cpu": "0.5", "memory": "64Mi", "custom": {"ck": "1"}}}
    job.start(role)


def where(job: Job) -> set[str]:
    return {unit["node"] for unit in job.connection.status()["units"]}


def said(job: Job, reason: str) -> list[dict[str, Any]]:
    return [note for note in job.connection.notes() if note["reason"] == reason]


def end(job: Job) -> None:
    job.go()
    assert job.connection.wait(120)["phase"] == "Succeeded"
    job.nothing_left(30)


def checkers(job: Job) -> list[str]:
    from ray._private.state import state

    mine = f"{job.uid[:8]}/check/"
    rows = state.actor_table(None).values()
    return [row["Name"] for row in rows if row["Name"].startswith(mine) and row["State"] != "DEAD"]


def test_a_node_whose_network_does_not_work_is_left_and_its_ranks_start_elsewhere(job: Job, node: Any) -> None:
    bad, good = node(GLOO_SOCKET_IFNAME="nosuchdevice0").node_id, node().node_id
    start(job)
    eventually(lambda: said(job, reasons.NODE_CHECK_FAILED), 180, job.seen)
    good = {good, node().node_id}
    job.running("t/0", "t/1", within=240)
    assert where(job) == good
    excluded = {row["name"]: row for row in job.connection.status()["nodes"]["excluded"]}
    assert excluded[bad]["reason"] == "CheckFailed", job.seen()
    assert "all-reduce" in excluded[bad]["why"]
    (note,) = said(job, reasons.NODES_CHECKED)
    assert note["message"] == "2 nodes fit for t"
    assert not said(job, reasons.CHECK_NOT_MADE), "torch is here, and gloo"
    assert not checkers(job)
    end(job)
