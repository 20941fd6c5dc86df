"""Resizing on a real Ray: 4, 2, and 4 ranks again; who stays keeps its process, and the losses are those of 4 ranks."""

from __future__ import annotations

from typing import Any, cast

import pytest
from prime_help import Job, eventually

from dljob import global_batches
from dljob.api.handle import JobHandle
from dljob.errors import UsageError

resize_job = pytest.importorskip("resize_job")

pytestmark = [pytest.mark.ray, pytest.mark.torch]

EPOCHS = 12
STEPS = EPOCHS * resize_job.STEPS_PER_EPOCH
UNTIL = {"1": 40, "2": 70}
"""Number of the world -> the step at which its ranks wait for the next one."""


def undisturbed(ranks: int) -> dict[int, float]:
    """Step -> loss of as many ranks to which nothing happens, here, without any of DLJob's restarts."""
    model, optimizer, data = resize_job.made()
    sizes = (resize_job.SAMPLES, resize_job.BATCH)
    said = {"micro": resize_job.MICRO, "epochs": EPOCHS, "seed": resize_job.SEED}
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


def began(job: Job, ranks: int) -> bool:
    """Whether a world of so many ranks has made ten steps."""
    return sum(line["world"] == ranks for line in resize_job.lines(job.folder, "step", 1)) >= 10


@pytest.mark.timeout(400)
def test_ranks_that_stay_keep_their_processes_and_the_losses_match_an_undisturbed_run(job: Job) -> None:
    role = job.role(
        "t",
        "resize_job.Trainer",
        type="Elastic",
        replicas=4,
        minReplicas=2,
        maxReplicas=4,
        comm={"backend": "gloo"},
        restartPolicy={"level": "InProcess"},
        config={"epochs": EPOCHS, "slow_s": 0.02, "until": UNTIL},
    )
    job.start(role, faultTolerance={"elastic": {"growAfterSeconds": 1}})
    eventually(lambda: began(job, 4), 150, job.seen)
    handle = JobHandle(cast("Any", None), job.connection)
    with pytest.raises(UsageError, match="t has 2 to 4 ranks, not 5"):
        handle.scale("t", 5)
    handle.scale("t", 2)
    eventually(lambda: began(job, 2), 100, job.seen)
    handle.scale("t", 4)
    status = job.connection.wait(150)
    assert status["phase"] == "Succeeded", job.seen()
    assert {level: count for level, count in status["restarts"].items() if count} == {"inProcess": 2}

    told = [[resize_job.lines(job.folder, name, rank) for rank in range(4)] for name in ("begin", "shutdown")]
    assert resize_job.processes(job.folder) == [1, 1, 2, 2], "the first two stayed; the others went, and came anew"
    assert [[line["world"] for line in own] for own in told[0]] == [[4, 2, 4]] * 2 + [[4, 4]] * 2
    assert [len(own) for own in told[1]] == [1, 1, 2, 2], "who goes is shut down"
    wanted, found = undisturbed(4), resize_job.losses(job.folder)
    assert sorted(found) == list(range(STEPS))
    assert max(abs(found[step] - wanted[step]) for step in wanted) <= 1e-6
    for epoch in range(EPOCHS):
        assert resize_job.samples(job.folder, epoch) == list(range(resize_job.SAMPLES))
    job.nothing_left(within=30)
