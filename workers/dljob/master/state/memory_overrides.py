"""Memory overrides: units whose ranks get more memory than the spec says, because ranks were killed for want of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from immutables import Map

from dljob.master.state.evolve import evolve
from dljob.master.state.job import Job
from dljob.plan.model import Amount, Bundle, JobPlan, Unit, add_up
from dljob.spec.model import OutOfMemory

Given: TypeAlias = tuple[tuple[str, Amount], ...]
"""(role, memory of each of its ranks) in a unit; a role that is not listed has the plan's memory."""


@dataclass(frozen=True, slots=True)
class Grants:
    """All memory overrides of a job."""

    given: Map[str, Given] = field(default_factory=Map[str, Given])
    """Overrides by unit ("rollout/3") or by series: "rollout" holds for each unit that has no entry of its own."""
    wanted: Map[str, Amount] = field(default_factory=Map[str, Amount])
    """Largest memory ever wanted for a rank, by role, whether there was room or not: the next attempt's start value."""


def given(grants: Grants, unit: str) -> Given:
    """Return the overrides of a unit: its own entry, else that of its series."""
    own = grants.given.get(unit)
    return grants.given.get(unit.rpartition("/")[0], ()) if own is None else own


def unit_of(plan: JobPlan, name: str, given: Given) -> Unit:
    """Return a unit of the plan with these overrides."""
    unit = plan.units[name]
    if not given:
        return unit
    # A bundle may hold ranks of several roles: each adds the difference between its override and the plan.
    more = {role: amount - memory_of(plan, role) for role, amount in given}
    bundles = tuple(
        Bundle(add_up(own.resources, (("memory", sum(more.get(role, 0) for role, _ in own.ranks)),)), own.ranks)
        for own in unit.bundles
    )
    return replace(unit, bundles=bundles)


def units_of(plan: JobPlan, grants: Grants, names: Iterable[str]) -> list[Unit]:
    """Return units of the plan, each with its overrides."""
    return [unit_of(plan, name, given(grants, name)) for name in names]


def memory_of(plan: JobPlan, role: str) -> Amount:
    """Return the memory of a rank by the plan; 0: the role's memory is not reserved."""
    return dict(plan.roles[role].per_rank).get("memory", 0)


def policy_of(job: Job, role: str) -> OutOfMemory | None:
    """Return the `outOfMemory` policy of a role; None where it has none, or reserves no memory that could grow."""
    own = next((one for one in job.spec.roles if one.name == role), None)
    return own.restart_policy.out_of_memory if own and memory_of(job.plan, role) else None


def for_role(plan: JobPlan, grants: Grants, role: str, amount: Amount) -> Grants:
    """Return the overrides with this memory for each rank of a role, in all units without an entry of their own."""
    series = plan.units.of_role(role).name
    own = tuple(sorted({**dict(grants.given.get(series, ())), role: amount}.items()))
    return evolve(grants, given=grants.given.set(series, own), wanted=grants.wanted.set(role, amount))


def with_given(grants: Grants, unit: str, own: Given) -> Grants:
    """Return the overrides with a new entry for one unit."""
    return evolve(grants, given=grants.given.set(unit, own))


def without(grants: Grants, units: Iterable[str]) -> Grants:
    """Return the overrides without those of these units; the same object where they had none.

    An empty entry stands for the plan's memory, since a missing one would fall back to the series.
    """
    if not grants.given:
        return grants
    for name in units:
        if given(grants, name):
            grants = with_given(grants, name, ())
    return grants
