"""PrimeMaster's side of the checks before a start: one checker on each node, deadlines, and one answer for a round.

What hangs is killed, and has failed. What breaks by itself (a process that dies, a checker that cannot be made) could
not be checked, which is told and holds nobody up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from dljob.errors import DLJobError
from dljob.master import events as ev
from dljob.master.actions import CheckNodes, CheckPlace
from dljob.master.pairing import NodeFacts, Team, TeamFacts, waves
from dljob.plan.model import JobPlan
from dljob.runtime.backend import ActorCallError, ActorLostError, ActorRef, ActorSpec, Backend
from dljob.runtime.hosts import Offer
from dljob.runtime.messages import JobInfo
from dljob.runtime.node_checks import Look, Meet, kind_of

CHECKER_CLASS = "dljob.runtime.node_checker.NodeChecker"
UP_S = 60.0
"""How long a checker may take to answer first."""
LOOK_S = 180.0
"""How long looking at a node may take; torch is imported first, on a new machine from a slow disk."""
MEET_S = 60.0
"""How long an all-reduce may take, its group's making included; torch is imported first on a checker that is new."""
LAST_WORDS_S = 3.0
"""How long the others of a team have to say what they saw after one of them failed."""
SPARE_S = 60.0


class Checks:
    """The checks that are under way, one for each role at most."""

    def __init__(self, job: JobInfo, plan: JobPlan, backend: Backend, offer: Offer, epoch: Callable[[], int]) -> None:
        self._job = job
        self._plan = plan
        self._backend = backend
        self._offer = offer
        self._epoch = epoch
        self._rounds: dict[str, tuple[CheckNodes, asyncio.Task[None]]] = {}

    def begin(self, order: CheckNodes) -> None:
        """Make a round; one of the same role that is under way is dropped, unless it is the same."""
        known, before = self._rounds.get(order.role, (None, None))
        if before is None or before.done() or known != order:
            self._rounds[order.role] = order, asyncio.create_task(self._run(order, before))

    def close(self) -> None:
        """Nobody wants to know any more."""
        for _, task in self._rounds.values():
            task.cancel()

    async def end(self) -> None:
        """The same, and no checker is left when this returns."""
        self.close()
        if self._rounds:
            await asyncio.wait([task for _, task in self._rounds.values()])

    async def _run(self, order: CheckNodes, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            before.cancel()
            await asyncio.wait([before])  # it ends its checkers, which it would else take for ours
        answer = await _Round(order, self._job, self._plan, self._backend, self._epoch()).run()
        # What is free where must be known before units are placed anew.
        nodes: list[ev.NodesSeen] = []
        with suppress(Exception):
            nodes = [ev.NodesSeen(await self._backend.nodes())]
        await self._offer(*nodes, answer)


class _Round:
    """One round of one role."""

    def __init__(self, order: CheckNodes, job: JobInfo, plan: JobPlan, backend: Backend, epoch: int) -> None:
        self.order = order
        self._job = job
        self._role = plan.roles[order.role]
        self._backend = backend
        self._prefix = f"{job.uid[:8]}/check/{order.role}/"
        self._name = f"{order.number}.{epoch}"
        self._places: Mapping[str, CheckPlace] = {place.node: place for place in order.places}
        self._refs: dict[str, ActorRef] = {}
        self._births: list[asyncio.Task[ActorRef]] = []

    async def run(self) -> ev.NodesChecked:
        """Everything of it, and nothing left behind."""
        try:
            await self._clear()
            facts = await asyncio.gather(*(self._look(place) for place in self.order.places))
            fit = {one.node: one for one in facts}
            teams: list[TeamFacts | None] = []
            for wave in waves(self.order.teams):
                teams += await asyncio.gather(*(self._team(team, fit) for team in wave))
            return self._answer(facts, [team for team in teams if team is not None])
        except Exception as error:  # noqa: BLE001 - a check that is wrong must not stop the job
            why = f"{type(error).__name__}: {error}"
            return self._answer([NodeFacts(node, unmade=why[:500]) for node in self._places], [])
        finally:
            with suppress(Exception):
                await self._clear()

    def _answer(self, facts: Iterable[NodeFacts], teams: Iterable[TeamFacts]) -> ev.NodesChecked:
        return ev.NodesChecked(self.order.role, self.order.number, tuple(facts), tuple(teams))

    async def _clear(self) -> None:
        """End all checkers of the role, also those of an earlier round or master, and those on their way."""
        self._refs.clear()
        if self._births:
            await asyncio.wait(self._births)
        for name in await self._backend.actors(self._prefix):
            if ref := await self._backend.lookup(name):
                await self._backend.kill(ref)

    # -- one node

    async def _checker(self, node: str) -> ActorRef:
        """The checker of a node; one that hung was ended, and another takes its place."""
        if node not in self._refs:
            birth = asyncio.create_task(self._backend.spawn(self._spec(self._places[node])))
            self._births.append(birth)
            self._refs[node] = await asyncio.shield(birth)
        return self._refs[node]

    def _spec(self, place: CheckPlace) -> ActorSpec:
        return ActorSpec(
            f"{self._prefix}{place.node[:12]}/{self._name}.{len(self._births) + 1}",
            CHECKER_CLASS,
            (UP_S + LOOK_S + len(self.order.teams) * MEET_S + SPARE_S,),
            reservation=f"{self._job.uid[:8]}/{place.unit}/{place.token}",
            env=self._role.env,
        )

    async def _look(self, place: CheckPlace) -> NodeFacts:
        stage = f"its checker did not come up within {UP_S:g} s"
        try:
            async with asyncio.timeout(UP_S) as limit:
                ref = await self._checker(place.node)
                await self._backend.call(ref, "clock")
                stage = f"it was not looked through within {LOOK_S:g} s"
                limit.reschedule(asyncio.get_running_loop().time() + LOOK_S)
                ahead = await self._ahead(ref)
                facts: NodeFacts = await self._backend.call(ref, "look", self._orders(place))
                return replace(facts, clock_s=ahead)
        except TimeoutError:
            await self._drop(place.node)
            return NodeFacts(place.node, trouble=stage, late=True)
        except DLJobError as error:
            await self._drop(place.node)
            return NodeFacts(place.node, unmade=_words(error))

    def _orders(self, place: CheckPlace) -> Look:
        return Look(place.node, self._role.comm_backend or "", place.memory, (self._job.dir,), place.devices)

    async def _ahead(self, ref: ActorRef) -> float:
        """How far a node's clock is ahead, less what the way there and back may have taken."""
        before = time.time()
        theirs: float = await self._backend.call(ref, "clock")
        after = time.time()
        ahead, doubt = theirs - (before + after) / 2, (after - before) / 2
        return round(max(ahead - doubt, 0.0) + min(ahead + doubt, 0.0), 3)

    async def _drop(self, node: str) -> None:
        ref = self._refs.pop(node, None)
        if ref is not None:
            with suppress(DLJobError):
                await self._backend.kill(ref)

    # -- one team

    async def _team(self, team: Team, facts: Mapping[str, NodeFacts]) -> TeamFacts | None:
        """How their all-reduce went; None where one of them is bad by itself."""
        if any(facts[node].trouble for node in team):
            return None
        lacking = [node for node in team if facts[node].unmade]
        if lacking:
            return TeamFacts(team, unmade=f"{lacking[0]} could not be checked")
        try:
            async with asyncio.timeout(MEET_S):
                refs = [await self._checker(node) for node in team]
                address: str = await self._backend.call(refs[0], "open")
        except (TimeoutError, DLJobError) as error:
            return TeamFacts(team, unmade=_words(error))
        return await self._meet(team, refs, address)

    async def _meet(self, team: Team, refs: list[ActorRef], address: str) -> TeamFacts:
        kind = kind_of(self._places[team[0]].devices)
        backend = self._role.comm_backend or "gloo"
        orders = [Meet(backend, kind, rank, len(team), address, MEET_S) for rank in range(len(team))]
        tasks = [asyncio.ensure_future(self._backend.call(r, "meet", o)) for r, o in zip(refs, orders, strict=True)]
        await asyncio.wait(tasks, timeout=MEET_S, return_when=asyncio.FIRST_EXCEPTION)
        await asyncio.wait(tasks, timeout=LAST_WORDS_S)
        said: dict[str, str] = {}
        lost = ""
        for node, task in zip(team, tasks, strict=True):
            if not task.done():
                said[node] = "it did not end"
                task.cancel()
            elif error := task.exception():
                said[node] = _words(error)
                lost = lost or (f"{node}: {said[node]}" if isinstance(error, ActorLostError) else "")
        if not said:
            return TeamFacts(team, round(min(task.result() for task in tasks), 4))
        for node in team:
            await self._drop(node)  # who failed in a group once is in no state to be asked again
        if lost:
            return TeamFacts(team, unmade=lost)
        words = "; ".join(f"{node[:8]}: {why}" for node, why in said.items())
        return TeamFacts(team, trouble=f"all-reduce of {len(team)} failed ({words[:400]})")


def _words(error: BaseException) -> str:
    """What went wrong, in one line."""
    said = error.message if isinstance(error, ActorCallError) else str(error)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
