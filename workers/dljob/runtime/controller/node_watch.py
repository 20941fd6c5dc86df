"""Watch over nodes: keeps an agent on each node, polls its heartbeat, and reports silent nodes to the core.

Silence is measured by a clock of the watch's own, which advances by half a second at most per turn, and so stands still
while the event loop is late: a master that was starved, stopped or suspended would else take all nodes for frozen.
docs/adr/0021-fencing-silent-nodes.md has the reasons, 0030 those of one heartbeat per node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from dljob.errors import DLJobError
from dljob.master.state import events as ev
from dljob.master.state.actions import StartRanks
from dljob.master.state.silence import frozen_nodes
from dljob.master.state.state import HostPhase, JobState
from dljob.master.state.views import Clue, HostId
from dljob.plan.labels import NODE_NAME
from dljob.runtime.backend.interface import ActorLostError, ActorRef, ActorSpec, Backend
from dljob.runtime.backend.ray_processes import ProcessReader, embedded_folder
from dljob.runtime.controller.witness_desk import WitnessDesk
from dljob.runtime.controller.worker_hosts import SpareId
from dljob.runtime.process.evidence import of_the_dead
from dljob.runtime.process.messages import AgentRequest, BeaconReply, Heartbeat, JobInfo, NodeHeartbeat, saver_name
from dljob.spec.capabilities import Capability
from dljob.tasks import ErrorLog, TaskOwner, nobody_waits
from dljob.telemetry.evidence import Source
from dljob.telemetry.process_ends import describe_end

log = logging.getLogger(__package__)

AGENT_CLASS = "dljob.runtime.node.node_agent.NodeAgent"
TICK_S = 0.25
"""Seconds between judgements of silence. The watch's clock advances by at most twice this per turn."""
HEARTBEATS_PER_FREEZE = 6
"""Heartbeats that fit into `freezeSeconds`: a node that misses them all is frozen."""
CALLS_S = 400
"""Heartbeats per second of all agents together, as long as each still sends two in `freezeSeconds`."""
MOST_S = 700
"""Upper limit of heartbeats per second: each costs PrimeMaster half a millisecond. Beyond it a freeze is noticed
later."""
RETRY_S = 0.5
FIRST_S = 5.0
"""Extra time (s) for the first answer of an agent to this master."""
SMALL = 32
"""Up to this many nodes each has an agent, also without a unit; in larger clusters only nodes with units have one."""
SLOW_START_S = 10.0
"""Seconds with a host after which a job that does not run yet gets agents, too: set-up code that holds the GIL keeps
its host from renewing its lease."""
SPREAD_S = 10.0
"""Seconds after the job runs until nodes without a unit get an agent: ranks of other jobs may be starting there."""
LOOK_S = 1.0
"""Seconds for a fresh list of nodes to arrive, before the core decides without it."""
REAP_AGAIN_S = 1.0
"""Pause (s) before a node is asked a second time to end leftover processes: the host that a spare replaces may only
just be dying at the first."""

STOPPED_S = 10.0
"""Seconds in which the event loop did not run, after which PrimeMaster itself counts as having been stopped."""
HEAD, MASTER = "head", "master"
"""Targets of `PartSilent` that are no nodes of ranks."""

Offer = Callable[..., Awaitable[None]]


class NodeWatch:
    """Watches the nodes of one job; `run` returns only where nothing is to be watched."""

    def __init__(
        self,
        info: JobInfo,
        backend: Backend,
        offer: Offer,
        state: Callable[[], JobState],
        *,
        epoch: Callable[[], int],
        on_heartbeat: Callable[[Heartbeat], BeaconReply],
        owner: TaskOwner,
        witnesses: WitnessDesk | None = None,
    ) -> None:
        self._info = info
        self._owner = owner
        self._backend = backend
        self._offer = offer
        self._state = state
        self._epoch = epoch
        self._on_heartbeat = on_heartbeat
        self._witnesses = witnesses
        self._clock = 0.0
        self._ran_at: float | None = None
        """When the job was first seen to run, by the watch's clock."""
        self._hosted_at: float | None = None
        """When a host of the job was first seen, by the watch's clock."""
        self._last = 0.0
        self._last_heartbeats: dict[str, float] = {}
        """Node -> time of its last heartbeat, by the watch's clock."""
        self._agents: dict[str, asyncio.Task[None]] = {}
        self._refs: dict[str, ActorRef] = {}
        self._work: set[asyncio.Task[None]] = set()
        self._births: set[asyncio.Task[ActorRef]] = set()
        self._closed = False
        self.all_go = ""
        """Why all nodes end, once they do: then no node's preStop needs to wait for its ranks to leave. Else empty."""
        self._processes = ProcessReader(embedded_folder())
        self._node_ids: dict[str, str] = {}
        """Name -> Ray's id of each node of an embedded Ray, also of one that is lost."""
        self._stopped_since: dict[str, float] = {}
        """Node's name -> when a process of Ray there was first seen stopped, by the watch's clock."""
        self._silent: set[str] = set()
        """Targets that were reported silent."""
        self._own_node = backend.own_node()
        """PrimeMaster's own node: while this code runs it is not frozen, however long its agent is silent."""
        self._why = ""

    async def run(self) -> None:
        """Keep an agent on each node, and judge their silence."""
        if self._state().job.fault_tolerance.node.action == "Ignore":
            return
        if Capability.NODE_AGENTS not in self._backend.capabilities:
            return
        loop = asyncio.get_running_loop()
        self._last = loop.time()
        while True:
            await asyncio.sleep(TICK_S)
            await self.turn(loop.time())

    def close(self) -> None:
        """Stop the heartbeats, and make no more agents."""
        self._closed = True
        for task in (*self._agents.values(), *self._work):
            task.cancel()

    async def turn(self, now: float) -> None:
        """Advance the clock, adjust the set of agents and judge silences; `now` is the event loop's time (s)."""
        pause_s, self._last = now - self._last, now
        self._clock += min(pause_s, 2 * TICK_S)
        state = self._state()
        if self._processes.is_embedded:
            self._node_ids |= {name: node.id for node in state.nodes if (name := dict(node.labels).get(NODE_NAME))}
            await self._report_ends()
            await self._report_stops(state, pause_s)
        if self._hosted_at is None and any(host.phase is HostPhase.READY for host in state.hosts.values()):
            self._hosted_at = self._clock
        # No agents while the ranks start: the agents' start would compete with theirs.
        if state.verdict is not None:
            self._keep(())
        elif state.running_at is None:
            if self._hosted_at is not None and self._clock - self._hosted_at >= SLOW_START_S:
                self._keep(nodes_to_watch(state, spread=False))
        else:
            self._ran_at = self._clock if self._ran_at is None else self._ran_at
            self._keep(nodes_to_watch(state, spread=self._clock - self._ran_at >= SPREAD_S))
            await self._judge(state)

    def _keep(self, nodes: Iterable[str]) -> None:
        """Start a heartbeat task for each of these nodes, and cancel those of all other nodes."""
        watched_nodes = set(nodes)
        for node in watched_nodes - self._agents.keys():
            self._agents[node] = self._owner.repeat("node heartbeat", partial(self._follow, node))
        for node in self._agents.keys() - watched_nodes:
            self._agents.pop(node).cancel()
            self._refs.pop(node, None)
            self._last_heartbeats.pop(node, None)

    async def _judge(self, state: JobState) -> None:
        silences = {
            node: 0.0 if node == self._own_node else self._clock - on_heartbeat
            for node, on_heartbeat in self._last_heartbeats.items()
            if node not in state.exclusions or not state.exclusions[node].silent
        }
        # An agent may hold back its answer for `pauses()[0]` without being silent.
        frozen, doubt = frozen_nodes(silences, state.job.fault_tolerance.node, self.pauses()[0])
        if doubt and doubt != self._why:
            log.warning("%s", doubt)
        self._why = doubt
        policy = state.job.fault_tolerance.node
        for node, seconds in silences.items():
            if node not in frozen and seconds >= max(policy.freeze_seconds, 2 * self.pauses()[0]):
                reason = self._why_silent(node)
                # Without a sign of the machine it may only be busy.
                if reason or seconds >= policy.unreachable_seconds / 2:
                    await self._report_silence(f"node/{node}", seconds, reason)
            elif seconds < policy.freeze_seconds and not self._is_stopped(node):
                await self._report_answer(f"node/{node}")
        if frozen:
            # While a job runs the core rarely hears of free resources: have it place the units by fresh ones.
            with suppress(Exception):  # a fresh look only: the node list is asked for again within a second
                async with asyncio.timeout(LOOK_S):
                    await self._offer(ev.NodesSeen(await self._backend.nodes()))
            for node, seconds in frozen.items():
                self._silent.discard(f"node/{node}")
                await self._offer(ev.NodeFrozen(node, round(seconds, 3), self._why_silent(node)))
            for node in frozen:
                self._begin("end of a saver's agent", partial(self._kill_saver_agent, node))

    async def _report_ends(self) -> None:
        """Offer how raylets of an embedded Ray ended, as their parent wrote it down; Ray tells of it a second later."""
        for end in self._processes.new_ends():
            if node := self._node_ids.get(end.node):
                clues = [Clue(Source.NODE.value, describe_end(end)), *await asyncio.to_thread(of_the_dead, end.pid)]
                await self._offer(ev.CauseLearned(f"node/{node}", tuple(clues)))

    async def _report_stops(self, state: JobState, pause_s: float) -> None:
        """Report processes of an embedded Ray that a signal or a debugger has stopped, and PrimeMaster itself."""
        if state.running_at is None:
            return
        if pause_s >= STOPPED_S:
            reason = "its process did not run: it was stopped, or the machine had no time for it"
            await self._offer(ev.PartSilent(MASTER, round(pause_s, 3), reason), ev.PartAnswers(MASTER))
        stopped = self._processes.stopped()
        for name in self._stopped_since.keys() - stopped.keys():
            del self._stopped_since[name]
            await self._report_answer(self._target(name))
        for name, reason in stopped.items():
            since = self._stopped_since.setdefault(name, self._clock)
            if self._clock - since >= state.job.fault_tolerance.node.freeze_seconds:
                target = self._target(name)
                if target not in self._silent and target != HEAD:
                    # If Ray gives the node up, this is why.
                    await self._offer(ev.CauseLearned(target, (Clue(Source.NODE.value, reason),)))
                await self._report_silence(target, self._clock - since, reason)

    def _target(self, name: str) -> str:
        """Return the target of reports about a node of an embedded Ray, by its name."""
        return f"node/{self._node_ids[name]}" if name in self._node_ids else HEAD

    def _is_stopped(self, node: str) -> bool:
        return any(self._node_ids.get(name) == node for name in self._stopped_since)

    def _why_silent(self, node: str) -> str:
        """Return what this machine tells of a silent node of an embedded Ray; empty: nothing."""
        return next((self._processes.why_silent(name) for name, id_ in self._node_ids.items() if id_ == node), "")

    async def _report_silence(self, target: str, seconds: float, reason: str) -> None:
        if target not in self._silent:
            self._silent.add(target)
            await self._offer(ev.PartSilent(target, round(seconds, 3), reason))

    async def _report_answer(self, target: str) -> None:
        if target in self._silent:
            self._silent.discard(target)
            await self._offer(ev.PartAnswers(target))

    def _begin(self, kind: str, start_work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        work = self._owner.repeat(kind, start_work, nobody_waits)
        self._work.add(work)
        work.add_done_callback(self._work.discard)

    async def _kill_saver_agent(self, node: str) -> None:
        """Kill the saver's agent of a frozen node: a restore, or the end of the job, would wait for its answer.

        The kill takes effect when the node wakes up; the saver then writes its memory to disk, as after any end of its
        agent.
        """
        with suppress(DLJobError):
            agent = await self._backend.lookup(saver_name(self._info, node))
            if agent is not None:
                await self._backend.kill(agent)

    def record_answer(self, occupant: HostId | SpareId | None) -> None:
        """Count a host's own heartbeat for its node: an agent that is stopped alone does not freeze the node."""
        host = self._state().hosts.get(occupant) if isinstance(occupant, HostId) else occupant
        if host is not None and host.node in self._last_heartbeats:
            self._last_heartbeats[host.node] = self._clock

    # -- what is asked of agents

    def reap(self, actions: Iterable[object]) -> None:
        """Order the agents to end leftover processes of earlier incarnations of ranks that start again; do not wait.

        Each node gets one order for all its ranks of a role: a world that restarts has very many.
        """
        state, again = self._state(), dict[tuple[str, str], dict[int, int]]()
        for action in actions:
            if isinstance(action, StartRanks):
                incarnations = again.setdefault((state.hosts[action.host].node, action.host.role), {})
                incarnations.update((start.rank, start.incarnation) for start in action.ranks if start.incarnation > 1)
        for (node, role), ranks in again.items():
            agent = self._refs.get(node)
            if ranks and agent is not None:
                self._begin("reaping of processes", partial(self._reap, agent, role, ranks))

    async def _reap(self, agent: ActorRef, role: str, incarnations: Mapping[int, int]) -> None:
        with suppress(DLJobError):
            await self._backend.call(agent, "reap", self._info.uid, role, incarnations)
            await asyncio.sleep(REAP_AGAIN_S)
            await self._backend.call(agent, "reap", self._info.uid, role, incarnations)

    # -- one node's agent

    async def _follow(self, node: str) -> None:
        """Poll the agent of a node until the job ends; spawn another agent whenever its process has died."""
        name, errors = f"{self._info.uid[:8]}/agent/{node[:8]}", ErrorLog(f"the heartbeat of node {node}", log)
        while not self._has_ended:
            try:
                await self._ask(name, node)
            except ActorLostError as error:
                # An agent that died alone says nothing of its node: no silence is counted until the next one answers.
                # Where the agent is merely out of reach, or lost with its node, the silence goes on.
                if error.certain and not error.node_lost:
                    self._last_heartbeats.pop(node, None)
            except Exception as error:  # noqa: BLE001 - an error is no silence, and must not look like it ever after
                self._last_heartbeats.pop(node, None)
                errors.failed(error)
            await asyncio.sleep(RETRY_S)

    def pauses(self) -> tuple[float, float]:
        """Return the seconds that an agent holds back an answer without news, and with news; more in large clusters."""
        # CALLS_S bounds the requests until two in `freezeSeconds` are at risk; MOST_S bounds them even then.
        freeze_s = self._state().job.fault_tolerance.node.freeze_seconds
        turn, least = len(self._agents) / CALLS_S, len(self._agents) / MOST_S
        pause = max(min(max(freeze_s / HEARTBEATS_PER_FREEZE, turn), freeze_s / 2), least)
        return pause, min(max(self._info.beacon_s, turn), pause)

    @property
    def _has_ended(self) -> bool:
        return self._closed or self._state().verdict is not None

    async def _ask(self, name: str, node: str) -> None:
        agent = await self._backend.lookup(name)
        if agent is not None:
            # Made by an earlier master: it may be frozen, so its silence counts from now on. An agent that is yet to be
            # spawned is counted from its first answer only.
            self._last_heartbeats.setdefault(node, self._clock + FIRST_S)
        else:
            # A task, shielded: a spawn that is cancelled half-way leaves an agent that is never ended.
            birth = asyncio.create_task(self._bear(name, node))
            self._births.add(birth)
            birth.add_done_callback(self._births.discard)
            agent = await asyncio.shield(birth)
        self._refs[node] = agent
        leaving = ""
        ask = AgentRequest(
            self._epoch(), 0.0, 0.0
        )  # nothing is known of a node before the first answer: it comes at once
        while True:
            heartbeat = NodeHeartbeat.unpacked(await self._backend.call(agent, "beat", ask.packed()))
            self._last_heartbeats[node] = self._clock
            # The next request tells the agent: hosts that PrimeMaster has replaced must end themselves.
            unknown = tuple(host.actor for host in heartbeat.hosts if not self._on_heartbeat(host).known)
            if self._witnesses is not None:
                await self._witnesses.record(node, heartbeat)
            # The pod's preStop told the agent: the node is announced to go.
            if heartbeat.leaving and heartbeat.leaving != leaving:
                leaving = heartbeat.leaving
                await self._offer(ev.CauseLearned(f"node/{node}", (Clue(Source.NOTICE.value, leaving),)))
            ask = AgentRequest(
                self._epoch(), *self.pauses(), heartbeat.number, unknown, self.all_go or may_go(self._state(), node)
            )
            exclusion = self._state().exclusions.get(node)
            # It was reported frozen, and answers: the core may count on it again once its lease has passed.
            if exclusion is not None and exclusion.silent:
                await self._offer(ev.NodeThawed(node))
                self._begin(
                    "end of a saver's agent", partial(self._kill_saver_agent, node)
                )  # what ended its saver's agent may not have reached it

    async def _bear(self, name: str, node: str) -> ActorRef:
        """Spawn an agent; kill it at once where the job ended meanwhile, as the sweep would have missed it."""
        agent = await self._backend.spawn(self._spec(name, node))
        # The sweep may have listed the actors before this one existed.
        if self._has_ended:
            await self._backend.kill(agent)
        return agent

    def _spec(self, name: str, node: str) -> ActorSpec:
        plans = () if self._witnesses is None else self._witnesses.plans
        return ActorSpec(name, AGENT_CLASS, (self._info.lease_s, self._info.uid, self._info.dir, plans), node=node)


def may_go(state: JobState, node: str) -> str:
    """Return why the preStop of a leaving node need not wait for its ranks; empty: wait, or the node is not leaving."""
    departure = state.departures.get(node)
    if departure is None or not departure.saved:
        return ""
    has_hosts = any(host.node == node and host.phase is not HostPhase.DOWN for host in state.hosts.values())
    if not has_hosts:
        return "nothing of the job runs there"
    return departure.stays and f"no other node can have its ranks: {departure.stays}"


def nodes_to_watch(state: JobState, *, spread: bool) -> set[str]:
    """Return the nodes that need an agent: those with units or excluded, and in small clusters all but the head.

    Args:
        state: The job.
        spread: Whether nodes without units come into question yet.
    """
    worth = [node.id for node in state.nodes if not node.head]
    used = {unit.node for unit in state.units.values()}
    few = state.job.own_nodes or (spread and len(worth) <= SMALL)
    return {node for node in worth if few or node in used or node in state.exclusions}
