"""A node that stops answering: what lived there goes on elsewhere, and what wakes up later ends by itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prime_help import Job, eventually

from dljob.runtime.forked_workers.processes import of_raylet
from dljob.runtime.process.messages import AgentRequest
from dljob.telemetry import reasons

pytestmark = pytest.mark.ray


@pytest.fixture
def pair(ray_here: Any) -> Iterator[list[Any]]:
    """Two nodes that alone have what the job needs."""
    made = [ray_here.add_node(resources={"fz": 1}) for _ in range(2)]
    yield made
    for node in made:
        send(everybody(node), signal.SIGCONT)
        ray_here.remove_node(node)


def raylet(node: Any) -> int:
    return node.all_processes["raylet"][0].process.pid


def everybody(node: Any) -> list[int]:
    return of_raylet(raylet(node))


def send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def agents(job: Job) -> dict[str, int]:
    """Node (its first eight letters) -> pid of its agent."""
    from ray._private.state import state

    mine = f"{job.uid[:8]}/agent/"
    rows = state.actor_table(None).values()
    return {
        row["Name"].removeprefix(mine): row["Pid"]
        for row in rows
        if row["Name"].startswith(mine) and row["State"] == "ALIVE"
    }


def answers(job: Job, node: Any) -> None:
    """Wait for an agent's answer; PrimeMaster, which asked before us, has had its own."""
    import ray

    ray.get(
        ray.get_actor(f"{job.uid[:8]}/agent/{node.node_id[:8]}", "dljob").beat.remote(
            AgentRequest(0, 0.5, 0.5).packed()
        ),
        timeout=30,
    )


def start(job: Job) -> int:
    """The pid of the one rank, on one of the pair."""
    role = job.role("worker", "prime_user.until_told", resources={"cpu": "0.5", "custom": {"fz": "1"}})
    job.start(role, faultTolerance={"node": {"freezeSeconds": 1}})
    return job.running("worker/0")["worker/0"]


def place(job: Job) -> str:
    return job.connection.status()["units"][0]["node"]


def test_a_frozen_node_is_left_and_what_wakes_up_there_ends(job: Job, pair: list[Any]) -> None:
    old = start(job)
    first = place(job)
    eventually(lambda: {node.node_id[:8] for node in pair} <= agents(job).keys(), 30, lambda: agents(job))
    for node in pair:
        answers(job, node)
    frozen = everybody(next(node for node in pair if node.node_id == first))
    assert old in frozen
    send(frozen, signal.SIGSTOP)
    job.running("worker/0", incarnation={"worker/0": 2}, within=30)
    status = job.connection.status()
    assert status["units"][0]["node"] != first
    assert (status["restarts"]["node"], status["restarts"]["process"]) == (1, 1), job.seen()
    assert alive(old), "stopped is not gone"
    assert status["recentFaults"][0]["reason"] == "NodeFrozen", "before Ray gave the node up, after some 3 s here"
    assert [row["name"] for row in status["nodes"]["excluded"]] == [first]
    assert reasons.NODE_FROZEN in [note["reason"] for note in job.connection.notes()]
    send(frozen, signal.SIGCONT)
    eventually(lambda: not alive(old), 30, lambda: "the old rank lives on")
    job.go()
    assert job.connection.wait(60)["result"] == '{"incarnation": 2}'
    eventually(lambda: not job.left(), 30, job.left)


def test_an_agent_that_dies_is_made_again_and_costs_nobody_anything(job: Job, pair: list[Any]) -> None:
    start(job)
    node = place(job)[:8]
    pid = eventually(lambda: agents(job).get(node), 30, lambda: agents(job))
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: agents(job).get(node, pid) != pid, 30, lambda: agents(job))
    job.go()
    status = job.connection.wait(60)
    assert (status["phase"], sum(status["restarts"].values())) == ("Succeeded", 0)
    job.nothing_left()


def test_a_program_that_a_killed_rank_had_started_is_ended(job: Job) -> None:
    job.start(job.role("worker", "prime_user.with_a_program"))
    host = job.running("worker/0")["worker/0"]
    eventually(lambda: len(agents(job)) > 0, 30, lambda: agents(job))
    program = int((job.folder / "program-1").read_text())
    node = place(job)[:8]
    eventually(lambda: node in agents(job), 30, lambda: agents(job))
    assert alive(program)
    os.kill(host, signal.SIGKILL)
    job.running("worker/0", incarnation={"worker/0": 2})
    eventually(lambda: not alive(program), 10, lambda: "it outlives its rank")
    assert alive(int((job.folder / "program-2").read_text()))
    job.go()
    assert job.connection.wait(60)["phase"] == "Succeeded"


def test_agents_end_with_the_raylet_and_with_the_job(job: Job, pair: list[Any], ray_here: Any) -> None:
    start(job)
    first = place(job)
    spare = next(node for node in pair if node.node_id != first)
    eventually(lambda: spare.node_id[:8] in agents(job), 30, lambda: agents(job))
    pid = agents(job)[spare.node_id[:8]]
    ray_here.kill_raylet(spare)
    eventually(lambda: not alive(pid), 10, lambda: "the agent outlives its raylet")
    rest = agents(job)
    job.go()
    assert job.connection.wait(60)["phase"] == "Succeeded"
    eventually(lambda: not any(alive(own) for own in rest.values()), 10, lambda: rest)
