"""The example of online learning on a real Ray: each of its processes is killed once, while events come."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
import yaml
from prime_help import QUICK, USERS, Job, eventually

from dljob.spec.model import DLJobManifest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(500)]
EXAMPLE = Path(__file__).parents[3] / "examples" / "online"
EVENTS, AT_ONCE, EVERY_S, ITEM = 20_000, 5, 0.1, 3
LIMIT_S = 150
LINES = list(runpy.run_path(str(EXAMPLE / "events.py"))["clicks"](EVENTS))
ITEMS = np.eye(32, dtype=int)[[json.loads(line)["item"] for line in LINES]]
CLICKS = ITEMS * np.array([[json.loads(line)["clicked"]] for line in LINES])
SHOWN, CLICKED = (np.vstack([np.zeros((1, 32), dtype=int), rows.cumsum(axis=0)]) for rows in (ITEMS, CLICKS))
"""How often each item was shown and clicked, after each number of events."""


class ClickWriter(threading.Thread):
    """Writes clicks, 50 a second, until it is told to write all the others at once."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self._path = path
        self.rest = threading.Event()

    def run(self) -> None:
        with self._path.open("a", buffering=1) as file:
            for at in range(0, EVENTS, AT_ONCE):
                file.write("".join(LINES[at : at + AT_ONCE]))
                self.rest.wait(EVERY_S)


@pytest.fixture
def online(ray_here, tmp_path):
    del ray_here
    code = tmp_path / "code"
    shutil.copytree(EXAMPLE, code)
    shutil.copy(USERS / "served" / "online_watch.py", code)
    document = yaml.safe_load((EXAMPLE / "dljob.yaml").read_text())
    document["spec"]["faultTolerance"] = QUICK
    document["spec"]["config"] |= {"uri": f"file:{tmp_path}/clicks.log", "events": EVENTS}
    document["spec"]["roles"][0]["entrypoint"] = {"class": "online_watch.WatchedTrainer"}
    job, writer = Job(tmp_path), ClickWriter(tmp_path / "clicks.log")
    writer.start()
    job.begin(DLJobManifest.model_validate(document), code=code)
    yield job, writer
    writer.rest.set()
    job.close()


def after(number: int) -> list[list[int]]:
    """Return what a trainer knows that has learned from each of the first events once: shown and clicked, by item."""
    return [SHOWN[number].tolist(), CLICKED[number].tolist()]


def states(job: Job) -> list[tuple[int, list[list[int]]]]:
    """Return each step that was saved, and what it knows; a killed process leaves a torn line."""
    lines = [line for path in job.folder.glob("steps-*.jsonl") for line in path.read_text().splitlines(keepends=True)]
    return [(step, state) for step, *state in (json.loads(line) for line in lines if line.endswith("\n"))]


def learned(job: Job) -> int:
    """Return the most events that a step knows."""
    return max((sum(shown) for _, (shown, _) in states(job)), default=0)


def served(job: Job) -> int:
    """Return how many events the weights know that the server answers with; 0 while it does not answer."""
    said: dict[str, Any] = {"version": 0}
    with suppress(OSError, LookupError):
        (servers,) = (role for role in job.connection.status()["endpoints"] if role["role"] == "server")
        said = json.loads(urlopen(f"http://{servers['addresses'][0]['http']}/item/{ITEM}", timeout=10).read())
    known = [state for step, state in states(job) if step == said["version"]]
    rates = {sum(shown): (clicked[ITEM] + 1) / (shown[ITEM] + 2) for shown, clicked in known}
    exact = [number for number, rate in rates.items() if rate == pytest.approx(said["rate"], abs=1e-12)]
    assert exact or not known, f"{said} is of no step of that number: {rates}"
    return max(exact, default=0)


def kill(job: Job, rank: str) -> None:
    """Kill a process, and wait until there is another one."""

    def pid() -> int:
        return job.master_pid() if rank == "PrimeMaster" else job.connection.pids().get(rank) or 0

    was = eventually(pid, LIMIT_S, job.seen)
    os.kill(was, signal.SIGKILL)
    eventually(lambda: pid() not in (0, was), LIMIT_S, lambda: f"no other {rank}: {job.seen()}")


@pytest.mark.slow
def test_whichever_process_is_killed_no_event_is_lost_or_learned_twice_and_the_server_learns_on(online):
    job, writer = online
    # The scorer first, and at once: its data set has an end. The trainer is also the driver, and reads the source.
    for rank in ("scorer/0", "trainer/0", "server/0", "PrimeMaster"):
        kill(job, rank)
        known = learned(job)
        eventually(lambda: served(job) > known, LIMIT_S, lambda: f"after {rank}: {job.seen()}")  # noqa: B023 - at once
    (row,) = (role for role in job.connection.status()["roles"] if role["name"] == "server")
    assert 0 < row["servedLagSeconds"] < 60
    writer.rest.set()
    assert job.connection.wait(LIMIT_S)["phase"] == "Succeeded"
    restored = [json.loads(path.read_text()) for path in sorted(job.folder.glob("restored-*.json"))]
    assert [bool(step) for step, *_ in restored] == [False] + [True] * (len(restored) - 1)
    assert len(restored) > 1
    for step, *state in (*restored[1:], *((step, *state) for step, state in states(job))):
        number = sum(state[0])
        assert state == after(number), f"step {step} has not each of the first {number} events once"
    assert learned(job) == EVENTS, "events are lost at the end"
