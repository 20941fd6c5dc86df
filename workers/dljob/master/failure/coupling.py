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


def ranks_taken_along(tx: StateTransaction, role: str, members: Sequence[RankKey]) -> tuple[RankKey, ...]:
    """Return the ranks of other roles, and the rest of its own, that restart when members of a role do.

    A role that has not begun, or that has completed, has nothing to restart. A rank that another restart of the same
    event has ended is not ended again: its host would have two generations in one event (docs/adr/0034).
    """
    member_set = frozenset(members)
    ranks_of_named_roles: list[RankKey] = []
    for coupled_role in tx.facts(role).roles_taken_along:
        if starting.unmet_prerequisites(tx, coupled_role) or starting.is_role_completed(tx, coupled_role):
            continue
        keys = [(coupled_role, rank) for rank in tx.facts(coupled_role).ranks]
        keys = [key for key in keys if key not in member_set and not _is_in_restart_of_this_event(tx, key)]
        ranks_of_named_roles += keys
    return (*ranks_of_named_roles, *_ranks_restored_to_same_cut(tx, member_set.union(ranks_of_named_roles)))


def _ranks_restored_to_same_cut(tx: StateTransaction, members: frozenset[RankKey]) -> tuple[RankKey, ...]:
    """Return the ranks that go back to the last cut with the members: the queues can only be in one state for all.

    A world of a cut is a role, or one rank that saves for itself ("<role>/<rank>").
    """
    member_worlds = {role for role, _ in members} | {f"{role}/{rank}" for role, rank in members}
    keys: list[RankKey] = []
    for world in worlds_restored_together(tx.cuts, frozenset(member_worlds)):
        role, _, rank_text = world.partition("/")
        # An earlier attempt, whose cuts these may be, may have had other roles, or more ranks.
        if role in tx.roles:
            ranks = [int(rank_text)] if rank_text else range(tx.facts(role).plan.replicas)
            keys += [(role, rank) for rank in ranks if (role, rank) in tx.ranks and (role, rank) not in members]
    return tuple(key for key in keys if tx.ranks[key].phase.live and not _is_in_restart_of_this_event(tx, key))


def target_of_covering_restart_in_event(tx: StateTransaction, role: str, ranks: Iterable[int], level: Level) -> str:
    """Return the target of a restart, begun in this event, that covers all these ranks at a level; empty: none.

    A lost node takes ranks of several roles. Those that restart with the job, or with a coupled role, need no restart,
    and no budget, of their own.
    """
    new_incidents = [incident for number, incident in tx.incidents.items() if number > tx.base.serial]
    if any(incident.level is Level.JOB for incident in new_incidents):
        return "job"
    keys = [(role, rank) for rank in ranks]
    if level is Level.JOB or not all(_is_in_restart_of_this_event(tx, key) for key in keys):
        return ""
    incidents = [tx.incidents[tx.ranks[key].incident] for key in keys]
    take_role_along = all(role in tx.facts(incident.role).roles_taken_along for incident in incidents)
    return incidents[0].target if incidents and take_role_along else ""


def _is_in_restart_of_this_event(tx: StateTransaction, key: RankKey) -> bool:
    """Whether a restart that began in this transition has the rank."""
    return tx.ranks[key].incident > tx.base.serial and tx.ranks[key].incident in tx.incidents


def make_roles_start_in_order(tx: StateTransaction, roles: Iterable[str]) -> None:
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
    restarting_roles = (role, *tx.facts(role).roles_taken_along)
    for coupled_role, count in Counter(name for name, _ in coupled_members).items():
        # The nearest role that names it comes first: the failed one, or one that restarts with it.
        naming_roles = [name for name in restarting_roles if coupled_role in tx.facts(name).plan.restart_with]
        explanation = "they go back to the last cut together"
        if naming_roles:
            explanation = f"restartPolicy.with of {naming_roles[0]} names {coupled_role}"
        message = f"{counted(count, 'rank')} restarting with {target}: {explanation}"
        tx.note(reasons.RESTARTED_WITH, coupled_role, message)
