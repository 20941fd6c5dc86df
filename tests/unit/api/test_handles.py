"""Jobs found again from Python, and their awaitable twins."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO, Unpack

import pytest

import dljob
from dljob.api import registry
from dljob.api.any_job import AnyJob, AsyncJob, LogSelection
from dljob.api.handle import JobHandle, handle_of
from dljob.api.kubernetes import connect, jobs
from dljob.api.kubernetes.handle import KubernetesJob
from dljob.api.registry import RegistryEntry
from dljob.api.views import JobEvent, JobStatus, Suspension
from dljob.errors import DeadlineError, NotFoundError, UnreachableError, UsageError

STATUS = {"phase": "Succeeded", "result": '{"loss": 0.5}', "version": 3}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLJOB_HOME", str(tmp_path))
    for number, (name, status) in enumerate({"old": STATUS, "lost": {"phase": "Running"}}.items()):
        uid = str(number) * 32
        folder = registry.folder_of(name, uid)
        registry.register(RegistryEntry(name=name, uid=uid, dir=os.fspath(folder), runner=1, started=1.0 + number))
        (folder / "status.json").write_text(json.dumps(status))
        (folder / "events.jsonl").write_text(json.dumps({"seq": 1, "time": 1.0, "reason": "Admitted"}) + "\n")


def test_jobs_lists_those_of_this_user_oldest_first() -> None:
    assert [(one.name, type(one)) for one in dljob.jobs()] == [("old", JobHandle), ("lost", JobHandle)]


@pytest.mark.parametrize("which", ["old", "0" * 32, "0" * 8])
def test_job_takes_a_name_or_a_uid(which: str) -> None:
    found = dljob.job(which)
    assert found.status()["phase"] == "Succeeded"
    assert found.result == {"loss": 0.5}
    assert [note["reason"] for note in found.events()] == ["Admitted"]
    assert found.events(1) == []


def test_a_job_that_is_not_there_is_named_with_those_close() -> None:
    with pytest.raises(NotFoundError, match="no job 'olt'") as missing:
        dljob.job("olt")
    assert "old" in missing.value.hint


def test_a_lost_job_is_not_waited_for() -> None:
    with pytest.raises(UnreachableError, match=r"lost: its runner \(pid 1\) is gone.*: it was killed"):
        dljob.job("lost").wait(5)


def test_an_ended_job_takes_no_orders_and_a_ray_suspends_nothing() -> None:
    with pytest.raises(NotFoundError, match="has ended: Succeeded"):
        dljob.job("old").stop()
    with pytest.raises(UsageError, match="only Kubernetes suspends"):
        dljob.job("old").suspend()


def test_a_lost_job_takes_no_orders() -> None:
    for order in (dljob.job("lost").stop, dljob.job("lost").restart, dljob.job("lost").stacks):
        with pytest.raises(NotFoundError, match=r"its runner \(pid 1\) is gone without a final status"):
            order()


class Reached:
    """A connection to a running job; counts those that are opened."""

    opened = 0

    def status(self, after_version: int = 0, timeout_s: float = 0.0, *, reach_s: float | None = None) -> dict[str, Any]:
        return {"phase": "Running", "version": after_version, "roles": [{"name": "w", "desired": 2}]}

    def stacks(self, target: str) -> dict[str, str]:
        return {target: "f (a.py:1)"}


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> JobHandle:
    """A job on a Ray that was there before."""

    @contextmanager
    def reach(_: RegistryEntry) -> Generator[Reached]:
        Reached.opened += 1
        yield Reached()

    monkeypatch.setattr(Reached, "opened", 0)
    monkeypatch.setattr("dljob.api.local.connection.reach", reach)
    folder = registry.folder_of("there", "7" * 32)
    return handle_of(registry.register(RegistryEntry("there", "7" * 32, os.fspath(folder), "10.0.0.1:6379")))


def test_a_block_has_one_connection(there: JobHandle) -> None:
    with there:
        assert there.stacks("w/1") == {"w/1": "f (a.py:1)"}
        with pytest.raises(NotFoundError, match="job there has no 'w/2'"):
            there.restart("w/2")
        assert Reached.opened == 1
    assert [there.status()["phase"], there.status()["phase"], Reached.opened] == ["Running", "Running", 3]


def test_the_primemaster_of_others_ray_is_seldom_asked_for_the_end_of_logs(
    there: JobHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def status(_: Reached, *, reach_s: float) -> dict[str, Any]:
        asked.append(reach_s)
        if len(asked) == 2:
            raise UnreachableError("it restarts")
        return {"phase": "Running" if len(asked) < 3 else "Succeeded"}

    monkeypatch.setattr(Reached, "status", status)
    monkeypatch.setattr("dljob.api.handle.ASK_S", 0.2)
    monkeypatch.setattr("dljob.api.handle.SILENT_S", 0.4)
    (there.dir / "logs").mkdir()
    (there.dir / "logs" / "w-0.log").write_text("a\n")
    begun, out = time.monotonic(), io.StringIO()
    there.logs(follow=True, out=out)
    assert (out.getvalue(), len(asked)) == ("[w/0] a\n", 3)
    assert time.monotonic() - begun >= 0.6


def test_logs_of_a_ray_that_is_gone_end_after_a_second_look(there: JobHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([False, True, False, False])
    asked: list[float] = []

    def status(_: Reached, *, reach_s: float) -> dict[str, Any]:
        asked.append(reach_s)
        assert len(asked) <= 4, "two looks in a row found no Ray"
        raise UnreachableError("no Ray answers")

    def listens(_: str) -> bool:
        return next(looks)

    monkeypatch.setattr(Reached, "status", status)
    monkeypatch.setattr("dljob.api.handle.SILENT_S", 0.0)
    monkeypatch.setattr("dljob.runtime.backend.connect.listens", listens)
    (there.dir / "logs").mkdir()
    (there.dir / "logs" / "w-0.log").write_text("a\nunfinished")
    out, said = io.StringIO(), list[str]()
    there.say = said.append
    there.logs(follow=True, out=out)
    assert (out.getvalue(), len(asked)) == ("[w/0] a\n[w/0] unfinished\n", 4)
    assert said == ["nothing listens at 10.0.0.1:6379 any more: the job's Ray is gone"]


async def test_a_block_within_a_loop_asks_by_a_connection_each(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    class Cluster:
        async def close(self) -> None:
            opened.append("closed")

    async def reach(context: str | None = None) -> Cluster:
        opened.append(str(context))
        return Cluster()

    async def find(*_: object) -> dict[str, Any]:
        return {"metadata": {"name": "ppo", "namespace": "team", "uid": "u-1"}}

    monkeypatch.setattr(connect, "connect", reach)
    monkeypatch.setattr(jobs, "find", find)
    with KubernetesJob.named("ppo", "team", "there") as found:
        assert [found.name, found.status()["phase"]] == ["ppo", "Pending"]
    assert opened == ["there", "closed"] * 2


def test_namespace_and_context_are_for_kubernetes() -> None:
    for call in (lambda: dljob.jobs(namespace="team"), lambda: dljob.job("old", context="c")):  # type: ignore[call-overload]
        with pytest.raises(UsageError, match="is for Kubernetes"):
            call()
    job = dljob.DLJobBuilder().role("w").run("a.B").end().build()
    with pytest.raises(UsageError, match="is for Kubernetes"):
        job.submit("ppo", namespace="team")


def test_jobs_of_a_cluster_are_handles_in_their_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"metadata": {"name": "ppo", "namespace": "team", "uid": "u-1"}, "status": {"phase": "Running"}}
    asked: list[Any] = []

    class Cluster:
        namespace = "current"

        async def close(self) -> None:
            asked.append("closed")

    async def reach(context: str | None = None) -> Cluster:
        asked.append(context)
        return Cluster()

    async def find(_: object, name: str, namespace: str) -> dict[str, Any]:
        asked.append((name, namespace))
        return body

    async def every(_: object, namespace: str | None) -> list[dict[str, Any]]:
        asked.append(namespace)
        return [body]

    monkeypatch.setattr(connect, "connect", reach)
    monkeypatch.setattr(jobs, "find", find)
    monkeypatch.setattr(jobs, "list_all", every)
    (found,) = dljob.jobs(kubernetes=True)
    assert isinstance(found, KubernetesJob)
    one = dljob.job("ppo", kubernetes=True, namespace="team", context="there")
    assert one.status()["phase"] == "Running"
    assert asked == [None, "current", "closed", "there", ("ppo", "team"), "closed", "there", ("ppo", "team"), "closed"]


class Slow(AnyJob):
    """A job that never ends, until it is let go."""

    name = uid = "slow"  # type: ignore[assignment]

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.done = threading.Event()
        self.written = threading.Event()

    def status(self) -> JobStatus:
        return {"phase": "Running"}

    def events(self, after: int = 0) -> list[JobEvent]:
        raise NotFoundError(f"nothing after {after}")

    def wait(self, timeout: float | None = None) -> JobStatus:
        if not self.let_go.wait(timeout):
            raise DeadlineError("too slow")
        return {"phase": "Succeeded"}

    @property
    def result(self) -> object:
        return 42

    def restart(self, target: str = "job") -> None: ...
    def scale(self, role: str, ranks: int) -> None: ...
    def stop(self, *, wait: bool = False) -> None: ...
    def suspend(self, *, wait: bool = False) -> Suspension: ...
    def resume(self, *, wait: bool = False) -> Suspension: ...
    def stacks(self, target: str = "job") -> dict[str, str]: ...

    def _write_logs(self, to: TextIO, *, follow: bool, **which: Unpack[LogSelection]) -> None:
        to.write("first\n")
        self.written.set()
        self.let_go.wait()
        try:
            to.write("second\n")
        finally:
            self.done.set()

    def _write_master_log(self, to: TextIO, *, follow: bool, tail: int | None, since: float | None) -> None:
        to.write(f"{follow} {tail} {since}\n")


async def test_the_masters_log_takes_no_rank() -> None:
    slow, out = Slow(), io.StringIO()
    await slow.aio.logs(master=True, tail=3, since=datetime.fromtimestamp(7.5, UTC), out=out)
    assert out.getvalue() == "False 3 7.5\n"
    with pytest.raises(UsageError, match="master=True excludes a role or rank"):
        await slow.aio.logs(master=True, role="w")


async def test_a_twin_answers_and_raises_as_its_method() -> None:
    slow = Slow()
    assert await slow.aio.status() == {"phase": "Running"}
    assert await slow.aio.result == 42
    with pytest.raises(NotFoundError, match="nothing after 7"):
        await slow.aio.events(7)
    with pytest.raises(DeadlineError):
        await slow.aio.wait(0)


async def test_a_twin_that_is_cancelled_lets_the_loop_go_on() -> None:
    slow = Slow()
    waiting = asyncio.create_task(slow.aio.wait())
    await slow.aio.status()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    slow.let_go.set()


async def test_logs_write_nothing_after_they_were_cancelled() -> None:
    slow, out = Slow(), io.StringIO()
    following = asyncio.create_task(slow.aio.logs(follow=True, out=out))
    await asyncio.to_thread(slow.written.wait)
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    slow.let_go.set()
    await asyncio.to_thread(slow.done.wait)
    assert out.getvalue() == "first\n"


def test_every_method_of_a_handle_has_its_twin() -> None:
    def public(of: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(of) if not name.startswith("_")}

    assert public(AnyJob) - public(AsyncJob) == {"aio", "name", "uid", "say"}
    for handle in (JobHandle, KubernetesJob):
        for name in public(AnyJob) - {"aio", "name", "uid", "say", "result"}:
            own, twin = inspect.signature(getattr(handle, name)), inspect.signature(getattr(AsyncJob, name))
            assert list(own.parameters) == list(twin.parameters), f"{handle.__name__}.{name}"
