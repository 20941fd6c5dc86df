"""Collector of process samples and stacks: asks the node agents whether ranks can run and what their threads do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress

from dljob.errors import NotFoundError
from dljob.master.state.state import JobState, RankPhase, RankState
from dljob.runtime.backend.interface import ActorRef, Backend
from dljob.runtime.node.stacks import DumpTarget, ProcessStack

ANSWER_S = 12.0
"""Deadline (s) of a node's answer; `node_watch` notices frozen nodes."""
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
