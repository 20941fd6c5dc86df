"""Node group of the builder: node_num, device_per_node and device_type, applied once all roles are known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any

from dljob.api.workload import Workload
from dljob.errors import UsageError

GROUP = "workers"
"""Name of the node group that node_num makes."""
DEFAULT_DEVICES = 8
"""Devices of a machine by default, when roles use devices; DLRover's default."""

_COUNTED = frozenset({"nodes", "devices", "cpu", "memory"})
"""Settings that make a node group; without `nodes` it has one machine."""
_UNITS = {
    "": Decimal(1), "k": Decimal(1000), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "m": Decimal("0.001"),
}  # fmt: skip
_QUANTITY = re.compile(r"^([0-9]+(?:\.[0-9]+)?)([a-zA-Z]{0,2})$")


def machines(settings: Mapping[str, Any], roles: Mapping[str, Workload], spec: dict[str, Any]) -> None:
    """Set device types of roles and, when a machine's number or size was given, add a node group to the spec.

    The default CPU and memory of a machine are an equal part of the demand of all ranks, plus the largest unit. With
    that margin greedy placement cannot fail for lack of them.

    Raises:
        UsageError: a role wants devices that the machines do not have.
    """
    users = [r for r in roles.values() if r.accelerator is not None]
    kind = _kind(settings.get("type"), users)
    for role in users:
        # A type that a role names itself stays; `_kind` has refused one that contradicts the machines.
        role.accelerator_type = role.accelerator_type or (kind if "type" in settings else None)
    # Without a number or size of machines the plan derives them from the roles.
    if not _COUNTED & settings.keys():
        return
    if any(g["name"] == GROUP for g in spec.get("nodeGroups", [])):
        raise UsageError(
            f".node_num() and .node_group({GROUP!r}) both declare {GROUP!r}", hint="give your group another name"
        )
    nodes = int(settings.get("nodes", 1))
    group: dict[str, Any] = {"name": GROUP, "replicas": nodes}
    group["cpu"] = settings.get("cpu") or _whole_text(_per_node(roles, spec, nodes, "cpu"))
    size = settings.get("memory") or _mebi(_per_node(roles, spec, nodes, "memory"))
    if size:
        group["memory"] = size
    count = int(settings.get("devices", DEFAULT_DEVICES if users else 0))
    if kind != "CPU" and count:
        group["accelerator"] = {"type": kind, "count": count}
    # Without devices on the machines these ranks could never be placed.
    elif users:
        raise UsageError(
            f"role {users[0].name!r} takes {users[0].accelerator} devices, the machines have none",
            hint='say .device_type("GPU").device_per_node(8), or drop accelerator= from .resource()',
        )
    spec.setdefault("nodeGroups", []).append(group)


def _kind(device_type: str | None, users: Iterable[Workload]) -> str:
    """Return the device kind of the machines; refuse a role that names another kind."""
    named = {r.accelerator_type: r.name for r in users if r.accelerator_type}
    if device_type is None:
        return next(iter(named), None) or "GPU"
    for kind, role in named.items():
        if device_type not in (kind, "CPU"):
            raise UsageError(
                f"role {role!r} asks for {kind} by name, .device_type() says {device_type}",
                hint="accelerator= follows the device type",
            )
    return device_type


def _per_node(roles: Mapping[str, Workload], spec: Mapping[str, Any], nodes: int, resource: str) -> Decimal:
    """Return an equal part of the total demand, plus the largest unit; with one machine, the total."""
    demand_by_role = {
        n: amount(getattr(r, resource) or (_cpus(r) if resource == "cpu" else "0")) for n, r in roles.items()
    }
    total = sum((demand_by_role[n] * r.replicas for n, r in roles.items()), Decimal(0))
    units = [[n] for n in roles]
    # Collocated roles are placed together, so that their sum must fit on one machine.
    units += [c["roles"] for c in spec.get("collocations", []) if c["level"] != "Separate"]
    largest = max(sum((demand_by_role[n] * roles[n].replicas_per_group for n in unit), Decimal(0)) for unit in units)
    # Greedy placement leaves less than the largest unit free on each machine but the last.
    return total if nodes == 1 else total / nodes + largest


def _cpus(role: Workload) -> str:
    """Return the plan's default of a rank's CPUs: one, or for a framework's quota one for each device."""
    devices = amount(role.accelerator or "0") if role.reserve == "Quota" else Decimal(0)
    return str(max(1, int(devices)))


def amount(quantity: str) -> Decimal:
    """Convert a quantity to a number; an invalid one counts as 0 here, and the spec refuses it."""
    match = _QUANTITY.match(quantity.strip())
    if not match or match[2] not in _UNITS:
        return Decimal(0)
    return Decimal(match[1]) * _UNITS[match[2]]


def _whole_text(value: Decimal) -> str:
    return str(max(1, int(value.to_integral_value(ROUND_CEILING))))


def _mebi(value: Decimal) -> str:
    """Format bytes as Mi, rounded up; empty for 0."""
    return f"{(value / _UNITS['Mi']).to_integral_value(ROUND_CEILING)}Mi" if value else ""
