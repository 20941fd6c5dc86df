"""Larger machines for ranks that outgrew their memory in the last attempt, where machines are derived from roles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dljob.plan.model import JobPlan
from dljob.plan.plan import plan
from dljob.reconcile.state.accept import Blueprint
from dljob.spec.model import Role
from dljob.spec.quantity import parse_memory, show_memory


def larger(blueprint: Blueprint, memory_by_role: Mapping[str, Any]) -> JobPlan:
    """Return the plan with the machines that an attempt gets.

    Declared node groups keep their size, which is the user's choice: PrimeMaster reports where it is too small.

    Args:
        blueprint: The spec and its plan.
        memory_by_role: Role -> memory of a rank, as PrimeMaster handed it over.
    """
    spec = blueprint.manifest.spec
    if spec.node_groups:
        return blueprint.plan
    roles = tuple(_with_memory(role, memory_by_role.get(role.name)) for role in spec.roles)
    if roles == spec.roles:
        return blueprint.plan
    return plan(blueprint.manifest.model_copy(update={"spec": spec.model_copy(update={"roles": roles})}))


def _with_memory(role: Role, memory: object) -> Role:
    """Return a role with more memory, if its spec asks for growth, up to the maximum there."""
    policy, has = role.restart_policy.out_of_memory, role.resources.memory
    if policy is None or has is None or not isinstance(memory, str):
        return role
    try:
        most = min(parse_memory(memory), parse_memory(policy.max_memory))
    except ValueError:
        return role  # written by another version, in a form that this one cannot read
    if most <= parse_memory(has):
        return role
    return role.model_copy(update={"resources": role.resources.model_copy(update={"memory": show_memory(most)})})
