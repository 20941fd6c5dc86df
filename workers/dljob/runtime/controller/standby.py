"""A job's two PrimeMasters: one commands, the other one follows its journal and takes over when it is gone.

Both are actors of one class that Ray restarts, and both run this code: `until_claimed` before a master commands,
`keep_other` while it does. `dljob.master.placement.takeover` decides.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from dataclasses import replace
from typing import Any

from dljob.errors import DLJobError, JournalError
from dljob.linux.process_watch import ProcessWatch
from dljob.master.placement.takeover import (
    FIRST_SILENT_S,
    SILENT_S,
    PeerQuestion,
    PeerState,
    TakeoverVerdict,
    judge,
    start_again_after,
)
from dljob.master.state.state import Phase, RankPhase
from dljob.runtime.backend.interface import ActorCallError, ActorLostError, ActorRef, Backend, find_actor
from dljob.runtime.backend.masters import FIRST, SECOND, NotCommandingError, actor_name, announce
from dljob.runtime.controller.master_loop import MasterLoop, until
from dljob.runtime.journal.first_start import highest_claim
from dljob.runtime.journal.job_record import MasterOrder, master_actor
from dljob.runtime.journal.journal import JournalBrokenError
from dljob.runtime.process import process_end
from dljob.spec.standing import choose_standby, standby_node
from dljob.tasks import ErrorLog, TaskOwner, nobody_waits
from dljob.telemetry.process_ends import describe_exit

log = logging.getLogger(__package__)

ANSWER_S = 0.5
"""Seconds after which a commanding master answers its standby in any case."""
KEEP_S = 5.0
"""Seconds between two looks whether the standby is still there. Ray restarts it, unless it was ended for good."""
FEW_MORE = 3
"""Failures more of a PrimeMaster that leaves the end of the job to the other one, before it ends the job itself."""
AGAIN_S = 0.05
"""Seconds before the next question after a lost claim, or after a method that the other one does not have."""


class StandbyPair:
    """The view that one of the two PrimeMasters has of the pair."""

    def __init__(self, order: MasterOrder, shell: MasterLoop, *, shared: bool) -> None:
        """`shared`: whether a master on another node can read the journal."""
        self._order = order
        self._shell = shell
        self._shared = shared
        self._other = other_name(order)
        self._commanded = False
        """Whether the other one commanded when it was last heard."""
        self._over = False
        """Whether the other one told that the job is over."""
        self._claimed = 0
        """The highest segment claimed, as the other one told; 0: it is to be read from the journal."""
        self._folded = (0, 0)
        """How far the journal was when it was folded last."""
        self.follows = asyncio.Event()
        """Set while the other one is known to command: then this one answers nobody else."""
        self._tasks = TaskOwner(nobody_waits)
        self._ending: asyncio.Task[None] | None = None
        """The end of the other one, which was stopped when this one took over."""
        self._pid = os.getpid()
        self._end_words = ""
        """How the other one's process ended, where this node's kernel tells it."""
        self._process = ProcessWatch()
        """The other one, while it commands on this node. Ray may break a call that is just being sent only once the
        process is started again: then that one may claim first, seconds later."""

    # -- before this one commands

    async def until_claimed(self) -> None:
        """Follow the other PrimeMaster; return once this one has claimed the next epoch."""
        while True:
            verdict = await self._ask()
            if self._over:
                # The other one ends this process, and then itself, in an order that Ray does not keep.
                await asyncio.sleep(KEEP_S)
                self._over = False
            elif verdict.claim and await self._claim(verdict):
                return
            elif verdict.claim:
                self._claimed = 0
                await asyncio.sleep(AGAIN_S)

    async def _ask(self) -> TakeoverVerdict:
        """Ask the other PrimeMaster once. The claims are known before: see `takeover`."""
        loop, limit = asyncio.get_running_loop(), SILENT_S if self._commanded else FIRST_SILENT_S
        claimed = self._claimed or await highest_claim(
            self._shell.journal, self._shell.backend.kv, self._shell.setup.info
        )
        peer, begun = await find_actor(self._shell.backend, self._other), loop.time()
        try:
            async with asyncio.timeout(limit):
                peer_state, claimed = await self._ask_unless_ended(peer, claimed)
                self._claimed = claimed
        except TimeoutError:
            peer_state = PeerState.SILENT
        except ActorLostError:
            peer_state = PeerState.BROKEN
        if peer_state is PeerState.COMMANDS:
            self._end_words = ""
        else:
            self._end_words = self._end_words or self._describe_end()
            self._process.forget()  # whoever answers next may be another process
        return judge(PeerQuestion(peer_state, claimed, loop.time() - begun, limit))

    def _describe_end(self) -> str:
        """Return how the process of the other one ended; empty where it lives, or where that is not known here."""
        if self._process.fd < 0 or not process_end.has_ended(self._process.fd):
            return ""
        return describe_exit(f"it (pid {self._process.pid})", process_end.wait_status(self._process.fd))

    async def _ask_unless_ended(self, peer: ActorRef | None, claimed: int) -> tuple[PeerState, int]:
        call = asyncio.ensure_future(self._ask_peer(peer, claimed))
        ended = asyncio.ensure_future(self._process.ended())
        try:
            await asyncio.wait([call, ended], return_when=asyncio.FIRST_COMPLETED)
            return await call if call.done() else (PeerState.BROKEN, claimed)
        finally:
            call.cancel()
            ended.cancel()

    async def _ask_peer(self, peer: ActorRef | None, claimed: int) -> tuple[PeerState, int]:
        if peer is None:
            return PeerState.ABSENT, claimed
        try:
            answer: dict[str, Any] = await self._shell.backend.call(peer, "follow", claimed)
        except ActorCallError as error:  # of a version without the method, which always commands
            log.warning("the other PrimeMaster cannot be followed: %s", error.message)
            await asyncio.sleep(ANSWER_S)
            answer = {"commands": True, "at": (claimed, 0)}
        self._commanded, self._over = bool(answer["commands"]), bool(answer.get("over"))
        if not self._commanded:
            return PeerState.FOLLOWS, claimed
        self.follows.set()
        self._fold(tuple(answer["at"]))
        is_same_node = answer.get("node") == self._shell.backend.own_node()
        self._process.watch(answer["pid"] if is_same_node else 0)
        return PeerState.COMMANDS, max(claimed, answer["at"][0])

    def _fold(self, at: tuple[int, int]) -> None:
        """Fold the journal ahead if it has grown; one such task at a time, as it takes long where much is new."""
        if at != self._folded and not self._tasks.tasks:
            self._folded = at
            self._tasks.start("journal ahead", self._follow(), nobody_waits)

    async def _follow(self) -> None:
        try:
            await self._shell.follow()
        except Exception as error:  # noqa: BLE001 - a takeover reads all that is missing
            log.info("the journal could not be folded ahead: %r", error)

    async def _claim(self, verdict: TakeoverVerdict) -> bool:
        """Claim the next epoch; False when the other one has it.

        Raises:
            JournalBrokenError: It cannot be claimed here; the other one, or the next process of this one, may be able.
        """
        journal = self._shell.journal
        try:
            won = await journal.claim(verdict.claim)
        except JournalBrokenError:
            if await has_other(self._shell.backend, self._order):
                raise
            self.follows.clear()
            return True  # nobody else can: the loop opens the journal, meets the same error, and ends the job with it
        log.info("epoch %d %s: %s", verdict.claim, "is claimed" if won else "was lost", verdict.reason)
        if not won:
            return False
        self.follows.clear()
        self._shell.why_lost = self._end_words or verdict.lost
        if verdict.fence:
            # It may only be stopped, and must not keep its callers waiting; the journal fences it in any case.
            self._ending = self._shell.tasks.start("end of the stopped PrimeMaster", self._end_stopped(), nobody_waits)
        if verdict.claim > 1:
            self._shell.tasks.repeat("announcement", self.announce, nobody_waits)
        if self._tasks.tasks:
            await asyncio.wait(self._tasks.tasks)  # the replay goes on from what is being folded
        await asyncio.to_thread(self._shell.timeline.read_again)
        return True

    # -- while this one commands

    async def announce(self) -> None:
        """Say that this one commands, under a key with its epoch."""
        await announce(self._shell.backend.kv, self._order.uid, self._shell.journal.epoch, self._order.number)

    async def answer(self, segment: int) -> dict[str, Any]:
        """Answer the standby: at once if this master has claimed a later segment than it knows, else after a while.

        One that knows a later segment than this master may be about to fence it: at once, it would ask without a pause.
        """
        shell = self._shell
        if not shell.journal.epoch:
            return {"commands": False}
        await until(shell.changed, lambda: shell.journal.segment > segment or shell.final is not None, ANSWER_S)
        progress = {"at": shell.journal.position, "over": shell.final is not None}
        return {"commands": True, **progress, "node": shell.backend.own_node(), "pid": self._pid}

    async def keep_other(self) -> None:
        """Create the standby once the last rank is in user code, and again whenever it is gone for good."""
        shell, errors = self._shell, ErrorLog("the look for a standby", log)
        await until(shell.changed, self._all_ready, None)
        while True:
            try:
                await self._create()
                errors.worked()
            except Exception as error:  # noqa: BLE001 - Ray's head may be away; without a standby Ray restarts the master
                errors.failed(error)
            await asyncio.sleep(KEEP_S)

    def _all_ready(self) -> bool:
        state = self._shell.state
        waiting = (RankPhase.WAITING, RankPhase.STARTING, RankPhase.STOPPING)
        return state.phase is Phase.RUNNING and not any(
            rank_state.phase in waiting for rank_state in state.ranks.values()
        )

    async def _create(self) -> None:
        if self._ending is not None and not self._ending.done():
            return  # the stopped one has the name still
        backend, order = self._shell.backend, self._order
        nodes = await backend.nodes()
        choice = choose_standby(self._shell.setup.plan.standby, len({node.ip for node in nodes}))
        if not choice.is_wanted or await backend.lookup(self._other) is not None:
            return
        await self.announce()
        log.info("a standby of PrimeMaster is created: %s", choice.reason)
        head = next((node.id for node in nodes if node.head), None)
        others = [node.id for node in nodes if node.id != backend.own_node() and not (order.away and node.head)]
        node = standby_node(backend.own_node(), others, shared=self._shared)
        actor = master_actor(replace(order, number=FIRST + SECOND - order.number), head, avoid=order.away)
        if self._shared:
            actor = replace(actor, prefer=node)
        elif node != head:
            actor = replace(actor, prefer=None, resources=(), node=node)
        await backend.spawn(actor)

    async def end_other(self) -> bool:
        """Order the end of the other one, for good; return whether it was there."""
        return await end_other(self._shell.backend, self._order)

    async def _end_stopped(self) -> None:
        """End the other one, again until it is gone.

        While it is stopped it has the name of the next standby, and its callers wait for it.
        """
        errors = ErrorLog("the end of the stopped PrimeMaster", log)
        while True:
            try:
                if not await self.end_other():
                    log.info("the stopped PrimeMaster is gone")
                    return
            except Exception as error:  # noqa: BLE001 - Ray's head may be away
                errors.failed(error)
            await asyncio.sleep(ANSWER_S)


def other_name(order: MasterOrder) -> str:
    """Return the name of the other one of a job's two PrimeMasters."""
    return actor_name(order.uid, FIRST + SECOND - order.number)


async def has_other(backend: Backend, order: MasterOrder) -> bool:
    """Return whether the job has its other PrimeMaster, whose process runs or is started again by Ray."""
    return await find_actor(backend, other_name(order)) is not None


async def end_other(backend: Backend, order: MasterOrder) -> bool:
    """Order the end of the other one, for good; return whether it was there."""
    peer = await backend.lookup(other_name(order))
    if peer is not None:
        await backend.kill(peer)
    return peer is not None


async def _other_commands(backend: Backend, peer: ActorRef) -> bool:
    try:
        async with asyncio.timeout(FIRST_SILENT_S):
            answer: dict[str, Any] = await backend.call(peer, "follow", 0)
    except ActorCallError:  # of a version without the method, which always commands
        return True
    except (ActorLostError, TimeoutError):
        return False
    return bool(answer["commands"])


class StartFailures:
    """Counts the failures in a row of one PrimeMaster to begin, in the key-value store: each ends a process."""

    def __init__(self, backend: Backend, order: MasterOrder) -> None:
        self._backend = backend
        self._order = order
        self._prefix = f"dljob/{order.uid}/cannot-begin/"
        self.count = 0
        """Failures while the other PrimeMaster does not command; 0 if it does, or if there is none."""

    async def clear(self) -> None:
        """Begin to count anew: a PrimeMaster commands."""
        await self._backend.kv.delete(self._prefix)

    async def add(self, allowed: int) -> float | None:
        """Count a failure; return the seconds until this process is to be started again, None if the job is to end."""
        peer = await find_actor(self._backend, other_name(self._order))
        if peer is None:
            return None
        if await _other_commands(self._backend, peer):
            await self.clear()
            return start_again_after(0, allowed)
        kv, key = self._backend.kv, f"{self._prefix}{self._order.number}"
        self.count = int(await kv.get(key) or 0) + 1
        await kv.put(key, str(self.count).encode())
        pause = start_again_after(self.count, allowed)
        # Who ends the job ends the other one at once. Where that does not happen, the one is gone that was to do it.
        if pause is None and self.count <= allowed + FEW_MORE and not await self._ends_job():
            return start_again_after(0, allowed)
        return pause

    async def _ends_job(self) -> bool:
        """Return whether this one is to end the job: if both did, each would end the other one before."""
        kv, key, number = self._backend.kv, f"{self._prefix}ends", str(self._order.number).encode()
        return await kv.put_if_absent(key, number) or await kv.get(key) == number

    def described(self, error: Exception) -> Exception:
        """Return the error by which the job ends; it names the node and what to do where several starts have failed."""
        if not self.count:
            return error
        message, hint = (error.message, error.hint) if isinstance(error, DLJobError) else (repr(error), "")
        node = " ".join(filter(None, (self._backend.own_node()[:8], f"({platform.node()})")))
        summary = (
            f"no PrimeMaster of the job can begin; on node {node} {self.count} starts in a row have failed: {message}"
        )
        kind = JournalBrokenError if isinstance(error, (JournalBrokenError, JournalError)) else DLJobError
        more = f"see the other failures with dljob logs {self._order.uid[:8]} --master; then start the job again"
        return kind(summary, hint="; ".join(filter(None, (hint, more))))


async def started(loop: asyncio.Future[MasterLoop], pair: StandbyPair | None) -> MasterLoop:
    """Return the loop of a master once it commands.

    Raises:
        NotCommandingError: The other master commands.
    """
    if pair is None or loop.done():
        return await asyncio.shield(loop)
    follows = asyncio.ensure_future(pair.follows.wait())
    try:
        await asyncio.wait([loop, follows], return_when=asyncio.FIRST_COMPLETED)
    finally:
        follows.cancel()
    if not loop.done():
        raise NotCommandingError("this PrimeMaster is the standby; the other one commands")
    return loop.result()
