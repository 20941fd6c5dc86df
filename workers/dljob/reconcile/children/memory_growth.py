"""Machines as large as the memory that the last attempt's ranks came to need, where machines are made from roles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dljob.plan.model import JobPlan
from dljob.plan.plan import plan
from dljob.reconcile.state.accept import Blueprint
from dljob.spec.model import Role
from dljob.spec.quantity import parse_memory, show_memory


def larger(made: Blueprint, wanted: Mapping[str, Any]) -> JobPlan:
    """The plan whose machines an attempt gets. `wanted` is what PrimeMaster handed on: role -> memory of a rank.

    Declared node groups are the user's, and stay as large as they are: PrimeMaster says where that is too small.
    """
    spec = made.manifest.spec
    if spec.node_groups:
        return made.plan
    roles = tuple(_with_memory(role, wanted.get(role.name)) for role in spec.roles)
    if roles == spec.roles:
        return made.plan
    return plan(made.manifest.model_copy(update={"spec": spec.model_copy(update={"roles": roles})}))


def _with_memory(role: Role, wanted: object) -> Role:
    """A role with more memory, if its spec asks for that, and no more than it allows."""
    policy, has = role.restart_policy.out_of_memory, role.resources.memory
    if policy is None or has is None or not isinstance(wanted, str):
        return role
    try:
        most = min(parse_memory(wanted), parse_memory(policy.max_memory))
    except ValueError:
        return role  # another version's way to write it
    if most <= parse_memory(has):
        return role
    return role.model_copy(update={"resources": role.resources.model_copy(update={"memory": show_memory(most)})})
