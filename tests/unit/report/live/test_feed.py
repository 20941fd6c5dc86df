"""One source, many readers: each gets news at once; silence is told, and ends."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections.abc import Callable

import pytest

from dljob.errors import UnreachableError
from dljob.report.live import feed as feeds
from dljob.report.live.document import LiveDocument
from dljob.report.live.feed import JobFeed, in_thread
from dljob.report.live.page_app import PageApp
from dljob.report.live.server import PageRequest
from dljob.report.live.sources import OlderEvents, SourceSilentError
from dljob.runtime.journal.event_file import EarlierEvents


def none_older(asked: OlderEvents) -> EarlierEvents:
    raise AssertionError(asked)


class Counting:
    """A source that changes when told."""

    def __init__(self) -> None:
        self.over = False
        self.value = 0
        self.looks = 0
        self.error: Exception | None = None
        self.silent = ""
        self.news = threading.Event()
        self.older = none_older

    def look(self, document: LiveDocument) -> bool:
        self.looks += 1
        if self.error:
            raise self.error
        return document.put({"value": self.value})

    def wait(self) -> None:
        if self.silent:
            raise SourceSilentError(self.silent)
        self.news.wait(0.05)
        self.news.clear()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "LOOK_S", 0.01)
    monkeypatch.setattr(feeds, "QUIET_S", 0.05)
    monkeypatch.setattr(feeds, "AWAY_S", 0.01)
    monkeypatch.setattr(feeds, "LONGEST_S", 5.0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - of a source that knows no events
            await asyncio.sleep(0.005)


def run(test: Callable[[JobFeed, Counting], object]) -> None:
    async def main() -> None:
        source = Counting()
        feed = JobFeed(source, LiveDocument("d"))
        source.look(feed.document)
        task = asyncio.create_task(feed.run())
        await test(feed, source)  # type: ignore[misc]
        source.over = True
        await task

    asyncio.run(main())


def test_all_readers_get_a_change_by_one_look() -> None:
    async def check(feed: JobFeed, source: Counting) -> None:
        known = feed.document.version
        readers = [asyncio.create_task(feed.answer(known)) for _ in range(50)]
        await asyncio.sleep(0)
        source.value = 7
        source.news.set()
        found = await asyncio.gather(*readers)
        assert {json.loads(each or b"")["value"] for each in found} == {7}
        assert len({id(each) for each in found}) == 1

    run(check)


@pytest.mark.parametrize(("readers", "pause"), [(0, 1.1), (10, 1.1), (30, 1.5), (50, 1.8), (1000, 1.8)])
def test_many_readers_are_told_less_often_and_within_two_seconds(
    readers: int, pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "LOOK_S", 1.1)
    assert feeds.pause_s(readers) == pytest.approx(pause)


def test_the_pause_after_a_look_follows_from_those_who_waited_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    monkeypatch.setattr(feeds, "pause_s", lambda readers: counted.append(readers) or 0.01)

    async def check(feed: JobFeed, source: Counting) -> None:
        known = feed.document.version
        readers = [asyncio.create_task(feed.answer(known)) for _ in range(3)]
        await asyncio.sleep(0)
        source.value = 7
        source.news.set()
        await asyncio.gather(*readers)
        assert sum(counted) == 3

    run(check)


def test_without_news_an_answer_is_empty_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "LONGEST_S", 0.02)

    async def check(feed: JobFeed, source: Counting) -> None:
        del source
        assert await feed.answer(feed.document.version) is None
        assert (await PageApp(feed)(PageRequest("/data", {"after": feed.document.version}))).status == 204

    run(check)


def test_silence_is_told_to_those_who_wait_and_ends_with_an_answer() -> None:
    async def check(feed: JobFeed, source: Counting) -> None:
        source.silent = "PrimeMaster does not answer"
        with pytest.raises(SourceSilentError, match="PrimeMaster does not answer"):
            await feed.answer(feed.document.version)
        said = await PageApp(feed)(PageRequest("/data", {"after": feed.document.version}))
        told = json.loads(said.body)
        assert (said.status, told["error"]) == (503, "PrimeMaster does not answer")
        await until(lambda: feed.away_since is not None)
        first = feed.away_since
        # A change meanwhile does not begin the time anew.
        source.value = 5
        await until(lambda: feed.document.parts["value"] == 5)
        known = {"after": feed.document.version}
        again = json.loads((await PageApp(feed)(PageRequest("/data", known))).body)
        assert again == {"error": "PrimeMaster does not answer", "since": round(first or 0.0, 3)}
        # A reader who has an older version gets the present one all the same.
        assert (await PageApp(feed)(PageRequest("/data", {}))).status == 200
        source.silent = ""
        await until(lambda: not feed.trouble and feed.away_since is None)

    run(check)


def test_a_look_that_fails_is_told_and_tried_again() -> None:
    async def check(feed: JobFeed, source: Counting) -> None:
        source.error = UnreachableError("the head is gone")
        await until(lambda: feed.trouble == "the head is gone")
        source.error, source.value = None, 8
        await until(lambda: not feed.trouble)
        assert feed.document.parts["value"] == 8

    run(check)


def test_a_page_that_nobody_reads_is_not_kept_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(feed: JobFeed, source: Counting) -> None:
        monkeypatch.setattr(feeds, "UNREAD_S", -1.0)
        await asyncio.sleep(0.2)
        looks = source.looks
        await asyncio.sleep(0.2)
        assert source.looks == looks
        monkeypatch.setattr(feeds, "UNREAD_S", 90.0)
        source.value = 9
        assert json.loads(await feed.answer(feed.document.version) or b"")["value"] == 9

    run(check)


def test_the_page_itself_has_the_policy_of_a_live_one_and_unknown_paths_have_nothing() -> None:
    async def check(feed: JobFeed, source: Counting) -> None:
        del source
        said = await PageApp(feed)(PageRequest("/", {}))
        policy = said.headers["Content-Security-Policy"]
        assert "connect-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert b'"value":0' in said.body
        assert (await PageApp(feed)(PageRequest("/token", {}))).status == 404

    run(check)


def test_earlier_events_are_asked_for_with_the_filter_of_the_page() -> None:
    asked: list[OlderEvents] = []

    def older(question: OlderEvents) -> EarlierEvents:
        asked.append(question)
        return EarlierEvents([{"seq": 3, "message": "\udcff"}], 3)

    async def check(feed: JobFeed, source: Counting) -> None:
        app = PageApp(feed)
        source.older = older
        query = {"before": "9", "words": "killed  gpu", "reason": "Restarting", "from": "-Infinity", "to": "7.5"}
        said = await app(PageRequest("/older", query))
        assert json.loads(said.body) == {"events": [{"seq": 3, "message": "?"}], "before": 3}
        assert (await app(PageRequest("/older", {"before": "2"}))).status == 200
        assert asked == [OlderEvents(9, ("killed", "gpu"), "Restarting", -math.inf, 7.5), OlderEvents(2)]
        for wrong in ({}, {"before": "x"}, {"before": "1", "from": "early"}):
            assert (await app(PageRequest("/older", wrong))).status == 400

    run(check)


def test_earlier_events_of_a_job_that_does_not_answer_are_told_to_be_away() -> None:
    def older(_: OlderEvents) -> EarlierEvents:
        raise UnreachableError("the head is gone")

    async def check(feed: JobFeed, source: Counting) -> None:
        source.older = older
        said = await PageApp(feed)(PageRequest("/older", {"before": "9"}))
        assert (said.status, json.loads(said.body)) == (503, {"error": "the head is gone"})

    run(check)


def test_a_blocking_call_does_not_outlive_a_loop_that_is_closed() -> None:
    begun, free = threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        free.wait(10)

    async def main() -> None:
        task = asyncio.create_task(in_thread(block))
        await asyncio.to_thread(begun.wait, 10)
        task.cancel()

    asyncio.run(main())
    free.set()
    thread = next((own for own in threading.enumerate() if own.name == "dljob-look"), None)
    if thread:
        thread.join(10)


def test_an_answer_that_comes_after_its_question_was_given_up_is_dropped() -> None:
    async def main() -> None:
        task = asyncio.create_task(in_thread(lambda: time.sleep(0.05)))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(0.15)

    asyncio.run(main())


async def test_a_question_for_events_that_breaks_ends_the_feed_with_its_exception(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Counting()

    def broken() -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(source, "wait", broken)
    with pytest.raises(KeyError, match="a bug"):
        await asyncio.wait_for(JobFeed(source, LiveDocument("d")).run(), 10)
