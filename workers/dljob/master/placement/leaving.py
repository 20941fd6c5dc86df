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


def begin_leaving(tx: StateTransaction, role: str, ranks: Sequence[int], reason: str, *, by: float = math.inf) -> bool:
    """Ask those of the ranks that work to finish and end; return whether any has to be waited for.

    A rank that a restart has asked to end is waited for, too: a server among them drains.

    `by`: when they are gone in any case (unix seconds).
    """
    facts = tx.facts(role)
    ready_ranks: dict[HostId, list[int]] = {}
    is_ending = False
    for rank in ranks:
        host, phase = facts.host_of(rank), tx.ranks[role, rank].phase
        if tx.hosts[host].phase is not HostPhase.READY:
            continue
        if phase is RankPhase.READY:
            ready_ranks.setdefault(host, []).append(rank)
        is_ending = is_ending or phase is RankPhase.STOPPING
    if not (ready_ranks or is_ending):
        return False
    finish_by = tx.now + limits.FINISH_S + facts.plan.drain_s
    leave_by = min(by, finish_by + limits.HOST_STOP_S)
    tx.sizes = tx.sizes.set(role, evolve(tx.sizes[role], leaving=tuple(ranks), leave_by=leave_by))
    tx.changes.ranks.update((role, rank) for rank in ranks)
    tx.wake_at(leave_by)
    for host, working in ready_ranks.items():
        for rank in working:
            tx.set_rank((role, rank), evolve(tx.ranks[role, rank], phase=RankPhase.STOPPING, restart_reason=LEAVES))
        tx.do(leave_order(tx, host, tuple(working)))
    names = ", ".join(f"{role}/{rank}" for rank in ranks)
    end_words = "ends once its calls are" if len(ranks) == 1 else "end once their calls are"
    end_words = f"{end_words} finished, within {min(by, finish_by) - tx.now:.0f} s"
    tx.note(reasons.RANKS_LEAVING, role, f"{names} of {counted(facts.plan.replicas, 'rank')} {end_words}: {reason}")
    return True


def ask_ready_ranks(tx: StateTransaction, role: str, sizing: Sizing) -> None:
    """Ask also those that were starting when the others were asked, and have become ready since."""
    for rank in sizing.leaving:
        host = tx.facts(role).host_of(rank)
        if tx.ranks[role, rank].phase is RankPhase.READY and tx.hosts[host].phase is HostPhase.READY:
            tx.set_rank((role, rank), evolve(tx.ranks[role, rank], phase=RankPhase.STOPPING, restart_reason=LEAVES))
            tx.do(leave_order(tx, host, (rank,)))


def is_over(tx: StateTransaction, role: str, sizing: Sizing) -> bool:
    """Whether nobody has to be waited for: all have ended, or a restart has taken over those that have not."""
    return not any(tx.ranks[role, rank].phase is RankPhase.STOPPING for rank in sizing.leaving)


def leave_order(tx: StateTransaction | JobState, host: HostId, ranks: tuple[int, ...]) -> StopRanks:
    """Return the order to leave, for the present incarnations of ranks."""
    incarnations = tuple(tx.ranks[host.role, rank].incarnation for rank in ranks)
    reason = "its role goes on without it"
    return StopRanks(host, tx.hosts[host].incarnation, ranks, limits.FINISH_S, reason, incarnations, leaves=True)
