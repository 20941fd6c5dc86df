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

Overrides: TypeAlias = tuple[tuple[str, Amount], ...]
"""(role, memory of each of its ranks) in a unit; a role that is not listed has the plan's memory."""


@dataclass(frozen=True, slots=True)
class MemoryOverrides:
    """All memory overrides of a job."""

    overrides: Map[str, Overrides] = field(default_factory=Map[str, Overrides])
    """Overrides by unit ("rollout/3") or by series: "rollout" holds for each unit that has no entry of its own."""
    requested: Map[str, Amount] = field(default_factory=Map[str, Amount])
    """Largest memory ever wanted for a rank, by role, whether there was room or not: the next attempt's start value."""


def overrides_of_unit(job_overrides: MemoryOverrides, unit: str) -> Overrides:
    """Return the overrides of a unit: its own entry, else that of its series."""
    overrides = job_overrides.overrides.get(unit)
    return job_overrides.overrides.get(unit.rpartition("/")[0], ()) if overrides is None else overrides


def unit_with_memory(plan: JobPlan, name: str, overrides: Overrides) -> Unit:
    """Return a unit of the plan with these overrides."""
    unit = plan.units[name]
    if not overrides:
        return unit
    # A bundle may hold ranks of several roles: each adds the difference between its override and the plan.
    increases = {role: amount - planned_memory_of(plan, role) for role, amount in overrides}
    bundles = tuple(
        Bundle(
            add_up(bundle.resources, (("memory", sum(increases.get(role, 0) for role, _ in bundle.ranks)),)),
            bundle.ranks,
        )
        for bundle in unit.bundles
    )
    return replace(unit, bundles=bundles)


def units_with_memory(plan: JobPlan, job_overrides: MemoryOverrides, names: Iterable[str]) -> list[Unit]:
    """Return units of the plan, each with its overrides."""
    return [unit_with_memory(plan, name, overrides_of_unit(job_overrides, name)) for name in names]


def planned_memory_of(plan: JobPlan, role: str) -> Amount:
    """Return the memory of a rank by the plan; 0: the role's memory is not reserved."""
    return dict(plan.roles[role].per_rank).get("memory", 0)


def memory_policy_of(job: Job, role: str) -> OutOfMemory | None:
    """Return the `outOfMemory` policy of a role; None where it has none, or reserves no memory that could grow."""
    role_spec = next((candidate for candidate in job.spec.roles if candidate.name == role), None)
    return role_spec.restart_policy.out_of_memory if role_spec and planned_memory_of(job.plan, role) else None


def with_role_memory(plan: JobPlan, job_overrides: MemoryOverrides, role: str, amount: Amount) -> MemoryOverrides:
    """Return the overrides with this memory for each rank of a role, in all units without an entry of their own."""
    series = plan.units.of_role(role).name
    overrides = tuple(sorted({**dict(job_overrides.overrides.get(series, ())), role: amount}.items()))
    return evolve(with_overrides(job_overrides, series, overrides), requested=job_overrides.requested.set(role, amount))


def with_overrides(job_overrides: MemoryOverrides, unit: str, overrides: Overrides) -> MemoryOverrides:
    """Return the overrides with a new entry for one unit."""
    return evolve(job_overrides, overrides=job_overrides.overrides.set(unit, overrides))


def without_overrides(job_overrides: MemoryOverrides, units: Iterable[str]) -> MemoryOverrides:
    """Return the overrides without those of these units; the same object where they had none.

    An empty entry stands for the plan's memory, since a missing one would fall back to the series.
    """
    if not job_overrides.overrides:
        return job_overrides
    for name in units:
        if overrides_of_unit(job_overrides, name):
            job_overrides = with_overrides(job_overrides, name, ())
    return job_overrides
