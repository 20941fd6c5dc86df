"""Who is who now: the core's view of ranks in the words that hosts understand."""

from __future__ import annotations

from dljob.master.state import JobState
from dljob.master.status import peer as peer_view
from dljob.runtime.messages import Peer, RoleTable


def peer(state: JobState, role: str, rank: int) -> Peer:
    """One rank; one that the job does not have is gone for good."""
    if (role, rank) not in state.ranks:
        roles = ", ".join(f"{name} ({facts.plan.replicas})" for name, facts in state.job.roles.items())
        gone = f"there is no such rank; roles and their sizes: {roles}"
        return Peer(role, rank, 0, "", ready=False, gone=gone, size=_size(state, role))
    seen = peer_view(state, role, rank)
    return Peer(role, rank, seen.incarnation, seen.actor, seen.ready, seen.gone, _size(state, role))


def _size(state: JobState, role: str) -> int:
    facts = state.job.roles.get(role)
    return facts.plan.replicas if facts else 0


def role_table(state: JobState, role: str) -> RoleTable:
    """All ranks of a role; none when there is no such role."""
    facts = state.job.roles.get(role)
    ranks = range(facts.plan.replicas) if facts else range(0)
    return RoleTable(role, state.version, tuple(peer(state, role, rank) for rank in ranks))
