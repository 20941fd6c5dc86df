"""Server side of the PrimeMaster actor: one per job, detached, restarted by Ray as often as it dies, found by name.

Its work begins in `__init__` and waits for no caller. The module must stay light (no torch): while it is imported after
a crash the job has no master.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from dljob.errors import NotFoundError
from dljob.master.failure.stalling import hang_sentence
from dljob.master.failure.tf_cluster import cluster_addresses
from dljob.master.placement.previous_attempt import carried
from dljob.master.placement.takeover import MOST_FAILURES
from dljob.master.state import events as ev
from dljob.master.state.views import Clue, Reason
from dljob.master.status import endpoints as endpoints_of
from dljob.master.status import placement
from dljob.plan.plan import plan
from dljob.runtime.backend.interface import ActorLostError, Backend, factory
from dljob.runtime.backend.masters import FIRST, SECOND, NotCommandingError, actor_name, clear
from dljob.runtime.control_socket.server import ControlSocket
from dljob.runtime.controller import prestop_listener
from dljob.runtime.controller.group_rendezvous import GroupRendezvous
from dljob.runtime.controller.master_loop import MasterLoop, MasterOverError, until
from dljob.runtime.controller.peers import ParkedCalls, callees_of, role_table
from dljob.runtime.controller.services.checkpoint_service import CheckpointService
from dljob.runtime.controller.stack_collector import stacks_of
from dljob.runtime.controller.standby import StandbyPair, StartFailures, end_other, started
from dljob.runtime.journal.code_version import code_version
from dljob.runtime.journal.first_start import JobOverError, refuse_ended
from dljob.runtime.journal.job_record import SPEC, MasterOrder, forget, sign_off_unplanned
from dljob.runtime.journal.journal import FencedError
from dljob.runtime.journal.setup import Setup
from dljob.runtime.journal.stores import FileStore, JournalStore, KeyValueStore
from dljob.runtime.process import extensions
from dljob.runtime.process.guard import boot_id, raylet_pidfd
from dljob.runtime.process.messages import BeaconReply, Heartbeat, JobInfo, Peer, RoleTable
from dljob.spec.capabilities import Capability
from dljob.spec.model import DLJobManifest, DLJobSpec
from dljob.spec.rules.auto import chosen
from dljob.spec.standing import lease_seconds
from dljob.tasks import ErrorLog, TaskOwner, nobody_waits

log = logging.getLogger(__package__)

HEARTBEAT_S = 0.2
GUARD_S = 0.25
ANSWER_S = 2.0
"""Seconds that an ending master waits for its open long polls to deliver the final status."""
KEEPER_S = 5.0
"""Seconds for the keeper of a queue to tell its pid."""
LONGEST_S = 30.0
"""Upper limit of a long poll (seconds); the caller repeats it."""


class MasterServer:
    """The methods of the actor: they answer hosts and clients, and leave the work to `MasterLoop`."""

    def __init__(self, order: MasterOrder, *, close_log: Callable[[], None] = lambda: None) -> None:
        """Start the main task; `close_log` flushes the queued log lines before the process ends."""
        self._order = order
        self._close_log = close_log
        self._clients = 0
        self._desk = CheckpointService()
        self._tasks = TaskOwner(self._broken, expected=(MasterOverError,))
        self._rendezvous = GroupRendezvous(self._tasks)
        self._parked = ParkedCalls(self._tasks)
        self._control = ControlSocket(Path(order.dir), order.uid, self._calls())
        loop = asyncio.get_running_loop()
        self._started_loop: asyncio.Future[MasterLoop] = loop.create_future()
        self._pair: StandbyPair | None = None
        self._main = self._tasks.start("PrimeMaster", self._run())

    async def _run(self) -> None:
        try:
            backend: Backend = factory(self._order.backend)(self._order.options)
        except Exception as error:
            log.exception("the backend of job %s cannot be used", self._order.uid)
            # The creator's `hello` raises it. The process stays: an end would only have Ray restart it, to fail again.
            self._started_loop.set_exception(error)
            return
        new_shell: MasterLoop | None = None
        try:
            await refuse_ended(backend.kv, self._order.uid)
            setup = await _setup(self._order, backend)
            new_shell = shell = MasterLoop(setup, backend, _store(self._order, setup, backend))
            if Capability.PROCESSES in backend.capabilities:
                _Guard(shell)  # before the claim: a standby beside a dead raylet must not become the one that commands
            pair = self._pair = _pair(self._order, shell)
            if pair is not None:
                await pair.until_claimed()
            self._started_loop.set_result(shell)
            if pair is not None:
                shell.tasks.repeat("standby", pair.keep_other, nobody_waits)
                failures = StartFailures(backend, self._order)
                shell.tasks.start("count of failed starts", failures.clear(), nobody_waits)
            self._tasks.repeat("preStop listener", lambda: prestop_listener.serve(shell, self._order.uid), nobody_waits)
            self._tasks.repeat("control socket", self._listen, nobody_waits)
            await shell.run()
        except FencedError as error:
            # At once and without clean-up: actors, keys and journal belong to the later master now.
            _end(0, str(error))
        except JobOverError as error:
            log.info("PrimeMaster %d leaves: %s", self._order.number, error)
            await forget(backend.kv, self._order.uid)  # what it has claimed and announced itself
        except Exception as error:  # to exit here would not do: Ray would restart the actor for ever
            if self._started_loop.done():
                log.exception("PrimeMaster of job %s cannot go on", self._order.uid)
                # The job's keys go all the same, or it would count as running for ever.
                await forget(backend.kv, self._order.uid)
            else:
                await self._failed(backend, new_shell, error)
        self._control.close()
        await self._leave(backend)

    async def _failed(self, backend: Backend, shell: MasterLoop | None, error: Exception) -> None:
        """End this process after an error before its claim; or else the job, where no PrimeMaster can begin.

        Nothing is claimed: while there is another master, job, keys and journal are that one's.
        """
        order, failures = self._order, StartFailures(backend, self._order)
        pause = await failures.add(MOST_FAILURES if shell is None else shell.setup.spec.master.max_restarts)
        if pause is not None:
            text = "PrimeMaster %d of job %s cannot begin; the job has the other one, and Ray starts this one again"
            log.error(text, order.number, order.uid, exc_info=error)
            await asyncio.sleep(pause)
            self._broken(error)
        log.error("PrimeMaster of job %s cannot go on", order.uid, exc_info=error)
        last = failures.described(error)
        await end_other(backend, order)  # first: it would begin with what is swept here
        if shell is None:
            self._started_loop.set_exception(last)
            with suppress(Exception):  # what is left ends with its lease
                await clear(backend, order.uid, keep=[actor_name(order.uid, number) for number in (FIRST, SECOND)])
            roams = order.roams or order.launcher != backend.own_node()
            await sign_off_unplanned(backend.kv, order, str(last), roams=roams)
        else:
            self._started_loop.set_result(shell)
            await shell.run(last)

    def _calls(self) -> dict[str, Callable[..., Awaitable[Any]]]:
        """Return the calls of the control socket by name, as `control_socket.messages.CALLS` lists them."""

        async def learned(target: str, incarnation: int, source: str, text: str) -> None:
            await self.learned(target, incarnation, Clue(source, text))

        return {
            "status": self.status,
            "notes": self.notes,
            "command": self.command,
            "learned": learned,
            "stacks": self.stacks,
            "pids": self.pids,
            "wait": self.wait,
        }

    async def _listen(self) -> None:
        """Open the control socket after the epoch is claimed: a fenced master must not take it from its successor."""
        await self._ready()
        await self._control.open()

    def _broken(self, error: BaseException) -> NoReturn:
        """End this process for an error that even `_run` cannot handle: Ray starts another, which replays."""
        self._close_log()
        _end(70, f"{type(error).__name__}: {error}")

    async def _leave(self, backend: Backend) -> None:
        """Wait for the open answers, then end for good.

        `kill` comes first, with no restart allowed: a mere exit of the process would have Ray start the actor again.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + ANSWER_S
        while self._clients and loop.time() < end:  # noqa: ASYNC110 - for at most two seconds, once in a life
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        if self._pair is not None:
            try:
                await self._pair.end_other()
            except Exception as error:  # noqa: BLE001 - the standby finds the job's keys gone, and leaves by itself
                log.warning("the standby of PrimeMaster of job %s could not be ended: %r", self._order.uid, error)
        with suppress(Exception):  # the process ends below in any case
            me = await backend.lookup(actor_name(self._order.uid, self._order.number))
            if me is not None:
                await backend.kill(me)
        await asyncio.sleep(ANSWER_S)
        self._close_log()
        _end(0, "the job is over")

    async def _ready(self) -> MasterLoop:
        """Return the loop once its state is rebuilt; a call never sees the state of a half-read journal."""
        shell = await started(self._started_loop, self._pair)
        # An aborted master never recovers: its callers get the final status.
        if not shell.recovered and shell.final is None:
            await until(shell.changed, lambda: shell.recovered or shell.final is not None, None)
        return shell

    # -- what hosts ask

    async def beacon(self, heartbeat: Heartbeat) -> BeaconReply:
        """Take a heartbeat; the answer renews the sender's lease."""
        if self._pair is not None and self._pair.follows.is_set():
            raise NotCommandingError("this PrimeMaster is the standby; the other one commands")
        if not self._started_loop.done():  # too early to tell unknown actors: the lease is renewed, and none ends
            return BeaconReply(0, known=True)
        return self._started_loop.result().take_heartbeat(heartbeat)

    async def peers(self, role: str) -> RoleTable:
        """Return all ranks of a role."""
        return role_table((await self._ready()).state, role)

    async def callees(self, role: str) -> list[tuple[int, int, bool, bool]]:
        """Return rank, incarnation, whether it is ready, whether it is gone for good, of all ranks of a role.

        A rank whose weights are stale, or which loads, is not ready.
        """
        return callees_of((await self._ready()).state, role)

    async def await_peer(self, role: str, rank: int, after: int) -> Peer:
        """Return a rank once it is ready in an incarnation greater than `after`, or once it will never be again."""
        shell = await self._ready()
        return await self._parked.ready(lambda: shell.state, shell.changed, (role, rank), after)

    async def ended_callers(self, asker: str, callers: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
        """Return which of a callee's callers, (role, rank, incarnation), have ended, once one has, or after LONGEST_S.

        `asker` is the callee's actor: its next question answers this one.
        """
        shell = await self._ready()
        return await self._parked.await_end(lambda: shell.state, shell.changed, asker, callers, LONGEST_S)

    async def hang_of(self, role: str, rank: int, incarnation: int) -> str:
        """Return the sentence of the hang for which a process of a rank was ended; empty: it was not ended for one."""
        return hang_sentence((await self._ready()).state, (role, rank), incarnation)

    async def endpoints(self, known: dict[str, Any] | None) -> dict[str, Any]:
        """Return role -> its ranks that get requests, once that is not `known`, or after `LONGEST_S`."""
        shell = await self._ready()
        await until(shell.changed, lambda: endpoints_of(shell.state) != known, LONGEST_S)
        return endpoints_of(shell.state)

    async def tf_cluster(self, known: dict[str, Any] | None) -> dict[str, Any]:
        """Return task -> addresses of TensorFlow's tasks, empty until all are known, once that is not `known`."""
        shell = await self._ready()
        await until(shell.changed, lambda: cluster_addresses(shell.state) != known, LONGEST_S)
        return cluster_addresses(shell.state)

    async def saves(self, question: dict[str, Any], node: str) -> dict[str, Any]:
        """Answer the question of a node's saver about checkpoints (`runtime.checkpoint.book`)."""
        return await self._desk.answer(await started(self._started_loop, self._pair), question, node)

    async def cut(self, by: str) -> dict[str, Any]:
        """Begin a consistent cut; return its number, or why there can be none now."""
        return await (await self._ready()).cuts.ask(by)

    async def suspect(self, role: str, rank: int, incarnation: int, reason: str, by: str) -> None:
        """Take a detector's word that a rank computes wrong results; it is journaled when this returns."""
        shell = await self._ready()
        rank_state = shell.state.ranks.get((role, rank))
        if rank_state is not None:
            incarnation = incarnation or rank_state.incarnation
            await shell.offer(ev.HangFound(role, rank, incarnation, Reason.SILENT_CORRUPTION.value, reason, by=by))

    async def late_callee(self, callee: tuple[str, int, int], reason: str, line: str, by: str) -> bool:
        """Restart a rank that ran a call past its deadline, as one that hangs; whether that incarnation ends."""
        shell = await self._ready()
        role, rank, incarnation = callee
        rank_state = shell.state.ranks.get((role, rank))
        if rank_state is not None and rank_state.incarnation == incarnation:
            await shell.offer(ev.HangFound(role, rank, incarnation, Reason.HANG.value, reason, by=by, line=line))
        return rank_state is not None

    async def cut_at(self, number: int, world: str, order: int) -> int:
        """Return which save of a world belongs to a cut."""
        return (await self._ready()).cuts.order_of(number, world, order)

    async def cut_taken(self, report: dict[str, Any]) -> None:
        """Take a rank's report that it has saved its state for a cut, or cannot."""
        await (await self._ready()).cuts.take(report)

    async def queue_opened(self, name: str, token: str = "") -> dict[str, Any]:
        """Record a queue of the job; return the cut that it is to go back to."""
        return await (await self._ready()).cuts.queue_opened(name, token)

    async def muster(self, question: dict[str, Any]) -> dict[str, Any]:
        """Answer a member of a collective group (`runtime.controller.group_rendezvous`)."""
        return await self._rendezvous.answer(await self._ready(), question)

    async def follow(self, segment: int) -> dict[str, Any]:
        """Answer the other PrimeMaster: whether this one commands, and how far its journal is."""
        return {"commands": False} if self._pair is None else await self._pair.answer(segment)

    # -- what clients ask

    async def hello(self) -> int:
        """Return the pid, once the epoch is claimed and the state is rebuilt."""
        await self._ready()
        return os.getpid()

    @asynccontextmanager
    async def _client(self) -> AsyncGenerator[MasterLoop]:
        self._clients += 1
        try:
            yield await self._ready()
        finally:
            self._clients -= 1

    async def status(self, after_version: int = 0, timeout_s: float = 0.0) -> dict[str, Any]:
        """Return the status once its version exceeds `after_version`, the job is over, or the timeout (s) passes."""
        async with self._client() as shell:
            await _newer(shell, after_version, timeout_s)
            return shell.status()

    async def brief(self, after_version: int = 0, timeout_s: float = 0.0) -> dict[str, Any]:
        """Return the status without ranks and units; waits as `status` does."""
        async with self._client() as shell:
            await _newer(shell, after_version, timeout_s)
            return shell.brief()

    async def placement(self) -> dict[str, Any]:
        """Return the units and ranks of each node, and the process of this PrimeMaster."""
        async with self._client() as shell:
            master_process = {"node": shell.backend.own_node(), "pid": os.getpid()}
            return {**placement(shell.state), "version": shell.version, "master": master_process}

    async def notes(self, after_seq: int = 0, timeout_s: float = 0.0) -> list[dict[str, Any]]:
        """Return the notes numbered above `after_seq`, as soon as there are some or the timeout (s) passes."""
        async with self._client() as shell:
            wait = min(timeout_s, LONGEST_S)
            await until(shell.changed, lambda: shell.final is not None or shell.timeline.seq > after_seq, wait)
            return shell.timeline.after(after_seq)

    async def command(self, id: str, kind: str, target: str = "job", by: str = "") -> None:  # noqa: A002
        """Take a command from outside: it is journaled when this returns, and an id that is sent twice acts once.

        A stop is carried out though the volume of the journal is full.
        """
        async with self._client() as shell:
            if shell.final is None:
                if kind == "stop":
                    shell.stop_without_journal()
                # A scale command has role and size in one string (`rollout=8`): the call has one field for the target.
                name, _, count = target.partition("=") if kind == "scale" else (target, "", "")
                await shell.offer(ev.Commanded(id, kind, name, by, int(count) if count.isdecimal() else 0))

    async def learned(self, target: str, incarnation: int, clue: Clue) -> None:
        """Take evidence about a rank's end from outside; it is journaled when this returns."""
        async with self._client() as shell:
            if shell.final is None:
                await shell.offer(ev.CauseLearned(target, (clue,), incarnation))

    async def wait(self, timeout_s: float = LONGEST_S) -> dict[str, Any] | None:
        """Return the final status; None when the job is not over after the timeout (s)."""
        async with self._client() as shell:
            await until(shell.changed, lambda: shell.final is not None, min(timeout_s, LONGEST_S))
            return shell.final

    async def stacks(self, target: str = "job") -> dict[str, str]:
        """Return for each rank (`role/rank`) the stacks of all its threads, or why there are none."""
        async with self._client() as shell:
            return await stacks_of(shell.backend, shell.state, target)

    async def pids(self) -> dict[str, int]:
        """Return the pids of the master, of each rank that has a process, and of the keepers of queues."""
        async with self._client() as shell:
            ranks = shell.state.ranks.items()
            live = {
                f"{role}/{rank}": rank_state.pid
                for (role, rank), rank_state in ranks
                if rank_state.phase.live and rank_state.pid
            }
            return {"master": os.getpid(), **live, **await _keepers(shell.backend, f"{self._order.uid[:8]}/")}


async def _keepers(backend: Backend, prefix: str) -> dict[str, int]:
    """Return the pids of the keepers of queues, as `queue/NAME` -> pid."""
    pids: dict[str, int] = {}
    for name in await backend.actors(f"{prefix}queue/"):
        # One that ended meanwhile has no pid any more; one that is stopped must not stop the answer.
        with suppress(ActorLostError, TimeoutError):
            ref = await backend.lookup(name)
            if ref is not None:
                pids[name.removeprefix(prefix)] = await asyncio.wait_for(backend.call(ref, "pid"), KEEPER_S)
    return pids


async def _newer(shell: MasterLoop, version: int, timeout_s: float) -> None:
    """Wait for a greater version or the job's end, at most for the timeout (s)."""
    wait = min(timeout_s, LONGEST_S)
    await until(shell.changed, lambda: shell.final is not None or shell.version > version, wait)


async def _setup(order: MasterOrder, backend: Backend) -> Setup:
    """Read the spec from the key-value store, or from the job's folder, and plan the job.

    Raises:
        NotFoundError: Neither holds the spec.
    """
    text = await backend.kv.get(f"dljob/{order.uid}/spec")
    if text is None:
        path = Path(order.dir) / SPEC
        if not path.is_file():
            raise NotFoundError(f"job {order.uid} has no spec, neither in the key-value store nor at {path}")
        text = path.read_bytes()
    manifest = DLJobManifest.model_validate(json.loads(text))
    # Once, here: ranks, savers and the core must reckon with the same lease.
    spec = leased(manifest.spec)
    extensions.check(spec, order.code_dir)
    job_plan = plan(manifest)
    info = JobInfo(
        uid=order.uid,
        name=manifest.metadata.name,
        dir=order.dir,
        namespace=order.namespace,
        master=actor_name(order.uid),
        standby=actor_name(order.uid, SECOND) if spec.master.standby != "Never" else "",
        lease_s=spec.fault_tolerance.lease,
        beacon_s=HEARTBEAT_S,
        code_dir=order.code_dir,
        roles=tuple((name, role.replicas) for name, role in job_plan.roles.items()),
        attempt=order.attempt,
        boot=await _boot(order, backend),
        servers=tuple(name for name, role in job_plan.roles.items() if role.ports),
        **_saving(spec),
    )
    handed = carried(order.carried, order.uid, order.attempt) if order.carried else None
    # On another node than the launcher's the job's folder is out of the launcher's reach: keep the end in the KV store.
    roams = order.roams or order.launcher != backend.own_node()
    chosen_resources = chosen(manifest.metadata.annotations)
    return Setup(info, spec, job_plan, order.own_nodes, handed, roams, code_version(), chosen_resources)


def leased(spec: DLJobSpec) -> DLJobSpec:
    """Return the spec with `leaseSeconds` filled in: the default is longer where the job survives a lost head."""
    policy = spec.fault_tolerance
    lease = lease_seconds(policy.lease_seconds, survives=spec.gcs_fault_tolerance is not None)
    return spec.model_copy(update={"fault_tolerance": policy.model_copy(update={"lease_seconds": lease})})


async def _boot(order: MasterOrder, backend: Backend) -> str:
    """Return this machine's boot id where the cluster has no other machine and none is to come, else nothing."""
    with suppress(Exception):  # a Ray that does not answer may have other machines
        if not order.own_nodes and len({node.ip for node in await backend.nodes()}) == 1:
            return boot_id()
    return ""


def _saving(spec: DLJobSpec) -> dict[str, Any]:
    """Return the settings of `spec.checkpoint` that ranks and savers need, as fields of JobInfo."""
    settings = spec.checkpoint
    if settings is None:
        return {}
    return {
        "save_on_exit": settings.save_on_exit,
        "peer_copy": settings.peer_copy,
        "save_grace_s": settings.grace_period_seconds,
    }


def _pair(order: MasterOrder, shell: MasterLoop) -> StandbyPair | None:
    """Return the pair of masters; None for a job that has no standby."""
    if not shell.setup.info.standby or Capability.MASTER_RESTARTS not in shell.backend.capabilities:
        return None
    return StandbyPair(order, shell, shared=order.options.get("journal") == "kv")


def _store(order: MasterOrder, setup: Setup, backend: Backend) -> JournalStore:
    """Return a file store, unless the backend's options say `journal: kv`.

    On a volume each attempt has a folder of its own: the volume outlives attempts, and a journal that says the job has
    ended would end the next attempt at once.
    """
    if order.options.get("journal") == "kv":
        return KeyValueStore(backend.kv, f"dljob/{order.uid}/journal/")
    path = setup.spec.master.journal.path
    if not path:
        return FileStore(setup.folder / "journal")
    name = f"{setup.info.name}-{order.uid[:8]}"
    return FileStore(Path(path) / (name if order.attempt == 1 else f"{name}.{order.attempt}"))


class _Guard:
    """A thread that ends the master at once when its raylet is gone or a later epoch is claimed.

    In both cases a successor may live already. It is a thread, as the event loop may be busy or blocked just then, and
    `os._exit`, as nothing may be written any more.
    """

    def __init__(self, shell: MasterLoop) -> None:
        self._shell = shell
        self._raylet = raylet_pidfd()
        threading.Thread(target=self._watch, name="dljob-guard", daemon=True).start()

    def _watch(self) -> None:
        # A pidfd becomes readable when its process ends, so the raylet's end is seen at once and not at the next look.
        watched = [self._raylet] if self._raylet is not None else []
        errors = ErrorLog("the look for a later master", log)
        while True:
            ready, _, _ = select.select(watched, [], [], GUARD_S)
            if ready:
                _end(70, "the raylet of this node is gone")
            journal = self._shell.journal
            try:
                over = journal.superseded_now()
                errors.worked()
            except Exception as error:  # noqa: BLE001 - each commit looks as well; without this thread nobody would see the raylet's end
                errors.failed(error)
                continue
            if over:
                _end(0, f"epoch {journal.epoch} is over: a later master has claimed the job")


def _end(code: int, reason: str) -> NoReturn:
    with suppress(OSError):
        os.write(2, f"[dljob] PrimeMaster, pid {os.getpid()}, ends: {reason}\n".encode())
    os._exit(code)
