"""The ledger of a real job: a rank is killed, then PrimeMaster; every second is somewhere, and where it belongs."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from event_files import curves
from past_kit import check_past
from prime_help import Job, eventually

import dljob.runtime.sinks.process as sinks_process
from dljob.master.ledger import view
from dljob.report.replay import Past
from dljob.runtime.journal.samples import ACCOUNTS, Samples, read

pytestmark = pytest.mark.ray
SINKS = sinks_process.__name__


def adds_up(status: Any) -> None:
    """Whatever the time is: the accounts of each role are the time times its ranks."""
    ledger = status["ledger"]
    desired = {role["name"]: role["desired"] for role in status["roles"]}
    for role in ledger["roles"]:
        total = sum(role["accounts"].values())
        assert total == pytest.approx(ledger["seconds"] * desired[role["name"]], rel=1e-3)
    assert ledger["processes"] == sum(desired.values())


def accounts(status: Any, role: str) -> dict[str, float]:
    return next(row["accounts"] for row in status["ledger"]["roles"] if row["name"] == role)


def step(job: Job) -> int:
    """The last step of hit/0."""
    return next(rank["step"] or 0 for rank in job.connection.status()["ranks"] if rank["role"] == "hit")


@contextmanager
def hung_sinks(job: Job) -> Iterator[None]:
    """The process of the metric sinks is stopped: it takes nothing."""

    def sinks() -> list[int]:
        programs = (path.parent for path in Path("/proc").glob("[0-9]*/cmdline") if SINKS in cmdline(path))
        return [int(path.name) for path in programs if str(job.folder) in cmdline(path / "cmdline")]

    (pid,) = eventually(lambda: len(found := sinks()) == 1 and found, 30, job.seen)
    os.kill(pid, signal.SIGSTOP)
    yield
    os.kill(pid, signal.SIGCONT)


def cmdline(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def sinks_have_each_step_once(job: Job) -> None:
    """One run over a rank's and PrimeMaster's death; TensorBoard shows the steps that were made again."""
    lines = (job.folder / "metrics" / "sink_user" / "rows.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    run = f"t-{job.uid[:8]}"
    assert [row for row in rows if row[0] == "open"] == [["open", run, False], ["open", run, True]]
    steps = [row[0] for row in rows if row[0] != "open"]
    assert steps == sorted(set(steps))
    # The first life may have come further than the second: a sink that cannot rewrite has its steps.
    last = json.loads((job.folder / "metrics" / "tensorboard" / "position.json").read_text())
    assert steps[-1] == last["highest"] >= last["step"] >= 30
    shown = curves(job.folder / "metrics" / "tensorboard")["reward"]
    assert [at for at, _ in shown] == sorted({at for at, _ in shown})
    assert shown[-1][0] == last["step"]
    assert all(value == pytest.approx(at / 10) for at, value in shown)


def test_the_time_of_a_job_with_two_faults_is_in_its_accounts(job: Job) -> None:
    calm = job.role("calm", "sink_user.shares", replicas=2)
    job.start(job.role("hit", "prime_user.counts"), calm, progressMetrics=["reward"])
    before = job.running("hit/0", "calm/0", "calm/1")
    eventually(lambda: step(job) >= 20, 30, job.seen)
    killed = time.monotonic()
    os.kill(before["hit/0"], signal.SIGKILL)
    job.running("hit/0", "calm/0", incarnation={"hit/0": 2})
    repeating = eventually(lambda: accounts(job.connection.status(), "hit").get("recompute"), 30, job.seen)
    assert repeating > 0
    eventually(lambda: went_back(read(job.folder)), 30, job.seen)  # in a sample: there is one a second
    job.kill_master(job.master_pid())
    eventually(lambda: job.connection.status()["restarts"]["master"] == 1, 30, job.seen)
    again = job.connection.status()
    adds_up(again)
    assert accounts(again, "hit")["recompute"] >= repeating, "a new master knows what the old one had booked"
    with hung_sinks(job):
        eventually(lambda: step(job) >= 30, 30, job.seen)
    caught_up = time.monotonic() - killed
    eventually(lambda: shared(read(job.folder)), 30, job.seen)
    job.go()
    status = job.connection.wait(60)
    adds_up(status)
    ledger = status["ledger"]
    # A replay leads to the states that the masters wrote, and to the same ledger.
    assert len(check_past(job.folder)) > 20
    assert view.shown(Past(job.folder).last().state, 0.0)["accounts"] == ledger["accounts"]
    sinks_have_each_step_once(job)
    assert ledger["seconds"] == pytest.approx(status["seconds"], rel=1e-3)
    found = accounts(status, "hit")
    # One death: what it cost is told apart, and together it is what the fault says, but for the time to notice it.
    (fault,) = (fault for fault in status["recentFaults"] if fault["level"] == "Process")
    assert found["replace"] > 0
    assert found["detect"] < 1.5
    assert found["replace"] <= fault["seconds"] + 0.01
    # Twenty steps of 0.1 s were lost and made again, after the death and before the thirtieth.
    assert 0.5 < found["recompute"] < caught_up
    assert set(accounts(status, "calm")) <= {"queue", "schedule", "init", "productive", "idle"}
    assert ledger["goodput"] == pytest.approx(ledger["accounts"]["productive"] / (3 * ledger["seconds"]), abs=1e-3)
    assert status["progress"]["goodputPermille"] == pytest.approx(1000 * ledger["goodput"], abs=1)
    sampled(read(job.folder), status)


def shared(samples: Samples) -> bool:
    """Whether the last sample has the queue, and the version that each rank has."""
    fill = {name: values[-1] for name, values in samples.queues.get("left", {}).items()}
    policy = samples.weights.get("policy", {"published": [None], "held": {}})
    held = [versions[-1] for versions in policy["held"].get("calm", [])]
    return fill == {"items": 3, "capacity": 9} and policy["published"][-1] == 7 and held == [7, 7]


def went_back(samples: Samples) -> bool:
    """Whether a sample has an earlier step of the rank that died than the one before it; at most one has."""
    steps = [step for step in samples.steps.get("hit", [[]])[0] if step is not None]
    back = sum(late < early for early, late in pairwise(steps))
    assert back <= 1, steps
    return back == 1


def sampled(samples: Samples, status: Any) -> None:
    """The samples go through both lives of the master, and say what status and ledger say."""
    assert samples.unrecorded == ()
    assert samples.times == sorted(set(samples.times))
    assert samples.times[-1] - samples.times[0] >= status["seconds"] - 3
    seen = "".join(letters or "" for letters in samples.accounts["hit"])
    assert seen[-1] == ACCOUNTS["idle"]
    assert {ACCOUNTS["productive"], ACCOUNTS["recompute"]} <= set(seen)
    steps = [step for step in samples.steps["hit"][0] if step is not None]
    assert steps[-1] == next(rank["step"] for rank in status["ranks"] if rank["role"] == "hit")
    assert went_back(samples), "after the death, and no more for the new master"
    assert all(10 << 20 < ranks[-1] < 10 << 30 for ranks in samples.memory["calm"])
