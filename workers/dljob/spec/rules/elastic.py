"""The rules about the bounds of ranks and machines of an Elastic role."""

from __future__ import annotations

from collections.abc import Iterator

from dljob.spec import cel
from dljob.spec.model import DLJobSpec, Role
from dljob.spec.rules.findings import Check, Finding
from dljob.spec.text.tree import Loc
from dljob.telemetry.wording import counted


def bounded(role: Role) -> bool:
    """Return whether a role may change its number of ranks while it runs."""
    low, high = bounds(role)
    return low < high


def bounds(role: Role) -> tuple[int, int]:
    """Return the fewest and the most ranks of a role."""
    low = role.replicas if role.min_replicas is None else role.min_replicas
    return low, role.replicas if role.max_replicas is None else role.max_replicas


def _elastic(spec: DLJobSpec) -> Iterator[Finding]:
    for index, role in enumerate(spec.roles):
        loc: Loc = ("spec", "roles", index)
        bounds = [(name, value) for name, value in _bounds(role) if value is not None]
        reads = ((*loc, "type"), (*loc, "replicas"), (*loc, "replicasPerGroup"), *((*loc, name) for name, _ in bounds))
        if bounds and role.type != "Elastic" and (role.driver or role.reserve == "Quota"):
            reason, hint = ("is a driver, whose ranks all have work to end", "set driver: false")
            if not role.driver:
                reason, hint = ("leaves its machines to a framework", "leave reserve out")
            words = f"{cel.BOUNDS_ELASTIC.message}: {role.name} {reason}"
            reads = (*reads, (*loc, "driver"), (*loc, "reserve"))
            yield Finding((*loc, bounds[0][0]), words, f"{hint}, set type: Elastic, or leave them out", reads)
        for name, value in bounds:
            if value % role.replicas_per_group:
                ranks = counted(value, "rank")
                words = f"{cel.BOUNDS.message}: {ranks} cannot form whole groups of {role.replicas_per_group}"
                yield Finding((*loc, name), words, reads=reads)
            if (value > role.replicas) if name == "minReplicas" else (value < role.replicas):
                words = f"{cel.BOUNDS.message}: {name} is {value}, replicas is {role.replicas}"
                yield Finding((*loc, name), words, reads=reads)


def _bounds(role: Role) -> tuple[tuple[str, int | None], ...]:
    return ("minReplicas", role.min_replicas), ("maxReplicas", role.max_replicas)


# Bounds of machines have an effect only through a role that grows or shrinks on them.
def _machines(spec: DLJobSpec) -> Iterator[Finding]:
    for index, group in enumerate(spec.node_groups):
        loc: Loc = ("spec", "nodeGroups", index)
        low, high = group.min_replicas, group.max_replicas
        reads = ((*loc, "replicas"), (*loc, "minReplicas"), (*loc, "maxReplicas"))
        keys = ("minReplicas", "maxReplicas", "nodeGroup")
        roles = (("spec", "roles", number, key) for number in range(len(spec.roles)) for key in keys)
        if low is not None and low > group.replicas:
            words = f"{cel.MACHINE_BOUNDS.message}: minReplicas is {low}, replicas is {group.replicas}"
            yield Finding((*loc, "minReplicas"), words, reads=reads)
        if high is not None and high < group.replicas:
            words = f"{cel.MACHINE_BOUNDS.message}: maxReplicas is {high}, replicas is {group.replicas}"
            yield Finding((*loc, "maxReplicas"), words, reads=reads)
        moves = (low or group.replicas) < group.replicas or (high or group.replicas) > group.replicas
        # A bound that equals replicas moves nothing, and needs no such role.
        if moves and not any(bounded(role) and role.node_group in (None, group.name) for role in spec.roles):
            words = f"minReplicas and maxReplicas of {group.name} are for roles that have bounds, and none lives there"
            at = "minReplicas" if low is not None and low < group.replicas else "maxReplicas"
            hint = "give an Elastic role minReplicas or maxReplicas, or leave them out"
            yield Finding((*loc, at), words, hint, (*reads, *roles))


# Units of roles that share a host are placed together, once; a role with bounds gives units back and gets new ones.
def _collocated(spec: DLJobSpec) -> Iterator[Finding]:
    roles = {role.name: (index, role) for index, role in enumerate(spec.roles)}
    for index, collocation in enumerate(spec.collocations):
        if collocation.level == "Separate":
            # Such roles share no host, so units may come and go.
            continue
        # `machines._members` reports a name that is listed twice.
        for name in dict.fromkeys(collocation.roles):
            at, role = roles.get(name, (0, None))
            if role is not None and bounded(role):
                words = f"{name} has minReplicas or maxReplicas, so it cannot share a host: its units come and go"
                loc: Loc = ("spec", "collocations", index, "roles")
                reads = (("spec", "roles", at, "minReplicas"), ("spec", "roles", at, "maxReplicas"), loc)
                yield Finding(loc, words, "use level Separate, or leave the bounds of the role out", reads)


# A role may shrink only after its patience, and pendingTimeoutSeconds would end the job before.
def _patience(spec: DLJobSpec) -> Iterator[Finding]:
    patience, limit = spec.fault_tolerance.elastic.shrink_after_seconds, spec.fault_tolerance.node
    if (patience or 0) >= limit.pending_timeout_seconds:
        loc: Loc = ("spec", "faultTolerance", "elastic", "shrinkAfterSeconds")
        reads = (loc, ("spec", "faultTolerance", "node", "pendingTimeoutSeconds"))
        words = f"the job fails after pendingTimeoutSeconds ({limit.pending_timeout_seconds}), before any role shrinks"
        yield Finding(loc, words, "lower shrinkAfterSeconds, or raise pendingTimeoutSeconds", reads)


def _autoscale(spec: DLJobSpec) -> Iterator[Finding]:
    for index, role in enumerate(spec.roles):
        if role.autoscale is None:
            continue
        loc: Loc = ("spec", "roles", index, "autoscale")
        if role.type != "Actor" or (role.min_replicas is None and role.max_replicas is None):
            reason = (
                "is Elastic, and restarts for another size" if role.type != "Actor" else "has a fixed number of ranks"
            )
            words = f"{cel.AUTOSCALE.message}: {role.name} {reason}"
            reads = (loc, *(("spec", "roles", index, name) for name in ("type", "minReplicas", "maxReplicas")))
            yield Finding(loc, words, "give it bounds, or take autoscale out", reads)
        by, name = role.autoscale.by, role.autoscale.name
        if (by == "calls") == (name is not None):
            words = f"{cel.AUTOSCALE_NAME.message}: by is {by}"
            yield Finding((*loc, "name"), words, "take name out" if name else f"name: the {by}", (loc,))


ELASTIC_RULES: tuple[Check, ...] = (_elastic, _machines, _collocated, _patience, _autoscale)
