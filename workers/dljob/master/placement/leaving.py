"""Leaving: ranks of a fleet finish what they are at before their role goes on without them.

Others let go of them first: they are out of the endpoints, and callers hear of the smaller role. Then they get
`limits.FINISH_S` for calls under way, and servers the time of their drain. Only then are their machines given back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dljob.master.state import limits
from dljob.master.state.actions import StopRanks
from dljob.master.state.evolve import evolve
from dljob.master.state.sizing import Sizing
from dljob.master.state.state import HostPhase, JobState, RankPhase
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import HostId
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted

LEAVES = "Leaves"
"""Restart reason of a rank that leaves."""


def begin(d: StateTransaction, role: str, ranks: Sequence[int], why: str, *, by: float = math.inf) -> bool:
    """Ask those of the ranks that work to finish and end; return whether any has to be waited for.

    A rank that a restart has asked to end is waited for, too: a server among them drains.

    `by`: when they are gone in any case (unix seconds).
    """
    facts = d.facts(role)
    asked: dict[HostId, list[int]] = {}
    is_ending = False
    for rank in ranks:
        host, phase = facts.host_of(rank), d.ranks[role, rank].phase
        if d.hosts[host].phase is not HostPhase.READY:
            continue
        if phase is RankPhase.READY:
            asked.setdefault(host, []).append(rank)
        is_ending = is_ending or phase is RankPhase.STOPPING
    if not (asked or is_ending):
        return False
    finish_by = d.now + limits.FINISH_S + facts.plan.drain_s
    leave_by = min(by, finish_by + limits.STOP_S)
    d.sizes = d.sizes.set(role, evolve(d.sizes[role], leaving=tuple(ranks), leave_by=leave_by))
    d.wake_at(leave_by)
    for host, working in asked.items():
        for rank in working:
            d.set_rank((role, rank), evolve(d.ranks[role, rank], phase=RankPhase.STOPPING, restart_reason=LEAVES))
        d.do(order(d, host, tuple(working)))
    who = ", ".join(f"{role}/{rank}" for rank in ranks)
    ends = "ends once its calls are" if len(ranks) == 1 else "end once their calls are"
    ends = f"{ends} finished, within {min(by, finish_by) - d.now:.0f} s"
    d.note(reasons.RANKS_LEAVING, role, f"{who} of {counted(facts.plan.replicas, 'rank')} {ends}: {why}")
    return True


def follow(d: StateTransaction, role: str, own: Sizing) -> None:
    """Ask also those that were starting when the others were asked, and have become ready since."""
    for rank in own.leaving:
        host = d.facts(role).host_of(rank)
        if d.ranks[role, rank].phase is RankPhase.READY and d.hosts[host].phase is HostPhase.READY:
            d.set_rank((role, rank), evolve(d.ranks[role, rank], phase=RankPhase.STOPPING, restart_reason=LEAVES))
            d.do(order(d, host, (rank,)))


def over(d: StateTransaction, role: str, own: Sizing) -> bool:
    """Whether nobody has to be waited for: all have ended, or a restart has taken over those that have not."""
    return not any(d.ranks[role, rank].phase is RankPhase.STOPPING for rank in own.leaving)


def order(d: StateTransaction | JobState, host: HostId, ranks: tuple[int, ...]) -> StopRanks:
    """Return the order to leave, for the present incarnations of ranks."""
    incarnations = tuple(d.ranks[host.role, rank].incarnation for rank in ranks)
    why = "its role goes on without it"
    return StopRanks(host, d.hosts[host].life, ranks, limits.FINISH_S, why, incarnations, leaves=True)
