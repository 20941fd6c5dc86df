"""PrimeMaster's side of the node checks before a start: one checker per node, deadlines, one result per round.

A check that hangs is killed and counts as failed: hanging is how broken devices and links show. A check that breaks (a
checker that dies or cannot be spawned) leaves the node unchecked; that is reported and does not hold up the start.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from dljob.errors import DLJobError
from dljob.master.state import events as ev
from dljob.master.state.actions import CheckNodes, CheckPlace
from dljob.master.state.pairing import NodeFacts, Team, TeamFacts, disjoint_turns
from dljob.plan.model import JobPlan
from dljob.runtime.backend.interface import ActorCallError, ActorLostError, ActorRef, ActorSpec, Backend
from dljob.runtime.controller.worker_hosts import Offer
from dljob.runtime.node.node_checks import CheckRequest, Meet, kind_of
from dljob.runtime.process.messages import JobInfo
from dljob.tasks import TaskOwner

log = logging.getLogger(__package__)

CHECKER_CLASS = "dljob.runtime.node.node_checker.NodeChecker"
UP_S = 60.0
"""Deadline (s) of a checker's first answer."""
LOOK_S = 180.0
"""Deadline (s) of the checks of one node; torch is imported first, on a new machine from a slow disk."""
MEET_S = 60.0
"""Deadline (s) of an all-reduce with the making of its group; a new checker imports torch first."""
LAST_WORDS_S = 3.0
"""Seconds for the rest of a team to report after one member failed."""
# A checker ends itself this much later (s) than its round can last, should no master be there to end it.
SPARE_S = 60.0


class Checks:
    """Rounds of checks under way, at most one for each role."""

    def __init__(
        self,
        job: JobInfo,
        plan: JobPlan,
        backend: Backend,
        offer: Offer,
        epoch: Callable[[], int],
        *,
        owner: TaskOwner,
    ) -> None:
        self._job = job
        self._owner = owner
        self._plan = plan
        self._backend = backend
        self._offer = offer
        self._epoch = epoch
        self._rounds: dict[str, tuple[CheckNodes, asyncio.Task[None]]] = {}

    def begin(self, order: CheckNodes) -> None:
        """Start a round of checks; it replaces another one of the same role. The same order again changes nothing."""
        known, before = self._rounds.get(order.role, (None, None))
        if before is None or before.done() or known != order:
            self._rounds[order.role] = order, self._owner.start("node checks", self._run(order, before))

    def close(self) -> None:
        """Cancel all rounds."""
        for _, task in self._rounds.values():
            task.cancel()

    async def end(self) -> None:
        """Cancel all rounds, and wait until their checkers are ended."""
        self.close()
        if self._rounds:
            await asyncio.wait([task for _, task in self._rounds.values()])

    async def _run(self, order: CheckNodes, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            before.cancel()
            await asyncio.wait([before])  # its clean-up ends checkers by prefix, and would else end this round's
        answer = await _Round(order, self._job, self._plan, self._backend, self._epoch()).run()
        # The nodes go first: the answer may have the core place units anew, by the free resources of these.
        nodes: list[ev.NodesSeen] = []
        with suppress(Exception):  # a fresh look only: the node list is asked for again within a second
            nodes = [ev.NodesSeen(await self._backend.nodes())]
        await self._offer(*nodes, answer)


class _Round:
    """One round of checks of one role: each node by itself, then teams of nodes by an all-reduce."""

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
        """Run all checks of the round, end its checkers, and return the result. Raises nothing but CancelledError."""
        try:
            # An earlier round, or an earlier master, may have left checkers that still run.
            await self._clear()
            # Nodes by themselves first: a team with a node that has failed would only fail again, and blame the others.
            facts = await asyncio.gather(*(self._check_node(place) for place in self.order.places))
            fit = {node_facts.node: node_facts for node_facts in facts}
            # No node is in two teams of a wave: a checker takes part in one all-reduce at a time.
            teams: list[TeamFacts | None] = []
            for wave in disjoint_turns(self.order.teams):
                teams += await asyncio.gather(*(self._team(team, fit) for team in wave))
            return self._answer(facts, [team for team in teams if team is not None])
        except Exception as error:
            log.exception("the check of the nodes of role %s broke", self.order.role)
            reason = f"{type(error).__name__}: {error}"
            return self._answer([NodeFacts(node, unmade=reason[:500]) for node in self._places], [])
        finally:
            try:
                await self._clear()
            except Exception as error:  # noqa: BLE001 - what is left of it ends with its own deadline
                log.warning("checkers of role %s could not be ended: %r", self.order.role, error)

    def _answer(self, facts: Iterable[NodeFacts], teams: Iterable[TeamFacts]) -> ev.NodesChecked:
        return ev.NodesChecked(self.order.role, self.order.number, tuple(facts), tuple(teams))

    async def _clear(self) -> None:
        """End all checkers of the role, also those of an earlier round or master, and those still being spawned."""
        self._refs.clear()
        if self._births:
            await asyncio.wait(self._births)
        for name in await self._backend.actors(self._prefix):
            if ref := await self._backend.lookup(name):
                await self._backend.kill(ref)

    # -- one node

    async def _checker(self, node: str) -> ActorRef:
        """Return the checker of a node; spawn one where there is none, or where the last one hung and was ended."""
        if node not in self._refs:
            # Shielded: a spawn cancelled by a deadline completes all the same, and `_clear` must wait to find it.
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

    async def _check_node(self, place: CheckPlace) -> NodeFacts:
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
            return NodeFacts(place.node, unmade=_first_line(error))

    def _orders(self, place: CheckPlace) -> CheckRequest:
        return CheckRequest(place.node, self._role.comm_backend or "", place.memory, (self._job.dir,), place.devices)

    async def _ahead(self, ref: ActorRef) -> float:
        """Return by how many seconds a node's clock is ahead (negative: behind).

        Half of the round trip is doubt, and is taken off: a slow answer must not look like a wrong clock.
        """
        before = time.time()
        node_time: float = await self._backend.call(ref, "clock")
        after = time.time()
        ahead, doubt = node_time - (before + after) / 2, (after - before) / 2
        return round(max(ahead - doubt, 0.0) + min(ahead + doubt, 0.0), 3)

    async def _drop(self, node: str) -> None:
        ref = self._refs.pop(node, None)
        if ref is not None:
            with suppress(DLJobError):
                await self._backend.kill(ref)

    # -- one team

    async def _team(self, team: Team, facts: Mapping[str, NodeFacts]) -> TeamFacts | None:
        """Run the all-reduce of a team; None where one of its nodes has failed by itself."""
        if any(facts[node].trouble for node in team):
            return None
        lacking = [node for node in team if facts[node].unmade]
        if lacking:
            return TeamFacts(team, unmade=f"{self._places[lacking[0]].name} could not be checked")
        try:
            async with asyncio.timeout(MEET_S):
                refs = [await self._checker(node) for node in team]
                address: str = await self._backend.call(refs[0], "open")
        except (TimeoutError, DLJobError) as error:
            return TeamFacts(team, unmade=_first_line(error))
        return await self._meet(team, refs, address)

    async def _meet(self, team: Team, refs: list[ActorRef], address: str) -> TeamFacts:
        kind = kind_of(self._places[team[0]].devices)
        backend = self._role.comm_backend or "gloo"
        orders = [Meet(backend, kind, rank, len(team), address, MEET_S) for rank in range(len(team))]
        tasks = [asyncio.ensure_future(self._backend.call(r, "meet", o)) for r, o in zip(refs, orders, strict=True)]
        # One failure makes the others wait for their own timeout: they get three seconds, not another minute.
        await asyncio.wait(tasks, timeout=MEET_S, return_when=asyncio.FIRST_EXCEPTION)
        await asyncio.wait(tasks, timeout=LAST_WORDS_S)
        failures: dict[str, str] = {}
        lost = ""
        for node, task in zip(team, tasks, strict=True):
            if not task.done():
                failures[node] = "it did not end"
                task.cancel()
            elif error := task.exception():
                failures[node] = _first_line(error)
                # A checker that died says nothing about its node, so the all-reduce counts as not made.
                lost = lost or (
                    f"{self._places[node].name}: {failures[node]}" if isinstance(error, ActorLostError) else ""
                )
        if not failures:
            # Each reports a bandwidth: a team is as fast as its slowest member.
            return TeamFacts(team, round(min(task.result() for task in tasks), 4))
        for node in team:
            await self._drop(node)  # a process in which a collective has failed is not fit for another one
        if lost:
            return TeamFacts(team, unmade=lost)
        words = "; ".join(f"{self._places[node].name}: {failure}" for node, failure in failures.items())
        return TeamFacts(team, trouble=f"all-reduce of {len(team)} failed ({words[:400]})")


def _first_line(error: BaseException) -> str:
    """Return the first line of an error's message, at most 300 characters."""
    message = error.message if isinstance(error, ActorCallError) else str(error)
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
