"""The `scheduling.dljob.io/*` annotations of a role, which stand for typed fields and are known from other tools.

`spoken` returns the spec with its annotations turned into typed fields; the plan and the rules read only that one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, cast, get_args

from dljob.spec.model import AcceleratorType, Collocation, DLJobSpec, Role, RoleAccelerator
from dljob.spec.quantity import GRAIN, parse_devices
from dljob.spec.rules.findings import ROLE_NAMES, Finding, other_role
from dljob.spec.scalars import NAME_PATTERN, QUALIFIED_PATTERN, WORDS
from dljob.spec.text.tree import Loc
from dljob.spec.text.words import nearest, one_of

PREFIX = "scheduling.dljob.io/"
ACCELERATOR, COUNT = f"{PREFIX}accelerator", f"{PREFIX}accelerator-count"
COLLOCATE, UNIT, STRATEGY = f"{PREFIX}collocate-with", f"{PREFIX}placement-group", f"{PREFIX}strategy"
SELECTOR, TOPOLOGY = f"{PREFIX}label-selector", f"{PREFIX}topology-key"
PREFERRED = f"{PREFIX}preferred-topology-key"
KNOWN = (ACCELERATOR, COUNT, COLLOCATE, UNIT, STRATEGY, SELECTOR, TOPOLOGY, PREFERRED)

SPREAD = "STRICT_SPREAD"
_RAYS_OWN = "ray.io/"

_TYPES = get_args(AcceleratorType)
_EXPRESSION = re.compile(r"!?(in\([^(),]+(,[^(),]+)*\)|[^!(),]+)")
"""Ray's label selectors: v, !v, in(a,b), !in(a,b)."""


def spoken(spec: DLJobSpec) -> DLJobSpec:
    """Return the spec with its roles' annotations as typed fields; `annotation_findings` must have found nothing."""
    if not any(role.annotations for role in spec.roles):
        return spec
    roles = tuple(_with_accelerator(role) for role in spec.roles)
    collocations = tuple(_collocation(name, members) for name, members in sorted(_units(roles).items()))
    return spec.model_copy(update={"roles": roles, "collocations": (*spec.collocations, *collocations)})


def written_at(spec: DLJobSpec, spoken_spec: DLJobSpec, loc: Loc) -> Loc:
    """Return the location in the user's spec of the value at `loc` of the spoken spec."""
    index = loc[2] if loc[:2] == ("spec", "collocations") and len(loc) > 2 else None
    # Collocations beyond those of the file were made from annotations.
    if not isinstance(index, int) or index < len(spec.collocations):
        return loc
    first = spoken_spec.collocations[index].roles[0]
    return ("spec", "roles", [role.name for role in spec.roles].index(first), "annotations")


def selector_of(role: Role) -> tuple[tuple[str, str], ...]:
    """Return the labels that a role's nodes must have, by key."""
    expressions: dict[str, str] = json.loads(role.annotations.get(SELECTOR, "{}"))
    return tuple(sorted(expressions.items()))


def topology_key_of(role: Role) -> str:
    """Return the label key that must have one value on all nodes of a role; empty where there is none."""
    return role.annotations.get(TOPOLOGY, "")


def preferred_key_of(role: Role) -> str:
    """Return the label key that has one value on all nodes of a role if there is room for that; empty for none."""
    return role.annotations.get(PREFERRED, "")


def spreads(role: Role) -> bool:
    """Return whether each group of a role must have its own node."""
    return role.annotations.get(STRATEGY) == SPREAD


def annotation_findings(spec: DLJobSpec) -> Iterator[Finding]:
    """Find errors in the annotations of roles, and contradictions to typed fields."""
    for index, role in enumerate(spec.roles):
        loc: Loc = ("spec", "roles", index, "annotations")
        for name in role.annotations:
            # A misspelt annotation would do nothing, and go unnoticed (ADR 5).
            if name not in KNOWN:
                yield Finding((*loc, name), "unknown annotation", _suggestion(name), at_key=True)
        yield from _accelerator_findings(loc, role)
        yield from _unit_findings(loc, role, spec)
        yield from _selector_findings(loc, role, spec)
        yield from _topology_findings(loc, role, spec)


def _suggestion(name: str) -> str:
    """Return a hint with the nearest annotation, else with all of them."""
    short = [known.removeprefix(PREFIX) for known in KNOWN]
    near = nearest(name.rpartition("/")[2], short)
    return f"did you mean {PREFIX}{near}?" if near else f"there is {PREFIX} with {', '.join(short)}"


def _accelerator_findings(loc: Loc, role: Role) -> Iterator[Finding]:
    kind, count = role.annotations.get(ACCELERATOR), role.annotations.get(COUNT)
    typed = role.accelerator
    if kind is not None and kind not in _TYPES:
        yield Finding((*loc, ACCELERATOR), f"there is no device of kind {kind}", one_of(kind, _TYPES))
    # A typed accelerator without a kind takes that of the annotation.
    elif kind is not None and typed and typed.type not in (None, kind):
        yield Finding((*loc, ACCELERATOR), f"says {kind}, accelerator.type says {typed.type}", "keep one")
    if count is None:
        return
    try:
        amount = parse_devices(count)
    except ValueError as error:
        yield Finding((*loc, COUNT), str(error))
        return
    if typed and parse_devices(typed.count) != amount:
        yield Finding((*loc, COUNT), f"says {count}, accelerator.count says {typed.count}", "keep one")


def _unit_findings(loc: Loc, role: Role, spec: DLJobSpec) -> Iterator[Finding]:
    unit, beside = role.annotations.get(UNIT), role.annotations.get(COLLOCATE)
    strategy = role.annotations.get(STRATEGY, "STRICT_PACK")
    if strategy not in ("STRICT_PACK", SPREAD):
        hint = f"leave it out, or write {SPREAD} for a host for each; for roles, a collocation of level Separate"
        words = f"STRICT_PACK or {SPREAD}, not {strategy}: what shares a unit shares a host"
        yield Finding((*loc, STRATEGY), words, hint)
    elif strategy == SPREAD and role.reserve == "Quota":
        yield Finding((*loc, STRATEGY), _BY_FRAMEWORK.format(role.name), "leave it out")
    names = [other_role_of_job.name for other_role_of_job in spec.roles]
    # A role that is not there, or the role itself, is no neighbour.
    if beside is not None and (beside not in names or beside == role.name):
        reason = "is the role itself" if beside == role.name else "is no role"
        hint = other_role(spec, role, beside)
        yield Finding((*loc, COLLOCATE), f"{beside} {reason}", hint, ((*loc, COLLOCATE), ROLE_NAMES))
    if unit is not None and beside is not None:
        yield Finding((*loc, COLLOCATE), "a role takes placement-group or collocate-with, not both", "keep one")
    if unit is not None and (not re.fullmatch(NAME_PATTERN, unit) or len(unit) > 63):
        yield Finding((*loc, UNIT), f"{unit:.40} is not {WORDS[NAME_PATTERN]}, at most 63")
    # A unit of one role shares with no other role, so the annotation is a mistake.
    elif (
        unit is not None
        and sum(other_role_of_job.annotations.get(UNIT) == unit for other_role_of_job in spec.roles) < 2
    ):
        yield Finding((*loc, UNIT), f"{role.name} alone names {unit}", "roles of one value share a unit: name two")
    for collocation in spec.collocations:
        # A typed collocation and an annotation about the same role could contradict each other.
        if (unit or beside) and {role.name, beside} & set(collocation.roles):
            field_loc = (*loc, UNIT if unit else COLLOCATE)
            yield Finding(
                field_loc, f"collocation {collocation.name} already defines who shares with {role.name}", "keep one"
            )


def _selector_findings(loc: Loc, role: Role, spec: DLJobSpec) -> Iterator[Finding]:
    text = role.annotations.get(SELECTOR)
    if text is None:
        return
    field_loc = (*loc, SELECTOR)
    try:
        selector: object = json.loads(text)
    except ValueError:
        selector = None
    if not isinstance(selector, dict) or not selector:
        yield Finding(field_loc, "must be JSON: a mapping of labels", """write '{"rack": "in(a,b)"}'""")
        return
    for name, value in cast("dict[str, Any]", selector).items():
        if not re.fullmatch(QUALIFIED_PATTERN, name):
            yield Finding(field_loc, f"{name!r} is not {WORDS[QUALIFIED_PATTERN]}")
        if not isinstance(value, str) or not _EXPRESSION.fullmatch(value):
            yield Finding(field_loc, f"{name}: {value!r} is no selector", "write v, !v, in(a,b) or !in(a,b)")
    if not spec.node_groups:
        yield Finding(field_loc, "derived machines carry no labels", "declare nodeGroups with labels")


_BY_FRAMEWORK = "{} reserves Quota: its framework decides where its processes run"


def _topology_findings(loc: Loc, role: Role, spec: DLJobSpec) -> Iterator[Finding]:
    for name in (TOPOLOGY, PREFERRED):
        if name in role.annotations:
            yield from _key_findings((*loc, name), role.annotations[name], role, spec)
    if TOPOLOGY in role.annotations and PREFERRED in role.annotations:
        words = "a role takes topology-key or preferred-topology-key, not both"
        yield Finding((*loc, PREFERRED), words, "keep topology-key if the job must not run without one domain")


def _key_findings(field_loc: Loc, key: str, role: Role, spec: DLJobSpec) -> Iterator[Finding]:
    if not re.fullmatch(QUALIFIED_PATTERN, key):
        yield Finding(field_loc, f"{key!r} is not {WORDS[QUALIFIED_PATTERN]}", "write the label's name, such as rack")
    elif key.startswith(_RAYS_OWN) and not spec.ray_cluster_ref:
        yield Finding(field_loc, f"labels of {_RAYS_OWN} are set by Ray alone", "name a label of the machines")
    if role.reserve == "Quota":
        yield Finding(field_loc, _BY_FRAMEWORK.format(role.name), "leave it out, or use label-selector")


def _with_accelerator(role: Role) -> Role:
    kind, count = role.annotations.get(ACCELERATOR), role.annotations.get(COUNT)
    if kind is None and count is None:
        return role
    typed = role.accelerator or RoleAccelerator(count=count or "1")
    accelerator = typed.model_copy(update={"type": kind or typed.type})
    return role.model_copy(update={"accelerator": accelerator})


# `collocate-with` is transitive: a with b and b with c make one unit of three, so units are merged step by step.
def _units(roles: tuple[Role, ...]) -> dict[str, list[Role]]:
    """Return roles by the name of their shared unit: the value of placement-group, else of collocate-with."""
    unit = {role.name: role.annotations.get(UNIT, "") for role in roles}
    for role in roles:
        beside = role.annotations.get(COLLOCATE)
        if beside is not None:
            joined = {unit[beside], unit[role.name]} - {""}
            name = unit[beside] or unit[role.name] or f"{beside}-unit"
            unit = {
                role_name: name if role_name in (role.name, beside) or old in joined else old
                for role_name, old in unit.items()
            }
    roles_by_unit: dict[str, list[Role]] = {}
    for role in roles:
        if unit[role.name]:
            roles_by_unit.setdefault(unit[role.name], []).append(role)
    return roles_by_unit


def _collocation(name: str, members: list[Role]) -> Collocation:
    """Return the level of a collocation: Device where its roles take shares of a device, else Host."""
    # Shares below one can only meet on a common device.
    shares = [parse_devices(role.accelerator.count) for role in members if role.accelerator]
    level = "Device" if any(share < GRAIN for share in shares) else "Host"
    return Collocation.model_construct(name=name, roles=tuple(role.name for role in members), level=level)
