"""Consistent cuts on a real Ray: whatever is killed, each prompt is in the trainer's state exactly once."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from prime_help import QUICK, Job, eventually
from ray.experimental import internal_kv
from usercode.cuts import PROMPTS

pytestmark = pytest.mark.ray


@pytest.fixture
def job(ray_here: Any, tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.close()


def committed(job: Job) -> list[str]:
    return [note["message"] for note in job.connection.notes() if note["reason"] == "CutCommitted"]


def failed_items(job: Job) -> list[Any]:
    return [note for note in job.connection.notes() if note["reason"] in ("ItemFailed", "ItemSetAside")]


def kill_keeper(job: Job, name: str) -> None:
    keeper = ray.get_actor(f"{job.uid[:8]}/queue/{name}", "dljob")
    os.kill(ray.get(keeper.pid.remote(), timeout=60), signal.SIGKILL)


def lose_all(job: Job) -> None:
    """Kill the job's processes and forget what the head knows of it, as when a cluster is lost."""
    pids = [pid for pid in job.connection.pids().values() if pid]
    job.close()
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 30, lambda: f"{pids} live")
    eventually(lambda: not job.left().keys() & {"actors", "groups"}, 30, job.left)
    for key in job.left().get("keys", ()):
        internal_kv._internal_kv_del(key, namespace="dljob")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_each_prompt_is_trained_once_whatever_is_killed(job: Job, tmp_path: Path) -> None:
    manifest = job.manifest(
        job.role("trainer", "usercode.cuts.trainer", config={"every": 5, "pause_s": 0.05, "hold": 3}),
        job.role("rollout", "usercode.cuts.rollout", replicas=2, driver=False),
        faultTolerance=QUICK,
    )
    job.begin(manifest)
    pids = job.running("trainer/0", "rollout/0", "rollout/1")
    eventually(lambda: len(committed(job)) >= 2, 60, job.seen)
    os.kill(pids["rollout/0"], signal.SIGKILL)
    os.kill(pids["trainer/0"], signal.SIGKILL)
    job.running("trainer/0", incarnation={"trainer/0": 2})
    eventually((job.folder / "from-2").exists, 60, job.seen)
    back = json.loads((job.folder / "from-2").read_text())
    assert back["step"] > 0
    assert back["trained"] == 2 * back["step"]
    kill_keeper(job, "samples")
    before = len(committed(job))
    eventually(lambda: len(committed(job)) > before, 60, job.seen)
    # From its own file: the next PrimeMaster may take longer to answer than the trainer has work.
    trainer = job.pid("trainer/0", 2)
    job.kill_master(job.master_pid())
    os.kill(trainer, signal.SIGKILL)
    eventually((job.folder / "from-3").exists, 60, job.seen)
    restored = [note["message"] for note in job.connection.notes() if note["reason"] == "CutRestored"]
    assert len(restored) == 2, restored
    eventually(lambda: len(failed_items(job)) == 2, 60, job.seen)
    failed, set_aside = failed_items(job)
    assert "item bad of queue prompts has 1 failed delivery, another rank gets it next" in failed["message"]
    assert ": rollout/" in failed["message"]
    assert "is set aside after 2 failed deliveries" in set_aside["message"]
    assert "ValueError: nobody can answer it" in set_aside["message"]
    assert {failed["target"], set_aside["target"]} == {"rollout/0", "rollout/1"}
    lose_all(job)
    volume = job.folder / "checkpoints"
    before, last = sorted(volume.glob("cuts/cut-*/manifest.json"), key=lambda path: int(path.parent.name[4:]))
    (damaged, *_) = last.parent.glob("*.queue")
    damaged.write_bytes(b"damaged")
    # The next attempt has a new head and a new folder, and the same volume.
    job.folder = tmp_path / "again"
    job.folder.mkdir()
    (job.folder / "checkpoints").symlink_to(volume)
    job.begin(manifest, attempt=2)
    assert job.connection.wait(100)["phase"] == "Succeeded", job.seen()
    state = json.loads((job.folder / "trained").read_text())
    assert sorted(state["trained"]) == list(range(PROMPTS))
    assert len(state["draws"]) == len(set(state["draws"])) == PROMPTS // 2
    told = {note["reason"]: note["message"] for note in job.connection.notes()}
    number = before.parent.name.removeprefix("cut-")
    assert f"ranks and queues go back to cut {number}" in told["CutDamaged"]
    assert told["CutRestored"].startswith(f"trainer/0 takes the job back to cut {number}, with ")
    job.nothing_left()


def test_a_cut_that_cannot_be_completed_harms_nobody(job: Job, tmp_path: Path) -> None:
    where = {"path": str(tmp_path / "volume"), "everySteps": 10, "cutDeadlineSeconds": 1}
    job.start(job.role("late", "usercode.cuts.late"), checkpoint=where)
    job.running("late/0")

    def given_up() -> list[str]:
        return [note["message"] for note in job.connection.notes() if note["reason"] == "CutGivenUp"]

    eventually(given_up, 60, job.seen)
    assert "late/0 did not save within 1 s; there is no earlier one" in given_up()[0]
    (job.folder / "save").touch()
    eventually(lambda: committed(job), 60, job.seen)
    assert "1 item (0.0 MiB) of 1 queue" in committed(job)[0]
    # On a laptop ranks do not save at the path of the pods, and neither do cuts: one place, which is told.
    assert list(job.folder.glob("checkpoints/cuts/cut-*/*.queue"))
    assert committed(job)[0].endswith(f", in {job.folder / 'checkpoints'}")
    assert not (tmp_path / "volume").exists()
    job.go()
    assert job.connection.wait(60)["phase"] == "Succeeded", job.seen()
    first, second = json.loads((job.folder / "asked").read_text())
    assert first == second
    job.nothing_left()
