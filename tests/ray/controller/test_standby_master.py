"""A standby of PrimeMaster on a real Ray: the first one is killed or stopped, and the standby commands."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from mortal_scene import state_of
from prime_help import Job, eventually
from standby_kit import FIRST, LONG_S, SECOND, PairScene

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


@pytest.fixture
def volume(job: Job) -> Iterator[Path]:
    """A volume of 1 MiB for the journal."""
    folder = job.folder / "journal"
    folder.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=False).returncode:
        pytest.skip("may not mount (tests/laptop.sh may)")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill(file: Path) -> None:
    """Take all that is left of a volume."""
    with file.open("wb", buffering=0) as out, suppress(OSError):
        while out.write(bytes(4096)):
            pass


def test_two_masters_that_are_killed_in_turn_take_over_from_each_other(job: Job) -> None:
    scene = PairScene(job)
    scene.kill(FIRST)
    scene.commands(SECOND, epoch=2)
    scene.untouched()
    scene.restart("worker/0", incarnation=2)
    scene.follows(FIRST)  # the process that Ray started again
    scene.kill(SECOND)
    scene.commands(FIRST, epoch=3)
    scene.untouched()
    scene.ends()


def test_a_stopped_master_is_replaced_and_does_nothing_when_it_runs_again(job: Job) -> None:
    scene = PairScene(job)
    stopped = scene.living(FIRST)
    os.kill(stopped, signal.SIGSTOP)
    scene.commands(SECOND, epoch=2)
    if state_of(stopped):
        os.kill(stopped, signal.SIGCONT)
    eventually(lambda: not state_of(stopped), LONG_S, lambda: "the stopped one goes on")
    scene.untouched()
    scene.restart("worker/1", incarnation=2)
    scene.follows(FIRST)
    scene.ends()


@pytest.mark.slow
def test_of_two_masters_that_are_killed_together_one_commands(job: Job) -> None:
    scene = PairScene(job)
    scene.kill(FIRST, SECOND)
    number = scene.commander(epoch=2)
    scene.follows(FIRST + SECOND - number)
    scene.untouched()
    scene.ends()


def test_a_standby_that_is_killed_is_started_again_and_costs_nothing(job: Job) -> None:
    scene = PairScene(job)
    killed = scene.living(SECOND)
    scene.kill(SECOND)
    eventually(lambda: scene.pid(SECOND) not in (0, killed), LONG_S, lambda: "Ray does not start it again")
    scene.follows(SECOND)
    assert job.connection.status()["restarts"]["master"] == 0
    scene.ends()


@pytest.mark.slow
def test_with_a_stopped_standby_the_master_that_ray_starts_again_commands(job: Job) -> None:
    scene = PairScene(job)
    stopped = scene.living(SECOND)
    os.kill(stopped, signal.SIGSTOP)
    scene.kill(FIRST)
    scene.commands(FIRST, epoch=2)
    eventually(lambda: not state_of(stopped), LONG_S, lambda: "the stopped standby is not ended")
    scene.follows(SECOND)  # the one that is created in its place
    scene.untouched()
    assert job.connection.status()["restarts"]["master"] == 1
    scene.ends()


def test_a_takeover_on_a_full_volume_acts_on_nothing_until_it_can_write(job: Job, volume: Path) -> None:
    scene = PairScene(job)
    filler = volume / "filler"
    fill(filler)
    scene.kill(FIRST)
    eventually(lambda: "is full: No space left on device; ranks go on" in scene.log(), LONG_S, scene.log)
    os.kill(scene.ranks["worker/0"], signal.SIGKILL)
    eventually(lambda: not state_of(scene.ranks["worker/0"]), LONG_S, lambda: "the rank goes on")
    time.sleep(3)  # twice what its restart takes; that nothing happens is no event
    # The claim is there, and no word of who has it: a third master would go on from what the first one wrote.
    assert (volume / "000002.jsonl").stat().st_size == 0
    assert not job.mark("worker/0", 2).exists()
    filler.unlink()
    scene.commands(SECOND, epoch=2)
    scene.ranks |= job.running("worker/0", incarnation={"worker/0": 2}, within=LONG_S)
    scene.untouched()
    stalled = [note["message"] for note in job.connection.notes() if note["reason"] == "JournalStalled"]
    assert stalled, job.seen()
    assert str(volume) in stalled[0]
    scene.ends()
