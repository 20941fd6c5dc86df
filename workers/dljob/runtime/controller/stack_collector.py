"""Collector of process samples and stacks: asks the node agents whether ranks can run and what their threads do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

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


class RankSampler:
    """Has the node agents of one job look at the processes of its ranks. `state` returns the present state."""

    def __init__(self, backend: Backend, state: Callable[[], JobState]) -> None:
        self._backend = backend
        self._state = state
        self._agents: dict[str, ActorRef] = {}
        """Node -> its agent of the last answer: a thousand nodes must not take a thousand look-ups of names first."""

    async def sample(self, keys: Iterable[Key], *, stacks: bool) -> dict[Key, ProcessStack]:
        """Return samples of ranks, without those whose node does not answer.

        Args:
            keys: The ranks, as (role, rank).
            stacks: Whether to dump stacks by py-spy, too, which takes a second or more.
        """
        state = self._state()
        # One call per node, whatever the number of its ranks.
        by_node: dict[str, list[Key]] = {}
        for role, rank in keys:
            node = state.hosts[state.job.roles[role].host_of(rank)].node
            by_node.setdefault(node, []).append((role, rank))
        looks = (self._sample_on_node(state, node, ranks, stacks=stacks) for node, ranks in by_node.items())
        return {key: sample for samples in await asyncio.gather(*looks) for key, sample in samples.items()}

    async def sample_twice(
        self, keys: Iterable[Key], pause_s: float, *, stacks: bool
    ) -> tuple[dict[Key, SamplePair], dict[Key, ProcessStack]]:
        """Return two samples of each rank whose node answered both times, and the second one with its stack."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        first = await self.sample(keys, stacks=stacks)
        await asyncio.sleep(pause_s)
        between = loop.time() - began
        second = await self.sample(first, stacks=stacks)
        return {key: SamplePair(first[key].sample, look.sample, between) for key, look in second.items()}, second

    async def write_stacks(
        self, folder: Path, incarnation: int, title: str, keys: Sequence[Key], most: int
    ) -> tuple[str, Mapping[Key, ProcessStack]]:
        """Write the stacks of ranks, in their order, into the folder of a job.

        Args:
            folder: The job's folder.
            incarnation: Of the first rank's process. The file has that rank's name.
            title: The first line of the file.
            keys: The ranks, as (role, rank).
            most: How many of them are shown.

        Returns:
            The path of the file, empty where it cannot be written; and the samples.
        """
        samples = await self.sample(keys[:most], stacks=True)
        parts = [
            f"{title}\n",
            *(f"\n== {role}/{rank}\n{text(samples.get((role, rank)))}" for role, rank in keys[:most]),
        ]
        parts += [f"\n{len(keys) - most} more ranks are not shown\n"] if len(keys) > most else []
        return await write_stack_file(folder, keys[0], incarnation, "".join(parts)), samples

    async def _sample_on_node(
        self, state: JobState, node: str, keys: Sequence[Key], *, stacks: bool
    ) -> Mapping[Key, ProcessStack]:
        targets = [_target(state, key) for key in keys]
        with suppress(Exception):  # `node_watch` reports a node that does not answer
            async with asyncio.timeout(ANSWER_S):
                # Popped, and put back after an answer: the handle of an agent that died is not tried twice.
                agent = self._agents.pop(node, None)
                agent = agent or await self._backend.lookup(f"{state.job.uid[:8]}/agent/{node[:8]}")
                if agent is not None:
                    samples: tuple[ProcessStack, ...] = await self._backend.call(agent, "look", targets, stacks)
                    self._agents[node] = agent
                    return dict(zip(keys, samples, strict=True))
        return {}


def _target(state: JobState, key: Key) -> DumpTarget:
    """Return the processes to inspect: a rank of a thread host has no process but its host."""
    role, rank = key
    host = state.hosts[state.job.roles[role].host_of(rank)].pid
    return DumpTarget(f"{role}/{rank}", state.ranks[key].pid or host, host)


async def write_stack_file(folder: Path, key: Key, incarnation: int, stacks: str) -> str:
    """Write stacks into the folder of a job, for a process of a rank; return the path, empty where that fails."""
    path = folder / "stacks" / f"{key[0]}-{key[1]}-{incarnation}.txt"
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(path.write_text, stacks)
        return str(path)
    return ""


async def stacks_of(backend: Backend, state: JobState, target: str) -> dict[str, str]:
    """Return for each rank of a target its stacks as text, or why there are none; first those that hold others up.

    Raises:
        NotFoundError: The target is neither `job`, nor a role, nor a rank such as `trainer/2`.
    """
    roots = {stall.root for stall in state.stalls}
    keys = sorted(_ranks_of(state, target), key=lambda key: f"{key[0]}/{key[1]}" not in roots)
    # One that starts has a process as soon as its host has: in that of a class or function it is already in `setup`.
    with_process = [
        key
        for key in keys
        if state.ranks[key].phase is RankPhase.READY
        or (state.ranks[key].phase is RankPhase.STARTING and _target(state, key).pid)
    ]
    samples = await RankSampler(backend, lambda: state).sample(with_process, stacks=True)
    return {
        f"{key[0]}/{key[1]}": text(samples.get(key)) if key in with_process else _no_stack(state.ranks[key])
        for key in keys
    }


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


def _no_stack(rank: RankState) -> str:
    return f"no stack: it is {rank.phase.value}\n"


def text(process_stack: ProcessStack | None) -> str:
    """Return a sample as text for people."""
    if process_stack is None:
        return "no stack: the agent of its node does not answer, or is not there yet\n"
    stopped = f"{process_stack.sample.stopped}\n" if process_stack.sample.stopped else ""
    return f"{stopped}{process_stack.stack.rstrip()}\n"


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
        self._sampler = RankSampler(backend, state)

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
                ranks := lost_peers.ranks_to_sample(state, role, self._now())
            ):
                self._looked[role] = inquiry.since
                self._owner.start("look at peers", self._look(role, ranks), nobody_waits)

    async def _look(self, role: str, ranks: tuple[int, ...]) -> None:
        state = self._state()
        before = {rank: state.ranks[role, rank].incarnation for rank in ranks}
        pairs, looks = await self._sampler.sample_twice([(role, rank) for rank in ranks], PAUSE_S, stacks=True)
        away = {rank: words for (_, rank), pair in pairs.items() if (words := lost_peers.describe_absence(pair))}
        failures = await self._failures(state, role, before)
        path = ""
        if away:
            parts = [f"== {role}/{rank}: {away.get(rank, '')}\n{text(look)}\n" for (_, rank), look in looks.items()]
            path = await write_stack_file(self._folder, (role, min(away)), before[min(away)], "".join(parts))
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
