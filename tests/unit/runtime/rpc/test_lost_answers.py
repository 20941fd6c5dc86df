"""A call whose answer is lost, by what Ray says of it: sent again where that does no harm, told as a lost peer else."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ray import exceptions as rx

from dljob.calls.trace_rows import CallerRow, decode
from dljob.errors import CallError, CallTimeoutError, PeerLostError
from dljob.runtime.process.messages import CLOSE, PULL, Call, NotRun, Peer, Reply
from dljob.runtime.process.worker_context import RankCall
from dljob.runtime.rpc import client
from dljob.runtime.rpc.call_trace import RankTrace
from dljob.runtime.rpc.client import RpcClient

NODE_LOST = rx.ObjectLostError("ff", None, "")
LOST = [NODE_LOST, rx.OutOfMemoryError("ended by the memory monitor"), rx.LocalRayletDiedError()]


class Host:
    """A callee's process, which lives on; it gives these answers in their turn, an error of Ray's by raising it."""

    def __init__(self, *answers: Reply | rx.RayError) -> None:
        self.answers = list(answers)
        self.called: list[Call] = []
        self.invoke = SimpleNamespace(remote=self._invoke, options=lambda **_: self.invoke)

    def _get_local_state(self) -> int:
        return 2

    async def _invoke(self, message: bytes) -> bytes:
        self.called.append(Call.unpacked(message)[0])
        answer = self.answers.pop(0)
        if isinstance(answer, rx.RayError):
            raise answer
        return answer.packed()


class Master:
    def __init__(self) -> None:
        self.await_peer = SimpleNamespace(remote=self._await_peer)
        self.hang_of = SimpleNamespace(remote=self._hang_of)
        self.hang: str | rx.RayError = ""
        self.asked = list[int]()

    async def _hang_of(self, role: str, rank: int, incarnation: int) -> str:
        assert (role, rank) == ("t", 0)
        self.asked.append(incarnation)
        if isinstance(self.hang, rx.RayError):
            raise self.hang
        return self.hang

    async def _await_peer(self, role: str, rank: int, after: int) -> Peer:
        assert after == 0, "the process may live: nothing says that there will be another one"
        return Peer(role, rank, 3, "a", ready=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RETRY_S", 0.001)


async def called(
    host: Host, *, idempotent: bool = False, known: bool | None = None, method: str = "score", label: str = ""
) -> Reply:
    calls = RpcClient(cast("Any", SimpleNamespace(name="j", namespace="n", uid="u")), "w/0")
    calls._master, calls._handles["a"] = Master(), host
    if known is not None:
        calls._idempotent["t", "score"] = known
    return await calls._run(RankCall("t", 0, method, b"", 60.0, idempotent, label=label, id="1"), ())


@pytest.mark.parametrize("error", LOST, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(("idempotent", "known"), [(True, None), (False, True)])
async def test_a_call_with_a_lost_answer_is_sent_again_where_idempotent(error, idempotent, known):
    host = Host(error, error, Reply(payload=b"1", idempotent=True))
    assert (await called(host, idempotent=idempotent, known=known)).payload == b"1"
    assert [call.again for call in host.called] == [False, not idempotent, not idempotent]


@pytest.mark.parametrize("error", LOST, ids=lambda error: type(error).__name__)
async def test_a_lost_answer_is_told_as_a_lost_peer_with_rays_words(error):
    host = Host(error)
    with pytest.raises(PeerLostError) as caught:
        await called(host, known=False)
    said = f"t/0.score: the answer of t/0 (incarnation 3) was lost: {type(error).__name__}: "
    assert caught.value.message.startswith(said)
    assert caught.value.message.endswith(": it may have run, or not")
    assert len(host.called) == 1
    if error is NODE_LOST:
        assert "All copies of ff have been lost due to node failure" in str(caught.value)


async def test_the_callee_tells_whether_a_call_with_a_lost_answer_is_idempotent():
    with pytest.raises(PeerLostError, match=r"the answer of t/0 \(incarnation 3\) was lost: ObjectLostError: Failed"):
        await called(Host(NODE_LOST, Reply(refused=NotRun.NOT_AGAIN)))


async def test_a_dead_process_is_told_as_a_lost_peer():
    with pytest.raises(
        PeerLostError, match=r"the process of t/0 \(incarnation 3\) died with the call: it may have run"
    ):
        await called(Host(rx.ActorDiedError()), known=False)


@pytest.mark.parametrize(
    "hang", ["w/0 has waited 181 s for t/0.score", rx.ActorDiedError(), None], ids=["hung", "no answer", "older master"]
)
async def test_a_call_that_is_lost_for_a_hang_says_so_where_the_master_answers(hang):
    calls = RpcClient(cast("Any", SimpleNamespace(name="j", namespace="n", uid="u")), "w/0")
    calls._master, calls._handles["a"] = Master(), Host(rx.ActorDiedError())
    calls._master.hang = hang
    if hang is None:
        del calls._master.hang_of
    calls._idempotent["t", "score"] = False
    with pytest.raises(PeerLostError) as caught:
        await calls._run(RankCall("t", 0, "score", b"", 60.0, False, id="1"), ())
    said = "t/0.score: the process of t/0 (incarnation 3) died with the call: it may have run, or not"
    more = f"; it hung: {hang}" if isinstance(hang, str) else ""
    assert caught.value.message == said + more


async def test_a_call_that_the_next_process_refuses_says_for_what_the_one_before_was_ended():
    calls = RpcClient(cast("Any", SimpleNamespace(name="j", namespace="n", uid="u")), "w/0")
    calls._master, calls._handles["a"] = Master(), Host(rx.ActorDiedError(), Reply(refused=NotRun.NOT_AGAIN))
    calls._peers["t", 0], calls._master.hang = Peer("t", 0, 2, "a", ready=True), "w/0 has waited 181 s for t/0.score"

    async def next_peer(*_: Any) -> Peer:
        calls._handles["a"] = host
        return Peer("t", 0, 3, "a", ready=True)

    host, calls._master.await_peer = calls._handles["a"], SimpleNamespace(remote=next_peer)
    with pytest.raises(PeerLostError, match=r"incarnation 2\) died .*; it hung: w/0 has waited 181 s for t/0"):
        await calls._run(RankCall("t", 0, "score", b"", 60.0, False, id="1"), ())
    assert calls._master.asked == [2]


async def test_an_error_raised_by_the_callee_stays_the_callees_whatever_its_type():
    raised = rx.RayTaskError("invoke", "its traceback", NODE_LOST).as_instanceof_cause()
    assert isinstance(raised, rx.ObjectLostError)
    host = Host(raised)
    with pytest.raises(CallError, match=r"t/0\.score failed in its host") as caught:
        await called(host, idempotent=True)
    assert (type(caught.value), len(host.called)) == (CallError, 1)


async def test_an_answer_that_cannot_be_had_is_not_asked_for_again_and_again():
    host = Host(rx.RaySystemError("cannot be read"))
    with pytest.raises(
        CallError, match=r"t/0\.score: its answer cannot be fetched: RaySystemError: .*cannot be read"
    ) as caught:
        await called(host, idempotent=True)
    assert (type(caught.value), len(host.called)) == (CallError, 1)


@pytest.mark.parametrize("method", [PULL, CLOSE])
async def test_a_stream_whose_rank_ended_is_asked_of_no_later_one(method):
    host = Host(Reply(refused=NotRun.ENDED, message="t/0 ended well"))
    with pytest.raises(PeerLostError, match=r"t/0\.tokens: the process of t/0 \(incarnation 3\) died"):
        await called(host, method=method, label="tokens")
    assert len(host.called) == 1


@pytest.mark.parametrize(
    ("answer", "died"),
    [
        (rx.ActorDiedError(), True),
        (NODE_LOST, False),
        (Reply(refused=NotRun.ENDED), False),
        (Reply(refused=NotRun.CUT_OFF), False),
        (Reply(refused=NotRun.NOT_AGAIN), False),
    ],
)
async def test_a_call_that_its_caller_sends_again_itself_goes_nowhere_else(answer, died):
    calls, host = RpcClient(cast("Any", SimpleNamespace(name="j", namespace="n", uid="u")), "w/0"), Host(answer)
    calls._master, calls._handles["a"] = Master(), host
    with pytest.raises(PeerLostError) as caught:
        await calls._run(RankCall("t", 0, "tokens", b"", 60.0, False, id="1", once=True), ())
    assert (caught.value.incarnation, caught.value.died, len(host.called)) == (3, died, 1)


async def test_a_process_known_to_be_dead_was_not_killed_by_the_call(monkeypatch):
    calls = RpcClient(cast("Any", SimpleNamespace(name="j", namespace="n", uid="u")), "w/0")
    calls._master, calls._handles["a"] = Master(), Host()
    monkeypatch.setattr(client, "known_dead", lambda _: True)
    with pytest.raises(PeerLostError) as caught:
        await calls._run(RankCall("t", 0, "tokens", b"", 60.0, False, id="1", once=True), ())
    assert not caught.value.died


async def test_a_call_for_one_process_does_not_wait_for_a_later_one():
    calls = RpcClient(cast("Any", SimpleNamespace(name="j", namespace="n", uid="u")), "w/0")
    host = Host(Reply(payload=b"1"))
    calls._master, calls._handles["a"] = Master(), host
    calls._peers["t", 0] = Peer("t", 0, 3, "a", ready=True)
    pull = RankCall("t", 0, PULL, b"", 60.0, False, id="1", only=3)
    assert (await calls._run(pull, ())).payload == b"1"
    pull.only = 2
    with pytest.raises(PeerLostError, match="incarnation 2"):
        await calls._run(pull, ())
    assert len(host.called) == 1


async def test_python_does_not_warn_of_an_answer_for_which_no_time_is_left():
    async def answer() -> bytes:
        return b""

    calls = RpcClient(cast("Any", SimpleNamespace(name="j", namespace="n", uid="u")), "w/0")
    late, unread = RankCall("t", 0, "score", b"", 0.0, False, id="1"), answer()
    with pytest.raises(CallTimeoutError):
        await calls._run(late, Peer("t", 0, 1, "a", ready=True), unread)
    assert inspect.getcoroutinestate(unread) == inspect.CORO_CLOSED


async def test_calls_sent_again_and_lost_are_counted():
    calls = RpcClient(cast("Any", SimpleNamespace(name="j", namespace="n", uid="u")), "w/0")
    host = Host(NODE_LOST, Reply(payload=b"1"), NODE_LOST)
    calls._master, calls._handles["a"] = Master(), host
    await calls._run(RankCall("t", 0, "score", b"", 60.0, True, id="1"), ())
    calls._idempotent["t", "other"] = False
    with pytest.raises(PeerLostError):
        await calls._run(RankCall("t", 0, "other", b"", 60.0, False, id="2"), ())
    assert calls.counts.methods == {"t.score": [0, 0, 1, 0], "t.other": [0, 0, 0, 1]}


def callers_in(folder: Path) -> list[CallerRow]:
    found = [own for own in (decode(file.read_bytes().splitlines()) for file in folder.glob("*.jsonl")) if own]
    return [row for own in found for row in own.rows if isinstance(row, CallerRow)]


async def traced(host: Host, tmp_path: Path, *calls: RankCall) -> list[CallerRow]:
    """Make calls, of which none is sampled, in a client that traces; return their rows."""
    trace = RankTrace(tmp_path, "w", 0, 100_000)
    trace.level = 1
    client = RpcClient(cast("Any", SimpleNamespace(name="j", namespace="n", uid="u")), "w/0", trace)
    client._master, client._handles["a"] = Master(), host
    client._idempotent["t", "other"] = False
    for call in calls:
        with suppress(PeerLostError):
            await client._run(call, ())
    trace.flush(1.0)
    return callers_in(tmp_path)


async def test_calls_sent_again_and_lost_are_traced_though_not_sampled(tmp_path):
    host = Host(Reply(payload=b"1"), NODE_LOST, Reply(payload=b"1"), NODE_LOST)
    usual, again = (RankCall("t", 0, "score", b"", 60.0, True, id=number) for number in "12")
    lost = RankCall("t", 0, "other", b"", 60.0, False, id="3")
    rows = await traced(host, tmp_path, usual, again, lost)
    assert [(row.method, row.sends, row.outcome) for row in rows] == [("score", 2, "ok"), ("other", 1, "PeerLostError")]
    assert [call.traced for call in host.called] == [False, False, True, False]


def test_an_answer_that_a_thread_fetched_itself_is_traced(tmp_path):
    trace, call = RankTrace(tmp_path, "w", 0, 100_000), RankCall("t", 0, "score", b"", 60.0, True, id="1")
    client = RpcClient(cast("Any", SimpleNamespace(name="j", namespace="n", uid="u")), "w/0", trace)
    trace.begin(call, 1)
    client._direct_answer(call, Reply(error_type="ValueError"))
    trace.flush(1.0)
    assert [row.outcome for row in callers_in(tmp_path)] == ["ValueError"]


async def test_call_that_waits_for_its_callee_is_counted_as_parked():
    calls, comes = RpcClient(cast("Any", SimpleNamespace(name="j", namespace="n", uid="u")), "w/0"), asyncio.Event()
    asked = asyncio.Event()

    async def await_peer(*_: Any) -> Peer:
        asked.set()
        await comes.wait()
        return Peer("t", 0, 3, "a", ready=True)

    calls._master = SimpleNamespace(await_peer=SimpleNamespace(remote=await_peer))
    calls._handles["a"] = Host(Reply(payload=b"1"))
    run = asyncio.create_task(calls._run(RankCall("t", 0, "score", b"", 60.0, True, id="1"), ()))
    await asked.wait()
    assert calls.counts.methods == {"t.score": [0, 1, 0, 0]}
    comes.set()
    await run
    assert calls.counts.methods == {"t.score": [0, 0, 0, 0]}
