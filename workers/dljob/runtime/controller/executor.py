"""Executor of the core's actions: performs each one through the backend and offers its result as an event.

Of each batch the actions that end something (kill, unreserve) are awaited first, because what begins afterwards may
need their devices, bundles and names. Actions that begin something take long and run as tasks, started in order.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from dljob.errors import DLJobError
from dljob.linux.interpreter import launcher
from dljob.master.persistence.superseded import lasting
from dljob.master.state import actions as ac
from dljob.master.state import events as ev
from dljob.master.state.job import STORE_HOST_INDEX
from dljob.master.state.memory_overrides import unit_with_memory
from dljob.master.state.views import HostId
from dljob.plan.model import JobPlan
from dljob.plan.role import HostKind, RolePlan
from dljob.runtime.backend.interface import ActorLostError, ActorSpec, Backend, ReservationRefusedError
from dljob.runtime.controller.admission import AdmissionLock
from dljob.runtime.controller.checking import Checks
from dljob.runtime.controller.relauncher import Relaunching
from dljob.runtime.controller.worker_hosts import HostLaunch, Offer, SpareId, WorkerHosts
from dljob.runtime.forked_workers.raylet_command import imports_env
from dljob.runtime.process import environment, logfile, preload
from dljob.runtime.process.messages import (
    HoldOrder,
    HostSpec,
    JobInfo,
    LeaveOrder,
    LoadOrder,
    SizesOrder,
    StartOrder,
    StopOrder,
    agent_prefix,
    is_saver,
    queue_folder,
)
from dljob.tasks import ErrorLog, TaskOwner

log = logging.getLogger(__package__)

HOST_CLASSES = {
    HostKind.THREAD: "dljob.runtime.worker.thread_host.ThreadHost",
    HostKind.FORK: "dljob.runtime.worker.fork_host.ForkHost",
}
PROBE_CLASS = "dljob.runtime.process.device_probe.DeviceProbe"
STORE_CLASS = "dljob.runtime.worker.elastic_master.ElasticMaster"
SUB_MASTER_CLASS = "dljob.runtime.worker.sub_master_host.SubMasterHost"
SPARE_DEADLINE_S = 120.0
# The sweep: deadline, how often a backend that does not answer extends it, and the pause between two rounds.
SWEEP_WAIT_S = 30.0
SILENT = 3
LOOK_S = 0.02
AT_ONCE = 200
"""Actions begun before the event loop has its turn: a restart of one world orders two for each of its ranks."""
ENDINGS = (ac.KillHost, ac.KillSpare, ac.Unreserve)


class Executor:
    """Executes the actions of one job, and sweeps its actors and reservations at the end."""

    def __init__(
        self,
        job: JobInfo,
        plan: JobPlan,
        backend: Backend,
        *,
        offer: Offer,
        epoch: Callable[[], int],
        on_loss: Callable[[], None],
        owner: TaskOwner,
    ) -> None:
        self.job = job
        self._plan = plan
        self._backend = backend
        self._offer = offer
        self._epoch = epoch
        self._owner = owner
        self._prefix = f"{job.uid[:8]}/"
        self._admission = AdmissionLock(backend.kv, job.uid, owner)
        self._queue: asyncio.Queue[tuple[object, ...]] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._reserving: dict[str, asyncio.Task[None]] = {}
        self._releases: dict[str, set[asyncio.Task[None]]] = {}
        """Unit -> releases of its reservations that Ray has not carried out yet."""
        self.hosts = WorkerHosts(
            backend, offer, epoch, on_loss, agent_prefix(job),
            owner=owner, log_reader=self._log_reader, code_dir=job.code_dir,
        )  # fmt: skip
        self._checks = Checks(job, plan, backend, offer, epoch, owner=owner)
        self.relaunching = Relaunching("")
        """The adapter that has bad nodes replaced, where the spec names one."""
        self.sizes: Callable[[], tuple[tuple[str, int], ...]] = tuple
        """Returns (role, number of ranks) for the roles whose number of ranks may change."""
        self.numbers: Callable[[], tuple[tuple[str, tuple[int, ...]], ...]] = tuple
        """Returns (role, numbers of its ranks) for these; empty where they are 0 to n-1."""
        self._known_imports: dict[str, tuple[tuple[str, str], ...]] = {}
        self._works: dict[type, Callable[[Any], Coroutine[Any, Any, None]]] = {
            ac.StartRanks: self._start,
            ac.StopRanks: self._stop,
            ac.LeaveGroup: self._leave,
            ac.LoadWeights: self._load,
            ac.HoldCalls: self._hold,
            ac.RelaunchNode: self._relaunch,
            ac.Release: self._release,
        }
        self._pump = owner.start("executor", self._run())

    def execute(self, actions: Iterable[Any]) -> None:
        """Queue the actions of a batch of steps, without those that a later action of the batch supersedes."""
        todo = tuple(action for action in lasting(actions) if not isinstance(action, (ac.Note, ac.Finish)))
        if todo:
            # Actors that an earlier master spawned may send heartbeats before the kills queued ahead of their SpawnHost
            # are done. Were they not expected from now on, the answer "unknown" would have them end themselves.
            self.hosts.expect(filter(None, map(self._actor_made_by, todo)))
            self._queue.put_nowait(todo)

    def _actor_made_by(self, action: object) -> str:
        """Return the name of the actor that an action makes; empty when it makes none."""
        match action:
            case ac.SpawnHost():
                return self.host_actor(action.host, action.incarnation)
            case ac.SpawnSpare():
                return self.spare_actor(action.role, action.node, action.slot, action.incarnation)
            case _:
                return ""

    async def _run(self) -> None:
        while True:
            todo = await self._queue.get()
            ends = [action for action in todo if isinstance(action, ENDINGS)]
            ending: list[asyncio.Future[list[None]]] = []
            # Begun in slices, but awaited together: one slow kill must not hold up the others.
            for start in range(0, len(ends), AT_ONCE):
                ending.append(asyncio.gather(*map(self._end, ends[start : start + AT_ONCE])))
                await asyncio.sleep(0)  # heartbeats are answered between them
            await asyncio.gather(*ending)
            for number, action in enumerate((action for action in todo if not isinstance(action, ENDINGS)), 1):
                self._begin(action)
                if number % AT_ONCE == 0:
                    await asyncio.sleep(0)

    def _spawn(self, work: Callable[[Any], Coroutine[Any, Any, None]], action: object) -> None:
        self._keep(self._owner.start(f"execution of {type(action).__name__}", work(action)))

    def _keep(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        """Have `close` cancel a task."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _end(self, action: object) -> None:
        match action:
            case ac.KillHost():
                # A host that was a spare keeps the spare's actor name, so the host's own name is only the fallback.
                await self.hosts.end(action.actor or self.host_actor(action.host, action.incarnation))
            case ac.KillSpare():
                name = self.spare_actor(action.role, action.node, action.slot, action.incarnation)
                await self.hosts.end(action.actor or name)
            case ac.Unreserve(unit=unit, token=token):
                name = self._reservation(unit, token)
                # A reservation that still waits for room would else be granted after its release.
                if task := self._reserving.pop(name, None):
                    task.cancel()
                try:
                    await self._backend.release(name)
                except Exception as error:  # noqa: BLE001 - whatever Ray raises, what it cannot do now is done later
                    log.warning("%s is not released yet: %r", name, error)
                    self._release_later(unit, name)
            case _:
                raise DLJobError(f"PrimeMaster ordered an unknown action: {action!r}")

    def _release_later(self, unit: str, name: str) -> None:
        """Start a task that releases a reservation: a GCS whose head is replaced answers nothing for minutes."""
        later = self._keep(self._owner.repeat("release of a reservation", lambda: self._backend.release(name)))
        releases = self._releases.setdefault(unit, set())
        releases.add(later)
        later.add_done_callback(releases.discard)

    def _begin(self, action: object) -> None:
        match action:
            case ac.Reserve(unit=unit, token=token):
                name = self._reservation(unit, token)
                # A recovered master reissues Reserve, and the core may have ordered it again in the same turn.
                if name not in self._reserving:
                    task = self._owner.repeat("execution of Reserve", lambda: self._reserve(action))
                    self._reserving[name] = self._keep(task)
            case ac.SaveCopies():
                # Again where Ray lists no actors: a GCS is silent while its head is replaced.
                self._keep(self._owner.repeat("execution of SaveCopies", lambda: self._save_copies(action)))
            case ac.SpawnHost():
                self._bring_up_host(action)
            case ac.SpawnSpare():
                self._bring_up_spare(action)
            case ac.CheckNodes():
                self._checks.begin(action)
            case _ if type(action) in self._works:
                self._spawn(self._works[type(action)], action)
            case _:
                raise DLJobError(f"PrimeMaster ordered an unknown action: {action!r}")

    # -- reservations

    def _reservation(self, unit: str, token: int) -> str:
        return f"{self._prefix}{unit}/{token}"

    async def reservations(self) -> tuple[tuple[str, int], ...]:
        """Return (unit, token) of all reservations of the job, also of those that earlier masters made."""
        names = await self._backend.reservations(self._prefix)
        parts = (name.removeprefix(self._prefix).rpartition("/") for name in names)
        return tuple((unit, int(token)) for unit, _, token in parts)

    async def _reserve(self, action: ac.Reserve) -> None:
        """Reserve a unit. Where Ray does not answer this raises and is begun again, which yields the same reservation.

        It waits for the unit's releases: until then the devices of its earlier reservation are not free.
        """
        name = self._reservation(action.unit, action.token)
        if releases := self._releases.get(action.unit):
            await asyncio.wait(releases)
        event: ev.UnitReserved | ev.UnitRefused = ev.UnitReserved(action.unit, action.token, action.node)
        try:
            async with self._admission.turn():
                # With the memory that was raised after OOM kills (ADR 34), which the plan does not have.
                unit = unit_with_memory(self._plan, action.unit, action.memory)
                await self._backend.reserve(unit, action.node, name, action.deadline_s)
        except ReservationRefusedError as error:
            event = ev.UnitRefused(action.unit, action.token, error.message)
        await self._offer(event)
        # After Unreserve and a new Reserve of the same name the entry belongs to the later task.
        if self._reserving.get(name) is asyncio.current_task():
            del self._reserving[name]

    # -- hosts and spares

    def host_actor(self, host: HostId, incarnation: int) -> str:
        """Return the name of a host's actor: unique for each incarnation: a killed one never answers for the next."""
        return f"{self._prefix}{host}/{incarnation}"

    def spare_actor(self, role: str, node: str, slot: int, incarnation: int) -> str:
        """Return the name of a spare's actor, which it keeps when it becomes a host."""
        return f"{self._prefix}{role}/spare-{node[:8]}-{slot}/{incarnation}"

    def _spec(self, role: RolePlan, name: str, cls: str, **placement: Any) -> ActorSpec:
        host_spec = HostSpec(self.job, role, self._epoch())
        # A fork host stays in Ray's Python, and starts its ranks in the role's own.
        role_python = role.python if role.host is HostKind.THREAD and cls == HOST_CLASSES[role.host] else ""
        python = launcher(role_python, self.job.dir) if role_python else ""
        return ActorSpec(name, cls, (host_spec,), env=self._env(role, cls), python=python, **placement)

    def _env(self, role: RolePlan, cls: str) -> tuple[tuple[str, str], ...]:
        """Return the variables of the worker of a host."""
        if role.host is HostKind.THREAD:
            return (*role.env, *self._imports(role))
        return role.env if cls == SUB_MASTER_CLASS else environment.of_host_without_user_code(role)

    def _imports(self, role: RolePlan) -> tuple[tuple[str, str], ...]:
        """Return the variables by which the ranks of a class find torch imported, where workers are forked."""
        if role.name not in self._known_imports:  # the role's source is read once
            self._known_imports[role.name] = imports_env(preload.modules(role, self.job.code_dir))
        return self._known_imports[role.name]

    def _bring_up_host(self, action: ac.SpawnHost) -> None:
        role = self._plan.roles[action.host.role]
        name = self.host_actor(action.host, action.incarnation)
        reservation = self._reservation(action.unit, action.token)
        # The torch store or sub-master of a role has index -1: beside rank 0, without devices of its own.
        if action.host.index < 0:
            cls = SUB_MASTER_CLASS if role.sub_master else STORE_CLASS
            spec = self._spec(role, name, cls, reservation=reservation)
            self.hosts.bring_up(action.host, action.incarnation, HostLaunch(spec, action.deadline_s))
            return
        first, *others = self._bundles(role, action.host.index)
        placement = {"reservation": reservation, "bundle": first, "resources": role.per_rank}
        spec = self._spec(role, name, HOST_CLASSES[role.host], **placement)
        devices = () if role.accelerator is None else (role.accelerator,)
        arguments = (action.deadline_s,)  # no master waits longer for one
        # Ray tells an actor the device ids of its own bundle alone; one probe in each other bundle reports the rest.
        probes = tuple(
            ActorSpec(
                f"{name}.{bundle}", PROBE_CLASS, arguments, reservation=reservation, bundle=bundle, resources=devices
            )
            for bundle in (others if devices else ())
        )
        kind = role.accelerator[0] if role.accelerator else ""
        self.hosts.bring_up(action.host, action.incarnation, HostLaunch(spec, action.deadline_s, probes, kind))

    def _log_reader(self, host: HostId) -> Callable[[], str]:
        """Return what reads, on a host's node, the end of the log of its one rank; of several none explains its end."""
        role = self._plan.roles[host.role]
        if host.index < 0 or role.host is HostKind.FORK:
            return str
        return partial(logfile.read_end_of_incarnation, Path(self.job.dir, "logs"), host.role, host.index, None)

    def _bundles(self, role: RolePlan, index: int) -> list[int]:
        """Return the bundle indices of a host's ranks without repetition; the actor itself is placed in the first."""
        many = role.group_size if role.host is HostKind.FORK else 1
        ranks = range(index * many, (index + 1) * many)
        return list(dict.fromkeys(self._plan.place(role.name, rank).bundle for rank in ranks))

    def _bring_up_spare(self, action: ac.SpawnSpare) -> None:
        role = self._plan.roles[action.role]
        name = self.spare_actor(action.role, action.node, action.slot, action.incarnation)
        spec = self._spec(role, name, HOST_CLASSES[role.host], node=action.node)
        spare_id = SpareId(action.role, action.node, action.slot)
        self.hosts.bring_up(spare_id, action.incarnation, HostLaunch(spec, SPARE_DEADLINE_S))

    async def _start(self, action: ac.StartRanks) -> None:
        # Before the order: whatever the actor reports from here on is the host's, not the spare's.
        self.hosts.become(action.actor, action.host, action.incarnation)
        many, sizes = action.world_size, self.sizes()
        order = StartOrder(
            self._epoch(),
            action.incarnation,
            action.ranks,
            many,
            action.generation,
            action.store,
            sizes,
            self.numbers(),
        )
        host = action.host
        if self._plan.roles[host.role].sub_master and (
            store := self.hosts.actor_of(HostId(host.role, STORE_HOST_INDEX))
        ):
            await self.hosts.tell(store, "start", order)  # first: the sub-master knows the ranks before they call it
        await self.hosts.tell(action.actor, "start", order)

    def tell_sizes(self, actors: Iterable[str]) -> None:
        """Tell hosts how many ranks roles have now. A host that starts ranks later learns it with their order."""
        order = SizesOrder(self._epoch(), self.sizes(), self.numbers())
        for actor in actors:
            self._owner.start("sizes", self.hosts.inform(actor, "resize", order))

    async def _stop(self, action: ac.StopRanks) -> None:
        order = StopOrder(
            self._epoch(), action.ranks, action.grace_s, action.reason, action.incarnations, action.leaves
        )
        actor = self.hosts.actor_of(action.host)
        if actor is not None:
            await self.hosts.tell(actor, "stop", order)

    async def _leave(self, action: ac.LeaveGroup) -> None:
        order = LeaveOrder(self._epoch(), action.rank, action.incarnation, action.reason, action.drops_rank)
        await self.hosts.tell(action.actor, "leave_group", order)

    async def _load(self, action: ac.LoadWeights) -> None:
        order = LoadOrder(self._epoch(), action.rank, action.incarnation, action.version, action.at)
        await self.hosts.tell(action.actor, "load", order)

    async def _hold(self, action: ac.HoldCalls) -> None:
        order = HoldOrder(self._epoch(), action.rank, action.incarnation, action.number, action.reason)
        await self.hosts.tell(action.actor, "hold", order)

    async def _relaunch(self, action: ac.RelaunchNode) -> None:
        await self._offer(ev.RelaunchTold(action.node, await self.relaunching.tell(action)))

    # -- the end

    async def _release(self, _action: ac.Release) -> None:
        await self.clear()
        await self._offer(ev.Released())

    async def clear(self) -> None:
        """Stop hearing all actors, cancel pending work, and sweep.

        Hearing stops first: the deaths that the sweep causes are no news.
        """
        self.hosts.close()
        # A reservation granted behind the sweep would hold its room for ever.
        for task in self._reserving.values():
            task.cancel()
        # Before the sweep: a round of checks that still runs spawns checkers.
        await self._checks.end()
        await self.sweep()

    async def sweep(self) -> None:
        """End every actor of the job but PrimeMaster, then every reservation, until the backend lists none.

        While Ray cannot locate an actor the deadline of `SWEEP_WAIT_S` is extended, at most `SILENT` times: Ray takes a
        minute to report that it cannot locate it, and a broken cluster may never be able to.
        """
        loop = asyncio.get_running_loop()
        end, silent, saved = loop.time() + SWEEP_WAIT_S, 0, False
        errors = ErrorLog(f"the last sweep of job {self.job.uid}", log)
        while loop.time() < end:
            answered, over = True, False
            try:
                if not saved:
                    await self._save()
                    saved = True
                answered, over = await self._swept()
                errors.worked()
            except Exception as error:  # noqa: BLE001 - whatever Ray raises, the sweep goes on until its deadline
                errors.failed(error)
                answered = False
            if over:
                await asyncio.to_thread(shutil.rmtree, queue_folder(self.job), ignore_errors=True)
                return
            if not answered and silent < SILENT:
                end, silent = loop.time() + SWEEP_WAIT_S, silent + 1
            await asyncio.sleep(LOOK_S)

    async def _swept(self) -> tuple[bool, bool]:
        """Run one round of the sweep: return (whether Ray could locate each actor, whether nothing is left)."""
        # The masters are left out by their whole names: a user's queue may be called master, too.
        actors = [name for name in await self._backend.actors(self._prefix) if name not in self.job.masters]
        answered = await self._kill(actors)
        # After the actors, which run inside of the reservations.
        groups = await self._backend.reservations(self._prefix)
        await asyncio.gather(*(self._backend.release(name) for name in groups))
        over = not actors and not groups
        if over and any(role.quota is not None for role in self._plan.roles.values()):
            await self._backend.clear_drivers(f"{self.job.uid}/")
        return answered, over

    async def _save(self) -> None:
        """End all ranks, then have the savers write the checkpoints in their memory to disk.

        Ranks first: a rank that goes on would save into memory that is being flushed.
        """
        actors = await self._backend.actors(self._prefix)
        savers = [name for name in actors if is_saver(name)]
        if savers:
            ranks = [name for name in actors if name not in savers and name not in self.job.masters]
            await self._kill(ranks)
            await asyncio.gather(*(self._have(name, "flush", self.job.save_grace_s, True) for name in savers))
            await asyncio.gather(*(self._have(name, "bring", self.job.save_grace_s, "") for name in savers))

    async def _save_copies(self, action: ac.SaveCopies) -> None:
        """Flush the savers of all nodes before ranks leave one: a checkpoint is complete only with all its parts.

        The nodes are listed anew before the core hears of it, so that the ranks move to where there is room now.
        """
        savers = [name for name in await self._backend.actors(self._prefix) if is_saver(name)]
        failures = await asyncio.gather(*(self._have(name, "flush", action.within_s, True) for name in savers))
        with suppress(Exception):  # a fresh look only: the node watch looks again within a second
            await self._offer(ev.NodesSeen(await self._backend.nodes()))
        await self._offer(ev.CopiesSaved(action.node, next(filter(None, failures), "")))

    async def last_copies(self, within_s: float) -> str:
        """Have all savers save for the last time, within so many seconds; return their failures in words."""
        savers = [name for name in await self._backend.actors(self._prefix) if is_saver(name)]
        failures = await asyncio.gather(*(self._have(name, "last", within_s) for name in savers))
        return "; ".join(filter(None, failures))

    async def _have(self, name: str, order: str, grace: float, *which: object) -> str:
        """Order a saver to write its own checkpoints (`flush`) or those kept for lost nodes (`bring`) to disk.

        Return what it could not write, in words, empty if nothing; never raise: the caller goes on in any case. The
        timeout is 2 s longer than the saver's own grace, so that its answer arrives.
        """
        try:
            async with asyncio.timeout(grace + 2.0):
                ref = await self._backend.lookup(name)
                return await self._backend.call(ref, order, grace, *which) if ref else ""
        except Exception as error:  # noqa: BLE001 - it may be gone, or answer nothing
            return f"{name} does not answer ({type(error).__name__})"

    async def _kill(self, names: Iterable[str]) -> bool:
        """End actors by name; return whether Ray could locate each of them."""
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
        """Stop executing and cancel the tasks under way."""
        self._pump.cancel()
        self.hosts.close()
        self._checks.close()
        for task in self._tasks:
            task.cancel()
