"""The shell of cuts: what it asks of queues and ranks, and what it reports to the core."""

from __future__ import annotations

import asyncio
import os
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from immutables import Map
from master_shell_kit import until

from dljob.errors import DLJobError
from dljob.master.state import events as ev
from dljob.master.state.checkpoint_ids import CheckpointId, RunId
from dljob.master.state.cuts import Cut, CutMember, CutQueue, Cuts, OpenCut
from dljob.master.state.evolve import evolve
from dljob.master.state.shard_table import new_table
from dljob.runtime.controller.services.cut_service import CutService
from dljob.runtime.data.cut_folder import CutFolder
from dljob.runtime.process.messages import CUT

MARK = CheckpointId(RunId(1, 1), 5)
FILE = CutQueue("samples", "/x", 1, 2, 3)


class Queues:
    """A backend whose queues answer as told."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[Any, ...]] = []

    async def lookup(self, name: str) -> str | None:
        return None if name.endswith("/away") else name.rpartition("/")[2]

    async def call(self, ref: str, method: str, *args: Any) -> Any:
        self.asked.append((ref, method, *args))
        answer = self.answers.get(method)
        if isinstance(answer, Exception):
            raise answer
        return answer


def ranks_of(*members: CutMember) -> Map[tuple[str, int], CutMember]:
    return Map({(one.role, one.rank): one for one in members})


class Master:
    """The part of a master that the service uses, without a core: events are only recorded."""

    def __init__(self, folder: Any, spec: Any = None, *names: str) -> None:
        info = SimpleNamespace(name="j", uid="0123456789", dir=str(folder))
        self.setup: Any = SimpleNamespace(info=info, spec=SimpleNamespace(checkpoint=spec))
        facts = SimpleNamespace(host_of=lambda rank: rank)
        job = SimpleNamespace(drivers=("t",), roles={"t": facts})
        hosts = {0: SimpleNamespace(actor="host-0")}
        self.state: Any = SimpleNamespace(
            cuts=Cuts(queue_names=names, folder_tokens=tuple((name, "one") for name in names)),
            job=job,
            ranks={("t", 0): None},
            hosts=hosts,
            feeds={"d": new_table(9, 3, 1)},
        )
        self.backend: Any = Queues()
        self.informed: list[Any] = []
        self.executor: Any = SimpleNamespace(hosts=SimpleNamespace(inform=self._inform))
        self.journal: Any = SimpleNamespace(epoch=2)
        self.changed = asyncio.Condition()
        self.progress: dict[tuple[str, int], Any] = {}
        self.events: list[Any] = []
        self.time = 100.0

    def now(self) -> float:
        return self.time

    async def offer(self, *events: ev.Event) -> None:
        self.events.extend(events)

    async def _inform(self, *told: Any) -> None:
        self.informed.append(told)

    def cut(self, **changes: Any) -> OpenCut:
        made = OpenCut(1, 90.0, "t/0", ranks_of(CutMember("t", 0, 3, "t")), 1)
        self.state.cuts = evolve(self.state.cuts, last_number=1, open_cut=evolve(made, **changes))
        return self.state.cuts.open_cut


@pytest.fixture
def master(tmp_path):
    return Master(tmp_path, None, "samples")


async def test_queues_begin_then_ranks_are_called_then_files_are_written(master, tmp_path):
    service = CutService(master)
    master.backend.answers = {"begin_cut": ["t/0"]}
    await service._advance(master.cut())
    assert master.backend.asked == [("samples", "begin_cut", 1, {"t/0": 3})]
    assert master.events.pop() == ev.CutBegun(1, ("t/0",))
    for _ in range(2):
        await service._advance(master.cut(queues_have_begun=True))
    ((actor, method, order),) = master.informed  # not again within a second
    assert (actor, method, order.sizes) == ("host-0", "resize", ((CUT, 1),))
    saved = ranks_of(CutMember("t", 0, 3, "t", MARK))
    master.backend.answers = {"seal_cut": {"why": "", "items": 1, "bytes": 2, "crc": 3}}
    await service._advance(master.cut(queues_have_begun=True, unsaved_count=0, members_by_key=saved))
    path = str(CutFolder(tmp_path / "checkpoints" / "cuts").queue(1, "samples"))
    assert master.events.pop() == ev.CutSealed(1, (CutQueue("samples", path, 1, 2, 3),), str(tmp_path / "checkpoints"))
    await service._advance(
        master.cut(queues_have_begun=True, unsaved_count=0, members_by_key=saved, queues_on_disk=True)
    )
    assert master.events == []


async def test_the_hosts_of_a_cut_are_called_together_and_each_of_them_once(master):
    service, called = CutService(master), asyncio.Event()
    hosts = range(3)
    master.state.job.roles["t"].host_of = lambda rank: rank // 2
    master.state.hosts = {number: SimpleNamespace(actor=f"host-{number}") for number in hosts}
    master.state.ranks = dict.fromkeys(("t", rank) for rank in range(6))

    async def inform(*told: Any) -> None:
        master.informed.append(told)
        if len(master.informed) == len(hosts):
            called.set()
        await called.wait()

    master.executor.hosts.inform = inform
    async with asyncio.timeout(60):
        await service._inform(master.state.ranks, 1)
    assert [actor for actor, _, _ in master.informed] == ["host-0", "host-1", "host-2"]
    assert called.is_set(), "none waits for the answer of another"


async def test_a_queue_that_nobody_has_opened_since_a_restore_is_copied_into_the_next_cut(tmp_path):
    master = Master(tmp_path)
    service = CutService(master)
    saved = ranks_of(CutMember("t", 0, 3, "t", MARK))
    source = tmp_path / "before.queue"
    source.write_bytes(b"items")
    file = CutQueue("prompts", str(source), 4, 5, zlib.crc32(b"items"))
    opened = {"queue_names": ("samples", "prompts"), "folder_tokens": (("samples", "one"),)}
    master.state.cuts = Cuts(
        kept_cuts=(Cut(4, 1.0, (("t", MARK),), (file, FILE)),), restore_count=1, last_restored_number=4, **opened
    )
    master.backend.answers = {"begin_cut": [], "seal_cut": {"why": "", "items": 1, "bytes": 2, "crc": 3}}
    await service._advance(master.cut())
    await service._advance(master.cut(queues_have_begun=True, unsaved_count=0, members_by_key=saved))
    assert [asked[:2] for asked in master.backend.asked] == [("samples", "begin_cut"), ("samples", "seal_cut")]
    samples, prompts = master.events.pop().queues
    path = CutFolder(tmp_path / "checkpoints" / "cuts").queue(1, "prompts")
    assert (samples.name, prompts) == ("samples", evolve(file, path=str(path)))
    assert path.read_bytes() == b"items"
    source.write_bytes(b"damaged")
    await service._advance(master.cut(queues_have_begun=True, unsaved_count=0, members_by_key=saved))
    assert "queue prompts: " in (why := master.events.pop().why)
    assert "is damaged" in why


async def test_the_names_of_a_cuts_files_and_folders_are_synced_before_the_cut_counts(master, tmp_path, monkeypatch):
    service, synced = CutService(master), list[Path]()

    async def seal(_ref: str, _method: str, _number: int, path: str) -> Any:
        Path(path).parent.mkdir(parents=True)
        return {"why": "", "items": 0, "bytes": 0, "crc": 0}

    def sync(fd: int) -> None:
        assert master.events == []
        synced.append(Path(f"/proc/self/fd/{fd}").readlink())

    monkeypatch.setattr(master.backend, "call", seal)
    monkeypatch.setattr(os, "fsync", sync)
    await service._advance(
        master.cut(queues_have_begun=True, unsaved_count=0, members_by_key=ranks_of(CutMember("t", 0, 3, "t", MARK)))
    )
    cuts = tmp_path / "checkpoints" / "cuts"
    assert synced == [cuts / "cut-1", cuts, cuts.parent, tmp_path]
    assert isinstance(master.events.pop(), ev.CutSealed)


async def test_a_queue_that_does_not_answer_or_cannot_write_gives_the_cut_up(master):
    service = CutService(master)
    master.backend.answers = {"begin_cut": DLJobError("dead"), "seal_cut": {"why": "the disk is full"}}
    await service._advance(master.cut())
    assert master.events.pop().why == "queue samples does not answer: its process restarts"
    saved = ranks_of(CutMember("t", 0, 3, "t", MARK))
    await service._advance(master.cut(queues_have_begun=True, unsaved_count=0, members_by_key=saved))
    assert master.events.pop() == ev.CutGivenUp(1, "the disk is full")
    master.backend.answers = {}
    await service._advance(master.cut(queues_have_begun=True, unsaved_count=0, members_by_key=saved))
    assert "does not answer" in master.events.pop().why


async def test_a_cut_that_takes_too_long_is_given_up_and_says_who_is_late(tmp_path):
    spec = SimpleNamespace(path=str(tmp_path / "volume"), every_steps=None, cut_deadline_seconds=5)
    master = Master(tmp_path, spec)
    service = CutService(master)
    await service._advance(master.cut(queues_have_begun=True))
    assert master.events.pop().why == "t/0 did not save within 5 s"
    await service._advance(
        master.cut(queues_have_begun=True, unsaved_count=0, members_by_key=ranks_of(CutMember("t", 0, 3, "t", MARK)))
    )
    assert master.events.pop().why == "its checkpoints are not on disk within 5 s"


async def test_every_steps_are_counted_from_the_driver(tmp_path):
    spec = SimpleNamespace(path=str(tmp_path / "volume"), every_steps=10, cut_deadline_seconds=5)
    master = Master(tmp_path, spec)
    service = CutService(master)
    await service._count_steps()
    for step, asked in ((12, 0), (19, 0), (20, 1), (29, 1), (41, 2), (3, 2), (10, 3)):
        master.progress["t", 0] = step, {}
        await service._count_steps()
        assert len(master.events) == asked, step
    assert master.events[0] == ev.CutAsked("checkpoint.everySteps")


async def test_what_ranks_report_and_ask_is_handed_on(master):
    service = CutService(master)
    master.state.cuts = Cuts(last_number=3, refusal="t/0 is Starting", queue_names=("samples",))
    assert await service.ask("t/0") == {"number": 3, "why": "t/0 is Starting"}
    master.cut()
    assert await service.ask("t/0") == {"number": 1, "why": ""}
    told = {"number": 1, "role": "t", "rank": 0, "incarnation": 3, "why": "", "mark": MARK.json()}
    await service.take(told)
    assert master.events.pop() == ev.CutTaken(1, "t", 0, 3, MARK)
    await service.take({**told, "why": "queue samples has no part in the cut"})
    assert master.events.pop() == ev.CutGivenUp(1, "queue samples has no part in the cut")
    assert [service.order_of(1, "t", order) for order in (4, 5)] == [5, 5]
    assert service.order_of(2, "t", 9) == 10
    master.events.clear()
    assert await service.queue_opened("samples") == {"epoch": 0, "path": "", "crc": 0}
    assert await service.queue_opened("other") == {"epoch": 0, "path": "", "crc": 0}
    assert master.events == [ev.QueueOpened("other")]
    master.state.cuts = evolve(master.state.cuts, folder_tokens=(("samples", "one"),))
    for token in ("one", "two"):
        await service.queue_opened("samples", token)
    assert master.events[1:] == [ev.QueueOpened("samples", "two")]


async def test_queues_go_back_once_for_each_restore_and_those_without_a_process_later(master):
    service = CutService(master)
    cut = Cut(4, 1.0, (("t", MARK),), (FILE,))
    master.state.cuts = Cuts(
        last_number=4,
        kept_cuts=(cut,),
        restore_count=1,
        last_restored_number=4,
        queue_names=("samples", "away", "other"),
    )
    master.backend.answers = {"go_back": ("one", "")}
    assert [await service.go_back() for _ in range(2)] == ["", ""]
    assert master.backend.asked == [("samples", "go_back", 1, "/x", 3), ("other", "go_back", 1, "", 0)]
    # Only a queue whose folder is known can be told to have lost it.
    assert master.events == [ev.QueueOpened("samples", "one"), ev.QueueOpened("other", "one")]


async def test_nobody_goes_on_while_a_queue_cannot_go_back(master, tmp_path):
    service = CutService(master)
    whole = evolve(FILE, path=str(tmp_path / "whole"), crc=0)
    (tmp_path / "whole").touch()
    cut = Cut(4, 1.0, (("t", MARK),), (whole,))
    master.state.cuts = Cuts(
        last_number=4, kept_cuts=(cut,), restore_count=1, last_restored_number=4, queue_names=("samples",)
    )
    master.backend.answers = {"go_back": DLJobError("it restarts")}
    assert await service.go_back() is None
    master.backend.answers = {"go_back": ("", "queue samples: the disk is full")}
    assert await service.go_back() == "queue samples: the disk is full"
    assert master.events == []
    (tmp_path / "whole").unlink()
    assert await service.go_back() == "queue samples: the disk is full"
    (found,) = master.events
    assert (found.number, "cannot be read" in found.why) == (4, True)
    master.state.cuts = evolve(master.state.cuts, is_last_restored_cut_damaged=True)
    assert await service.go_back() == "cut 4 is damaged"


async def test_queue_files_are_read_before_a_world_may_choose_its_cut(master, tmp_path):
    service = CutService(master)
    files = [evolve(FILE, path=str(tmp_path / name), crc=0) for name in ("one", "two")]
    (tmp_path / "one").touch()
    cuts = tuple(Cut(number, 1.0, (("t", MARK),), (file,)) for number, file in zip((3, 4), files, strict=True))
    master.state.cuts = Cuts(last_number=4, kept_cuts=cuts, pending_worlds=("t",))
    await service.verify("t")
    master.state.cuts = evolve(master.state.cuts, pending_worlds=())
    await service.verify("w/0")
    assert master.events == []
    for _ in range(2):
        await service.verify("t")
        (tmp_path / "one").write_bytes(b"damaged")  # within seconds, a file that was whole is not read again
    assert [event.number for event in master.events] == [4, 4]
    master.time += 60
    await service.verify("t")
    assert [event.number for event in master.events[2:]] == [4, 3]


async def test_the_end_of_a_cut_is_told_and_only_kept_ones_stay(master, tmp_path, monkeypatch, caplog):
    service = CutService(master)
    await service._advance(master.cut(queues_have_begun=True))
    service._told["gone", 9] = 1.0
    stale = tmp_path / "checkpoints" / "cuts" / "cut-0"
    stale.mkdir(parents=True)
    master.state.cuts = evolve(master.state.cuts, open_cut=None)
    await service._end()
    assert [order.sizes for _, _, order in master.informed] == [((CUT, 1),), ((CUT, 0),)]
    assert not stale.exists()
    cut = Cut(4, 1.0, (("t", MARK),), (FILE,))
    (stale.parent / "cut-4").mkdir()
    master.state.cuts = evolve(master.state.cuts, kept_cuts=(cut,))
    await service._end()
    assert CutFolder(stale.parent).find().feeds == (("d", new_table(9, 3, 1)),)

    def full(*_: Any) -> None:
        raise OSError("full")

    monkeypatch.setattr(CutFolder, "keep", full)
    await service._end()
    assert "a later attempt uses an older cut" in caplog.text


async def test_the_service_finds_the_cuts_of_an_earlier_attempt_and_follows_changes(master, tmp_path):
    cut = Cut(4, 1.0, (("t", MARK),), (FILE,))
    folder = CutFolder(tmp_path / "checkpoints" / "cuts")
    (folder.path / "cut-4").mkdir(parents=True)
    folder.keep([cut])
    service = CutService(master)
    running = asyncio.create_task(service.run())
    await service.ready()
    assert master.events == [ev.CutsFound((cut,))]
    master.state.cuts = Cuts(
        last_number=4, kept_cuts=(cut,), queue_names=("samples",), folder_tokens=(("samples", "one"),)
    )
    async with master.changed:
        master.changed.notify_all()
    await until(lambda: ("samples", "end_cut") in master.backend.asked)
    master.cut()
    await until(lambda: any(one[1] == "begin_cut" for one in master.backend.asked))
    running.cancel()
