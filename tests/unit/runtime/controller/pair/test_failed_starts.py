"""Both PrimeMasters of a job fail before a claim: a fault that passes is survived, one that stays ends the job."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from master_shell_kit import HANG_S, UID, until
from memory_backend import MemoryBackend

from dljob.errors import NotFoundError
from dljob.master.placement import takeover
from dljob.runtime.backend.interface import ActorCallError, ActorLostError
from dljob.runtime.backend.masters import FIRST, SECOND, actor_name
from dljob.runtime.controller import prime, standby
from dljob.runtime.journal.job_record import REGISTRY, MasterOrder, forget, read_status, sign_off_unplanned
from dljob.runtime.journal.stores import FileStore
from dljob.telemetry import reasons

ALLOWED = 3
"""`master.maxRestarts` of the job."""


class ProcessEndError(BaseException):
    """The process of a PrimeMaster has ended itself."""


class RestartedMaster:
    """One of the two actors: Ray starts its process again whenever that ends, until the actor is killed."""

    def __init__(self, backend: MemoryBackend, order: MasterOrder) -> None:
        self.order, self.starts, self.dead = order, 0, False
        self.news = asyncio.Event()
        """Set once the actor is killed."""
        self.server: Any = None
        backend.hosts[actor_name(UID, order.number)] = self  # type: ignore[assignment]
        self.life = asyncio.create_task(self._live())

    async def _live(self) -> None:
        killed = asyncio.create_task(self.news.wait())
        while not self.dead:
            self.starts += 1
            server = self.server = prime.MasterServer(self.order)
            await asyncio.wait([server._main, killed], return_when=asyncio.FIRST_COMPLETED)
            await self._end(server)

    async def crash(self) -> None:
        """End the process; another one is started."""
        await self._end(self.server)

    async def _end(self, server: Any) -> None:
        if self.server is server:
            self.server = None
        server._tasks.close()
        await asyncio.wait([server._main])
        if server._started_loop.done():
            server._started_loop.exception()  # else asyncio reports that nobody has asked for it

    async def follow(self, segment: int) -> dict[str, Any]:
        if self.server is None:
            raise ActorLostError("it is starting")
        return await self.server.follow(segment)

    @property
    def commands(self) -> bool:
        if self.server is None:
            return False
        loop = self.server._started_loop
        return loop.done() and loop.exception() is None and loop.result().recovered


class Follower:
    """A PrimeMaster that does not command."""

    dead = False

    async def follow(self, _segment: int) -> dict[str, Any]:
        return {"commands": False}


class Masters:
    """A job whose two PrimeMasters run on a backend in memory."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.patch, self.backend = folder, patch, MemoryBackend()
        self.backend.kv.values[REGISTRY + UID] = b"{}"
        self.both: list[RestartedMaster] = []
        roles = [{"name": "worker", "entrypoint": {"class": "m.C"}, "replicas": 2}]
        spec = {"roles": roles, "master": {"standby": "Always", "maxRestarts": ALLOWED}}
        (folder / "spec.json").write_text(json.dumps({"metadata": {"name": "j"}, "spec": spec}))

    async def start(self, second: Path | None = None) -> None:
        """Start both; return once all ranks run, and the status is in the job's folder."""
        for number, folder in ((FIRST, self.folder), (SECOND, second or self.folder)):
            order = MasterOrder(UID, str(folder), "", "memory", "memory", number=number)
            self.both.append(RestartedMaster(self.backend, order))
            await until(lambda: self.both[0].commands)
        await until(lambda: read_status(self.folder).get("phase") == "Running")

    def spoil(self, times: float) -> list[str]:
        """Let the next reads of the journal's numbers fail; return what is to hold an entry for each."""
        tries, epochs = list[str](), FileStore.epochs

        async def fails(store: FileStore) -> tuple[int, ...]:
            if len(tries) < times:
                tries.append(store.place)
                raise PermissionError(13, "Permission denied")
            return await epochs(store)

        self.patch.setattr(FileStore, "epochs", fails)
        return tries

    def left(self) -> tuple[object, ...]:
        return self.backend.hosts, self.backend.groups, [key for key in self.backend.kv.values if UID in key]

    async def close(self) -> None:
        for each in self.both:
            each.dead = True
            each.news.set()
        await asyncio.wait([each.life for each in self.both])


@pytest_asyncio.fixture
async def masters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Masters]:
    made = Masters(tmp_path, monkeypatch)

    def end(_code: int, _why: str) -> None:
        raise ProcessEndError

    monkeypatch.setattr(prime, "factory", lambda _: lambda _options: made.backend)
    monkeypatch.setattr(prime, "_Guard", lambda _shell: None)
    monkeypatch.setattr(prime, "_end", end)
    for module, name in ((prime, "ANSWER_S"), (standby, "ANSWER_S"), (takeover, "AGAIN_S")):
        monkeypatch.setattr(module, name, 0.01)
    for name in ("SILENT_S", "FIRST_SILENT_S"):  # a slow machine makes none of them a stopped one
        monkeypatch.setattr(standby, name, float(HANG_S))
    yield made
    await made.close()


async def test_journal_that_stays_unreadable_to_both_masters_ends_the_job(masters):
    await masters.start()
    tries = masters.spoil(float("inf"))
    await masters.both[0].crash()
    await until(lambda: read_status(masters.folder).get("phase") == "Failed")
    status = read_status(masters.folder)
    assert status["reason"] == reasons.JOURNAL_FAILED
    said = f"{ALLOWED + 1} starts in a row have failed: the journal in {tries[0]} cannot be read: Permission denied"
    for part in (said, "on node ", f"ls -ld {tries[0]}", f"dljob logs {UID[:8]} --master", "start the job again"):
        assert part in status["message"]
    await until(lambda: masters.left() == ({}, {}, []))
    assert max(each.starts for each in masters.both) <= ALLOWED + 3


async def test_fault_that_passes_is_survived_and_counts_no_more(masters):
    await masters.start()
    tries = masters.spoil(ALLOWED)
    await masters.both[0].crash()
    await until(lambda: any(each.commands for each in masters.both))
    assert len(tries) == ALLOWED
    (one,) = (each for each in masters.both if each.commands)
    await until(lambda: not [key for key in masters.backend.kv.values if "cannot-begin" in key])
    assert one.server._started_loop.result().final is None


async def test_standby_that_can_never_begin_leaves_a_job_alone_that_has_its_master(masters):
    await masters.start(second=masters.folder / "elsewhere")
    first, second = masters.both
    await until(lambda: second.starts > 3 * ALLOWED)
    assert (first.starts, first.commands, first.dead, second.dead) == (1, True, False, False)
    assert not [key for key in masters.backend.kv.values if "cannot-begin" in key]


async def test_spec_that_neither_master_can_read_ends_the_job_over_its_last_status(masters, monkeypatch):
    monkeypatch.setattr(prime, "MOST_FAILURES", ALLOWED)
    await masters.start()
    before = read_status(masters.folder)
    (masters.folder / "spec.json").unlink()
    await masters.both[0].crash()
    await masters.both[1].crash()
    await until(lambda: read_status(masters.folder).get("phase") == "Failed")
    after = read_status(masters.folder)
    assert after["reason"] == reasons.MASTER_FAILED
    assert "has no spec" in after["message"]
    assert after["ranks"] == before["ranks"]
    await until(lambda: masters.left() == ({}, {}, []))


async def test_master_that_is_started_again_after_the_end_leaves_the_end_as_it_is(masters):
    """The end of its process may come between the deletion of the job's keys and the end of its actor."""
    await masters.start()
    (masters.folder / "spec.json").unlink()
    end = {**read_status(masters.folder), "phase": "Succeeded"}
    (masters.folder / "status.json").write_text(json.dumps(end))
    await forget(masters.backend.kv, UID)
    await asyncio.gather(*(each.crash() for each in masters.both))
    await until(lambda: all(each.dead for each in masters.both))
    assert read_status(masters.folder) == end


async def test_last_status_of_an_ended_job_is_not_written_over(tmp_path):
    kv, order = MemoryBackend().kv, MasterOrder(UID, str(tmp_path), "", "memory", "memory")
    (tmp_path / "status.json").write_text('{"phase": "Succeeded"}')
    await sign_off_unplanned(kv, order, "no spec", roams=True)
    assert read_status(tmp_path) == {"phase": "Succeeded"}
    assert kv.values == {}, "the end that is kept in Ray's store stays, too"


async def test_last_failure_is_told_as_it_is_where_there_is_no_other_master(tmp_path):
    backend, order = MemoryBackend(), MasterOrder(UID, str(tmp_path), "", "memory", "memory")
    failures, error = standby.StartFailures(backend, order), NotFoundError("no spec")
    assert await failures.add(ALLOWED) is None
    assert failures.described(error) is error
    assert backend.kv.values == {}


async def test_other_master_without_the_method_counts_as_commanding(tmp_path):
    class OlderBackend(MemoryBackend):
        async def call(self, *_: object) -> Any:
            raise ActorCallError("no such method", error_type="AttributeError", remote_traceback="")

    backend, order = OlderBackend(), MasterOrder(UID, str(tmp_path), "", "memory", "memory")
    backend.hosts[actor_name(UID, SECOND)] = object()  # type: ignore[assignment]
    failures = standby.StartFailures(backend, order)
    assert [await failures.add(0) for _ in range(3)] == [takeover.AGAIN_S] * 3


async def test_only_one_of_two_masters_ends_the_job(tmp_path):
    """Both may have failed for the last time at once, and each ends the other one before it ends the job."""
    backend = MemoryBackend()
    orders = [MasterOrder(UID, str(tmp_path), "", "memory", "memory", number=number) for number in (FIRST, SECOND)]
    for order in orders:
        backend.hosts[actor_name(UID, order.number)] = Follower()  # type: ignore[assignment]
    turns = (*orders, *orders, orders[1], orders[1])
    pauses = [await standby.StartFailures(backend, order).add(0) for order in turns]
    again = takeover.AGAIN_S
    assert pauses == [None, again, None, again, again, None], "the last one, as the first one has not ended it"


async def test_error_that_is_none_of_ours_ends_the_job_by_its_own_words(tmp_path):
    backend, order = MemoryBackend(), MasterOrder(UID, str(tmp_path), "", "memory", "memory")
    failures = standby.StartFailures(backend, order)
    failures.count = 4
    said = str(failures.described(ValueError("a bug")))
    assert "4 starts in a row have failed: ValueError('a bug')\n  see the other failures with dljob logs" in said
