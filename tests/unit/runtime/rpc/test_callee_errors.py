"""What a callee raised reaches its callers with the callee's line, through calls of any form and any number of them."""

from __future__ import annotations

import asyncio
import pickle
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict
from typing import Any

import pytest
from life_kit import context
from rpc_threads import Threads

import dljob
from dljob import PeerLostError, RemoteError, RoleGroup, rpc
from dljob.errors import ErrorOrigin, JobEndingError
from dljob.runtime.process import outcome
from dljob.runtime.process.context import install


class OddError(Exception):
    """An error that pickle cannot restore."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first}-{second}")


def look_up(key: str) -> float:
    return {"good": 1.0}[key]


class Talker:
    """A rank whose methods raise."""

    @rpc
    def leaf(self) -> float:
        return look_up("bad")

    @rpc
    async def coroutine(self) -> float:
        await asyncio.sleep(0)
        return look_up("bad")

    @rpc
    def chained(self) -> None:
        try:
            look_up("bad")
        except KeyError as error:
            raise RuntimeError("see above") from error

    @rpc
    def replaced(self) -> None:
        try:
            look_up("bad")
        except KeyError:
            raise RuntimeError("no such score")  # noqa: B904 - as users write it

    @rpc(stream=True)
    def items(self) -> Iterator[float]:
        yield 1.0
        yield look_up("bad")

    @rpc(stream=True)
    async def async_items(self) -> AsyncIterator[float]:
        yield 1.0
        yield look_up("bad")

    @rpc(dispatch="shard", collect="concat", idempotent=True)
    def rows(self, keys: list[str]) -> list[float]:
        return [look_up(key) for key in keys]

    @rpc
    def one(self, key: str) -> float:
        return look_up(key)

    @rpc
    def ends(self) -> None:
        raise JobEndingError("judge/0.score: the job is ending: Succeeded", role="judge", rank=0)

    @rpc
    def odd(self) -> None:
        raise OddError(1, 2)

    @rpc
    def odd_answer(self) -> OddError:
        return OddError(1, 2)

    @rpc
    def no_answer(self) -> Any:
        return threading.Lock()

    @rpc
    def further(self) -> float:
        return RoleGroup("talker")[1].leaf()

    @rpc
    def furthest(self) -> float:
        return RoleGroup("talker")[0].further()


@pytest.fixture(autouse=True)
def calls() -> Iterator[Threads]:
    made = Threads([Talker(), Talker()])
    install(context(role="caller", rank=0, world_size=1, peers={"talker": 2, "caller": 1}, calls=made))
    made.open()
    yield made
    install(None)
    made.pool.shutdown()


def talker() -> Any:
    return RoleGroup("talker")[1]


async def await_each(stream: Any) -> None:
    async for _ in stream:
        pass


async def await_it(future: Any) -> None:
    await future


def caught(call: Callable[[], object]) -> RemoteError:
    with pytest.raises(RemoteError) as raised:
        call()
    return raised.value


@pytest.mark.parametrize(
    "call",
    [
        lambda: talker().leaf(),
        lambda: talker().coroutine(),
        lambda: talker().call("leaf").result(),
        lambda: asyncio.run(await_it(talker().call("leaf"))),
        lambda: talker().chained(),
        lambda: talker().replaced(),
        lambda: list(talker().items()),
        lambda: list(talker().async_items()),
        lambda: asyncio.run(await_each(talker().stream("items"))),
        lambda: [call.result() for call in talker().map("one", ["good", "bad"])],
        lambda: RoleGroup("talker").rows(["good", "bad"]),
        lambda: RoleGroup("talker").call_batch("rows", 2, ["good", "bad"]).result(),
        lambda: list(RoleGroup("talker").call_batch("rows", 2, ["good", "bad"])),
        lambda: RoleGroup("talker").call_batch("rows", 2, ["good", "bad"])[1],
        lambda: [*RoleGroup("talker").options(collect="as_completed").rows(["good", "bad"])],
        lambda: talker().further(),
        lambda: talker().furthest(),
    ],
)
def test_error_of_a_callee_has_its_line_and_its_traceback_below_the_callers(call):
    error = caught(call)
    assert error.origin is not None
    assert (error.origin.rank, error.origin.incarnation) == ("talker/1", 1)
    assert (error.origin.error_type, error.origin.message) == ("KeyError", "'bad'")
    assert error.origin.frame.endswith(" in look_up")
    assert "\n" not in error.message
    shown = "".join(traceback.format_exception(error))
    places = [shown.index("in caught"), shown.index("RemoteError: talker/"), shown.index("in look_up")]
    places.append(shown.rindex("KeyError: 'bad'"))
    assert places == sorted(places)
    assert dljob.__path__[0] not in shown, "frames of dljob's own"
    assert "concurrent/futures" not in shown.partition("dljob.errors.RemoteError")[2]


@pytest.mark.parametrize(
    ("method", "error_type", "line"),
    [
        ("odd", "OddError", " in odd"),
        ("no_answer", "WireError", " in no_answer"),
        ("odd_answer", "WireError", ""),
    ],
)
def test_error_or_answer_that_cannot_be_pickled_is_the_callees(method, error_type, line):
    origin = caught(lambda: talker().call(method).result()).origin
    assert origin is not None
    assert (origin.rank, origin.error_type) == ("talker/1", error_type)
    assert origin.frame.endswith(line)


def test_method_that_does_not_exist_is_the_callers_error():
    assert caught(lambda: talker().call("leave").result()).origin is None


def test_callees_log_has_a_traceback_of_each_place_once(capsys):
    for _ in range(5):
        caught(lambda: talker().leaf())
    caught(lambda: talker().odd())
    caught(lambda: talker().ends())
    log = capsys.readouterr().err
    assert log.count("Traceback (most recent call last)") == 2
    assert log.count("leaf, called by me, raised:\n") == 1
    assert [line.rpartition(": ")[2] for line in log.splitlines() if " again " in line] == [
        "2 times by now",
        "4 times by now",
    ]


def test_callees_log_remembers_a_bounded_number_of_places(calls, monkeypatch, capsys):
    monkeypatch.setattr("dljob.runtime.rpc.server.PLACES", 1)
    for method in ("leaf", "odd", "odd"):
        caught(lambda method=method: talker().call(method).result())
    assert len(calls.callees[1]._error_log._counts) == 1
    assert capsys.readouterr().err.count("Traceback") == 2


def raise_from() -> None:
    try:
        talker().leaf()
    except RemoteError as error:
        raise ValueError("no scores") from error


def raise_instead() -> None:
    try:
        talker().leaf()
    except RemoteError:
        raise ValueError("no scores")  # noqa: B904 - as users write it


def exit_instead() -> None:
    try:
        talker().leaf()
    except RemoteError:
        raise SystemExit(3)  # noqa: B904 - as users write it


def raise_in_group() -> None:
    async def scores() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(await_it(talker().call("leaf")))

    asyncio.run(scores())


def fail_in_handler() -> None:
    try:
        talker().leaf()
    except RemoteError:
        look_up("worse")


def raise_anew() -> None:
    try:
        talker().leaf()
    except RemoteError:
        raise ValueError("no scores") from None


@pytest.mark.parametrize(
    ("code", "rank"),
    [
        (raise_from, "talker/1"),
        (raise_instead, "talker/1"),
        (exit_instead, "talker/1"),
        (raise_in_group, "talker/1"),
        (fail_in_handler, ""),
        (raise_anew, ""),
    ],
)
def test_end_of_a_caller_has_the_origin_of_the_error_that_it_follows_from(code, rank):
    with pytest.raises(BaseException) as raised:  # noqa: PT011 - a group or an exit, too
        code()
    ended = outcome.from_exception(raised.value, code_dir="", phase="run")
    assert (ended.origin.rank if ended.origin else "") == rank
    assert outcome.decode_outcome(asdict(ended)) == ended


def test_errors_of_calls_come_back_from_pickle():
    origin = ErrorOrigin("talker/1", 1, "KeyError", "'bad'", "f.py:9 in f")
    lost = PeerLostError("gone", role="talker", rank=1, incarnation=2, hint="look")
    raised = RemoteError("raised", role="talker", rank=1, remote_traceback="KeyError: 'bad'\n", origin=origin)
    for error in (lost, raised):
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301
        assert (type(copy), copy.args, vars(copy), str(copy)) == (type(error), error.args, vars(error), str(error))
