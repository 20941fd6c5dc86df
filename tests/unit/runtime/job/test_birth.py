"""A job whose maker goes while its PrimeMaster begins: nothing is left of it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any, cast

import pytest
from memory_backend import MemoryBackend

from dljob.errors import DeadlineError, UnreachableError, UsageError
from dljob.master.state.views import NodeView
from dljob.runtime.backend import interface
from dljob.runtime.backend.interface import ActorCallError, ActorLostError, ActorRef, ActorSpec
from dljob.runtime.job import launch
from dljob.runtime.job.create_master import create
from dljob.runtime.job.launch import begin
from dljob.runtime.job.outline import Outline
from dljob.runtime.journal.job_record import REGISTRY, JobRecord, MasterOrder
from dljob.runtime.process.loop import settle

UID = "f" * 32
MASTER = f"{UID[:8]}/master"
JOB = Outline("{}", "j", None, {}, 60.0)


class Slow(MemoryBackend):
    """A backend that does not come past a call of this name while the event is not set."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at, self.may = at, asyncio.Event()
        self.there = lambda: None

    async def _come_to(self, what: str) -> None:
        if what == self.at:
            self.there()
            await self.may.wait()

    async def nodes(self) -> tuple[NodeView, ...]:
        await self._come_to("nodes")
        return await super().nodes()

    async def spawn(self, spec: ActorSpec) -> ActorRef:
        await self._come_to("spawn")
        return await super().spawn(spec)

    async def call(self, ref: ActorRef, method: str, *args: Any) -> Any:
        self.groups[f"{UID[:8]}/worker/0/1"] = "n1"  # it has begun to work
        await self._come_to("hello")


def make(backend: MemoryBackend) -> asyncio.Task[None]:
    order, entry = MasterOrder(UID, "/nowhere", "", "dljob", "memory"), JobRecord(UID, "j", "/nowhere", 0.0)
    return asyncio.create_task(create(cast("Any", backend), order, entry, JOB, away=False))


@pytest.mark.parametrize("at", ["nodes", "spawn", "hello"])
async def test_a_job_cancelled_while_it_begins_leaves_nothing(at):
    backend, there = Slow(at), asyncio.Event()
    backend.there = there.set
    making = make(backend)
    await there.wait()
    making.cancel()
    await asyncio.sleep(0)
    backend.may.set()
    with pytest.raises(asyncio.CancelledError):
        await making
    assert (backend.hosts, backend.groups, backend.kv.values) == ({}, {}, {})


async def test_a_master_that_another_launcher_made_stays():
    backend, there = Slow("spawn"), asyncio.Event()
    backend.there = there.set
    making = make(backend)
    await there.wait()
    making.cancel()
    await MemoryBackend.spawn(backend, ActorSpec(MASTER, "os.path.C"))
    backend.may.set()
    with pytest.raises(UsageError):
        await making
    assert list(backend.hosts) == [MASTER]
    assert REGISTRY + UID in backend.kv.values


@pytest.mark.parametrize(
    ("error", "told", "words"),
    [
        (TimeoutError(), DeadlineError, "did not answer within createTimeoutSeconds = 60"),
        (
            ActorCallError("no such file", error_type="OSError", remote_traceback=""),
            UnreachableError,
            "could not be created: no such file",
        ),
    ],
)
async def test_a_master_without_an_answer_is_undone_and_the_error_says_which_way(error, told, words, monkeypatch):
    async def fails(*_: Any) -> None:
        raise error

    backend = Slow("")
    monkeypatch.setattr(backend, "call", fails)
    with pytest.raises(told, match=words):
        await make(backend)
    assert (backend.hosts, backend.groups, backend.kv.values) == ({}, {}, {})


@pytest.mark.parametrize("step", ["nodes", "spawn"])
async def test_a_job_whose_master_cannot_be_made_is_in_no_list(step, monkeypatch):
    async def fails(*_: Any) -> None:
        raise RuntimeError("the GCS is silent")

    backend = Slow("")
    monkeypatch.setattr(backend, step, fails)
    with pytest.raises(RuntimeError, match="the GCS is silent"):
        await make(backend)
    assert backend.kv.values == {}


@pytest.mark.parametrize("known", [True, False])
async def test_a_master_that_may_have_been_made_all_the_same_keeps_its_keys(known, monkeypatch):
    backend = Slow("")
    spawn = backend.spawn

    async def answers_too_late(spec: ActorSpec) -> ActorRef:
        await spawn(spec)
        raise RuntimeError("no answer")

    async def unsure(_name: str) -> None:
        raise ActorLostError("no answer either", certain=False)

    monkeypatch.setattr(backend, "spawn", answers_too_late)
    if not known:
        monkeypatch.setattr(backend, "lookup", unsure)
    with pytest.raises(RuntimeError, match="no answer"):
        await make(backend)
    assert REGISTRY + UID in backend.kv.values


async def test_a_ray_that_cannot_say_whether_the_master_is_there_does_not_undo_it(monkeypatch):
    backend, errors = Slow(""), [ActorLostError("unreachable", certain=False)]
    call, lookup, unsure = backend.call, backend.lookup, [ActorLostError("no answer", certain=False)]

    async def calls(*args: Any) -> Any:
        if errors:
            raise errors.pop()
        return await call(*args)

    async def looks(name: str) -> ActorRef | None:
        if unsure:
            raise unsure.pop()
        return await lookup(name)

    monkeypatch.setattr(interface, "AGAIN_S", 0.01)
    monkeypatch.setattr(backend, "call", calls)
    monkeypatch.setattr(backend, "lookup", looks)
    await make(backend)
    assert not errors
    assert not unsure
    assert (list(backend.hosts), REGISTRY + UID in backend.kv.values) == ([MASTER], True)


@pytest.fixture
def interrupts() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_ctrl_c_waits_until_what_was_begun_is_put_right():
    seen: list[str] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.1)
            seen.append("put right")

    with pytest.raises(KeyboardInterrupt):
        settle(work())
    assert seen == ["put right"]


@pytest.mark.usefixtures("interrupts")
def test_ctrl_c_while_a_job_begins_leaves_nothing_of_it(tmp_path, monkeypatch):
    backend = Slow("hello")
    backend.there = lambda: os.kill(os.getpid(), signal.SIGINT)
    monkeypatch.setattr(launch, "factory", lambda _name: lambda _options: backend)
    monkeypatch.setattr(launch.admitting, "check", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        begin(JOB, job_dir=tmp_path, code_dir=None, uid=UID)
    assert (backend.hosts, backend.groups, backend.kv.values) == ({}, {}, {})


def test_ctrl_c_between_the_order_and_the_wait_is_heard_too(monkeypatch):
    seen: list[str] = []
    submit = asyncio.run_coroutine_threadsafe

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            seen.append("put right")

    def interrupted(coroutine: Any, loop: asyncio.AbstractEventLoop) -> None:
        submit(coroutine, loop)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        settle(work())
    assert seen == ["put right"]
