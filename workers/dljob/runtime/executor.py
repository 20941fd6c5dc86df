"""Carries out what the core orders: each action through the backend, each result back as an event.

What ends things (kill, unreserve) of a step is done before what begins things; steps begin in order. Beginning takes
long, so it goes on in tasks of its own.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

from dljob.errors import DLJobError
from dljob.master import actions as ac
from dljob.master import events as ev
from dljob.master.grants import unit_of
from dljob.master.job import STORE
from dljob.master.lasting import lasting
from dljob.master.views import HostId
from dljob.plan.model import JobPlan
from dljob.plan.role import HostKind, RolePlan
from dljob.runtime.admission import Admission
from dljob.runtime.backend import ActorLostError, ActorSpec, Backend, RefusedError
from dljob.runtime.checking import Checks
from dljob.runtime.hosts import Birth, Hosts, Offer, SpareId
from dljob.runtime.messages import (
    HostSpec,
    JobInfo,
    LeaveOrder,
    StartOrder,
    StopOrder,
    agent_prefix,
    is_saver,
    queue_folder,
)
from dljob.runtime.relauncher import Relaunching

HOST_CLASSES = {
    HostKind.THREAD: "dljob.runtime.thread_host.ThreadHost",
    HostKind.FORK: "dljob.runtime.fork_host.ForkHost",
}
PROBE_CLASS = "dljob.runtime.device_probe.DeviceProbe"
STORE_CLASS = "dljob.runtime.elastic_master.ElasticMaster"
SUB_MASTER_CLASS = "dljob.runtime.sub_master_host.SubMasterHost"
SPARE_DEADLINE_S = 120.0
LEFT_S = 30.0
SILENT = 3  # so often the end is put off as nobody can say where an actor is; a cluster may never be able to
LOOK_S = 0.02
ENDINGS = (ac.KillHost, ac.KillSpare, ac.Unreserve)


class Executor:
    """Executes the actions of one job."""

    def __init__(
        self,
        job: JobInfo,
        plan: JobPlan,
        backend: Backend,
        *,
        offer: Offer,
        epoch: Callable[[], int],
        on_loss: Callable[[], None],
    ) -> None:
        self.job = job
        self._plan = plan
        self._backend = backend
        self._offer = offer
        self._epoch = epoch
        self._prefix = f"{job.uid[:8]}/"
        self._admission = Admission(backend.kv, job.uid)
        self._queue: asyncio.Queue[tuple[object, ...]] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._reserving: dict[str, asyncio.Task[None]] = {}
        self.hosts = Hosts(backend, offer, epoch, on_loss, agent_prefix(job))
        self._checks = Checks(job, plan, backend, offer, epoch)
        self.relaunching = Relaunching("")
        """Who replaces nodes, where the spec names somebody."""
        self.failed: Callable[[BaseException], None] = lambda _: None
        self.sizes: Callable[[], tuple[tuple[str, int], ...]] = tuple
        """(role, ranks) now, of roles whose number of ranks may change."""
        self._works: dict[type, Callable[[Any], Awaitable[None]]] = {
            ac.StartRanks: self._start,
            ac.StopRanks: self._stop,
            ac.LeaveGroup: self._leave,
            ac.SaveCopies: self._save_copies,
            ac.RelaunchNode: self._relaunch,
            ac.Release: self._release,
        }
        self._pump = asyncio.create_task(self._run())

    def execute(self, actions: Iterable[Any]) -> None:
        """Take the actions of a batch of steps."""
        todo = tuple(action for action in lasting(actions) if not isinstance(action, (ac.Note, ac.Finish)))
        if todo:
            # Who was made for an earlier master speaks to this one, maybe before all kills that come first are done.
            self.hosts.expect(filter(None, map(self._made_by, todo)))
            self._queue.put_nowait(todo)

    def _made_by(self, action: object) -> str:
        """The actor that an action makes; empty: none."""
        match action:
            case ac.SpawnHost():
                return self.host_actor(action.host, action.life)
            case ac.SpawnSpare():
                return self.spare_actor(action.role, action.node, action.slot, action.life)
            case _:
                return ""

    async def _run(self) -> None:
        while True:
            todo = await self._queue.get()
            ends = [action for action in todo if isinstance(action, ENDINGS)]
            await asyncio.gather(*(self._guarded(self._end, action) for action in ends))
            for action in todo:
                if not isinstance(action, ENDINGS):
                    self._begin(action)

    async def _guarded(self, work: Callable[[Any], Awaitable[None]], action: object) -> None:
        """An error of ours must not be lost: the job fails with it rather than hang."""
        try:
            await work(action)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
            self.failed(error)

    def _spawn(self, work: Callable[[Any], Awaitable[None]], action: object) -> asyncio.Task[None]:
        task = asyncio.create_task(self._guarded(work, action))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _end(self, action: object) -> None:
        match action:
            case ac.KillHost():
                await self.hosts.end(action.actor or self.host_actor(action.host, action.life))
            case ac.KillSpare():
                name = self.spare_actor(action.role, action.node, action.slot, action.life)
                await self.hosts.end(action.actor or name)
            case ac.Unreserve(unit=unit, token=token):
                name = self._reservation(unit, token)
                if task := self._reserving.pop(name, None):
                    task.cancel()
                await self._backend.release(name)
            case _:
                self.failed(DLJobError(f"PrimeMaster ordered something unknown: {action!r}"))

    def _begin(self, action: object) -> None:
        match action:
            case ac.Reserve(unit=unit, token=token):
                name = self._reservation(unit, token)
                if name not in self._reserving:
                    self._reserving[name] = self._spawn(self._reserve, action)
            case ac.SpawnHost():
                self._bring_up_host(action)
            case ac.SpawnSpare():
                self._bring_up_spare(action)
            case ac.CheckNodes():
                self._checks.begin(action)
            case (
                ac.StartRanks() | ac.StopRanks() | ac.LeaveGroup() | ac.SaveCopies() | ac.RelaunchNode() | ac.Release()
            ):
                self._spawn(self._works[type(action)], action)
            case _:
                self.failed(DLJobError(f"PrimeMaster ordered something unknown: {action!r}"))

    # -- reservations

    def _reservation(self, unit: str, token: int) -> str:
        return f"{self._prefix}{unit}/{token}"

    async def _reserve(self, action: ac.Reserve) -> None:
        name = self._reservation(action.unit, action.token)
        try:
            async with self._admission.turn():
                unit = unit_of(self._plan, action.unit, action.given)
                await self._backend.reserve(unit, action.node, name, action.deadline_s)
        except RefusedError as error:
            await self._offer(ev.UnitRefused(action.unit, action.token, error.message))
        else:
            await self._offer(ev.UnitReserved(action.unit, action.token, action.node))
        finally:
            if self._reserving.get(name) is asyncio.current_task():
                del self._reserving[name]

    # -- hosts and spares

    def host_actor(self, host: HostId, life: int) -> str:
        """The name of a host's actor."""
        return f"{self._prefix}{host}/{life}"

    def spare_actor(self, role: str, node: str, slot: int, life: int) -> str:
        """The name of a spare's actor."""
        return f"{self._prefix}{role}/spare-{node[:8]}-{slot}/{life}"

    def _spec(self, role: RolePlan, name: str, cls: str, **where: Any) -> ActorSpec:
        host_spec = HostSpec(self.job, role, self._epoch())
        return ActorSpec(name, cls, (host_spec,), env=role.env, **where)

    def _bring_up_host(self, action: ac.SpawnHost) -> None:
        role = self._plan.roles[action.host.role]
        name = self.host_actor(action.host, action.life)
        reservation = self._reservation(action.unit, action.token)
        if action.host.index < 0:
            cls = SUB_MASTER_CLASS if role.sub_master else STORE_CLASS
            spec = self._spec(role, name, cls, reservation=reservation)
            self.hosts.bring_up(action.host, action.life, Birth(spec, action.deadline_s))
            return
        first, *others = self._bundles(role, action.host.index)
        where = {"reservation": reservation, "bundle": first, "resources": role.per_rank}
        spec = self._spec(role, name, HOST_CLASSES[role.host], **where)
        devices = () if role.accelerator is None else (role.accelerator,)
        life = (action.deadline_s,)  # no master waits longer for one
        probes = tuple(
            ActorSpec(f"{name}.{bundle}", PROBE_CLASS, life, reservation=reservation, bundle=bundle, resources=devices)
            for bundle in (others if devices else ())
        )
        kind = role.accelerator[0] if role.accelerator else ""
        self.hosts.bring_up(action.host, action.life, Birth(spec, action.deadline_s, probes, kind))

    def _bundles(self, role: RolePlan, index: int) -> list[int]:
        """The bundles of a host's ranks, the first of which its actor sits in."""
        many = role.group_size if role.host is HostKind.FORK else 1
        ranks = range(index * many, (index + 1) * many)
        return list(dict.fromkeys(self._plan.place(role.name, rank).bundle for rank in ranks))

    def _bring_up_spare(self, action: ac.SpawnSpare) -> None:
        role = self._plan.roles[action.role]
        name = self.spare_actor(action.role, action.node, action.slot, action.life)
        spec = self._spec(role, name, HOST_CLASSES[role.host], node=action.node)
        who = SpareId(action.role, action.node, action.slot)
        self.hosts.bring_up(who, action.life, Birth(spec, SPARE_DEADLINE_S))

    async def _start(self, action: ac.StartRanks) -> None:
        self.hosts.become(action.actor, action.host, action.life)
        many, sizes = action.world_size, self.sizes()
        order = StartOrder(self._epoch(), action.life, action.ranks, many, action.generation, action.store, sizes)
        host = action.host
        if self._plan.roles[host.role].sub_master and (store := self.hosts.actor_of(HostId(host.role, STORE))):
            await self.hosts.tell(store, "start", order)  # it is ready for these ranks before they come
        await self.hosts.tell(action.actor, "start", order)

    async def _stop(self, action: ac.StopRanks) -> None:
        order = StopOrder(self._epoch(), action.ranks, action.grace_s, action.reason, action.incarnations)
        actor = self.hosts.actor_of(action.host)
        if actor is not None:
            await self.hosts.tell(actor, "stop", order)

    async def _leave(self, action: ac.LeaveGroup) -> None:
        order = LeaveOrder(self._epoch(), action.rank, action.incarnation, action.reason, action.parts)
        await self.hosts.tell(action.actor, "leave_group", order)

    async def _relaunch(self, action: ac.RelaunchNode) -> None:
        await self._offer(ev.RelaunchTold(action.node, await self.relaunching.tell(action)))

    # -- the end

    async def _release(self, _action: ac.Release) -> None:
        await self.clear()
        await self._offer(ev.Released())

    async def clear(self) -> None:
        """Hear nobody any more, and sweep."""
        self.hosts.close()
        for task in self._reserving.values():
            task.cancel()
        await self._checks.end()
        await self.sweep()

    async def sweep(self) -> None:
        """End every actor of the job but the master, then every reservation, until the backend lists none."""
        await self._save()
        loop = asyncio.get_running_loop()
        end, silent = loop.time() + LEFT_S, 0
        while loop.time() < end:
            actors = [n for n in await self._backend.actors(self._prefix) if not n.endswith("/master")]
            if not await self._kill(actors) and silent < SILENT:  # Ray takes a minute to say that it cannot say
                end, silent = loop.time() + LEFT_S, silent + 1
            groups = await self._backend.reservations(self._prefix)
            await asyncio.gather(*(self._backend.release(name) for name in groups))
            if not actors and not groups:
                if any(role.quota is not None for role in self._plan.roles.values()):
                    await self._backend.clear_drivers(f"{self.job.uid}/")
                await asyncio.to_thread(shutil.rmtree, queue_folder(self.job), ignore_errors=True)
                return
            await asyncio.sleep(LOOK_S)

    async def _save(self) -> None:
        """End all ranks, then let the savers bring to disk what is in memory."""
        actors = await self._backend.actors(self._prefix)
        savers = [name for name in actors if is_saver(name)]
        if savers:
            ranks = [name for name in actors if name not in savers and not name.endswith("/master")]
            await self._kill(ranks)
            await asyncio.gather(*(self._have(name, "flush", self.job.save_grace_s, True) for name in savers))
            await asyncio.gather(*(self._have(name, "bring", self.job.save_grace_s, "") for name in savers))

    async def _save_copies(self, action: ac.SaveCopies) -> None:
        """On all nodes: a checkpoint is whole with all its parts. Who leaves then goes where there is room then."""
        savers = [name for name in await self._backend.actors(self._prefix) if is_saver(name)]
        said = await asyncio.gather(*(self._have(name, "flush", action.within_s, True) for name in savers))
        with suppress(Exception):
            await self._offer(ev.NodesSeen(await self._backend.nodes()))
        await self._offer(ev.CopiesSaved(action.node, next(filter(None, said), "")))

    async def last_copies(self, within_s: float) -> str:
        """Have all savers save for the last time; what they could not, in words."""
        savers = [name for name in await self._backend.actors(self._prefix) if is_saver(name)]
        said = await asyncio.gather(*(self._have(name, "last", within_s) for name in savers))
        return "; ".join(filter(None, said))

    async def _have(self, name: str, order: str, grace: float, *which: object) -> str:
        """Have a saver bring to disk what it has (`flush`), or keeps for nodes that are gone (`bring`).

        What it could not, in words; whatever it answers, or does not, what is to come goes on.
        """
        try:
            async with asyncio.timeout(grace + 2.0):
                ref = await self._backend.lookup(name)
                return await self._backend.call(ref, order, grace, *which) if ref else ""
        except Exception as error:  # noqa: BLE001 - it may be gone, or answer nothing
            return f"{name} does not answer ({type(error).__name__})"

    async def _kill(self, names: Iterable[str]) -> bool:
        """End actors; whether somebody could say of each where it is."""
        return all(await asyncio.gather(*(self._killed(name) for name in names)))

    async def _killed(self, name: str) -> bool:
        try:
            ref = await self._backend.lookup(name)
        except ActorLostError as error:
            return error.certain
        if ref is not None:
            await self._backend.kill(ref)
        return True

    def close(self) -> None:
        """Stop executing; what is under way is dropped."""
        self._pump.cancel()
        self.hosts.close()
        self._checks.close()
        for task in self._tasks:
            task.cancel()
