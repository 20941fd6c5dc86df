"""PrimeMaster's side of each worker host and spare: make it, hear it, and know at once when it is gone.

One task per actor: spawn (or find again), first answer, then the long poll whose breaking is the news of its death.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from dljob.errors import DLJobError
from dljob.master import causes
from dljob.master import events as ev
from dljob.master.views import HostId, Outcome, Reason
from dljob.runtime.backend import ActorCallError, ActorLostError, ActorRef, ActorSpec, Backend, found
from dljob.runtime.device_probe import Devices, together
from dljob.runtime.evidence_inquiry import Inquiry
from dljob.runtime.messages import Hello, Report

Offer = Callable[..., Awaitable[None]]
RETRIES = 4
RETRY_S = 0.25
BLAME_S = 0.05
"""How long a failure that only blames a peer waits for that peer's own: Ray tells of a death within 20 ms."""


@dataclass(frozen=True, slots=True)
class SpareId:
    """A process spare of a role on a node."""

    role: str
    node: str
    slot: int


@dataclass(frozen=True, slots=True)
class Birth:
    """How an actor is made: itself, and for a host of several bundles one probe for each of the others."""

    spec: ActorSpec
    deadline_s: float
    probes: tuple[ActorSpec, ...] = ()
    kind: str = ""
    """Ray's name for the devices of its ranks; empty: they have none."""


@dataclass(slots=True)
class Watched:
    """An actor that this master hears. A spare's `who` changes when it becomes a host."""

    actor: str
    who: HostId | SpareId
    life: int
    ref: ActorRef | None = None
    node: str = ""
    pid: int = 0
    task: asyncio.Task[None] | None = field(default=None, repr=False)


class Hosts:
    """All actors of the job, by name; `agents`: what the names of the nodes' agents begin with."""

    def __init__(
        self,
        backend: Backend,
        offer: Offer,
        epoch: Callable[[], int],
        on_loss: Callable[[], None],
        agents: str,
    ) -> None:
        self._backend = backend
        self._offer = offer
        self._epoch = epoch
        self._on_loss = on_loss
        self._watched: dict[str, Watched] = {}
        self._actors: dict[HostId | SpareId, str] = {}
        self._expected: set[str] = set()
        """Actors that are about to be made, or found: not heard yet, and not to be ended."""
        self._endings: set[asyncio.Task[None]] = set()
        self._inquiry = Inquiry(backend, offer, agents)

    def knows(self, actor: str) -> bool:
        """Whether an actor is somebody's host or a spare; one that is not must end itself."""
        return actor in self._watched or actor in self._expected

    def expect(self, actors: Iterable[str]) -> None:
        """These will be brought up, when what must end before has ended."""
        self._expected.update(actors)

    def who(self, actor: str) -> HostId | SpareId | None:
        """Who an actor is now."""
        watched = self._watched.get(actor)
        return watched.who if watched else None

    def actor_of(self, host: HostId) -> str | None:
        """The actor that is a host now: its own, or one that was a spare."""
        return self._actors.get(host)

    def bring_up(self, who: HostId | SpareId, life: int, birth: Birth) -> None:
        """Make the actor, or find the one that an earlier master made, and hear it."""
        self._expected.discard(birth.spec.name)
        if birth.spec.name not in self._watched:
            watched = self._watch(birth.spec.name, who, life)
            watched.task = asyncio.create_task(self._bring_up(watched, birth))

    def attach(self, who: HostId | SpareId, life: int, actor: str) -> None:
        """Hear an actor that an earlier master saw alive."""
        if actor not in self._watched:
            watched = self._watch(actor, who, life)
            watched.task = asyncio.create_task(self._attach(watched))

    def _watch(self, actor: str, who: HostId | SpareId, life: int) -> Watched:
        watched = self._watched[actor] = Watched(actor, who, life)
        self._actors[who] = actor
        return watched

    def become(self, actor: str, host: HostId, life: int) -> None:
        """A spare is now that host: news of it is news of the host."""
        watched = self._watched.get(actor)
        if watched is not None:
            watched.who, watched.life = host, life
            self._actors[host] = actor

    async def tell(self, actor: str, method: str, order: object) -> None:
        """Send an order to an actor. One that is surely dead is heard of by the long poll.

        One that refuses, or that the order does not reach however often, is lost, and ended: without the order it would
        live on and do nothing.
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
            await self._gone(watched, outcome)

    async def end(self, actor: str) -> None:
        """End an actor by every means, and hear it no more. While nobody can say where it is, nothing waits for it."""
        watched = self._watched.pop(actor, None)
        if watched and watched.task:
            watched.task.cancel()
        try:
            ref = (watched.ref if watched else None) or await self._backend.lookup(actor)
        except ActorLostError:
            self._end_beside(actor)
            return
        if ref is not None:
            await self._backend.kill(ref)

    def _end_beside(self, actor: str) -> None:
        """End what has that name, once somebody can say where it is: also what is only being made."""

        async def end() -> None:
            with suppress(Exception):  # nobody knows it any more: it ends itself
                if (ref := await found(self._backend, actor)) is not None:
                    await self._backend.kill(ref)

        task = asyncio.create_task(end())
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    def close(self) -> None:
        """Hear nobody any more."""
        self._expected.clear()
        for watched in self._watched.values():
            if watched.task:
                watched.task.cancel()
        self._watched.clear()
        for ending in self._endings:
            ending.cancel()
        self._inquiry.close()

    # -- one actor's life

    async def _bring_up(self, watched: Watched, birth: Birth) -> None:
        spec = birth.spec
        try:
            async with asyncio.timeout(birth.deadline_s):
                watched.ref = await found(self._backend, spec.name) or await self._backend.spawn(spec)
                hello: Hello = await self._backend.call(watched.ref, "hello")
                parts = [hello.devices, *[await self._probe(probe) for probe in birth.probes]]
                hello = replace(hello, devices=together(parts))
        except TimeoutError:
            message = f"did not start in {birth.deadline_s:g} s"
            await self._gone(watched, Outcome(False, Reason.UNKNOWN, message=message))
            return
        except (DLJobError, ValueError) as error:
            await self._gone(watched, await self._outcome(error))
            return
        watched.node, watched.pid = hello.node, hello.pid
        slots = tuple(dict(part).get(birth.kind, ()) for part in parts) if birth.kind else ()
        await self._offer(_ready(watched, hello, slots))
        await self._listen(watched, watched.ref)

    async def _probe(self, spec: ActorSpec) -> Devices:
        """The devices of one more bundle of a host."""
        try:
            ref = await found(self._backend, spec.name) or await self._backend.spawn(spec)
            return await self._backend.call(ref, "devices")
        finally:
            # By its name: what has begun to be made comes, and takes the device, though nobody waits for it any more.
            self._end_beside(spec.name)

    async def _attach(self, watched: Watched) -> None:
        watched.ref = await found(self._backend, watched.actor)
        if watched.ref is None:
            await self._gone(watched, Outcome(False, Reason.UNKNOWN, message="gone when the master came back"))
            return
        await self._listen(watched, watched.ref)

    async def _listen(self, watched: Watched, ref: ActorRef) -> None:
        """The long poll: reports are acknowledged when they are journaled; a call that breaks is a death."""
        acked, failures = 0, 0
        while True:
            try:
                reports: tuple[Report, ...] = await self._backend.call(ref, "watch", self._epoch(), acked)
            except ActorLostError as error:
                failures += 1
                if error.certain or failures > RETRIES:
                    await self._gone(watched, await self._outcome(error))
                    return
                await asyncio.sleep(RETRY_S)
                continue
            except ActorCallError as error:
                await self._gone(watched, _failed(error))
                return
            failures = 0
            if reports:
                ends = [report.outcome for report in reports if report.outcome is not None]
                if ends and all(_blames(outcome) for outcome in ends):
                    await asyncio.sleep(BLAME_S)
                await self._offer(*(_event(watched.who.role, report) for report in reports))
                acked = max(acked, *(report.seq for report in reports))

    async def _gone(self, watched: Watched, outcome: Outcome) -> None:
        """It is dead, or as good as: say so, once. The core orders the end of what may be left of a host."""
        if self._watched.get(watched.actor) is not watched:
            return
        del self._watched[watched.actor]
        self._on_loss()
        who = watched.who
        if isinstance(who, HostId):
            if watched.pid and outcome.reason is Reason.UNKNOWN and outcome.code is None and not outcome.error_type:
                self._inquiry.begin(who, watched.node, watched.pid, self._beside(watched.node))
            await self._offer(ev.HostLost(who, watched.life, outcome))
            return
        if watched.ref is not None:
            await self._backend.kill(watched.ref)
        await self._offer(ev.SpareLost(who.role, who.node, who.slot, watched.life))

    def _beside(self, node: str) -> ActorRef | None:
        """A host or spare that lives on a node."""
        return next((w.ref for w in self._watched.values() if w.node == node and w.pid and w.ref is not None), None)

    async def _outcome(self, error: Exception) -> Outcome:
        if isinstance(error, ActorLostError):
            if error.node_lost:
                return Outcome(False, Reason.NODE_LOST, message="its node is gone")
            return Outcome(False, Reason.UNKNOWN, detail=str(error))
        if isinstance(error, ActorCallError):
            return _failed(error)
        return Outcome(False, Reason.UNKNOWN, message=str(error))


def _failed(error: ActorCallError) -> Outcome:
    return Outcome(
        False,
        Reason.UNKNOWN,
        error_type=error.error_type,
        message=f"its host failed: {error.message}",
        detail=error.remote_traceback[-8000:],
    )


def _blames(outcome: Outcome) -> bool:
    return not outcome.ok and causes.classify(outcome).secondary


def _ready(watched: Watched, hello: Hello, slots: tuple[tuple[str, ...], ...]) -> ev.HostReady | ev.SpareReady:
    who = watched.who
    if isinstance(who, SpareId):
        return ev.SpareReady(who.role, who.node, who.slot, watched.life, watched.actor, hello.pid, hello.log)
    return ev.HostReady(
        who, watched.life, hello.node, hello.pid, watched.actor, hello.devices, hello.log, hello.address, slots
    )


def _event(role: str, report: Report) -> ev.RankReady | ev.RankEnded:
    if report.outcome is None:
        return ev.RankReady(role, report.rank, report.incarnation, report.pid)
    return ev.RankEnded(role, report.rank, report.incarnation, report.outcome)
