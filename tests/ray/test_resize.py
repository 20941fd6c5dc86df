"""Resizing on a real Ray: 4, 2, and 4 ranks again; who stays keeps its process, and the losses are those of 4 ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import resize_user
from prime_help import Job, eventually

from dljob import global_batches
from dljob.api.handle import JobHandle
from dljob.errors import UsageError

pytestmark = [pytest.mark.ray, pytest.mark.torch]

EPOCHS = 12
STEPS = EPOCHS * resize_user.STEPS_PER_EPOCH
UNTIL = {"1": 40, "2": 70}
"""Number of the world -> the step at which its ranks wait for the next one."""


@pytest.fixture
def job(ray_here: Any, tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.close()


def lines(job: Job, name: str, rank: int) -> list[dict[str, Any]]:
    path = job.folder / f"{name}-{rank}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def undisturbed(ranks: int) -> dict[int, float]:
    """Step -> loss of as many ranks to which nothing happens, here, without any of DLJob's restarts."""
    model, optimizer, data = resize_user.made()
    sizes = (resize_user.SAMPLES, resize_user.BATCH)
    said = {"micro": resize_user.MICRO, "epochs": EPOCHS, "seed": resize_user.SEED}
    found: dict[int, float] = {}
    for step in zip(*(global_batches(*sizes, rank=rank, world=ranks, **said) for rank in range(ranks)), strict=True):
        optimizer.zero_grad()
        total = 0.0
        for part in (part for own in step for part in own.parts):
            x = data[list(part)]
            loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).sum() / step[0].size
            loss.backward()
            total += loss.item()
        optimizer.step()
        found[step[0].step] = total
    return found


def reached(job: Job, step: int, rank: int = 0) -> bool:
    return any(line["step"] >= step for line in lines(job, "step", rank))


@pytest.mark.timeout(300)
def test_who_stays_keeps_its_process_and_the_losses_are_those_of_an_undisturbed_run(job: Job) -> None:
    role = job.role(
        "t",
        "resize_user.Trainer",
        type="Elastic",
        replicas=4,
        minReplicas=2,
        maxReplicas=4,
        comm={"backend": "gloo"},
        restartPolicy={"level": "InProcess"},
        config={"epochs": EPOCHS, "slow_s": 0.02, "until": UNTIL},
    )
    job.start(role, faultTolerance={"elastic": {"growAfterSeconds": 1}})
    eventually(lambda: reached(job, 10), 150, job.seen)
    handle = JobHandle(cast("Any", None), job.connection)
    with pytest.raises(UsageError, match="t has 2 to 4 ranks, not 5"):
        handle.scale("t", 5)
    handle.scale("t", 2)
    eventually(lambda: any(line["world"] == 2 for line in lines(job, "step", 1)), 100, job.seen)
    handle.scale("t", 4)
    status = job.connection.wait(150)
    assert status["phase"] == "Succeeded", job.seen()
    assert {level: count for level, count in status["restarts"].items() if count} == {"in_process": 2}

    steps = [lines(job, "step", rank) for rank in range(4)]
    processes = [len({line["pid"] for line in own}) for own in steps]
    assert processes == [1, 1, 2, 2], "the first two stayed; the others went, and came back anew"
    assert [[line["world"] for line in lines(job, "begin", rank)] for rank in range(4)] == [[4, 2, 4]] * 2 + [
        [4, 4]
    ] * 2
    wanted = undisturbed(4)
    losses = {line["step"]: line["loss"] for line in steps[0]}
    assert sorted(losses) == list(range(STEPS))
    assert max(abs(losses[step] - wanted[step]) for step in wanted) <= 1e-6
    for epoch in range(EPOCHS):
        assert sorted(counted(steps, epoch)) == list(range(resize_user.SAMPLES))
    assert [len(lines(job, "shutdown", rank)) for rank in range(4)] == [1, 1, 2, 2], "who goes is shut down"
    job.nothing_left(within=30)


def counted(steps: list[list[dict[str, Any]]], epoch: int) -> list[int]:
    """The samples of an epoch that are in the model at the end: of a step made again, those of the last time."""
    last = [{line["step"]: line for line in own if line["epoch"] == epoch} for own in steps]
    return [each for step, line in last[0].items() for own in last[: line["world"]] for each in own[step]["samples"]]
