"""Node groups for a spec that declares none: as few machines of as few shapes as a first-fit packing finds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import product
from string import ascii_lowercase

from dljob.plan.capacity import Capacity, Demand, Devices, copies, take
from dljob.plan.devices import BY_RAY
from dljob.plan.model import GRAIN, NODE_GROUP_LABEL, Amount, MachineGroup, Resources
from dljob.plan.packing import Batch, MachineRun, Packing, bigness, fill, machines_of, pack, runs_of

MACHINE_DEVICES = 8
"""Most devices of one kind on a derived machine, unless one unit needs more."""
MACHINE_CPUS = 32
"""Most CPUs of a derived machine without devices, unless one unit needs more."""
NAME_LENGTH = 20
"""Longest name of a derived group."""

_LETTERS = (*ascii_lowercase[1:], *("".join(pair) for pair in product(ascii_lowercase, repeat=2)))
# Stands for "as much as the units take": only devices and CPUs limit a derived machine.
_PLENTY: Amount = 2**70
_MEBIBYTE: Amount = 2**20 * GRAIN


def derive(batches: Sequence[Batch]) -> list[MachineGroup]:
    """Return machines for these units; units that take different kinds of devices get different machines.

    Each machine is as large as its content after first fit. Where `pack` cannot repeat so tight a fit, all machines of
    one kind get the size of the largest.
    """
    by_kind: dict[tuple[str, ...], list[Batch]] = {}
    for batch in batches:
        by_kind.setdefault(tuple(name for name, _, _ in batch.demand.devices), []).append(batch)
    lots = [lot for _, members in sorted(by_kind.items()) for lot in _lots(members)]
    # PrimeMaster places units by `pack`, which tries other orders: it must find this room again.
    tight = _named(Counter(size for lot in lots for size in lot))
    if isinstance(pack(batches, runs_of(machines_of(tight), batches)), Packing):
        return tight
    return _named(Counter(_largest(lot) for lot in lots for _ in lot))


def _lots(batches: Sequence[Batch]) -> list[list[Resources]]:
    """Return the sizes of the machines, by kind of machine. The largest units are placed first."""
    lots: dict[Capacity, tuple[MachineRun, ...]] = {}
    next_id = 0
    for batch in sorted(batches, key=lambda b: (bigness(b.demand), b.name)):
        cap = _capacity(batch.demand, batches)
        runs, _, rest = fill(lots.get(cap, ()), batch.demand, batch.count)
        # First fit found no more room: add empty machines of the unit's size, filled as far as they go.
        while rest:
            per_machine = copies(cap, batch.demand, rest)
            room = take(cap, batch.demand, per_machine)
            assert room is not None, "a machine of a unit's own size holds it"  # noqa: S101
            runs = (*runs, MachineRun(room, range(next_id, next_id + rest // per_machine)))
            next_id += rest // per_machine
            rest %= per_machine
        lots[cap] = runs
    return [[_used(cap, run.room) for run in runs for _ in run.ids] for cap, runs in lots.items()]


def _largest(sizes: Sequence[Resources]) -> Resources:
    """Return the maximum of each resource over these machines."""
    most: dict[str, Amount] = {}
    for name, amount in (item for size in sizes for item in size):
        most[name] = max(most.get(name, 0), amount)
    return tuple(sorted(most.items()))


def _capacity(demand: Demand, batches: Sequence[Batch]) -> Capacity:
    """Return an empty machine for the unit: of the usual size, or of the unit's own when that is bigger."""
    names = {name for batch in batches for name, _ in batch.demand.bulk}
    plenty = dict.fromkeys(names, _PLENTY)
    kinds = [name for name, _, _ in demand.devices]
    # Devices limit a machine that has some, CPUs any other.
    usual = plenty if kinds else {**plenty, "CPU": MACHINE_CPUS * GRAIN}
    machine = Capacity(_items(usual), tuple((kind, Devices(MACHINE_DEVICES)) for kind in kinds), ())
    if take(machine, demand) is not None:
        return machine
    # A unit that exceeds the usual machine gets one of its own size.
    bulk = {**plenty, "CPU": dict(demand.bulk).get("CPU", 0)}
    devices = tuple(
        (kind, Devices(untouched + sum(-(-count // (GRAIN // share)) for share, count in shares)))
        for kind, untouched, shares in demand.devices
    )
    return Capacity(_items(bulk), devices, ())


def _items(amounts: dict[str, Amount]) -> Resources:
    return tuple(sorted(amounts.items()))


def _used(cap: Capacity, room: Capacity) -> Resources:
    """Return the size of a machine for its units: whole CPUs and devices, memory in MiB."""
    after = dict(room.bulk)
    used = {name: amount - after[name] for name, amount in cap.bulk}
    # Ray counts whole CPUs, and a machine has at least one.
    used["CPU"] = max(1, -(-used.get("CPU", 0) // GRAIN)) * GRAIN
    memory = used.pop("memory", 0)
    if memory >= _MEBIBYTE:  # less is the byte of empty bundles; a machine of that size could not run
        used["memory"] = -(-memory // _MEBIBYTE) * _MEBIBYTE
    rest = dict(room.devices)
    used.update({kind: (devices.untouched - rest[kind].untouched) * GRAIN for kind, devices in cap.devices})
    return tuple(sorted((name, amount) for name, amount in used.items() if amount))


def _named(sizes: Counter[Resources]) -> list[MachineGroup]:
    """Return one group per size, named after its devices or CPUs: `gpu8`, `cpu32`, `gpu8-b`."""
    groups: dict[str, MachineGroup] = {}
    # Sorted, so that equal specs get equal names.
    for size, count in sorted(sizes.items(), key=lambda item: (item[0], item[1])):
        devices = [(name, amount // GRAIN) for name, amount in size if name in BY_RAY]
        stem = "-".join(f"{name}{amount}" for name, amount in devices or [("cpu", dict(size)["CPU"] // GRAIN)])
        # Room for a suffix such as `-ab`.
        stem = re.sub(r"[^a-z0-9]+", "-", stem.lower())[: NAME_LENGTH - 3].strip("-")
        name = next(n for n in (stem, *(f"{stem}-{letters}" for letters in _LETTERS)) if n not in groups)
        device = (devices[0][0], BY_RAY[devices[0][0]].kubernetes) if devices else None
        groups[name] = MachineGroup(name, count, size, ((NODE_GROUP_LABEL, name),), derived=True, device=device)
    return list(groups.values())
