"""What units hold beyond what the spec says: the memory that was added where ranks had been ended for want of it."""

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
"""(role, memory of each of its ranks) of a unit; a role that is not there has what the plan says."""


@dataclass(frozen=True, slots=True)
class Grants:
    """More memory: who has it, and what the next attempt shall begin with."""

    given: Map[str, Given] = field(default_factory=Map[str, Given])
    """By unit; of a unit that is not there, by its series: "rollout" is all of rollout/0, rollout/1, ..."""
    wanted: Map[str, Amount] = field(default_factory=Map[str, Amount])
    """By role: the most that a rank was to have, whether there was room for it or not."""


def given(grants: Grants, unit: str) -> Given:
    """What a unit is given."""
    own = grants.given.get(unit)
    return grants.given.get(unit.rpartition("/")[0], ()) if own is None else own


def unit_of(plan: JobPlan, name: str, given: Given) -> Unit:
    """A unit of the plan with so much memory."""
    unit = plan.units[name]
    if not given:
        return unit
    more = {role: amount - memory_of(plan, role) for role, amount in given}
    bundles = tuple(
        Bundle(add_up(own.resources, (("memory", sum(more.get(role, 0) for role, _ in own.ranks)),)), own.ranks)
        for own in unit.bundles
    )
    return replace(unit, bundles=bundles)


def units_of(plan: JobPlan, grants: Grants, names: Iterable[str]) -> list[Unit]:
    """Units with what they are given."""
    return [unit_of(plan, name, given(grants, name)) for name in names]


def memory_of(plan: JobPlan, role: str) -> Amount:
    """The memory of a rank as the plan has it; 0: it is not counted."""
    return dict(plan.roles[role].per_rank).get("memory", 0)


def policy_of(job: Job, role: str) -> OutOfMemory | None:
    """What the spec says of a role that runs out of memory; None where it says nothing, or counts none."""
    own = next((one for one in job.spec.roles if one.name == role), None)
    return own.restart_policy.out_of_memory if own and memory_of(job.plan, role) else None


def for_role(plan: JobPlan, grants: Grants, role: str, amount: Amount) -> Grants:
    """The same, but that all units of a role have so much for each of its ranks, as far as nothing is said of one."""
    series = plan.units.of_role(role).name
    own = tuple(sorted({**dict(grants.given.get(series, ())), role: amount}.items()))
    return evolve(grants, given=grants.given.set(series, own), wanted=grants.wanted.set(role, amount))


def with_given(grants: Grants, unit: str, own: Given) -> Grants:
    """The same, but for one unit."""
    return evolve(grants, given=grants.given.set(unit, own))


def without(grants: Grants, units: Iterable[str]) -> Grants:
    """The same, but that these units have what the plan says; the same object where they had nothing more."""
    if not grants.given:
        return grants
    for name in units:
        if given(grants, name):
            grants = with_given(grants, name, ())
    return grants
