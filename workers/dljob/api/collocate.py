"""Collocations of the builder: levels and shares that were left out are filled in when the job is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from dljob.api.values import exact, suggestion
from dljob.api.workload import Workload
from dljob.errors import UsageError

GRAIN = 10_000
"""Parts of a device in which shares are counted: Ray's own unit is 1/10000."""


@dataclass(frozen=True, slots=True)
class CollocationRequest:
    """Arguments of one `.with_collocation(...)`; `roles` None: all declared roles but `exclude`."""

    roles: tuple[str, ...] | None
    exclude: tuple[str, ...]
    level: str | None
    name: str | None


def resolve(
    requests: list[CollocationRequest], roles: Mapping[str, Workload], exempt: frozenset[str], *, has_devices: bool
) -> list[dict[str, Any]]:
    """Return the spec's collocations, and fill in the shares of roles on a shared device that named none.

    Raises:
        UsageError: a role is not declared, or the given shares leave nothing for the others.
    """
    collocations: list[dict[str, Any]] = []
    for index, request in enumerate(requests):
        names = _names(request, roles, exempt)
        # After all roles are declared: a role that comes later may still ask for a share.
        level = request.level or _level([roles[n] for n in names], has_devices=has_devices)
        if level == "Device":
            _share_out([roles[n] for n in names])
        collocations.append({"name": request.name or f"{level.lower()}-{index}", "roles": list(names), "level": level})
    return collocations


def _names(request: CollocationRequest, roles: Mapping[str, Workload], exempt: frozenset[str]) -> tuple[str, ...]:
    """Return the roles of a collocation, and check that each is declared."""
    call = ".with_collocation()" if request.roles is not None else ".with_collocation_all()"
    # Also the excluded ones: a misspelt name would silently collocate the role that was meant.
    for name in (*(request.roles or ()), *request.exclude):
        if name not in roles:
            raise UsageError(f"{call} names {name!r}, which is no role", hint=suggestion(name, roles))
    if request.roles is not None:
        return request.roles
    role_names = tuple(n for n in roles if n not in request.exclude and n not in exempt)
    if len(role_names) < 2:
        raise UsageError(
            f"{call} leaves {len(role_names)} role(s) to collocate", hint="declare more roles or exclude fewer"
        )
    return role_names


def _level(roles: list[Workload], *, has_devices: bool) -> str:
    """Choose Device for shares, or when the machines' devices are not asked for; else Host."""
    counts = [Decimal(r.accelerator) for r in roles if r.accelerator is not None]
    if any(count < 1 for count in counts):
        return "Device"
    return "Device" if not counts and has_devices else "Host"


def _share_out(roles: list[Workload]) -> None:
    """Give roles without a share equal parts of the rest of one device.

    Shares are exact to four digits: the indivisible rest goes to the first roles, 1/10000 each.
    """
    empty = [r for r in roles if r.accelerator is None]
    if not empty:
        return
    taken_share = sum((Decimal(r.accelerator) for r in roles if r.accelerator is not None), Decimal(0))
    # In integers: parts must add up to exactly one device, or Ray cannot place the last one.
    free_grains = int((1 - taken_share) * GRAIN)
    # Each share must be at least 1/10000, Ray's smallest.
    if free_grains < len(empty):
        names = ", ".join(r.name for r in empty)
        raise UsageError(
            f"with_collocation: {exact(taken_share, 'share')} of the device is taken, nothing is left for {names}",
            hint="give smaller shares with .resource(accelerator=...)",
        )
    part, rest = divmod(free_grains, len(empty))
    for index, role in enumerate(empty):
        role.accelerator = exact(Decimal(part + (index < rest)) / GRAIN, "share")
