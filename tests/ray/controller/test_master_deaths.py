"""PrimeMaster dies before, in and after all that it writes down, and after all that it does, once each, in the life of
one job; what the job's own processes wrote down tells whether anything was lost or done twice.
"""

from __future__ import annotations

import os
import signal
import threading

import pytest
from mortal_scene import LONG_S, RANKS, Scene, second_master, state_of
from prime_help import Job, eventually

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

DONE = (
    "reserve", "release", "spawn.host", "spawn.spare", "call.host.start", "call.spare.start", "call.host.stop",
    "kill.host", "kill.spare",
)  # fmt: skip
WRITTEN = (
    "Commanded", "HostLost.badly", "HostReady", "MasterStarted", "NodesSeen", "RankEnded.badly", "RankEnded.well",
    "RankReady", "Released", "SpareLost", "SpareReady", "UnitReserved",
)  # fmt: skip
TORN = ("begin", "change", "header", "notes")
"""In the middle of events and what they changed, and of a snapshot, too."""
AT = ("append.event.*", *(f"append.{kind}-torn" for kind in TORN), *(f"{done}-after" for done in DONE))
"""Before something is done is after the append that orders it."""
PAIR = ("spawn.master-after", "call.master.follow-after", "kill.master-after")
"""What masters do to each other: the commanding one creates its standby, that one asks it, the last one ends it."""


@pytest.mark.slow
@pytest.mark.parametrize("pair", [(), PAIR], ids=["alone", "standby"])
def test_a_job_survives_its_masters_death_at_each_write_and_action(job: Job, pair: tuple[str, ...]) -> None:
    """With a standby either of the two dies wherever it commands, mostly before Ray has started the other one again."""
    scene = Scene(job, (*AT, *pair), standby=bool(pair))
    survived(scene, deaths=20)
    written = {f"append.event.{kind}-{when}" for kind in WRITTEN for when in ("before", "after")}
    assert written | {f"{done}-after" for done in DONE} | set(pair) <= scene.points()
    log = (job.folder / "logs" / "master.log").read_text()
    assert ("is claimed: the call to the other PrimeMaster broke" in log) is bool(pair), "who followed took over"


def test_a_master_of_another_version_takes_over_after_an_unfolded_event(job: Job) -> None:
    """Who comes then folds no event that an earlier one may have acted upon."""
    at = [f"append.event.{kind}-after" for kind in ("UnitReserved", "HostReady", "RankReady", "RankEnded.badly")]
    scene = Scene(job, at, upgraded=True)
    survived(scene, deaths=3)
    assert set(at) <= scene.points()


def survived(scene: Scene, deaths: int) -> None:
    restarts = (status := scene.story())["restarts"]
    assert (restarts.pop("master") > deaths, restarts.pop("process"), restarts.pop("role")) == (True, 2, 1)
    assert not any(restarts.values()), status


def test_ranks_that_end_without_a_master_are_known_to_the_next(job: Job) -> None:
    scene = Scene(job, ())
    scene.start()
    scene.running()
    master = job.master_pid()
    os.kill(master, signal.SIGSTOP)  # alive, so that Ray makes no other, and deaf
    job.go()
    eventually(lambda: scene.lines("results"), LONG_S, lambda: "the driver does not end")
    os.kill(master, signal.SIGKILL)
    scene.check(job.connection.wait(LONG_S))


def test_a_master_that_wakes_up_beside_its_successor_does_no_harm(job: Job) -> None:
    scene = Scene(job, ["spawn.host-before"], "SIGSTOP")
    starting = threading.Thread(target=scene.start, daemon=True)
    starting.start()
    eventually(lambda: state_of(job.master_pid()) == "T", LONG_S, lambda: "it is not stopped")
    first = job.master_pid()
    second = second_master(scene)
    there = [job.mark(rank, 1) for rank in RANKS]
    eventually(lambda: all(mark.exists() for mark in there), LONG_S, lambda: "the second one does not command")
    os.kill(first, signal.SIGCONT)
    eventually(lambda: not state_of(first) and not state_of(second), LONG_S, lambda: "one of the two goes on")
    starting.join(LONG_S)
    scene.check(scene.end())
    assert len(job.segments()) == 3
