"""PrimeMaster asks its nodes what they see of ranks: whether they can run, and the stacks of all their threads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress

from dljob.errors import NotFoundError
from dljob.master.state import JobState, RankPhase, RankState
from dljob.runtime.backend import ActorRef, Backend
from dljob.runtime.stacks import Seen, Target

ANSWER_S = 12.0
"""How long a node may take to look; one that is frozen is somebody else's business."""
Key = tuple[str, int]
Agents = dict[str, ActorRef]
"""Node -> its agent, as it answered last: to ask a thousand nodes must not take a thousand look-ups of names first."""


async def looked(
    backend: Backend, state: JobState, role: str, ranks: Iterable[int], *, stacks: bool, agents: Agents | None = None
) -> dict[int, Seen]:
    """What the agents of their nodes see of a role's ranks; without those whose node does not answer."""
    known = {} if agents is None else agents
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
) -> Mapping[int, Seen]:
    targets = [_target(state, key) for key in keys]
    with suppress(Exception):  # a node that does not answer is seen by somebody else
        async with asyncio.timeout(ANSWER_S):
            agent = agents.pop(node, None) or await backend.lookup(f"{state.job.uid[:8]}/agent/{node[:8]}")
            if agent is not None:
                seen: tuple[Seen, ...] = await backend.call(agent, "look", targets, stacks)
                agents[node] = agent
                return {rank: one for (_, rank), one in zip(keys, seen, strict=True)}
    return {}


def _target(state: JobState, key: Key) -> Target:
    """A rank of a thread host is its host."""
    role, rank = key
    host = state.hosts[state.job.roles[role].host_of(rank)].pid
    return Target(f"{role}/{rank}", state.ranks[key].pid or host, host)


async def stacks_of(backend: Backend, state: JobState, target: str) -> dict[str, str]:
    """Rank -> its stacks as text, or why there are none.

    Raises:
        NotFoundError: there is no such target; it is job, a role, or a rank as `trainer/2`.
    """
    keys = _meant(state, target)
    found: dict[Key, str] = {}
    for role in dict.fromkeys(role for role, _ in keys):
        live = [rank for name, rank in keys if name == role and state.ranks[name, rank].phase is RankPhase.READY]
        seen = await looked(backend, state, role, live, stacks=True)
        found |= {(role, rank): text(seen.get(rank)) for rank in live}
    return {f"{role}/{rank}": found.get((role, rank)) or _why_not(state.ranks[role, rank]) for role, rank in keys}


def _meant(state: JobState, target: str) -> list[Key]:
    role, slash, number = target.partition("/")
    everybody = [(name, rank) for name, facts in state.job.roles.items() for rank in range(facts.plan.replicas)]
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


def text(seen: Seen | None) -> str:
    """What was seen, for people."""
    if seen is None:
        return "no stack: the agent of its node does not answer, or is not there yet\n"
    stopped = f"{seen.look.stopped}\n" if seen.look.stopped else ""
    return f"{stopped}{seen.stack.rstrip()}\n"
