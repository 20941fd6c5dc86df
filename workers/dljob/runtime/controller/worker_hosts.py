"""PrimeMaster's side of the worker hosts and spares: spawns each actor, polls its reports, and notices its death.

One task per actor: spawn it (or find it again), await its first answer, then keep one call pending on it (`watch`, a
long poll). Ray breaks a pending call as soon as the actor dies, which is much sooner than any list of actors tells it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dljob.errors import DLJobError, UsageError
from dljob.master.state import causes
from dljob.master.state import events as ev
from dljob.master.state.views import HostId, Outcome, Reason
from dljob.runtime.backend import ray_processes
from dljob.runtime.backend.interface import ActorCallError, ActorLostError, ActorRef, ActorSpec, Backend, find_actor
from dljob.runtime.controller.evidence_inquiry import Inquiry
from dljob.runtime.process.device_probe import Devices, together
from dljob.runtime.process.messages import Hello, NewestVersion, Report
from dljob.runtime.process.outcome import from_worker_start
from dljob.tasks import TaskOwner, nobody_waits
from dljob.telemetry.memory_kills import name_process

log = logging.getLogger(__package__)

Offer = Callable[..., Awaitable[None]]
# Ray reports a broken connection as a lost actor, too: a second of retries tells the two apart.
RETRIES = 4
RETRY_S = 0.25
BY_RAY_KILL = "killed by `ray.kill`"
"""Ray's words for an actor that a program ended by `ray.kill`."""
START_LOOK_S = 2.0
"""Seconds between two looks at what Ray's workers wrote that did not start."""
BLAME_S = 0.05
"""Seconds that a failure that only blames a peer is held back, so that the peer's own failure is journaled first and
counts as the cause: Ray reports a death within 20 ms."""


@dataclass(frozen=True, slots=True)
class SpareId:
    """Identity of a spare process of a role on a node."""

    role: str
    node: str
    slot: int


@dataclass(frozen=True, slots=True)
class HostLaunch:
    """Specification of an actor to spawn and, for a host of several bundles, of one probe for each other bundle."""

    spec: ActorSpec
    deadline_s: float
    probes: tuple[ActorSpec, ...] = ()
    kind: str = ""
    """Ray's resource name of its ranks' devices; empty if they have none."""


@dataclass(slots=True)
class WatchedActor:
    """An actor that this master polls. A spare's `occupant` changes when it becomes a host."""

    actor: str
    occupant: HostId | SpareId
    incarnation: int
    ref: ActorRef | None = None
    node: str = ""
    pid: int = 0
    task: asyncio.Task[None] | None = field(default=None, repr=False)


class WorkerHosts:
    """All hosts and spares of the job, by actor name; `agents` is the name prefix of the node agents."""

    def __init__(
        self,
        backend: Backend,
        offer: Offer,
        epoch: Callable[[], int],
        on_loss: Callable[[], None],
        agents: str,
        *,
        owner: TaskOwner,
        log_reader: Callable[[HostId], Callable[[], str]] = lambda _: str,
        code_dir: str = "",
    ) -> None:
        self._backend = backend
        self._offer = offer
        self._epoch = epoch
        self._on_loss = on_loss
        self._owner = owner
        self._watched: dict[str, WatchedActor] = {}
        self._actors: dict[HostId | SpareId, str] = {}
        self._expected: set[str] = set()
        """Actors that are about to be spawned or found: not polled yet, but known."""
        self._former: dict[HostId | SpareId, tuple[str, int]] = {}
        """Host that was lost or killed -> its node and pid, until it is brought up again."""
        self._endings: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._inquiry = Inquiry(backend, offer, agents, owner, log_reader=log_reader, code_dir=code_dir)

    def knows(self, actor: str) -> bool:
        """Whether an actor is a host or a spare of the job; any other must end itself.

        Once these are closed nobody must: the last sweep, or a later PrimeMaster, decides on every actor.
        """
        return self._is_closed or actor in self._watched or actor in self._expected

    def expect(self, actors: Iterable[str]) -> None:
        """Count these actors as known from now on; they are brought up once the kills before them are done."""
        self._expected.update(actors)

    def occupant_of(self, actor: str) -> HostId | SpareId | None:
        """Return the host or spare that an actor is now; None for an unknown actor."""
        watched = self._watched.get(actor)
        return watched.occupant if watched else None

    def actor_of(self, host: HostId) -> str | None:
        """Return the actor name of a host: its own, or that of the spare that took its place; None if unknown."""
        return self._actors.get(host)

    def bring_up(self, occupant: HostId | SpareId, incarnation: int, birth: HostLaunch) -> None:
        """Spawn the actor, or find the one that an earlier master spawned, and poll it. Idempotent by its name."""
        # Idempotent because a recovered master repeats SpawnHost: the actor may exist, and be polled already.
        self._expected.discard(birth.spec.name)
        if birth.spec.name not in self._watched:
            watched = self._watch(birth.spec.name, occupant, incarnation)
            self._follow(watched, self._bring_up(watched, birth))

    def attach(self, occupant: HostId | SpareId, incarnation: int, actor: str, *, node: str = "", pid: int = 0) -> None:
        """Poll an actor that the journal shows alive, as process `pid` on `node`. Idempotent."""
        if actor not in self._watched:
            watched = self._watch(actor, occupant, incarnation)
            watched.node, watched.pid = node, pid
            self._follow(watched, self._attach(watched))

    def _watch(self, actor: str, occupant: HostId | SpareId, incarnation: int) -> WatchedActor:
        watched = self._watched[actor] = WatchedActor(actor, occupant, incarnation)
        self._actors[occupant] = actor
        return watched

    def _follow(self, watched: WatchedActor, listening: Coroutine[Any, Any, None]) -> None:
        """Start an actor's task; an unexpected error of it reports the actor as lost, and the core replaces it."""

        def unheard(error: Exception) -> None:
            message = f"PrimeMaster could not go on hearing it: {error!r}"
            outcome = Outcome(False, Reason.UNKNOWN, error_type=type(error).__name__, message=message)
            self._owner.start("loss of a host", self._report_loss(watched, outcome))

        watched.task = self._owner.start("host listener", listening, unheard)

    def become(self, actor: str, host: HostId, incarnation: int) -> None:
        """Turn a spare into a host: its reports and its death count as the host's from now on."""
        watched = self._watched.get(actor)
        if watched is not None:
            watched.occupant, watched.incarnation = host, incarnation
            self._actors[host] = actor

    async def tell(self, actor: str, method: str, order: object) -> None:
        """Send an order to an actor.

        The death of a dead actor is reported by the long poll, not here. An actor that refuses the order, or that it
        does not reach in `RETRIES` tries, is reported as lost: without the order it would live on and do nothing.
        """
        watched = self._watched.get(actor)
        outcome = None
        for _ in range(RETRIES):
            try:
                ref = (watched.ref if watched else None) or await self._backend.lookup(actor)
                if ref is not None:
                    await self._backend.call(ref, method, order)
                return
            except ActorLostError as error:
                if error.certain:
                    return
                outcome = await self._outcome(error)
                await asyncio.sleep(RETRY_S)
            except ActorCallError as error:
                outcome = _failed(error)
                break
        if watched is not None and outcome is not None:
            await self._report_loss(watched, outcome)

    async def inform(self, actor: str, method: str, news: object) -> None:
        """Tell an actor something that it can do without; one that does not hear or know such news lives on."""
        watched = self._watched.get(actor)
        try:
            ref = (watched.ref if watched else None) or await self._backend.lookup(actor)
            if ref is not None:
                await self._backend.call(ref, method, news)
        except (ActorLostError, ActorCallError, AttributeError) as error:
            # Its death is heard elsewhere. A host of an earlier version has no such method: its ranks learn the sizes
            # of roles from their calls.
            log.info("%s of %s was not heard: %s", method, actor, error)

    async def end(self, actor: str) -> None:
        """Kill an actor and stop polling it. While Ray cannot locate it, a task kills it later and this returns."""
        # Out of the table first: the kill breaks the long poll, which must not be reported as a loss.
        watched = self._watched.pop(actor, None)
        if watched:
            self._remember(watched)
            if watched.task:
                watched.task.cancel()
        try:
            ref = (watched.ref if watched else None) or await self._backend.lookup(actor)
        except ActorLostError:
            self._end_beside(actor)
            return
        if ref is not None:
            await self._backend.kill(ref)

    def _remember(self, watched: WatchedActor) -> None:
        """Note the process of an actor that is not polled any more."""
        if watched.pid:
            self._former[watched.occupant] = watched.node, watched.pid

    def _end_beside(self, actor: str) -> None:
        """Start a task that kills the actor of that name once Ray can locate it, also one still being created."""

        async def end() -> None:
            try:
                if (ref := await find_actor(self._backend, actor)) is not None:
                    await self._backend.kill(ref)
            except Exception as error:  # noqa: BLE001 - its next heartbeat is answered "unknown", and it ends itself
                log.warning("%s could not be ended: %r", actor, error)

        task = self._owner.start("end of an actor", end())
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    def close(self) -> None:
        """Stop polling all actors, without killing any."""
        self._is_closed = True
        for watched in self._watched.values():
            if watched.task:
                watched.task.cancel()
        self._watched.clear()
        for ending in self._endings:
            ending.cancel()
        self._inquiry.close()

    # -- one actor's life

    async def _bring_up(self, watched: WatchedActor, birth: HostLaunch) -> None:
        spec, former = birth.spec, self._former.pop(watched.occupant, None)
        # Ray gives the device to the next process as soon as the last one has closed its sockets; its memory is free
        # once that process has ended.
        if birth.kind and former is not None:
            await self._inquiry.wait_until_gone(*former)
        log_sizes = await asyncio.to_thread(ray_processes.error_log_sizes)
        failed_start: list[Outcome] = []
        watch: asyncio.Task[None] | None = None
        try:
            # The one deadline covers all of the start: Ray's scheduling, imports in the actor, and the probes.
            async with asyncio.timeout(birth.deadline_s) as limit:
                if log_sizes and {"PYTHONPATH", "PYTHONHOME"} & dict(spec.env).keys():
                    waiting = _wait_for_failed_start(log_sizes, dict(spec.env), failed_start, limit)
                    watch = self._owner.start("watch of a worker's start", waiting, nobody_waits)
                try:
                    watched.ref = await find_actor(self._backend, spec.name) or await self._backend.spawn(spec)
                except UsageError as refusal:
                    watched.ref = await self._spawned_meanwhile(spec.name, refusal)
                hello: Hello = await self._backend.call(watched.ref, "hello")
                parts = [hello.devices, *[await self._probe(probe) for probe in birth.probes]]
                hello = replace(hello, devices=together(parts))
        except TimeoutError:
            message = f"did not start in {birth.deadline_s:g} s"
            outcome = failed_start[0] if failed_start else Outcome(False, Reason.UNKNOWN, message=message)
            await self._report_loss(watched, outcome)
            return
        except (DLJobError, ValueError) as error:
            await self._report_loss(watched, await self._outcome(error))
            return
        finally:
            if watch is not None:
                watch.cancel()
        # Before the event: from here on a death is looked into on that node, by that pid.
        watched.node, watched.pid = hello.node, hello.pid
        slots = tuple(dict(part).get(birth.kind, ()) for part in parts) if birth.kind else ()
        await self._offer(_ready(watched, hello, slots))
        await self._listen(watched, watched.ref)

    async def _spawned_meanwhile(self, name: str, refusal: UsageError) -> ActorRef:
        """Return the actor that the order of a lost master has spawned between look-up and spawn; raise if none has."""
        if (ref := await find_actor(self._backend, name)) is None:
            raise refusal
        return ref

    async def _probe(self, spec: ActorSpec) -> Devices:
        """Return the devices of one more bundle of a host, by a short-lived probe actor in it."""
        try:
            ref = await find_actor(self._backend, spec.name) or await self._backend.spawn(spec)
            return await self._backend.call(ref, "devices")
        finally:
            # By name, not by handle: a creation that has begun completes even after a cancel, and holds the device.
            self._end_beside(spec.name)

    async def _attach(self, watched: WatchedActor) -> None:
        watched.ref = await find_actor(self._backend, watched.actor)
        if watched.ref is None:
            await self._report_loss(watched, Outcome(False, Reason.UNKNOWN, message="gone when the master came back"))
            return
        await self._listen(watched, watched.ref)

    async def _listen(self, watched: WatchedActor, ref: ActorRef) -> None:
        """Run the long poll of an actor until it breaks, which is reported as its loss.

        Reports are acknowledged in the next call, after `offer` has journaled them: the host keeps them until then, so
        a master that dies in between loses none.
        """
        acked, failures = 0, 0
        while True:
            try:
                reports: tuple[Report, ...] = await self._backend.call(ref, "watch", self._epoch(), acked)
            except ActorLostError as error:
                failures += 1
                # Ray reports a broken connection and an unreachable GCS as a lost actor too: only `certain` is a death.
                if error.certain or failures > RETRIES:
                    await self._report_loss(watched, await self._outcome(error))
                    return
                await asyncio.sleep(RETRY_S)
                continue
            except ActorCallError as error:
                await self._report_loss(watched, _failed(error))
                return
            except Exception:
                failures += 1
                if failures > RETRIES:
                    raise
                log.exception("a poll of %s failed; it is repeated in %g s", watched.actor, RETRY_S)
                await asyncio.sleep(RETRY_S)
                continue
            failures = 0
            if reports:
                # Held back only where all ends blame a peer: a real cause among them can be journaled at once.
                ends = [report.outcome for report in reports if report.outcome is not None]
                if ends and all(_blames(outcome) for outcome in ends):
                    await asyncio.sleep(BLAME_S)
                await self._offer(*(_event(watched.occupant.role, report) for report in reports))
                acked = max(acked, *(report.seq for report in reports))
            else:  # the host has heard of a later master, which this one is to notice; it answers at once until then
                await asyncio.sleep(RETRY_S)

    async def _report_loss(self, watched: WatchedActor, outcome: Outcome) -> None:
        """Report an actor as lost, once. The core then orders to kill what may be left of a host."""
        # Poll and order may both fail for one death, and an actor that was ended on purpose is no loss.
        if self._watched.get(watched.actor) is not watched:
            return
        del self._watched[watched.actor]
        self._remember(watched)
        self._on_loss()
        occupant = watched.occupant
        if isinstance(occupant, HostId):
            if watched.pid and _vanished(outcome):
                # The slow evidence (kernel log, OOM counters) follows as an event of its own; the exit status is waited
                # for, a second at most, as the level of the restart may depend on it.
                self._inquiry.begin(occupant, watched.node, watched.pid, self._beside(watched.node))
                if not causes.classify(outcome).rule:  # else Ray itself ended it, and said why
                    vanished, outcome = outcome, await self._inquiry.ended(occupant, watched.node, watched.pid, outcome)
                    if outcome == vanished:
                        self._inquiry.begin_end(occupant, watched.node, watched.pid, vanished)
            await self._offer(ev.HostLost(occupant, watched.incarnation, outcome))
            return
        if watched.ref is not None:
            await self._backend.kill(watched.ref)
        await self._offer(ev.SpareLost(occupant.role, occupant.node, occupant.slot, watched.incarnation))

    def _beside(self, node: str) -> ActorRef | None:
        """Return some host or spare that lives on a node; None if there is none."""
        return next((w.ref for w in self._watched.values() if w.node == node and w.pid and w.ref is not None), None)

    async def _outcome(self, error: Exception) -> Outcome:
        if isinstance(error, ActorLostError):
            if error.node_lost:
                return Outcome(False, Reason.NODE_LOST, message="its node is gone")
            # Ray kills several processes at once, and names each of them in the report of any.
            names = {pid: str(occupant) for occupant, (_, pid) in self._former.items()}
            names |= {
                watched.pid: str(watched.occupant)
                for watched in self._watched.values()
                if isinstance(watched.occupant, HostId)
            }
            return Outcome(False, Reason.UNKNOWN, detail=name_process(str(error), names))
        if isinstance(error, ActorCallError):
            return _failed(error)
        return Outcome(False, Reason.UNKNOWN, message=str(error))


def _failed(error: ActorCallError) -> Outcome:
    if error.outcome is not None:
        # A SubMaster has no log of its own.
        log.warning("%s", error.outcome.detail or error.message)
        return error.outcome
    return Outcome(
        False,
        Reason.UNKNOWN,
        error_type=error.error_type,
        message=f"its host failed: {error.message}",
        detail=error.remote_traceback[-8000:],
    )


async def _wait_for_failed_start(
    log_sizes: dict[Path, int], env: dict[str, str], failed_start: list[Outcome], limit: asyncio.Timeout
) -> None:
    """End the wait for a worker once Ray's logs, which had these sizes, have an error that is due to its variables.

    Ray starts such a worker again and again without a word. The outcome is put into `failed_start`.
    """
    while not failed_start:
        await asyncio.sleep(START_LOOK_S)
        tail = await asyncio.to_thread(ray_processes.written_since, log_sizes)
        if (outcome := from_worker_start(tail, env)) is not None:
            failed_start.append(outcome)
    limit.reschedule(asyncio.get_running_loop().time())


def _vanished(outcome: Outcome) -> bool:
    """Whether a host died without an exit code or an error, and not by `ray.kill`."""
    silent = outcome.reason is Reason.UNKNOWN and outcome.code is None and not outcome.error_type
    return silent and BY_RAY_KILL not in outcome.detail


def _blames(outcome: Outcome) -> bool:
    return not outcome.ok and causes.classify(outcome).reports_lost_peer


def _ready(watched: WatchedActor, hello: Hello, slots: tuple[tuple[str, ...], ...]) -> ev.HostReady | ev.SpareReady:
    occupant = watched.occupant
    if isinstance(occupant, SpareId):
        return ev.SpareReady(occupant.role, occupant.node, occupant.slot, watched.incarnation, watched.actor, hello.pid)
    return ev.HostReady(
        occupant, watched.incarnation, hello.node, hello.pid, watched.actor, hello.devices, hello.address, slots
    )


def _event(
    role: str, report: Report
) -> ev.RankReady | ev.RankServes | ev.RankEnded | ev.WeightsPublished | ev.WeightsLoaded:
    if isinstance(news := report.weights, NewestVersion):
        return ev.WeightsPublished(role, news.version, news.at, news.since, news.first, news.by, news.learned_since)
    if news is not None:
        return ev.WeightsLoaded(
            role, report.rank, report.incarnation, news.version, news.at, news.problem, news.untouched
        )
    if (serves := report.serves) is not None:
        return ev.RankServes(
            role, report.rank, report.incarnation, serves.addresses, serves.ready, serves.reason, serves.cluster
        )
    if report.outcome is None:
        return ev.RankReady(role, report.rank, report.incarnation, report.pid)
    return ev.RankEnded(role, report.rank, report.incarnation, report.outcome)
