"""A standby of PrimeMaster on a real Ray: the first one is killed or stopped, and the standby commands."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mortal_scene import state_of
from prime_help import Job, eventually
from standby_kit import FIRST, LONG_S, SECOND, PairScene

from dljob.runtime.job import create_master
from dljob.runtime.journal.job_record import master_actor

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
    scene.follows(FIRST)  # the process that Ray started again
    scene.restart("worker/0", incarnation=2)  # events that it does not write, and must not write again
    scene.kill(SECOND)
    scene.commands(FIRST, epoch=3)
    scene.untouched()
    scene.ends()


def test_a_stopped_master_that_runs_again_beside_its_successor_does_nothing_and_ends(job: Job, ray_here: Any) -> None:
    """All orders to end it are lost, as to a node behind a broken link: it is the journal that fences it."""
    lost = job.folder.parent / "lost"
    lost.touch()
    options = {"where": str(job.folder.parent), "at": [], "how": "SIGKILL", "lost": str(lost)}
    scene = PairScene(job, backend={"name": "ray-mortal", "options": options})
    stopped = scene.living(FIRST)
    os.kill(stopped, signal.SIGSTOP)
    scene.commands(SECOND, epoch=2)
    scene.restart("worker/0", incarnation=2)  # it still waits for a call to the process before, and would replace it
    assert state_of(stopped) == "T"
    os.kill(stopped, signal.SIGCONT)
    eventually(lambda: not state_of(stopped), LONG_S, lambda: "it goes on")
    said = f"[dljob] PrimeMaster, pid {stopped}, ends: epoch 1 is over: a later master has claimed the job"
    eventually(lambda: said in last_words(ray_here, stopped), LONG_S, lambda: last_words(ray_here, stopped))
    scene.untouched()
    scene.restart("worker/1", incarnation=2)
    assert not job.mark("worker/0", 3).exists()
    lost.unlink()  # from now on it meets the process that Ray has started in its place
    scene.ends()


def last_words(ray_here: Any, pid: int) -> str:
    """Return what a process of Ray has written to its stderr."""
    return "\n".join(path.read_text() for path in Path(ray_here.temp).rglob(f"worker-*-{pid}.err"))


@pytest.mark.slow
def test_a_stopped_master_is_replaced_and_ended_while_it_is_stopped(job: Job) -> None:
    scene = PairScene(job)
    stopped = scene.living(FIRST)
    os.kill(stopped, signal.SIGSTOP)
    scene.commands(SECOND, epoch=2)
    eventually(lambda: not state_of(stopped), LONG_S, lambda: "the stopped one is not ended")
    scene.untouched()
    scene.restart("worker/1", incarnation=2)
    scene.follows(FIRST)
    scene.ends()


@pytest.mark.slow
def test_a_standby_on_another_node_takes_over_when_the_node_of_the_first_is_lost(
    job: Job, ray_here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal is in Ray's store, so each node can go on with it."""
    node = ray_here.add_node(num_cpus=0)  # no rank is lost with it
    try:
        monkeypatch.setattr(
            create_master,
            "master_actor",
            lambda *order, **how: replace(master_actor(*order, **how), prefer=node.node_id),
        )
        scene = PairScene(job, apart=True, master={"placement": "Worker"})
        assert job.segments() == []
        assert scene.node(FIRST) == node.node_id
        assert scene.node(SECOND) not in ("", node.node_id, ray_here.head)
        # As of a machine without power no connection breaks, and nobody answers. Ray sees the end of a raylet at once,
        # and may have started the first one elsewhere before the standby has waited for 2 s.
        gone = scene.living(FIRST), node.all_processes["raylet"][0].process.pid
        for pid in gone:
            os.kill(pid, signal.SIGSTOP)
        scene.commands(SECOND, epoch=2)
        scene.untouched()
        for pid in gone:
            os.kill(pid, signal.SIGKILL)
        scene.restart("worker/0", incarnation=2)
        scene.follows(FIRST)  # the process that Ray started on a node that is left
        assert scene.node(FIRST) not in ("", node.node_id, ray_here.head)
        scene.untouched()
        scene.ends()
    finally:
        ray_here.remove_node(node)


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
    os.kill(scene.living(FIRST), signal.SIGSTOP)  # it gives back the room of what it cannot write whole
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
