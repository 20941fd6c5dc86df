"""Nodes whose pod is told to end: what the kubelet runs before SIGTERM, run by hand against a real Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from leave_user import told
from prime_help import Job, eventually
from saver_looks import savers

from dljob.runtime.checkpoint.files import Folder
from dljob.runtime.forked_workers.processes import of_raylet

pytestmark = [pytest.mark.ray, pytest.mark.torch]


@pytest.fixture
def add(ray_here: Any) -> Iterator[Any]:
    """Adds a node that alone, or with others like it, has what the job needs."""
    made: list[Any] = []

    def one() -> Any:
        made.append(ray_here.add_node(resources={"gone": 1}))
        return made[-1]

    yield one
    for node in made:
        ray_here.remove_node(node)


def leaves(*nodes: str) -> list[str]:
    """What the hook of each node says; they run at once."""
    command = [sys.executable, "-m", "dljob.runtime.leave", "40"]
    made = [subprocess.Popen([*command, node], stdout=subprocess.PIPE, text=True, cwd="/") for node in nodes]
    said = [one.communicate(timeout=100)[0] for one in made]
    assert [one.returncode for one in made] == [0] * len(nodes)
    return said


def vanishes(*nodes: Any) -> None:
    """As when the container's first process has ended: nothing of the node is left."""
    for node in nodes:
        raylet = node.all_processes["raylet"][0].process.pid
        for pid in of_raylet(raylet):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def end_savers(job: Job) -> None:
    """They are below nobody, and end with the container."""
    for pid in savers(job.uid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def ranks(job: Job, count: int, **more: Any) -> dict[str, Any]:
    comm = {"backend": "gloo", "initProcessGroup": False}  # they start together, and do without torch
    role = job.role("w", "leave_user.saves_on", replicas=count, type="Elastic", comm=comm, **more)
    return {**role, "resources": {"cpu": "0.5", "custom": {"gone": "1"}}}


def saved(job: Job) -> list[int]:
    """The steps of which all parts are on disk."""
    folder = Folder(job.folder / "checkpoints" / "w")
    world = len(list(job.folder.glob("at-*")))
    return [mark.step for mark in folder.marks() if all(folder.has_part(mark, rank) for rank in range(world))]


def steps_made(job: Job, step: int) -> None:
    eventually(lambda: told(job.folder, 0) >= step, 100, job.seen)


@pytest.mark.timeout(300)
def test_a_node_with_nowhere_to_go_takes_no_step_along(job: Job, add: Any) -> None:
    node = add()
    job.start(ranks(job, 1))
    job.running("w/0", within=100)
    steps_made(job, 5)
    (said,) = leaves(node.node_id)
    end_savers(job)
    vanishes(node)
    last = told(job.folder, 0)
    assert saved(job)[-1] == last, said
    assert f"on disk: w/0 step {last}" in said
    assert "no other node can have its ranks" in said
    add()
    job.running("w/0", incarnation={"w/0": 2}, within=100)
    assert (job.folder / "from-0-2").read_text() == str(last)
    why = [fault["reason"] for fault in job.connection.status()["recentFaults"]]
    assert why == ["Preempted"]
    job.go()
    assert job.connection.wait(60)["phase"] == "Succeeded"


@pytest.mark.timeout(300)
def test_ranks_leave_for_a_node_that_has_room(job: Job, add: Any) -> None:
    nodes = [add(), add()]
    job.start(ranks(job, 1))
    job.running("w/0", within=100)
    steps_made(job, 5)
    here = job.connection.status()["units"][0]["node"]
    (said,) = leaves(here)
    print(said)  # for who reads a failure
    last = told(job.folder, 0)
    job.running("w/0", incarnation={"w/0": 2}, within=100)
    assert job.connection.status()["units"][0]["node"] != here
    assert int((job.folder / "from-0-2").read_text()) >= 5, (said, last)
    assert len(nodes) == 2
    job.go()
    assert job.connection.wait(60)["phase"] == "Succeeded"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_all_nodes_go_at_once_while_prime_master_says_nothing(job: Job, add: Any) -> None:
    nodes = [add(), add()]
    job.start(ranks(job, 2, replicasPerGroup=1))
    job.running("w/0", "w/1", within=100)
    steps_made(job, 5)
    master = job.master_pid()
    os.kill(master, signal.SIGSTOP)
    try:
        said = leaves(*(node.node_id for node in nodes))
        end_savers(job)
        vanishes(*nodes)
    finally:
        os.kill(master, signal.SIGCONT)
    last = min(told(job.folder, 0), told(job.folder, 1))
    assert saved(job)[-1] >= last, said
    for _ in nodes:
        add()
    job.running("w/0", "w/1", incarnation={"w/0": 2, "w/1": 2}, within=150)
    assert int((job.folder / "from-0-2").read_text()) >= last, (said, job.seen())
    job.go()
    assert job.connection.wait(60)["phase"] == "Succeeded"


@pytest.mark.timeout(300)
def test_before_the_head_goes_all_nodes_save(job: Job, add: Any, ray_here: Any) -> None:
    nodes = [add(), add()]
    job.start(ranks(job, 2, replicasPerGroup=1))
    job.running("w/0", "w/1", within=100)
    steps_made(job, 5)
    (said,) = leaves(ray_here.head)
    assert "the savers of all nodes have saved" in said
    last = min(told(job.folder, 0), told(job.folder, 1))
    folder = Folder(job.folder / "checkpoints" / "w")
    assert [mark.step for mark in folder.marks() if folder.manifest(mark)][-1] == last
    end_savers(job)
    vanishes(*nodes)
    job.connection.command("stop")
    assert job.connection.wait(100)["phase"] == "Stopped"
