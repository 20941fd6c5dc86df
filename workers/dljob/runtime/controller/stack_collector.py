"""Collector of process samples and stacks: asks the node agents whether ranks can run and what their threads do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress

from dljob.errors import DLJobError, NotFoundError
from dljob.master.failure import lost_peers
from dljob.master.state import events as ev
from dljob.master.state.hang import SamplePair
from dljob.master.state.state import JobState, RankPhase, RankState
from dljob.master.state.views import Outcome, PeerSample
from dljob.runtime.backend.interface import ActorRef, Backend
from dljob.runtime.journal.setup import Setup
from dljob.runtime.node.stacks import DumpTarget, ProcessStack
from dljob.tasks import TaskOwner, nobody_waits

ANSWER_S = 12.0
"""Deadline (s) of a node's answer; `node_watch` notices frozen nodes."""
TICK_S = 0.1
PAUSE_S = 1.0
"""Pause (s) between two looks: what a rank does at both, it is busy with."""
FAILURES_S = 2.0
"""Seconds for a host to answer."""
Key = tuple[str, int]
Agents = dict[str, ActorRef]
"""Node -> its agent of the last answer: asking a thousand nodes must not take a thousand look-ups of names first."""


async def sample_ranks(
    backend: Backend, state: JobState, role: str, ranks: Iterable[int], *, stacks: bool, agents: Agents | None = None
) -> dict[int, ProcessStack]:
    """Return samples of a role's ranks, with stacks if wanted, without the ranks whose node does not answer.

    Args:
        backend: to call the agents.
        state: the present state, which says where the ranks are.
        role: the role's name.
        ranks: its ranks.
        stacks: whether to dump stacks by py-spy, too, which takes a second or more.
        agents: cache of agents between calls, which this updates.
    """
    known = {} if agents is None else agents
    # One call per node, whatever the number of its ranks.
    by_node: dict[str, list[int]] = {}
    for rank in ranks:
        node = state.hosts[state.job.roles[role].host_of(rank)].node
        by_node.setdefault(node, []).append(rank)
    answers = await asyncio.gather(
        *(
            _on_node(backend, state, node, [(role, rank) for rank in own], known, stacks=stacks)
            for node, own in by_node.items()
        )
    )
    return {rank: seen for answer in answers for rank, seen in answer.items()}


async def _on_node(
    backend: Backend, state: JobState, node: str, keys: list[Key], agents: Agents, *, stacks: bool
) -> Mapping[int, ProcessStack]:
    targets = [_target(state, key) for key in keys]
    with suppress(Exception):  # `node_watch` reports a node that does not answer
        async with asyncio.timeout(ANSWER_S):
            # Popped, and put back after an answer: the handle of an agent that died is not tried twice.
            agent = agents.pop(node, None) or await backend.lookup(f"{state.job.uid[:8]}/agent/{node[:8]}")
            if agent is not None:
                seen: tuple[ProcessStack, ...] = await backend.call(agent, "look", targets, stacks)
                agents[node] = agent
                return {rank: one for (_, rank), one in zip(keys, seen, strict=True)}
    return {}


def _target(state: JobState, key: Key) -> DumpTarget:
    """Return the processes to inspect: a rank of a thread host has no process but its host."""
    role, rank = key
    host = state.hosts[state.job.roles[role].host_of(rank)].pid
    return DumpTarget(f"{role}/{rank}", state.ranks[key].pid or host, host)


async def stacks_of(backend: Backend, state: JobState, target: str) -> dict[str, str]:
    """Return for each rank of a target its stacks as text, or why there are none; first those that hold others up.

    Raises:
        NotFoundError: The target is neither `job`, nor a role, nor a rank such as `trainer/2`.
    """
    roots = {stall.root for stall in state.stalls}
    keys = sorted(_ranks_of(state, target), key=lambda key: f"{key[0]}/{key[1]}" not in roots)
    found: dict[Key, str] = {}
    for role in dict.fromkeys(role for role, _ in keys):
        live = [rank for name, rank in keys if name == role and state.ranks[name, rank].phase is RankPhase.READY]
        seen = await sample_ranks(backend, state, role, live, stacks=True)
        found |= {(role, rank): text(seen.get(rank)) for rank in live}
    return {f"{role}/{rank}": found.get((role, rank)) or _why_not(state.ranks[role, rank]) for role, rank in keys}


def _ranks_of(state: JobState, target: str) -> list[Key]:
    role, slash, number = target.partition("/")
    everybody = [(name, rank) for name, facts in state.job.roles.items() for rank in facts.ranks]
    keys = everybody if target == "job" else [key for key in everybody if key[0] == role]
    if slash:
        keys = [key for key in keys if str(key[1]) == number]
    if not keys:
        raise NotFoundError(
            f"the job has no {target!r}", hint=f"targets are job, {', '.join(state.job.roles)}, or a rank"
        )
    return keys


def _why_not(rank: RankState) -> str:
    return f"no stack: it is {rank.phase.value}\n"


def text(seen: ProcessStack | None) -> str:
    """Return a sample as text for people."""
    if seen is None:
        return "no stack: the agent of its node does not answer, or is not there yet\n"
    stopped = f"{seen.sample.stopped}\n" if seen.sample.stopped else ""
    return f"{stopped}{seen.stack.rstrip()}\n"


class PeerWatch:
    """Looks at the living ranks of a torch world, once for each inquiry into the cause of a lost peer.

    The core holds the ends that only blame a peer (`dljob.master.failure.lost_peers`) and says whom to look at, before
    anybody sends them SIGTERM: where their threads are, and what their hosts know of an error that ends them.
    `now` returns the time of the job's clock (unix seconds).
    """

    def __init__(
        self,
        setup: Setup,
        backend: Backend,
        offer: Callable[..., Awaitable[None]],
        state: Callable[[], JobState],
        now: Callable[[], float],
        *,
        owner: TaskOwner,
    ) -> None:
        self._folder = setup.folder
        self._backend = backend
        self._offer = offer
        self._state = state
        self._now = now
        self._owner = owner
        self._looked: dict[str, float] = {}
        """Role -> the beginning of the inquiry for which its ranks were looked at last."""
        self._agents: Agents = {}

    async def run(self) -> None:
        """Watch until the job ends."""
        while True:
            await asyncio.sleep(TICK_S)
            self.turn()

    def turn(self) -> None:
        """Start a look for each inquiry that has come to it."""
        state = self._state()
        for role, inquiry in state.inquiries.items():
            if self._looked.get(role) != inquiry.since and (
                ranks := lost_peers.ranks_to_look_at(state, role, self._now())
            ):
                self._looked[role] = inquiry.since
                self._owner.start("look at peers", self._look(role, ranks), nobody_waits)

    async def _look(self, role: str, ranks: tuple[int, ...]) -> None:
        state = self._state()
        before = {rank: state.ranks[role, rank].incarnation for rank in ranks}
        loop = asyncio.get_running_loop()
        began = loop.time()
        first = await sample_ranks(self._backend, state, role, ranks, stacks=True, agents=self._agents)
        await asyncio.sleep(PAUSE_S)
        between = loop.time() - began
        second = await sample_ranks(self._backend, state, role, first, stacks=True, agents=self._agents)
        away = {
            rank: words
            for rank, seen in second.items()
            if (words := lost_peers.away_from_collective(SamplePair(first[rank].sample, seen.sample, between)))
        }
        failures = await self._failures(state, role, before)
        path = ""
        if away:
            parts = [f"== {role}/{rank}: {away.get(rank, '')}\n{text(seen)}\n" for rank, seen in second.items()]
            path = await self._write_down(role, min(away), before, "".join(parts))
        samples = tuple(PeerSample(rank, before[rank], away.get(rank, ""), path, failures.get(rank)) for rank in ranks)
        await self._offer(ev.PeersSeen(role, samples))

    async def _failures(self, state: JobState, role: str, before: Mapping[int, int]) -> dict[int, Outcome]:
        """Return the errors that hosts know of ranks whose processes have not ended yet."""
        facts = state.job.roles[role]
        actors = dict.fromkeys(state.hosts[facts.host_of(rank)].actor for rank in before)
        answers = await asyncio.gather(*map(self._failures_of, actors))
        return {
            rank: outcome
            for answer in answers
            for rank, (incarnation, outcome) in answer.items()
            if before.get(rank) == incarnation
        }

    async def _failures_of(self, actor: str) -> Mapping[int, tuple[int, Outcome]]:
        with suppress(DLJobError, TimeoutError):  # a host that does not answer says nothing of its ranks
            async with asyncio.timeout(FAILURES_S):
                ref = await self._backend.lookup(actor)
                if ref is not None:
                    return await self._backend.call(ref, "failures")
        return {}

    async def _write_down(self, role: str, rank: int, before: Mapping[int, int], stacks: str) -> str:
        """Write the stacks to a file in the job's folder; return its path, empty where it cannot be written."""
        path = self._folder / "stacks" / f"{role}-{rank}-{before[rank]}.txt"
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            await asyncio.to_thread(path.write_text, stacks)
            return str(path)
        return ""
