"""Logs of ranks that write while they are read, and ends of long logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_kube import FakeKube, add_head, add_job, logs_of

from dljob.api.kubernetes import logs
from dljob.kube.transport import Response
from dljob.runtime.job import gateway_app

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


def many_lines(query: Json) -> Any:
    """Answer for a log of 10 MiB; the gateway refuses to send more than its bound."""
    if query["bytes"] > gateway_app.MOST_BYTES:
        return Response(400, b'{"error": "bytes must be a whole number from 0 to 8388608"}')
    return logs_of({RANK: LINE * 100_000 + "unfinished"})(query)


async def test_a_tail_of_many_lines_asks_for_no_more_than_the_gateway_sends(kube: FakeKube, job: Json) -> None:
    kube.head["logs"] = many_lines
    read: Any = logs.read
    assert logs.MOST_BYTES == gateway_app.MOST_BYTES
    assert len(await read(kube, job, role="worker", rank=0, tail=42_000)) == 42_000
    assert len(await read(kube, job, role="worker", rank=0, tail=100_000)) == pytest.approx(
        gateway_app.MOST_BYTES / 100, abs=2
    )


@pytest.mark.parametrize("tail", [0, 3, 500])
async def test_followers_with_a_tail_read_only_the_end_of_a_long_log(kube: FakeKube, job: Json, tail: int) -> None:
    asked: list[Json] = []
    texts = {RANK: LINE * 20_000 + "unfin"}

    def answer(query: Json) -> Any:
        asked.append(query)
        return logs_of(texts)(query)

    kube.head["logs"] = answer
    followed: Any = logs.Followed([RANK], tail=tail)
    assert [line.text for line in await followed.hear(kube, job)] == [LINE.strip()] * tail
    texts[RANK] += "ished\n"
    assert [line.text for line in await followed.hear(kube, job)] == ["unfinished"]
    assert all(query.get("from", 1 << 20) >= 1 << 20 for query in asked)
