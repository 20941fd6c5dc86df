"""Coupled restarts: `restartPolicy.with` takes other roles along, whole, whenever ranks of a role restart.

They join the incident of those ranks, so the restart has one cause, one backoff and one level, and is charged once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dljob.master.start import starting
from dljob.master.state.cuts import partners
from dljob.master.state.evolve import evolve
from dljob.master.state.state import Incident, RankKey
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Level
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted


def joining(tx: StateTransaction, role: str, members: Sequence[RankKey]) -> tuple[RankKey, ...]:
    """Return the ranks of coupled roles that restart with members of a role, beyond these.

    A role that has not begun, or that has completed, has nothing to restart. A rank that another restart of the same
    event has taken down is not taken down again: its host would have two generations in one event (docs/adr/0034).
    """
    own = frozenset(members)
    named = tuple(
        key
        for name in tx.facts(role).coupled
        if not starting.ahead(tx, name) and not starting.completed(tx, name)
        for rank in tx.facts(name).ranks
        if (key := (name, rank)) not in own and not _taken_down(tx, key)
    )
    return (*named, *_going_back(tx, own | set(named)))


def _going_back(tx: StateTransaction, members: frozenset[RankKey]) -> tuple[RankKey, ...]:
    """Return the ranks that go back to the last cut with the members: the queues can only be in one state for all."""
    worlds = frozenset(name for role, rank in members for name in (role, f"{role}/{rank}"))
    found = (world.partition("/") for world in partners(tx.cuts, worlds))
    # An earlier attempt, whose cuts these may be, may have had other roles, or more ranks.
    keys = (
        (role, number)
        for role, _, rank in found
        if role in tx.roles
        for number in ([int(rank)] if rank else range(tx.facts(role).plan.replicas))
    )
    return tuple(
        key
        for key in keys
        if key in tx.ranks and key not in members and not _taken_down(tx, key) and tx.ranks[key].phase.live
    )


def covered(tx: StateTransaction, role: str, ranks: Iterable[int], level: Level) -> str:
    """Return the restart of this event that these ranks, which need one of this level, are in; empty if there is none.

    A lost node takes ranks of several roles. Those that restart with the job, or with a coupled role, need no restart,
    and no budget, of their own.
    """
    if any(own.level is Level.JOB for number, own in tx.incidents.items() if number > tx.base.serial):
        return "job"
    found = {tx.ranks[role, rank].incident for rank in ranks if _taken_down(tx, (role, rank))}
    incidents = [tx.incidents[number] for number in found]
    if not incidents or any(role not in tx.facts(incident.role).coupled for incident in incidents):
        return ""
    whole = level is not Level.JOB and all(_taken_down(tx, (role, rank)) for rank in ranks)
    return incidents[0].target if whole else ""


def _taken_down(tx: StateTransaction, key: RankKey) -> bool:
    """Whether a restart that began in this transition has the rank."""
    return tx.ranks[key].incident > tx.base.serial and tx.ranks[key].incident in tx.incidents


def start_in_order(tx: StateTransaction, roles: Iterable[str]) -> None:
    """Have roles that restart together start in the order of their `dependsOn`, as at the start of the job."""
    together = tuple(roles)
    for name in together:
        if any(other in together for other in tx.facts(name).dependents):
            tx.set_role(name, evolve(tx.roles[name], was_ready=False))


def reason_of(incident: Incident, role: str) -> str:
    """Return the restart reason of a role's ranks: the incident's, unless they were only taken along."""
    return incident.reason if incident.role in ("", role) else reasons.RESTARTED_WITH


def report(tx: StateTransaction, role: str, target: str, along: Iterable[RankKey]) -> None:
    """Add to the timeline which roles were taken along, and by whose `restartPolicy.with`."""
    ranks: dict[str, int] = {}
    for name, _ in along:
        ranks[name] = ranks.get(name, 0) + 1
    within = (role, *tx.facts(role).coupled)
    for name, count in ranks.items():
        # The nearest role that names it: the failed one, or one that was taken along itself.
        by = next((other for other in within if name in tx.facts(other).plan.restart_with), "")
        why = f"restartPolicy.with of {by} names {name}" if by else "they go back to the last cut together"
        words = f"{counted(count, 'rank')} restarting with {target}: {why}"
        tx.note(reasons.RESTARTED_WITH, name, words)
