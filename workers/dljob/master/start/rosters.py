"""Rosters: the present members of a collective group across roles, and the epoch that their processes make."""

from __future__ import annotations

from dataclasses import dataclass

from dljob.master.state.state import JobState, RankKey, RankPhase, RankState


@dataclass(frozen=True, slots=True)
class Roster:
    """The members of a group; a member's position is its rank in the group.

    The epoch is the sum of all incarnations of its roles' ranks, which only grow, so equal epochs mean equal processes.
    """

    group: str
    epoch: int
    members: tuple[tuple[str, int, int], ...]
    """(role, rank, incarnation) of each member."""
    absent: tuple[tuple[RankKey, str], ...] = ()
    """Members without a process that can take part, each with the reason; with any, the group cannot form now."""
    over: str = ""
    """Why the group will never form again; empty: it may."""
    ended: bool = False
    """Whether all absent members ended well, or the job ends: data that they sent may still be in flight."""


def roster(state: JobState, group: str) -> Roster | None:
    """Return the present roster of a group of the spec; None when there is no group of that name."""
    roles = next((spec.roles for spec in state.job.spec.collectives.groups if spec.name == group), None)
    if roles is None:
        return None
    keys = [(role, rank) for role in roles for rank in state.job.roles[role].ranks]
    members = tuple((*key, state.ranks[key].incarnation) for key in keys)
    # Over all ranks that the roles ever had: the sum would fall if a shrunk role's absent ranks were left out.
    epoch = sum(process.incarnation for (role, _), process in state.ranks.items() if role in roles)
    absent = tuple((key, reason) for key in keys if (reason := _absence_reason(state, key)))
    if state.verdict is not None:
        return Roster(group, epoch, members, absent, f"the job is ending: {state.verdict.reason}", ended=True)
    # These never come back by themselves, so the group cannot form again.
    ended_keys = [key for key, _ in absent if state.ranks[key].phase in (RankPhase.SUCCEEDED, RankPhase.FAILED)]
    end_reason = ", ".join(f"{role}/{rank} {_absence_reason(state, (role, rank))}" for role, rank in ended_keys)
    all_succeeded = all(state.ranks[key].phase is RankPhase.SUCCEEDED for key, _ in absent)
    return Roster(group, epoch, members, absent, end_reason, ended=bool(absent) and all_succeeded)


def _absence_reason(state: JobState, key: RankKey) -> str:
    """Return why a rank cannot take part; empty when it can."""
    rank_state = state.ranks[key]
    match rank_state.phase:
        case RankPhase.STARTING | RankPhase.READY:
            return ""
        case RankPhase.SUCCEEDED:
            # Even if its host lives, it makes no collective call any more. A thread of it that still does reports that
            # to the rendezvous (`runtime.controller.group_rendezvous`).
            return "has ended"
        case RankPhase.FAILED:
            return "failed, and a rule says to leave it so"
        case RankPhase.STOPPING:
            reason_text = f" ({rank_state.restart_reason})" if rank_state.restart_reason else ""
            return f"is being restarted{reason_text}"
        case RankPhase.WAITING:
            return _describe_wait(rank_state)
        case _:
            return f"is {rank_state.phase}"


def _describe_wait(rank_state: RankState) -> str:
    return f"restarts ({rank_state.restart_reason})" if rank_state.restart_reason else "has not started yet"
