"""Restart in process on a real Ray: survivors of a torch group keep their processes, and nothing else shows it."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest
from prime_help import Job, eventually

pytestmark = [pytest.mark.ray, pytest.mark.torch]

STEPS = 60


def group(job: Job, entry: str = "in_process_user.Trainer", **config: Any) -> dict[str, Any]:
    return job.role(
        "t",
        entry,
        type="Elastic",
        replicas=4,
        replicasPerGroup=4,
        comm={"backend": "gloo"},
        restartPolicy={"level": "InProcess"},
        config={"steps": STEPS, "slow_s": 0.1, **config},
    )


TOLERANCE = {"spares": {"processesPerNode": 1}, "backoff": {"initialSeconds": 0}}


def lines(job: Job, name: str, rank: int) -> list[dict[str, Any]]:
    path = job.folder / f"{name}-{rank}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def at_step(job: Job, step: int, rank: int = 1) -> bool:
    return any(line["step"] >= step for line in lines(job, "loss", rank))


def spares(job: Job) -> int:
    return sum("/spare-" in name for name in job.left().get("actors", ()))


def curve(job: Job, rank: int) -> dict[int, str]:
    """Step -> loss, bit for bit; a step that was made again was made alike."""
    found: dict[int, list[str]] = {}
    for line in lines(job, "loss", rank):
        found.setdefault(line["step"], []).append(line["loss"])
    assert all(len(set(losses)) == 1 for losses in found.values()), found
    return {step: losses[0] for step, losses in found.items()}


def repeated(job: Job, rank: int) -> int:
    return len(lines(job, "loss", rank)) - len(curve(job, rank))


def kill(job: Job, rank: int) -> None:
    os.kill(lines(job, "loss", rank)[-1]["pid"], signal.SIGKILL)


def processes(job: Job) -> list[int]:
    """How many processes made steps, by rank."""
    return [len({line["pid"] for line in lines(job, "loss", rank)}) for rank in range(4)]


def ready(job: Job) -> None:
    """It trains, and a spare is at hand."""
    eventually(lambda: at_step(job, 8) and spares(job), 150, job.seen)


@pytest.fixture(scope="module")
def undisturbed(ray_here: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The curves and the result of a run to which nothing happens."""
    job = Job(tmp_path_factory.mktemp("plain"))
    try:
        job.start(group(job, slow_s=0))
        assert job.connection.wait(150)["phase"] == "Succeeded"
        return [curve(job, rank) for rank in range(4)], job.connection.status()["result"]
    finally:
        job.close()


def ends_as_if_nothing_had_happened(job: Job, undisturbed: Any, died: set[int]) -> dict[str, Any]:
    """All steps were made, each alike; only those who died have a second process. Gives the restarts by level."""
    status = job.connection.wait(150)
    assert status["phase"] == "Succeeded", job.seen()
    assert ([curve(job, rank) for rank in range(4)], status["result"]) == undisturbed
    assert {rank for rank in range(4) if len(lines(job, "setup", rank)) > 1} == died
    assert processes(job) == [1 + (rank in died) for rank in range(4)]
    job.nothing_left(within=30)
    return {level: count for level, count in status["restarts"].items() if count}


@pytest.mark.timeout(400)
def test_survivors_keep_their_processes_and_the_curve_is_that_of_an_undisturbed_run(job: Job, undisturbed: Any) -> None:
    job.start(group(job), faultTolerance=TOLERANCE)
    ready(job)
    kill(job, 2)
    assert ends_as_if_nothing_had_happened(job, undisturbed, {2}) == {"inProcess": 1}
    assert [repeated(job, rank) <= 1 for rank in range(4)] == [True] * 4
    assert [len(lines(job, "restart", rank)) for rank in range(4)] == [1, 1, 1, 1]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_second_death_while_ranks_meet_again_restarts_in_process_too(job: Job, undisturbed: Any) -> None:
    """The store is not rank 0's, and who has just come back leaves again."""
    job.start(group(job), faultTolerance=TOLERANCE)
    ready(job)
    kill(job, 0)
    eventually(lambda: lines(job, "restart", 3), 100, job.seen)
    kill(job, 1)
    restarts = ends_as_if_nothing_had_happened(job, undisturbed, {0, 1})
    assert set(restarts) == {"inProcess"}
