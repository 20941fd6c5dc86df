"""Who shares what, decided when the job is built: levels and shares that were left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from dljob.api.job import Workload
from dljob.api.values import exact, suggestion
from dljob.errors import UsageError

GRAIN = 10_000
"""Shares are counted in ten-thousandths of a device, Ray's own grain."""


@dataclass(frozen=True, slots=True)
class Collocation:
    """What `.with_collocation(...)` said; `roles` None: all that are declared but `exclude`."""

    roles: tuple[str, ...] | None
    exclude: tuple[str, ...]
    level: str | None
    name: str | None


def resolve(
    said: list[Collocation], roles: Mapping[str, Workload], exempt: frozenset[str], *, has_devices: bool
) -> list[dict[str, Any]]:
    """The spec's collocations; fills in the shares of roles that share a device and named none.

    Raises:
        UsageError: for a role that is not declared, or shares that leave nothing for the rest.
    """
    made: list[dict[str, Any]] = []
    for index, one in enumerate(said):
        names = _names(one, roles, exempt)
        level = one.level or _level([roles[n] for n in names], has_devices=has_devices)
        if level == "Device":
            _share_out([roles[n] for n in names])
        made.append({"name": one.name or f"{level.lower()}-{index}", "roles": list(names), "level": level})
    return made


def _names(one: Collocation, roles: Mapping[str, Workload], exempt: frozenset[str]) -> tuple[str, ...]:
    """The roles of a collocation, each of them declared."""
    call = ".with_collocation()" if one.roles is not None else ".with_collocation_all()"
    for name in (*(one.roles or ()), *one.exclude):
        if name not in roles:
            raise UsageError(f"{call} names {name!r}, which is no role", hint=suggestion(name, roles))
    if one.roles is not None:
        return one.roles
    left = tuple(n for n in roles if n not in one.exclude and n not in exempt)
    if len(left) < 2:
        raise UsageError(f"{call} leaves {len(left)} role(s) to collocate", hint="declare more roles or exclude fewer")
    return left


def _level(roles: list[Workload], *, has_devices: bool) -> str:
    """Device for shares, or for devices that nobody asked for; Host for whole devices and for none at all."""
    counts = [Decimal(r.accelerator) for r in roles if r.accelerator is not None]
    if any(count < 1 for count in counts):
        return "Device"
    return "Device" if not counts and has_devices else "Host"


def _share_out(roles: list[Workload]) -> None:
    """Give the roles without a share equal parts of what the others leave of one device.

    Exact to four digits: what does not divide goes to the first ones, one ten-thousandth each.
    """
    empty = [r for r in roles if r.accelerator is None]
    if not empty:
        return
    taken = sum((Decimal(r.accelerator) for r in roles if r.accelerator is not None), Decimal(0))
    left = int((1 - taken) * GRAIN)
    if left < len(empty):
        names = ", ".join(r.name for r in empty)
        raise UsageError(
            f"with_collocation: {exact(taken, 'share')} of the device is taken, nothing is left for {names}",
            hint="give smaller shares with .resource(accelerator=...)",
        )
    part, rest = divmod(left, len(empty))
    for index, role in enumerate(empty):
        role.accelerator = exact(Decimal(part + (index < rest)) / GRAIN, "share")
