"""Who is in a collective group now: its members' processes, and the epoch that they make."""

from __future__ import annotations

from dataclasses import dataclass

from dljob.master.state.state import JobState, RankKey, RankPhase, RankState


@dataclass(frozen=True, slots=True)
class Roster:
    """The members of a group, numbered by their place.

    Equal epochs are the same processes: an epoch counts the starts of all its roles' ranks, which only grow.
    """

    group: str
    epoch: int
    members: tuple[tuple[str, int, int], ...]
    """(role, rank, incarnation) of each."""
    absent: tuple[tuple[RankKey, str], ...] = ()
    """Members without a process that could take part, each with why; with any the group cannot be made now."""
    over: str = ""
    """Why the group will not be made any more; empty: it may be."""
    ended: bool = False
    """Whether all that are absent ended well, or the job ends: what they had sent may still be on its way."""


def roster(state: JobState, group: str) -> Roster | None:
    """A group of the spec as it is now; None when there is none of that name."""
    roles = next((own.roles for own in state.job.spec.collectives.groups if own.name == group), None)
    if roles is None:
        return None
    keys = [(role, rank) for role in roles for rank in range(state.job.roles[role].plan.replicas)]
    members = tuple((*key, state.ranks[key].incarnation) for key in keys)
    epoch = sum(own.incarnation for (role, _), own in state.ranks.items() if role in roles)
    absent = tuple((key, why) for key in keys if (why := _absence(state, key)))
    if state.verdict is not None:
        return Roster(group, epoch, members, absent, f"the job is ending: {state.verdict.reason}", ended=True)
    gone = [key for key, _ in absent if state.ranks[key].phase in (RankPhase.SUCCEEDED, RankPhase.FAILED)]
    over = ", ".join(f"{role}/{rank} {_absence(state, (role, rank))}" for role, rank in gone)
    well = all(state.ranks[key].phase is RankPhase.SUCCEEDED for key, _ in absent)
    return Roster(group, epoch, members, absent, over, ended=bool(absent) and well)


def _absence(state: JobState, key: RankKey) -> str:
    """Why a rank cannot take part; empty when it can."""
    own = state.ranks[key]
    match own.phase:
        case RankPhase.STARTING | RankPhase.READY:
            return ""
        case RankPhase.SUCCEEDED:
            # Though its host lives on: nothing of it calls what the others wait in. A thread of it that still does
            # says so to the desk (`runtime.controller.group_rendezvous`).
            return "has ended"
        case RankPhase.FAILED:
            return "failed, and a rule says to leave it so"
        case RankPhase.STOPPING:
            return f"is being restarted ({own.restart_reason})" if own.restart_reason else "is being restarted"
        case RankPhase.WAITING:
            return _waiting(own)
        case _:
            return f"is {own.phase}"


def _waiting(own: RankState) -> str:
    return f"restarts ({own.restart_reason})" if own.restart_reason else "has not started yet"
