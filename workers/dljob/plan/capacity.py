"""Demand of a unit and capacity of a machine: exact integers, device by device.

A share of a device must come from one device: two free halves are no whole. Bundles with equal shares are counted onto
common devices; those with different shares are not, since which of them meet on a device depends on the order in which
Ray sees them, and what fits only in the right order does not fit. So the order of units never matters here. Only
devices with ids are counted this way; every other resource is one number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from dljob.plan.devices import BY_RAY
from dljob.plan.labels import matches
from dljob.plan.model import GRAIN, Amount, Resources, Unit, add_up

UNBOUNDED: Amount = 2**80
"""Stands for the memory of a machine that does not state it."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand of one unit on a machine. Units with equal demands are exchangeable."""

    bulk: Resources
    """Resources that are one number to Ray, summed over the bundles."""
    devices: tuple[tuple[str, int, tuple[tuple[Amount, int], ...]], ...]
    """(Ray resource, whole devices, (share of a device, how many) by size), sorted by name."""
    selector: tuple[tuple[str, str], ...]
    apart: tuple[str, str] | None
    topology: tuple[str, str] | None = None
    """(series, label): the machines of all units of the series share one value of the label."""
    spread: str = ""
    """Series of which no machine holds two units; empty for none."""
    prefers: tuple[str, str] | None = None
    """(series, label), as `topology`, where the units may do without."""


@dataclass(frozen=True, slots=True)
class Devices:
    """The free devices of one kind on a machine."""

    untouched: int
    open: tuple[tuple[Amount, int], ...] = ()
    """(share, number of further shares of that size on devices that are already cut so), by size."""
    rest: Amount = 0
    """Free amount of a device that others share."""

    @property
    def total(self) -> Amount:
        """All that is free, as one number."""
        return self.untouched * GRAIN + sum(share * slots for share, slots in self.open) + self.rest


@dataclass(frozen=True, slots=True)
class Capacity:
    """The free room of a machine. Machines with equal capacities are exchangeable."""

    bulk: Resources
    devices: tuple[tuple[str, Devices], ...]
    """By Ray resource, sorted."""
    labels: tuple[tuple[str, str], ...]
    claims: tuple[tuple[str, str], ...] = ()
    """(Separate collocation, role): the role of each such collocation that lives here."""
    used: bool = False
    spread: tuple[str, ...] = ()
    """Series of which it holds a unit and may hold no other."""


def demand_of(unit: Unit) -> Demand:
    """Return the demand of a unit on its machine."""
    topology = (unit.series, unit.topology_key) if unit.topology_key else None
    spread = unit.series if unit.spread else ""
    bundles = tuple([bundle.resources for bundle in unit.bundles])
    prefers = (unit.series, unit.preferred_key) if unit.preferred_key else None
    return _demand(bundles, unit.selector, unit.apart, (topology, prefers), spread)


# Cached: units of a series have equal demands, and each search for room asks for those of all units of the job.
@lru_cache(maxsize=1024)
def _demand(
    bundles: tuple[Resources, ...],
    selector: tuple[tuple[str, str], ...],
    apart: tuple[str, str] | None,
    domain: tuple[tuple[str, str] | None, tuple[str, str] | None],
    spread: str,
) -> Demand:
    bulk: dict[str, Amount] = {}
    devices_of: dict[str, int] = {}
    shares: dict[str, Counter[Amount]] = {}
    for resources in bundles:
        for name, amount in resources:
            if name not in BY_RAY:
                bulk[name] = bulk.get(name, 0) + amount
                continue
            # A bundle takes whole devices, or a share of one.
            devices_of[name] = devices_of.get(name, 0) + amount // GRAIN
            if amount % GRAIN:
                shares.setdefault(name, Counter())[amount % GRAIN] += 1
    none = Counter[Amount]()
    devices = tuple((name, n, tuple(sorted(shares.get(name, none).items()))) for name, n in sorted(devices_of.items()))
    return Demand(tuple(sorted(bulk.items())), devices, selector, apart, domain[0], spread, domain[1])


def room_of(free: Resources, labels: Iterable[tuple[str, str]], total: Resources = ()) -> Capacity:
    """Return the capacity of a machine with these amounts free.

    `total` is what the machine has in all, where that differs. Memory that the machine does not state is not counted.
    """
    # With the total: a resource that is used up is missing from `free`.
    stated = {name for name, _ in (*total, *free)}
    amounts = dict(free)
    bulk = {name: amount for name, amount in free if name not in BY_RAY}
    # A machine that does not state its memory must not be refused for it.
    if "memory" not in stated:
        bulk["memory"] = UNBOUNDED
    devices = tuple(
        (name, Devices(amounts.get(name, 0) // GRAIN, rest=amounts.get(name, 0) % GRAIN))
        for name in sorted(stated)
        if name in BY_RAY
    )
    return Capacity(tuple(sorted(bulk.items())), devices, tuple(sorted(labels)))


def narrow(room: Capacity, resources: frozenset[str], keys: frozenset[str]) -> Capacity:
    """Drop resources and labels that no unit asks for, so that more machines are exchangeable."""
    return replace(
        room,
        bulk=tuple(item for item in room.bulk if item[0] in resources),
        labels=tuple(item for item in room.labels if item[0] in keys),
    )


def occupied(room: Capacity, demand: Demand) -> Capacity | None:
    """Return the capacity beside a unit whose amounts are missing from it already: only its claims are added."""
    if demand.apart is None and not demand.spread:
        return room if room.used else replace(room, used=True)
    return take(room, replace(demand, bulk=(), devices=()))


def admits(room: Capacity, demand: Demand) -> bool:
    """Return whether labels and separation allow such a unit, whatever the room."""
    # The first unit of a Separate collocation claims the machine for its role; other roles stay out.
    if demand.apart is not None and any(c == demand.apart[0] and r != demand.apart[1] for c, r in room.claims):
        return False
    if demand.spread in room.spread:
        return False
    return not demand.selector or matches(demand.selector, dict(room.labels))


def take(room: Capacity, demand: Demand, count: int = 1) -> Capacity | None:
    """Return the capacity after `count` such units moved in; None when they do not fit. Labels are not checked."""
    bulk = dict(room.bulk)
    for name, amount in demand.bulk:
        # 0 where the machine has none at all.
        bulk[name] = bulk.get(name, 0) - amount * count
        if bulk[name] < 0:
            return None
    devices = dict(room.devices)
    for name, count_each, shares in demand.devices:
        rest = _take_devices(devices.get(name, Devices(0)), count_each * count, [(s, n * count) for s, n in shares])
        if rest is None:
            return None
        devices[name] = rest
    claims = room.claims
    if demand.apart is not None and demand.apart not in claims:
        claims = tuple(sorted((*claims, demand.apart)))
    spread = tuple(sorted({*room.spread, demand.spread})) if demand.spread else room.spread
    devices_after = tuple(sorted(devices.items(), key=_name))
    return Capacity(tuple(sorted(bulk.items())), devices_after, room.labels, claims, used=True, spread=spread)


def _name(item: tuple[str, Devices]) -> str:
    return item[0]


def _take_devices(have: Devices, count_whole: int, shares: Iterable[tuple[Amount, int]]) -> Devices | None:
    untouched, slots, rest = have.untouched - count_whole, dict(have.open), have.rest
    for share, count in shares:
        free = slots.get(share, 0)
        # A device that others share is used before an untouched one is opened, which keeps whole devices whole.
        if count > free and rest >= share:
            # The rest of that device after its last share stays unused: a share never spans two devices.
            free, rest = free + rest // share, 0
        if count > free:
            # Open as few untouched devices as hold the rest; a device with shares of 0.4 takes two of them.
            opened = -(-(count - free) // (GRAIN // share))
            untouched, free = untouched - opened, free + opened * (GRAIN // share)
        slots[share] = free - count
    open_shares = tuple(sorted((share, count) for share, count in slots.items() if count))
    # Checked last, since shares may have opened devices too.
    return Devices(untouched, open_shares, rest) if untouched >= 0 else None


def copies(room: Capacity, demand: Demand, limit: int) -> int:
    """Return how many such units fit, at most `limit`; labels and separation included."""
    if not admits(room, demand):
        return 0
    # Bounds by sums are cheap and almost exact: only shares of devices need the search below.
    most = min(limit, 1) if demand.spread else limit
    have = dict(room.bulk)
    for name, amount in demand.bulk:
        most = min(most, have.get(name, 0) // amount)
    devices = dict(room.devices)
    shares_asked = False
    for name, devices_each, shares in demand.devices:
        have = devices.get(name, Devices(0))
        most = min(most, have.untouched // devices_each if devices_each else limit)
        if shares:
            shares_asked = True
            most = min(most, have.total // (devices_each * GRAIN + _sum(shares)))
    return _most_copies(room, demand, most) if shares_asked else most


def _most_copies(room: Capacity, demand: Demand, most: int) -> int:
    """Return the most copies up to `most` that fit device by device, which sums alone cannot tell."""
    low = 0
    # Bisection, after one try with the upper bound, which mostly fits.
    while low < most:
        middle = most if low == 0 else (low + most + 1) // 2
        if take(room, demand, middle) is not None:
            low = middle
        else:
            most = middle - 1
    return low


def total_demand(demand: Demand) -> Resources:
    """Return all that a demand asks for, devices summed."""
    return add_up(demand.bulk, tuple((name, units * GRAIN + _sum(shares)) for name, units, shares in demand.devices))


def total_room(room: Capacity) -> Mapping[str, Amount]:
    """Return all that is free on a machine, devices summed."""
    return {**dict(room.bulk), **{name: devices.total for name, devices in room.devices}}


def _sum(shares: Iterable[tuple[Amount, int]]) -> Amount:
    return sum(share * count for share, count in shares)
