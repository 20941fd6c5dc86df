"""Logs of ranks that write while they are read, and ends of long logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_kube import FakeKube, add_head, add_job, logs_of

from dljob.api.kubernetes import logs
from dljob.kube.api import DLJOBS
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


async def lines_of(kube: FakeKube, job: Json, **which: Any) -> list[str]:
    """Return all lines that are read, with their ranks."""
    read: Any = logs.read
    return [str(line) async for lines in read(kube, job, **which) for line in lines]


async def test_a_log_that_grows_is_read_as_far_as_it_was_written(kube, job):
    kube.head["logs"] = busy({RANK: LINE * 20_000}, sized=True)
    assert len(await lines_of(kube, job, role="worker", rank=0)) >= 20_001


async def test_followers_show_the_lines_of_a_rank_that_writes_steadily(kube, job):
    kube.head["logs"] = busy({RANK: LINE * 2000}, sized=True)
    followed: Any = logs.Followed([RANK])
    assert len(await followed.hear(kube, job)) >= 2001
    assert len(await followed.hear(kube, job)) >= 1


async def test_followers_end_a_poll_in_time_at_a_head_that_tells_no_sizes(kube, job, monkeypatch):
    monkeypatch.setattr(logs, "POLL_S", 0.0)
    kube.head["logs"] = busy({RANK: LINE}, sized=False)
    followed: Any = logs.Followed([RANK])
    assert [len(await followed.hear(kube, job)) for _ in range(3)] == [2, 1, 1]


def many_lines(query: Json) -> Any:
    """Answer for a log of 10 MiB; the gateway refuses to send more than its bound."""
    if query["bytes"] > gateway_app.MOST_BYTES:
        return Response(400, b'{"error": "bytes must be a whole number from 0 to 8388608"}')
    return logs_of({RANK: LINE * 100_000 + "unfinished"})(query)


async def test_a_tail_of_many_lines_asks_for_no_more_than_the_gateway_sends(kube, job):
    kube.head["logs"] = many_lines
    assert logs.MOST_BYTES == gateway_app.MOST_BYTES
    assert len(await lines_of(kube, job, role="worker", rank=0, tail=42_000)) == 42_000
    assert len(await lines_of(kube, job, role="worker", rank=0, tail=100_000)) == pytest.approx(
        gateway_app.MOST_BYTES / 100, abs=2
    )


@pytest.mark.parametrize("tail", [0, 3, 500])
async def test_followers_with_a_tail_read_only_the_end_of_a_long_log(kube, job, tail):
    asked: list[Json] = []
    texts: dict[tuple[str, int], str] = {RANK: LINE * 20_000 + "unfin"}

    def answer(query: Json) -> Any:
        asked.append(query)
        return logs_of(texts)(query)

    kube.head["logs"] = answer
    followed: Any = logs.Followed([RANK], tail=tail)
    assert [line.text for line in await followed.hear(kube, job)] == [LINE.strip()] * tail
    texts[RANK] += "ished\n"
    assert [line.text for line in await followed.hear(kube, job)] == ["unfinished"]
    assert all(query.get("from", 1 << 20) >= 1 << 20 for query in asked)


@pytest.fixture
def many(kube: FakeKube, monkeypatch: pytest.MonkeyPatch) -> Json:
    """A running job of 40 workers whose head answers, and whose logs are read in pieces of ten lines."""
    monkeypatch.setattr(logs, "READ_BYTES", 10 * len(LINE))
    spec = {"roles": [{"name": "worker", "replicas": 40}]}
    kube.put(DLJOBS, {"metadata": {"name": "hello"}, "spec": spec, "status": {"phase": "Running"}})
    add_head(kube)
    return kube.update("hello")


def noted(texts: dict[tuple[str, int], str], asked: list[int]) -> Callable[[Json], Any]:
    """Answer as `logs_of`, and note the rank of each request."""

    def answer(query: Json) -> Any:
        asked.append(int(query["rank"]))
        return logs_of(texts)(query)

    return answer


async def test_the_first_lines_come_before_the_rest_is_read(kube, many):
    asked: list[int] = []
    kube.head["logs"] = noted({("worker", rank): LINE * 30 for rank in range(40)}, asked)
    read: Any = logs.read
    pieces = read(kube, many)
    assert len(await anext(pieces)) == 10
    assert len(asked) <= logs.AT_ONCE, "one piece each, of the ranks that are read ahead"
    for _ in range(2):
        assert {line.rank for line in await anext(pieces)} == {0}
    await pieces.aclose()
    assert len(asked) <= logs.AT_ONCE + 2, "whoever has seen enough reads no more"


async def test_all_ranks_come_in_their_order_with_all_of_their_lines(kube, many):
    texts = {("worker", rank): f"begin {rank}\n{LINE * 11}end {rank}" for rank in range(40)}
    kube.head["logs"] = logs_of(texts)
    lines = [line for line in await lines_of(kube, many) if not line.endswith("x")]
    assert lines == [f"[worker/{rank}] {word} {rank}" for rank in range(40) for word in ("begin", "end")]
    ends = await lines_of(kube, many, tail=2)
    assert ends == [f"[worker/{rank}] {word}" for rank in range(40) for word in (LINE.strip(), f"end {rank}")]


async def test_a_log_whose_node_goes_while_it_is_read_says_so_at_its_place(kube, many):
    texts = {("worker", 1): f"{LINE * 9}unfinished", ("worker", 2): "b\n"}

    def answer(query: Json) -> Any:
        if query["rank"] == 0 or query.get("from"):
            return Response(503, b'{"error": "node n1 is away"}')
        return logs_of(texts)(query)

    kube.head["logs"] = answer
    lines = await lines_of(kube, many)
    said = "[dljob] node n1 is away"
    assert lines[0] == f"[worker/0] {said}"
    assert lines[9:13] == [f"[worker/1] {LINE.strip()}", "[worker/1] unfinished", f"[worker/1] {said}", "[worker/2] b"]


async def test_a_line_without_an_end_does_not_grow_in_memory(kube, many):
    kube.head["logs"] = logs_of({RANK: "x" * 4500})
    read: Any = logs.read
    lines = [line async for lines in read(kube, many) for line in lines]
    assert [len(line.text) for line in lines] == [1000] * 4 + [500]
