"""Jobs that save, on a real Ray: killed, they go on where they were; and nothing of it outlives them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from prime_help import Job, eventually

pytestmark = [pytest.mark.ray, pytest.mark.torch]


def savers(job: Job) -> list[int]:
    """The processes of the job's savers: they have its uid in their address."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if f"@dljob-saver-{job.uid[:8]}".encode() in line:
                found.append(int(entry.name))
    return found


def nothing_left(job: Job) -> None:
    job.nothing_left()
    eventually(lambda: not savers(job), 10, lambda: f"savers left: {savers(job)}")


def waiter(job: Job, **config: Any) -> dict[str, Any]:
    return job.role("w", "checkpoint_user.saves_and_waits", config={"numbers": 1 << 20, "persist": False, **config})


def came_from(job: Job, incarnation: int) -> list[Any]:
    return json.loads((job.folder / f"from-{incarnation}").read_text())


def curve(job: Job, rank: int) -> dict[int, str]:
    """Step -> loss, bit for bit; a step that was made twice was made alike."""
    found: dict[int, str] = {}
    for line in (job.folder / f"loss-{rank}.jsonl").read_text().splitlines():
        said = json.loads(line)
        assert found.setdefault(said["step"], said["loss"]) == said["loss"], said
    return found


def incarnations(job: Job, rank: int) -> list[int]:
    lines = (job.folder / f"loss-{rank}.jsonl").read_text().splitlines()
    return sorted({json.loads(line)["incarnation"] for line in lines})


STEPS = 25


def four_ranks(job: Job, kind: str, *, save: bool) -> dict[str, Any]:
    entry = {"class": "checkpoint_user.Trainer"} if kind == "class" else {"module": "checkpoint_user.py"}
    wanted = {"steps": STEPS, "slow_s": 0.1 if save else 0.0, "save": save}
    more = {"type": "Elastic", "replicas": 4, "config": wanted, "comm": {"backend": "gloo"}}
    return {**job.role("t", ""), "entrypoint": entry, **more}


@pytest.fixture(scope="module")
def undisturbed(ray_here: Any, tmp_path_factory: pytest.TempPathFactory) -> list[dict[int, str]]:
    """The curve of each of four ranks that nothing happens to."""
    plain = Job(tmp_path_factory.mktemp("plain"))
    try:
        plain.start(four_ranks(plain, "class", save=False))
        assert plain.connection.wait(100)["phase"] == "Succeeded"
        return [curve(plain, rank) for rank in range(4)]
    finally:
        plain.close()


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kind", ["class", "module"])
def test_four_ranks_make_the_same_loss_curve_when_one_is_killed(
    undisturbed: list[dict[int, str]], tmp_path: Path, kind: str
) -> None:
    killed = Job(tmp_path)
    try:
        killed.start(four_ranks(killed, kind, save=True))

        def at_step(step: int) -> bool:
            return (killed.folder / "loss-2.jsonl").read_text().count("\n") > step

        eventually(lambda: at_step(8), 100, killed.seen)
        os.kill(killed.connection.pids()["t/2"], signal.SIGKILL)
        assert killed.connection.wait(100)["phase"] == "Succeeded"
        for rank in range(4):
            assert curve(killed, rank) == undisturbed[rank]
            assert len(curve(killed, rank)) == STEPS
        assert incarnations(killed, 2) == [1, 2]
        status = killed.connection.status()
        assert status["progress"]["lastCheckpointStep"] == STEPS - 1
        lost = [fault["lostSteps"] for fault in status["recentFaults"] if fault["lostSteps"] is not None]
        assert lost, status["recentFaults"]
        restored = [n["message"] for n in killed.connection.notes() if n["reason"] == "CheckpointRestored"]
        assert restored[0].startswith("run 1.2 restores step ")
        log = (killed.folder / "logs" / "t-2.log").read_text()
        assert "restored step" in log
        assert "restored step 0 " not in log
        nothing_left(killed)
    finally:
        killed.close()


def test_a_killed_rank_goes_on_from_what_it_had_in_memory(job: Job) -> None:
    job.start(waiter(job))
    pid = job.running("w/0")["w/0"]
    os.kill(pid, signal.SIGKILL)
    job.running("w/0", incarnation={"w/0": 2})
    assert came_from(job, 1) == [0, None]
    assert came_from(job, 2) == [3, 1]
    assert "restored step 3 from memory" in (job.folder / "logs" / "w-0.log").read_text()
    job.go()
    assert job.connection.wait(60)["phase"] == "Succeeded"
    nothing_left(job)
