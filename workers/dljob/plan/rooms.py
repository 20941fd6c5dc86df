"""What a unit asks of a machine, and what a machine has left: exact integers, device by device.

A share of a device must come from one device: two free halves are no whole. Ray hands shares out best fit, and so does
`take`. Only devices with ids are counted so; every other resource is one number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from dljob.plan.devices import BY_RAY
from dljob.plan.labels import matches
from dljob.plan.model import GRAIN, Amount, Resources, Unit, add_up

UNBOUNDED: Amount = 2**80
"""The memory of a machine whose memory is not known."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What one unit asks of a machine. Units with equal demands are exchangeable."""

    bulk: Resources
    """What is one number to Ray, summed over the bundles."""
    devices: tuple[tuple[str, int, tuple[Amount, ...]], ...]
    """(Ray resource, whole devices, shares of a device, largest first), sorted by name."""
    selector: tuple[tuple[str, str], ...]
    apart: tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class Room:
    """What a machine has left. Machines with equal rooms are exchangeable."""

    bulk: Resources
    devices: tuple[tuple[str, int, tuple[Amount, ...]], ...]
    """(Ray resource, untouched devices, what is left of each shared device, sorted)."""
    labels: tuple[tuple[str, str], ...]
    claims: tuple[tuple[str, str], ...] = ()
    """(Separate collocation, role): the one role of each such collocation that lives here."""
    used: bool = False


def demand_of(unit: Unit) -> Demand:
    """What a unit asks of its machine."""
    bulk: dict[str, Amount] = {}
    whole: dict[str, int] = {}
    shares: dict[str, list[Amount]] = {}
    for bundle in unit.bundles:
        for name, amount in bundle.resources:
            if name not in BY_RAY:
                bulk[name] = bulk.get(name, 0) + amount
                continue
            whole[name] = whole.get(name, 0) + amount // GRAIN
            if amount % GRAIN:
                shares.setdefault(name, []).append(amount % GRAIN)
    devices = tuple(
        (name, count, tuple(sorted(shares.get(name, ()), reverse=True))) for name, count in sorted(whole.items())
    )
    return Demand(tuple(sorted(bulk.items())), devices, unit.selector, unit.apart)


def room_of(free: Resources, labels: Iterable[tuple[str, str]], total: Resources | None = None) -> Room:
    """The room of a machine with these amounts free; memory that `total` does not state is not counted."""
    bulk = {name: amount for name, amount in free if name not in BY_RAY}
    if all(name != "memory" for name, _ in (free if total is None else total)):
        bulk["memory"] = UNBOUNDED
    devices = tuple(
        (name, amount // GRAIN, (amount % GRAIN,) if amount % GRAIN else ())
        for name, amount in sorted(free)
        if name in BY_RAY
    )
    return Room(tuple(sorted(bulk.items())), devices, tuple(sorted(labels)))


def narrow(room: Room, resources: frozenset[str], keys: frozenset[str]) -> Room:
    """The room without what nobody asks for, so that more machines are exchangeable."""
    return replace(
        room,
        bulk=tuple(item for item in room.bulk if item[0] in resources),
        labels=tuple(item for item in room.labels if item[0] in keys),
    )


def admits(room: Room, demand: Demand) -> bool:
    """Whether labels and separation let such a unit in, whatever the room."""
    if demand.apart is not None and any(c == demand.apart[0] and r != demand.apart[1] for c, r in room.claims):
        return False
    return not demand.selector or matches(demand.selector, dict(room.labels))


def take(room: Room, demand: Demand, count: int = 1) -> Room | None:
    """The room after `count` such units moved in; None when they do not fit. Labels are not asked."""
    bulk = dict(room.bulk)
    for name, amount in demand.bulk:
        bulk[name] = bulk.get(name, 0) - amount * count
        if bulk[name] < 0:
            return None
    devices = {name: (whole, shared) for name, whole, shared in room.devices}
    for name, whole, shares in demand.devices:
        left = _take_devices(devices.get(name, (0, ())), whole * count, shares * count)
        if left is None:
            return None
        devices[name] = left
    claims = room.claims
    if demand.apart is not None and demand.apart not in claims:
        claims = tuple(sorted((*claims, demand.apart)))
    return Room(
        tuple(sorted(bulk.items())),
        tuple((name, whole, shared) for name, (whole, shared) in sorted(devices.items())),
        room.labels,
        claims,
        used=True,
    )


def _take_devices(
    have: tuple[int, tuple[Amount, ...]], whole: int, shares: tuple[Amount, ...]
) -> tuple[int, tuple[Amount, ...]] | None:
    untouched, shared = have[0] - whole, list(have[1])
    for share in sorted(shares, reverse=True):
        fitting = [left for left in shared if left >= share]
        if fitting:
            best = min(fitting)
            shared.remove(best)
        else:
            untouched -= 1
            best = GRAIN
        if best > share:
            shared.append(best - share)
    return (untouched, tuple(sorted(shared))) if untouched >= 0 else None


def copies(room: Room, demand: Demand, limit: int) -> int:
    """How many such units fit, at most `limit`; admission included."""
    if not admits(room, demand):
        return 0
    most = limit
    have = dict(room.bulk)
    for name, amount in demand.bulk:
        most = min(most, have.get(name, 0) // amount)
    devices = {name: (whole, shared) for name, whole, shared in room.devices}
    shares_asked = False
    for name, whole, shares in demand.devices:
        untouched, shared = devices.get(name, (0, ()))
        most = min(most, untouched // whole if whole else limit)
        if shares:
            shares_asked = True
            most = min(most, (untouched * GRAIN + sum(shared)) // (whole * GRAIN + sum(shares)))
    return _most_copies(room, demand, most) if shares_asked else most


def _most_copies(room: Room, demand: Demand, most: int) -> int:
    """The most copies up to `most` that fit device by device, which sums alone do not tell."""
    low = 0
    while low < most:
        middle = most if low == 0 else (low + most + 1) // 2
        if take(room, demand, middle) is not None:
            low = middle
        else:
            most = middle - 1
    return low


def total_demand(demand: Demand) -> Resources:
    """All that a demand asks for, devices summed."""
    return add_up(demand.bulk, tuple((n, whole * GRAIN + sum(shares)) for n, whole, shares in demand.devices))


def total_room(room: Room) -> Mapping[str, Amount]:
    """All that a machine has left, devices summed."""
    return {**dict(room.bulk), **{n: whole * GRAIN + sum(shared) for n, whole, shared in room.devices}}
