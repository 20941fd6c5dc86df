"""Version lines: a version and the references of its buckets arrive, and every loss is left to Ray."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from master_shell_kit import until

from dljob.runtime.rpc.lines import Line
from dljob.runtime.weights import version_lines
from dljob.runtime.weights.model import Version
from dljob.runtime.weights.version_lines import KeeperLines, VersionLine, line_to
from dljob.tasks import TaskOwner, nobody_waits


class Keeper:
    """Answers as the keeper does, when it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[Any, ...]]] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.answer: Any = None
        self.tasks = TaskOwner(nobody_waits)
        self.lines = KeeperLines(self.answers, self.tasks)

    async def answers(self, name: str, args: tuple[Any, ...]) -> Any:
        self.asked.append((name, args))
        await self.gates.setdefault(name, asyncio.Event()).wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def open(self, name: str) -> None:
        self.gates.setdefault(name, asyncio.Event()).set()


@pytest.fixture
async def keeper(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Keeper]:
    monkeypatch.setattr(version_lines, "packed_ref", lambda ref: ("packed", ref))
    monkeypatch.setattr(version_lines, "borrowed_ref", lambda _, ref: f"borrowed {ref}")
    made = Keeper()
    yield made
    made.tasks.close()


def in_thread(work: Callable[[], Any]) -> asyncio.Future[Any]:
    """Run what blocks beside the keeper's loop."""
    return asyncio.get_running_loop().run_in_executor(ThreadPoolExecutor(1), work)


async def test_version_arrives_with_references_that_keep_nothing(keeper):
    line = VersionLine(keeper.lines.address)
    keeper.answer = Version("n", 1, b"index", refs=["a", "b"])
    keeper.open("newer")
    found = await in_thread(lambda: line.ask("newer", ("t", 1), 5.0, end=None))
    assert found == (Version("n", 1, b"index", refs=["borrowed a", "borrowed b"]),)
    assert keeper.asked == [("newer", (("t", 1), 5.0))]


async def test_buckets_are_kept_until_the_keeper_has_copied_them(keeper):
    line, version = VersionLine(keeper.lines.address), Version("n", 1, b"", refs=["a"])
    keeper.answer = 7.5
    keeper.open("offer")
    assert await in_thread(lambda: line.offer("w/0", version)) == (7.5,)
    await until(lambda: len(keeper.asked) == 2)
    assert keeper.asked[1] == ("copied", ("n",))
    assert line._borrowed == {"n": version}
    keeper.open("copied")
    await until(lambda: not line._borrowed)


async def test_nothing_is_kept_for_a_keeper_that_is_gone(keeper, monkeypatch):
    ends: list[Line] = []
    begin = KeeperLines._begin

    def noted(self: KeeperLines, line: Line, number: int, message: bytes) -> None:
        ends.append(line)
        begin(self, line, number, message)

    monkeypatch.setattr(KeeperLines, "_begin", noted)
    line = VersionLine(keeper.lines.address)
    waits = in_thread(lambda: line.offer("w/0", Version("n", 1, b"", refs=["a"])))
    await until(lambda: ends)
    ends[0].shut_down()
    assert await waits is None
    assert line._borrowed == {}
    assert line.ask("newer", ("t", 1), 5.0, end=None) is None


async def test_buckets_are_kept_for_a_while_where_the_line_broke_before_the_copy(keeper, monkeypatch):
    line, version = VersionLine(keeper.lines.address), Version("n", 1, b"", refs=["a"])
    keeper.open("offer")
    keeper.answer = 7.5
    await in_thread(lambda: line.offer("w/0", version))
    await until(lambda: len(keeper.asked) == 2)
    assert line._line.line is not None
    line._line.line.shut_down()
    await until(lambda: line.is_closed)
    assert line._borrowed == {"n": version}, "the keeper may live, and copy it still"
    monkeypatch.setattr(version_lines, "KEPT_S", 0.01)
    line._copied("n", None)
    await until(lambda: not line._borrowed)


async def test_interrupted_offer_keeps_no_buckets(keeper, monkeypatch):
    line = VersionLine(keeper.lines.address)

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(line, "ask", interrupted)
    with pytest.raises(KeyboardInterrupt):
        line.offer("w/0", Version("n", 1, b"", refs=["a"]))
    assert line._borrowed == {}


async def test_channels_of_a_process_share_one_line_and_one_thread(keeper):
    first = line_to(keeper.lines.address)
    assert first is not None
    threads = threading.active_count()
    assert line_to(keeper.lines.address) is first
    assert threading.active_count() == threads
    assert first._line.line is not None
    first._line.line.shut_down()
    await until(lambda: first.is_closed)
    assert line_to(keeper.lines.address) not in {None, first}


async def test_keeper_that_fails_at_a_question_leaves_it_to_ray(keeper, caplog):
    line = VersionLine(keeper.lines.address)
    keeper.answer = RuntimeError("no such thing")
    keeper.open("newer")
    assert await in_thread(lambda: line.ask("newer", ("t", 1), 5.0, end=None)) is None
    assert "question by a line ended by an exception" in caplog.text


async def test_question_without_an_answer_ends_at_its_end(keeper, monkeypatch):
    monkeypatch.setattr(version_lines, "LOOK_S", 0.001)
    line, begin = VersionLine(keeper.lines.address), time.monotonic()
    with pytest.raises(TimeoutError):
        await in_thread(lambda: line.ask("newer", ("t", 1), 5.0, end=begin + 0.05))
    assert time.monotonic() >= begin + 0.05


def test_machine_without_the_keeper_has_no_line():
    assert line_to("\0nobody listens here") is None
