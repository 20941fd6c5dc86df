"""PrimeMaster's side of the node agents: one on each node, asked again and again; silence is told to the core.

Silence is counted by a clock of our own, which stands still while this loop is late: a master that is starved, stopped
or suspended would else take everybody for frozen.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any

from dljob.errors import DLJobError
from dljob.master import events as ev
from dljob.master.actions import StartRanks
from dljob.master.silence import frozen
from dljob.master.state import HostPhase, JobState
from dljob.master.views import Clue, HostId
from dljob.runtime.backend import ActorLostError, ActorRef, ActorSpec, Backend
from dljob.runtime.hosts import SpareId
from dljob.runtime.messages import Ask, Beacon, BeaconReply, JobInfo, Pulse, saver_name
from dljob.spec.capabilities import Capability
from dljob.telemetry.evidence import Source

AGENT_CLASS = "dljob.runtime.node_agent.NodeAgent"
TICK_S = 0.25
"""How often silence is judged. The clock moves on by no more than twice this at a time."""
BEATS = 6
"""How many beats a node may miss before it counts as frozen."""
CALLS_S = 400
"""So many answers a second are asked of all agents together, as long as each beats twice in `freezeSeconds`."""
MOST_S = 700
"""More are never asked: each costs PrimeMaster half a millisecond. Then it takes longer until a node is frozen."""
RETRY_S = 0.5
FIRST_S = 5.0
"""How much longer an agent may take that this master hears for the first time."""
SMALL = 32
"""On so many nodes each has an agent, also one that holds no unit yet; on more, each that holds one."""
LOOK_S = 1.0
"""How long a fresh look at the nodes may take before the core decides without it."""
REAP_AGAIN_S = 1.0
"""When a node is asked once more to end what is left: the host that a spare follows may be killed only just now."""

Offer = Callable[..., Awaitable[None]]


class NodeWatch:
    """Hears one job's nodes while it runs; `run` never returns."""

    def __init__(
        self,
        info: JobInfo,
        backend: Backend,
        offer: Offer,
        state: Callable[[], JobState],
        *,
        epoch: Callable[[], int],
        heard: Callable[[Beacon], BeaconReply],
    ) -> None:
        self._info = info
        self._backend = backend
        self._offer = offer
        self._state = state
        self._epoch = epoch
        self._host_heard = heard
        self._clock = 0.0
        self._last = 0.0
        self._heard: dict[str, float] = {}
        """Node -> when it was heard last, by our own clock."""
        self._agents: dict[str, asyncio.Task[None]] = {}
        self._refs: dict[str, ActorRef] = {}
        self._work: set[asyncio.Task[None]] = set()
        self._births: set[asyncio.Task[ActorRef]] = set()
        self._closed = False
        self.all_go = ""
        """Why all nodes end, when they do: nobody need wait for anybody to leave his."""
        self._here = backend.here()
        """While this runs its own node is not frozen, however long the agent there says nothing."""
        self._why = ""

    async def run(self) -> None:
        """Keep an agent on each node, and judge their silence."""
        if self._state().job.fault_tolerance.node.action == "Ignore":
            return
        if Capability.NODE_AGENTS not in self._backend.capabilities:
            return
        loop = asyncio.get_running_loop()
        self._last = loop.time()
        try:
            while True:
                await asyncio.sleep(TICK_S)
                await self.turn(loop.time())
        finally:
            self.close()

    def close(self) -> None:
        """Hear nobody any more, and make no more agents."""
        self._closed = True
        for task in (*self._agents.values(), *self._work):
            task.cancel()

    async def turn(self, now: float) -> None:
        """Move the clock on, and look at everybody; `now` is the loop's time."""
        self._clock += min(now - self._last, 2 * TICK_S)
        self._last = now
        state = self._state()
        if state.verdict is not None:
            self._keep(())
        elif state.running_at is not None:
            self._keep(wanted(state))
            await self._judge(state)

    def _keep(self, nodes: Iterable[str]) -> None:
        """An agent's task for each node, and for no other."""
        there = set(nodes)
        for node in there - self._agents.keys():
            self._agents[node] = asyncio.create_task(self._follow(node))
        for node in self._agents.keys() - there:
            self._agents.pop(node).cancel()
            self._refs.pop(node, None)
            self._heard.pop(node, None)

    async def _judge(self, state: JobState) -> None:
        silences = {
            node: 0.0 if node == self._here else self._clock - heard
            for node, heard in self._heard.items()
            if node not in state.exclusions or not state.exclusions[node].silent
        }
        found, why = frozen(silences, state.job.fault_tolerance.node, self.pauses()[0])
        if why and why != self._why:
            _say(why)
        self._why = why
        if found:
            # What is free where is known from long ago while a job runs.
            with suppress(Exception):
                async with asyncio.timeout(LOOK_S):
                    await self._offer(ev.NodesSeen(await self._backend.nodes()))
            await self._offer(*(ev.NodeFrozen(node, round(seconds, 3)) for node, seconds in found.items()))
            for node in found:
                self._begin(self._part(node))

    def _begin(self, what: Coroutine[Any, Any, None]) -> None:
        work = asyncio.create_task(what)
        self._work.add(work)
        work.add_done_callback(self._work.discard)

    async def _part(self, node: str) -> None:
        """End the saver's agent of a frozen node: who restores or ends would wait for its answer.

        It goes when its node wakes up, and its saver brings to disk what it holds, as after any end of its agent.
        """
        with suppress(DLJobError):
            agent = await self._backend.lookup(saver_name(self._info, node))
            if agent is not None:
                await self._backend.kill(agent)

    def spoke(self, who: HostId | SpareId | None) -> None:
        """A host was heard: its node is not frozen, whatever its agent does."""
        own = self._state().hosts.get(who) if isinstance(who, HostId) else who
        if own is not None and own.node in self._heard:
            self._heard[own.node] = self._clock

    # -- what is asked of agents

    def reap(self, actions: Iterable[object]) -> None:
        """What earlier processes of ranks that start again left on their node shall end; nobody waits for it."""
        state = self._state()
        for action in actions:
            if isinstance(action, StartRanks):
                again = {start.rank: start.incarnation for start in action.ranks if start.incarnation > 1}
                agent = self._refs.get(state.hosts[action.host].node)
                if again and agent is not None:
                    self._begin(self._reap(agent, action.host.role, again))

    async def _reap(self, agent: ActorRef, role: str, incarnations: Mapping[int, int]) -> None:
        with suppress(DLJobError):
            await self._backend.call(agent, "reap", self._info.uid, role, incarnations)
            await asyncio.sleep(REAP_AGAIN_S)
            await self._backend.call(agent, "reap", self._info.uid, role, incarnations)

    # -- one node's agent

    async def _follow(self, node: str) -> None:
        """Ask the agent of a node until the job ends, which ends it; one whose process died before is made again."""
        name, said = f"{self._info.uid[:8]}/agent/{node[:8]}", ""
        while not self._over:
            try:
                await self._ask(name, node)
            except ActorLostError as error:
                if error.certain and not error.node_lost:
                    self._heard.pop(node, None)
            except Exception as error:  # noqa: BLE001 - an error is no silence, and must not look like it ever after
                self._heard.pop(node, None)
                before, said = said, f"the agent of node {node}: {type(error).__name__}: {error}"
                if said != before:
                    _say(said)
            await asyncio.sleep(RETRY_S)

    def pauses(self) -> tuple[float, float]:
        """How long an agent waits before it answers, and how long when it has news; longer where there are many."""
        freeze_s = self._state().job.fault_tolerance.node.freeze_seconds
        turn, least = len(self._agents) / CALLS_S, len(self._agents) / MOST_S
        pause = max(min(max(freeze_s / BEATS, turn), freeze_s / 2), least)
        return pause, min(max(self._info.beacon_s, turn), pause)

    @property
    def _over(self) -> bool:
        return self._closed or self._state().verdict is not None

    async def _ask(self, name: str, node: str) -> None:
        agent = await self._backend.lookup(name)
        if agent is not None:
            self._heard.setdefault(node, self._clock + FIRST_S)
        else:
            birth = asyncio.create_task(self._bear(name, node))
            self._births.add(birth)
            birth.add_done_callback(self._births.discard)
            agent = await asyncio.shield(birth)
        self._refs[node] = agent
        leaving = ""
        ask = Ask(self._epoch(), 0.0, 0.0)  # nothing is known of a node before the first answer: it comes at once
        while True:
            pulse = Pulse.unpacked(await self._backend.call(agent, "beat", ask.packed()))
            self._heard[node] = self._clock
            unknown = tuple(host.actor for host in pulse.hosts if not self._host_heard(host).known)
            if pulse.leaving and pulse.leaving != leaving:
                leaving = pulse.leaving
                await self._offer(ev.CauseLearned(f"node/{node}", (Clue(Source.NOTICE.value, leaving),)))
            ask = Ask(self._epoch(), *self.pauses(), pulse.number, unknown, self.all_go or may_go(self._state(), node))
            own = self._state().exclusions.get(node)
            if own is not None and own.silent:
                await self._offer(ev.NodeThawed(node))
                self._begin(self._part(node))  # what ended its saver's agent may not have reached it

    async def _bear(self, name: str, node: str) -> ActorRef:
        """A new agent; one that came after all of the job was ended would be left behind."""
        agent = await self._backend.spawn(self._spec(name, node))
        if self._over:
            await self._backend.kill(agent)
        return agent

    def _spec(self, name: str, node: str) -> ActorSpec:
        return ActorSpec(name, AGENT_CLASS, (self._info.lease_s, self._info.uid, self._info.dir), node=node)


def _say(words: str) -> None:
    with suppress(OSError):
        os.write(2, f"[dljob] {words}\n".encode())


def may_go(state: JobState, node: str) -> str:
    """Why nobody on a node that is to go is worth waiting for; empty: its ranks may yet leave it, or it stays."""
    own = state.departures.get(node)
    if own is None or not own.saved:
        return ""
    here = any(host.node == node and host.phase is not HostPhase.DOWN for host in state.hosts.values())
    return (own.stays and f"no other node can have its ranks: {own.stays}") if here else "nothing of the job runs there"


def wanted(state: JobState) -> set[str]:
    """The nodes that are to be heard: those with units, and where there are few, those that may get some."""
    worth = [node.id for node in state.nodes if not node.head]
    used = {unit.node for unit in state.units.values()}
    few = state.job.own_nodes or len(worth) <= SMALL
    return {node for node in worth if few or node in used or node in state.exclusions}
