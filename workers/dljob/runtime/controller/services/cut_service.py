"""Cut service: has the queues begin, write and end each cut, calls the ranks that are to save, and takes queues back.

The core decides (`dljob.master.failure.cuts`); this is its shell. Every call may be repeated by a later master.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dljob.logs import archive
from dljob.master.start import shards
from dljob.master.state import events as ev
from dljob.master.state.checkpoint_ids import CheckpointId
from dljob.master.state.cuts import CutQueue, OpenCut, checkpoints_allowed_by_cuts
from dljob.master.state.evolve import evolve
from dljob.runtime.controller.services.holder_ends import call_queue
from dljob.runtime.data.cut_folder import CutFolder, damage_of
from dljob.runtime.process.messages import CUT, SizesOrder
from dljob.runtime.queues import cut_file

if TYPE_CHECKING:
    from dljob.master.state.state import JobState
    from dljob.runtime.backend.interface import Backend
    from dljob.runtime.controller.executor import Executor
    from dljob.runtime.journal.journal import Journal
    from dljob.runtime.journal.setup import Setup

log = logging.getLogger(__package__)

LOOK_S = 0.2
"""Seconds between looks for a step of `everySteps` and a deadline."""
VERIFIED_S = 30.0
"""Seconds for which queue files that were whole are not read again; a queue that goes back verifies its own anyway."""
POSITIONS = 4096
"""Most intervals of a data set in a manifest; what does not fit is done again."""
AGAIN_S = 1.0
"""Seconds after which a rank that has not saved is called again."""
AT_ONCE = 500
"""Most hosts that are called at once."""


class CutMaster(Protocol):
    """The part of a master that the service uses."""

    setup: Setup
    state: JobState
    backend: Backend
    executor: Executor
    journal: Journal
    changed: asyncio.Condition
    progress: dict[tuple[str, int], tuple[int, Mapping[str, float]]]

    def now(self) -> float:
        """Return the time of the job's clock (unix seconds)."""
        ...

    async def offer(self, *events: ev.Event) -> None:
        """Hand in events; return once the journal holds them."""
        ...


class CutService:
    """The cut service of one master."""

    def __init__(self, shell: CutMaster) -> None:
        self._shell = shell
        self._told: dict[tuple[str, int], float] = {}
        self._orders: dict[tuple[int, str], int] = {}
        """(cut, world) -> which of its saves."""
        self._ended = 0
        self._back = -1
        """The history of which all queues are known; at first none is."""
        self._going_back, self._verifying = asyncio.Lock(), asyncio.Lock()
        self._whole: dict[int, float] = {}
        """Cut -> when its queue files were read last, and all were whole."""
        self._counted: int | None = None
        spec = shell.setup.spec.checkpoint
        self._every = None if spec is None else spec.every_steps
        self._deadline_s = 600 if spec is None else spec.cut_deadline_seconds
        info = shell.setup.info
        self._place = archive.checkpoints(info.name, info.uid, Path(info.dir))
        self._folder = CutFolder(self._place / "cuts")
        self._ready = asyncio.Event()

    async def run(self) -> None:
        """Serve until the task is cancelled."""
        if self._shell.state.cuts.last_number == 0:
            kept_cuts = await asyncio.to_thread(self._folder.find)
            if kept_cuts.readable or kept_cuts.damaged:
                await self._shell.offer(ev.CutsFound(*kept_cuts))
        self._ready.set()
        await self.go_back()
        while True:
            await self._count_steps()
            cut = self._shell.state.cuts.open_cut
            if cut is not None:
                await self._advance(cut)
            elif self._ended < self._shell.state.cuts.last_number:
                await self._end()
            now = self._shell.state.cuts
            async with self._shell.changed:
                await _within(LOOK_S, self._shell.changed.wait_for(lambda now=now: self._shell.state.cuts is not now))

    # -- what ranks and queues ask

    async def ask(self, by: str) -> dict[str, Any]:
        """Begin a cut; return its number, that of the one under way, or why there can be none now."""
        await self._shell.offer(ev.CutAsked(by))
        cuts = self._shell.state.cuts
        return {"number": cuts.last_number, "why": cuts.refusal if cuts.open_cut is None else ""}

    def order_of(self, number: int, world: str, order: int) -> int:
        """Return which save of a world belongs to a cut: the one after that of the first rank that asks.

        Ranks of a world save in step, so none of them has made that save yet.
        """
        self._orders = {key: value for key, value in self._orders.items() if key[0] == number}
        return self._orders.setdefault((number, world), order + 1)

    async def take(self, report: Mapping[str, Any]) -> None:
        """Record the checkpoint of a rank, or why it has no part in the cut."""
        number = int(report["number"])
        if reason := str(report["why"]):
            return await self._shell.offer(ev.CutGivenUp(number, reason))
        mark = CheckpointId.of(report["mark"])
        event = ev.CutTaken(number, str(report["role"]), int(report["rank"]), int(report["incarnation"]), mark)
        return await self._shell.offer(event)

    async def queue_opened(self, name: str, token: str = "") -> dict[str, Any]:
        """Record a queue, and return the cut that it belongs to."""
        await self._record(name, token)
        return self._state_of(name)

    async def _record(self, name: str, token: str) -> None:
        cuts = self._shell.state.cuts
        if name not in cuts.queue_names or token not in ("", dict(cuts.folder_tokens).get(name, "")):
            await self._shell.offer(ev.QueueOpened(name, token))

    async def ready(self) -> None:
        """Wait until the cuts of earlier attempts are known."""
        await self._ready.wait()

    async def verify(self, world: str) -> None:
        """Read the queue files of the cuts that a new run of a world may restore: a damaged one is passed over whole.

        A world that follows others is not asked: its queues have gone back already.
        """
        async with self._verifying:
            cuts = self._shell.state.cuts
            if world in cuts.pending_worlds or checkpoints_allowed_by_cuts(cuts, world) is None:
                return
            for cut in reversed(cuts.kept_cuts):
                # Many worlds ask at once, and a saver asks again when reading takes long.
                if self._shell.now() < self._whole.get(cut.number, 0.0) + VERIFIED_S:
                    continue
                if damage := await asyncio.to_thread(damage_of, cut):
                    await self._shell.offer(ev.CutDamaged(cut.number, damage))
                else:
                    self._whole[cut.number] = self._shell.now()

    async def go_back(self) -> str | None:
        """Take all queues back to the cut that the job last went back to; those without a process go when they open.

        Returns why a queue cannot: no rank may go on then. None: one of them has not answered yet.
        """
        async with self._going_back:
            cuts = self._shell.state.cuts
            if cuts.is_last_restored_cut_damaged:
                return f"cut {cuts.last_restored_number} is damaged"
            if self._back == cuts.restore_count:
                return ""
            for name in cuts.queue_names:
                queue_state = self._state_of(name)
                reply = await self._call(
                    name, "go_back", queue_state["epoch"], queue_state["path"], queue_state["crc"], without=("", "")
                )
                if reply is None:
                    return None
                token, problem = reply
                await self._record(name, token)
                if problem:
                    log.error("%s", problem)
                    # What was whole when the decision was made may be damaged by now.
                    if (cut := cuts.restored_cut) is not None and (bad := await asyncio.to_thread(damage_of, cut)):
                        await self._shell.offer(ev.CutDamaged(cut.number, bad))
                    return problem
            self._back = cuts.restore_count
            return ""

    def _state_of(self, name: str) -> dict[str, Any]:
        cuts = self._shell.state.cuts
        cut_queues = (
            [queue for queue in cuts.restored_cut.queues if queue.name == name] if cuts.restored_cut is not None else []
        )
        file_fields = {"path": cut_queues[0].path, "crc": cut_queues[0].crc} if cut_queues else {"path": "", "crc": 0}
        return {"epoch": cuts.restore_count, **file_fields}

    # -- a cut

    async def _count_steps(self) -> None:
        """Ask for a cut each time that rank 0 of the first driver role has passed another `everySteps` steps."""
        progress = self._shell.progress.get((self._shell.state.job.drivers[0], 0))
        if self._every is None or progress is None:
            return
        passed = progress[0] // self._every
        # After a restart, or at this master's first look, counting begins anew.
        if self._counted is None or passed < self._counted:
            self._counted = passed
        elif passed > self._counted and self._shell.state.cuts.open_cut is None:
            self._counted = passed
            await self._shell.offer(ev.CutAsked("checkpoint.everySteps"))

    async def _advance(self, cut: OpenCut) -> None:
        shell, now = self._shell, self._shell.now()
        if now > cut.at + self._deadline_s:
            late = [f"{member.role}/{member.rank}" for member in cut.unsaved_members]
            late_text = f"{', '.join(late[:3])} did not save" if late else "its checkpoints are not on disk"
            await shell.offer(ev.CutGivenUp(cut.number, f"{late_text} within {self._deadline_s} s"))
        elif not cut.queues_have_begun:
            await self._begin(cut)
        elif called := cut.members_to_save:
            keys = [(member.role, member.rank) for member in called]
            due_keys = [key for key in keys if now > self._told.get(key, 0.0) + AGAIN_S]
            self._told.update(dict.fromkeys(due_keys, now))
            await self._inform(due_keys, cut.number)
        elif not cut.queues_on_disk:
            await self._seal(cut)

    async def _begin(self, cut: OpenCut) -> None:
        self._told = {}
        members = {f"{member.role}/{member.rank}": member.incarnation for member in cut.members_by_key.values()}
        names = self._shell.state.cuts.opened
        replies = await asyncio.gather(*(self._call(name, "begin_cut", cut.number, members) for name in names))
        if lost := [name for name, reply in zip(names, replies, strict=True) if reply is None]:
            await self._shell.offer(ev.CutGivenUp(cut.number, f"queue {lost[0]} does not answer: its process restarts"))
        else:
            consumers = tuple(sorted({rank for reply in replies if reply for rank in reply}))
            await self._shell.offer(ev.CutBegun(cut.number, consumers))

    async def _seal(self, cut: OpenCut) -> None:
        # Both as of one moment, so that none is left out.
        names, unopened = self._shell.state.cuts.opened, self._shell.state.cuts.unopened
        paths = {name: self._folder.queue(cut.number, name) for name in names}
        replies = await asyncio.gather(*(self._call(name, "seal_cut", cut.number, str(paths[name])) for name in names))
        queues = list[CutQueue]()
        for name, reply in zip(names, replies, strict=True):
            if not reply or reply["why"]:
                problem = reply["why"] if reply else f"queue {name} does not answer: its process restarts"
                return await self._shell.offer(ev.CutGivenUp(cut.number, problem))
            queues.append(CutQueue(name, str(paths[name]), reply["items"], reply["bytes"], reply["crc"]))
        for queue in unopened:
            path = self._folder.queue(cut.number, queue.name)
            try:
                await asyncio.to_thread(cut_file.copy, Path(queue.path), path, queue.crc)
            except OSError as error:
                return await self._shell.offer(ev.CutGivenUp(cut.number, f"queue {queue.name}: {error}"))
            queues.append(evolve(queue, path=str(path)))
        # Only then: once the journal has the cut, a crash of the machine may not take its files.
        await asyncio.to_thread(self._folder.sync, cut.number)
        return await self._shell.offer(ev.CutSealed(cut.number, tuple(queues), str(self._place)))

    async def _end(self) -> None:
        """Have queues and ranks forget the cut that has ended, and delete the files of those that are not kept."""
        cuts = self._shell.state.cuts
        self._ended = cuts.last_number
        await asyncio.gather(*(self._call(name, "end_cut") for name in cuts.queue_names))
        await self._inform(self._told, 0)
        self._told = {}
        try:
            data = shards.carry_positions(self._shell.state, POSITIONS)
            await asyncio.to_thread(self._folder.keep, cuts.kept_cuts, data)
        except OSError as error:
            log.error(
                "the manifest of cut %d cannot be written: a later attempt uses an older cut: %s",
                cuts.last_number,
                error,
            )

    async def _inform(self, ranks: Iterable[tuple[str, int]], number: int) -> None:
        """Tell the hosts of these ranks which cut is under way; many at once, for some may not answer."""
        state = self._shell.state
        roles = state.job.roles
        hosts = dict.fromkeys(roles[role].host_of(rank) for role, rank in ranks if (role, rank) in state.ranks)
        actors = [state.hosts[host].actor for host in hosts]
        order = SizesOrder(self._shell.journal.epoch, ((CUT, number),))
        inform = self._shell.executor.hosts.inform
        for start in range(0, len(actors), AT_ONCE):
            slice_ = actors[start : start + AT_ONCE]
            await asyncio.gather(*(_within(AGAIN_S, inform(actor, "resize", order)) for actor in slice_))

    async def _call(self, name: str, method: str, *args: Any, without: Any = None) -> Any:
        return await call_queue(self._shell, name, method, *args, without=without)


async def _within(seconds: float, waited: Awaitable[object]) -> None:
    try:
        await asyncio.wait_for(waited, seconds)
    except TimeoutError:
        return
