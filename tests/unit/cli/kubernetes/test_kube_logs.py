"""Logs of ranks that write while they are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_kube import FakeKube, add_head, add_job, logs_of

from dljob.api.kubernetes import logs

Json = dict[str, Any]
RANK = ("worker", 0)
LINE = "x" * 99 + "\n"


@pytest.fixture
def job(kube: FakeKube) -> Json:
    """A running job whose head answers."""
    add_job(kube, phase="Running")
    add_head(kube)
    return kube.update("hello")


def busy(texts: dict[tuple[str, int], str], *, sized: bool) -> Callable[[Json], Json]:
    """Return answers for a rank that writes a line before each; without sizes, as a head of an earlier release."""
    asked = 0

    def answer(query: Json) -> Json:
        nonlocal asked
        asked += 1
        assert asked < 100, "a read of a log that grows has an end"
        texts[RANK] += LINE
        size = {"size": len(texts[RANK])} if sized else {}
        return {**logs_of(texts)(query), **size}

    return answer


async def test_a_log_that_grows_is_read_as_far_as_it_was_written(kube: FakeKube, job: Json) -> None:
    kube.head["logs"] = busy({RANK: LINE * 2000}, sized=True)
    read: Any = logs.read
    assert len(await read(kube, job, role="worker", rank=0)) >= 2001


async def test_followers_show_the_lines_of_a_rank_that_writes_steadily(kube: FakeKube, job: Json) -> None:
    kube.head["logs"] = busy({RANK: LINE * 2000}, sized=True)
    followed: Any = logs.Followed([RANK])
    assert len(await followed.hear(kube, job)) >= 2001
    assert len(await followed.hear(kube, job)) >= 1


async def test_followers_end_a_poll_in_time_at_a_head_that_tells_no_sizes(
    kube: FakeKube, job: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "POLL_S", 0.0)
    kube.head["logs"] = busy({RANK: LINE}, sized=False)
    followed: Any = logs.Followed([RANK])
    assert [len(await followed.hear(kube, job)) for _ in range(3)] == [2, 1, 1]
