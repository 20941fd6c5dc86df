"""Coupled restarts: `restartPolicy.with` takes other roles along, whole, whenever ranks of a role restart.

They join the incident of those ranks, so the restart has one cause, one backoff and one level, and is charged once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from dljob.master.start import starting
from dljob.master.state.cuts import worlds_restored_together
from dljob.master.state.evolve import evolve
from dljob.master.state.state import Incident, RankKey
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Level
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted


def coupled_ranks(tx: StateTransaction, role: str, members: Sequence[RankKey]) -> tuple[RankKey, ...]:
    """Return the ranks of coupled roles that restart with members of a role, beyond these.

    A role that has not begun, or that has completed, has nothing to restart. A rank that another restart of the same
    event has ended is not ended again: its host would have two generations in one event (docs/adr/0034).
    """
    member_set = frozenset(members)
    named_ranks = tuple(
        key
        for coupled_role in tx.facts(role).coupled_roles
        if not starting.unmet_prerequisites(tx, coupled_role) and not starting.is_completed(tx, coupled_role)
        for rank in tx.facts(coupled_role).ranks
        if (key := (coupled_role, rank)) not in member_set and not _is_in_new_restart(tx, key)
    )
    return (*named_ranks, *_ranks_of_same_cut(tx, member_set | set(named_ranks)))


def _ranks_of_same_cut(tx: StateTransaction, members: frozenset[RankKey]) -> tuple[RankKey, ...]:
    """Return the ranks that go back to the last cut with the members: the queues can only be in one state for all."""
    worlds = frozenset(world for role, rank in members for world in (role, f"{role}/{rank}"))
    keys: list[RankKey] = []
    for world in worlds_restored_together(tx.cuts, worlds):
        role, _, rank_text = world.partition("/")
        # An earlier attempt, whose cuts these may be, may have had other roles, or more ranks.
        if role in tx.roles:
            ranks = [int(rank_text)] if rank_text else range(tx.facts(role).plan.replicas)
            keys += [(role, rank) for rank in ranks if (role, rank) in tx.ranks and (role, rank) not in members]
    return tuple(key for key in keys if tx.ranks[key].phase.live and not _is_in_new_restart(tx, key))


def target_of_restart_begun_in_event(tx: StateTransaction, role: str, ranks: Iterable[int], level: Level) -> str:
    """Return the target of this event's restart that covers these ranks, which need one of this level; or empty.

    A lost node takes ranks of several roles. Those that restart with the job, or with a coupled role, need no restart,
    and no budget, of their own.
    """
    new_incidents = [incident for number, incident in tx.incidents.items() if number > tx.base.serial]
    if any(incident.level is Level.JOB for incident in new_incidents):
        return "job"
    incident_numbers = {tx.ranks[role, rank].incident for rank in ranks if _is_in_new_restart(tx, (role, rank))}
    incidents = [tx.incidents[incident_number] for incident_number in incident_numbers]
    if not incidents or any(role not in tx.facts(incident.role).coupled_roles for incident in incidents):
        return ""
    is_covered = level is not Level.JOB and all(_is_in_new_restart(tx, (role, rank)) for rank in ranks)
    return incidents[0].target if is_covered else ""


def _is_in_new_restart(tx: StateTransaction, key: RankKey) -> bool:
    """Whether a restart that began in this transition has the rank."""
    return tx.ranks[key].incident > tx.base.serial and tx.ranks[key].incident in tx.incidents


def start_roles_in_order(tx: StateTransaction, roles: Iterable[str]) -> None:
    """Have roles that restart together start in the order of their `dependsOn`, as at the start of the job."""
    restarting_roles = tuple(roles)
    for role in restarting_roles:
        if any(dependent in restarting_roles for dependent in tx.facts(role).dependents):
            tx.set_role(role, evolve(tx.roles[role], was_ready=False))


def restart_reason_of(incident: Incident, role: str) -> str:
    """Return the restart reason of a role's ranks: the incident's, unless they only restart with others."""
    return incident.reason if incident.role in ("", role) else reasons.RESTARTED_WITH


def report_coupled_roles(tx: StateTransaction, role: str, target: str, coupled_members: Iterable[RankKey]) -> None:
    """Add to the timeline which roles restart with this one, and which `restartPolicy.with` names them."""
    restarting_roles = (role, *tx.facts(role).coupled_roles)
    for coupled_role, count in Counter(name for name, _ in coupled_members).items():
        # The nearest role that names it comes first: the failed one, or one that restarts with it.
        naming_roles = [name for name in restarting_roles if coupled_role in tx.facts(name).plan.restart_with]
        explanation = "they go back to the last cut together"
        if naming_roles:
            explanation = f"restartPolicy.with of {naming_roles[0]} names {coupled_role}"
        message = f"{counted(count, 'rank')} restarting with {target}: {explanation}"
        tx.note(reasons.RESTARTED_WITH, coupled_role, message)
