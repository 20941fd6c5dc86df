"""A node that vanishes with a step that was in its memory alone: another node has a copy, on a real Ray."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from prime_help import Job, eventually
from saver_looks import saver_on, savers, whole_in

from dljob.runtime.forked_workers.processes import of_raylet

pytestmark = [pytest.mark.ray, pytest.mark.torch]


@pytest.fixture
def pair(ray_here: Any) -> Iterator[list[Any]]:
    """Two nodes that alone have what the job needs."""
    made = [ray_here.add_node(resources={"ckpt": 1}) for _ in range(2)]
    yield made
    for node in made:
        ray_here.remove_node(node)


def vanishes(job: Job, node: Any) -> None:
    """Its saver first, which would bring all to disk; then all the rest of it."""
    saver, _ = saver_on(job.uid, node.node_id)
    raylet = node.all_processes["raylet"][0].process.pid
    for pid in [saver, *of_raylet(raylet)]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.timeout(500)
def test_a_rank_goes_on_from_what_only_its_lost_node_had_in_memory(job: Job, pair: list[Any], ray_here: Any) -> None:
    config = {"numbers": 3 << 20, "persist": False}
    role = job.role("w", "checkpoint_user.saves_and_waits", config=config)
    job.start({**role, "resources": {"cpu": "0.5", "custom": {"ckpt": "1"}}})
    job.running("w/0", within=150)
    lost = next(node for node in pair if node.node_id == job.connection.status()["units"][0]["node"])
    copies = lambda: {pid: whole_in(pid) for pid in savers(job.uid)}  # noqa: E731
    eventually(lambda: [3 in steps for steps in copies().values()] == [True, True], 100, lambda: (copies(), job.seen()))
    assert not list((job.folder / "checkpoints").rglob("*.part")), "it is in memory alone"
    vanishes(job, lost)
    job.running("w/0", incarnation={"w/0": 2}, within=150)
    assert json.loads((job.folder / "from-2").read_text()) == [3, 1]
    assert "restored step 3 from " in (job.folder / "logs" / "w-0.log").read_text()
    job.go()
    assert job.connection.wait(100)["phase"] == "Succeeded"
    eventually(lambda: not job.left() and not savers(job.uid), 60, lambda: (job.left(), savers(job.uid)))
