"""Packing of units into machines: greedy first, then a bounded exact search, with a proof where there is one.

Exchangeable units are one `Batch` and exchangeable machines one `MachineRun`, so the cost grows with the differences,
not with the numbers: 10,000 equal units on 2,000 equal machines are one division.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dljob.plan.capacity import Capacity, Demand, admits, copies, narrow, room_of, take, total_demand, total_room
from dljob.plan.devices import BY_RAY
from dljob.plan.model import GRAIN, Amount, MachineGroup, Unit
from dljob.plan.words import natural

SEARCH_STEPS = 20_000
"""Moves of the exact search before it gives up, which take about 0.2 s."""
SEARCH_UNITS = 48
"""Most units for which the exact search is tried."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Exchangeable units of one series."""

    name: str
    demand: Demand
    count: int
    sample: Unit
    """The first unit of them, for messages."""


@dataclass(frozen=True, slots=True)
class MachineRun:
    """Exchangeable machines, by their indices."""

    room: Capacity
    ids: Sequence[int]


Spots = tuple[tuple[Sequence[int], int], ...]
"""(machines, units on each of them), in order."""


@dataclass(frozen=True, slots=True)
class Packing:
    """The place of each batch, and the capacity that is left."""

    spots: tuple[Spots, ...]
    """By the index of the batch."""
    runs: tuple[MachineRun, ...]


@dataclass(frozen=True, slots=True)
class Stuck:
    """No packing was found. `proven`: none exists; otherwise the search ended at its bounds."""

    proven: bool


def runs_of(rooms: Sequence[tuple[Capacity, Sequence[int]]], batches: Iterable[Batch]) -> tuple[MachineRun, ...]:
    """Group machines of equal capacity, as far as these batches can tell them apart."""
    names: set[str] = set()
    keys: set[str] = set()
    for batch in batches:
        names.update(name for name, _ in batch.demand.bulk)
        keys.update(key for key, _ in batch.demand.selector)
        keys.update(key for wish in (batch.demand.topology, batch.demand.prefers) if wish for key in wish[1:])
    together: dict[Capacity, list[int]] = {}
    for room, ids in rooms:
        together.setdefault(narrow(room, frozenset(names), frozenset(keys)), []).extend(ids)
    # In order, whichever of their machines were given together.
    return tuple(MachineRun(room, sorted(ids)) for room, ids in together.items() if ids)


def machines_of(groups: Iterable[MachineGroup]) -> list[tuple[Capacity, Sequence[int]]]:
    """Return the empty machines of node groups, numbered in the order of their names."""
    rooms: list[tuple[Capacity, Sequence[int]]] = []
    first = 0
    for group in sorted(groups, key=lambda group: natural(machine_name(group, 0))):
        rooms.append((room_of(group.resources, group.labels), range(first, first + group.replicas)))
        first += group.replicas
    return rooms


def machine_name(group: MachineGroup, index: int) -> str:
    """Return the name of a planned machine of a group."""
    return f"{group.name}-{index}"


def bigness(demand: Demand) -> tuple[Amount, Amount]:
    """Return a sort key that puts the largest demand first: by devices, then by CPU."""
    amounts = dict(total_demand(demand))
    return -sum(amount for name, amount in amounts.items() if name in BY_RAY), -amounts.get("CPU", 0)


def pack(batches: Sequence[Batch], runs: Sequence[MachineRun], steps: int = SEARCH_STEPS) -> Packing | Stuck:
    """Return a place for every unit, or Stuck."""
    # From cheap to dear: a proof by sums, a few greedy orders, and only then the search.
    if _cannot(batches, runs):
        return Stuck(proven=True)
    for order in _orders(batches, runs):
        packing = _greedy(batches, runs, order)
        if packing is not None:
            return packing
    return _search(batches, runs, steps)


def fill(runs: Sequence[MachineRun], demand: Demand, count: int) -> tuple[tuple[MachineRun, ...], Spots, int]:
    """Put up to `count` such units into machines, the tightest first.

    Returns (machines after, where, number of units that are left).
    """
    after: list[MachineRun] = []
    spots: list[tuple[Sequence[int], int]] = []
    for run in sorted(runs, key=lambda run: _preference(run, demand)):
        per_machine = copies(run.room, demand, count) if count else 0
        if not per_machine:
            after.append(run)
            continue
        full = min(len(run.ids), count // per_machine)
        # Fill whole machines by one division; the remainder goes to one more machine of the run.
        cuts = [(run.ids[:full], per_machine)]
        count -= full * per_machine
        if count and full < len(run.ids):
            rest = copies(run.room, demand, count)
            cuts.append((run.ids[full : full + 1], rest))
            count -= rest
        for ids, number in cuts:
            room = take(run.room, demand, number)
            assert room is not None, "copies() said that they fit"  # noqa: S101
            after.append(MachineRun(room, ids))
            spots.append((ids, number))
        touched = sum(len(ids) for ids, _ in cuts)
        if touched < len(run.ids):
            after.append(MachineRun(run.room, run.ids[touched:]))
    return tuple(after), tuple(spots), count


def count_that_fits(batch: Batch, runs: Sequence[MachineRun]) -> int:
    """Return how many units of a batch fit on otherwise empty machines; at most its count."""
    count = 0
    for run in runs:
        count += copies(run.room, batch.demand, batch.count) * len(run.ids)
        # Enough: how many more would fit does not matter.
        if count >= batch.count:
            return batch.count
    return count


def _preference(run: MachineRun, demand: Demand) -> tuple[int, bool, tuple[int, ...], int]:
    """Return a sort key for machines.

    First those without devices that the unit cannot use, then used ones, then the fullest, then the first.
    """
    asked = {name for name, _, _ in demand.devices}
    needless = sum(1 for name, _ in run.room.devices if name not in asked)
    free = total_room(run.room)
    names = [name for name, _ in total_demand(demand)]
    return needless, not run.room.used, tuple(free.get(name, 0) for name in names), run.ids[0]


def _cannot(batches: Sequence[Batch], runs: Sequence[MachineRun]) -> bool:
    """Return whether nothing can fit: a batch alone is too many, or the sum of a resource is too large."""
    if any(count_that_fits(batch, runs) < batch.count for batch in batches):
        return True
    needs: Counter[str] = Counter()
    for batch in batches:
        needs.update({name: amount * batch.count for name, amount in total_demand(batch.demand)})
    have: Counter[str] = Counter()
    for run in runs:
        # Machines that no batch may use do not count.
        if any(admits(run.room, batch.demand) for batch in batches):
            have.update({name: amount * len(run.ids) for name, amount in total_room(run.room).items()})
    return any(amount > have[name] for name, amount in needs.items())


def _orders(batches: Sequence[Batch], runs: Sequence[MachineRun]) -> list[list[int]]:
    """Return the orders to try.

    These are the order of derived machines, then fewest choices first, largest first, and those first that must be
    apart.
    """
    # Number of machines that each batch may use: batches with few choices are placed first.
    choice = [
        sum(len(run.ids) for run in runs if admits(run.room, b.demand) and take(run.room, b.demand)) for b in batches
    ]
    size = [_size(batch.demand, runs) for batch in batches]
    indices = range(len(batches))
    orders = [
        sorted(indices, key=lambda i: (bigness(batches[i].demand), batches[i].name)),
        sorted(indices, key=lambda i: (choice[i], -size[i], batches[i].name)),
        sorted(indices, key=lambda i: (-size[i], choice[i], batches[i].name)),
        sorted(indices, key=lambda i: (batches[i].demand.apart is None, -size[i], batches[i].name)),
        sorted(indices, key=lambda i: (not batches[i].demand.spread, choice[i], -size[i], batches[i].name)),
    ]
    # An order that is listed twice would fail twice.
    return [order for i, order in enumerate(orders) if order not in orders[:i]]


def _size(demand: Demand, runs: Sequence[MachineRun]) -> int:
    """Return the largest share of any machine's resource that a unit takes, in ten-thousandths."""
    most: dict[str, int] = {}
    for run in runs:
        for name, amount in total_room(run.room).items():
            most[name] = max(most.get(name, 0), amount)
    return max((amount * GRAIN // max(1, most.get(name, 0)) for name, amount in total_demand(demand)), default=0)


def _greedy(batches: Sequence[Batch], runs: Sequence[MachineRun], order: Sequence[int]) -> Packing | None:
    spots: list[Spots] = [()] * len(batches)
    now = tuple(runs)
    for i in order:
        now, spots[i], rest = fill(now, batches[i].demand, batches[i].count)
        if rest:
            return None
    return Packing(tuple(spots), now)


def _search(batches: Sequence[Batch], runs: Sequence[MachineRun], steps: int) -> Packing | Stuck:
    """Search depth first over units and distinct capacities, no state twice; proven if it ends within its steps."""
    todo = [i for i, batch in enumerate(batches) for _ in range(batch.count)]
    if len(todo) > SEARCH_UNITS:
        return Stuck(proven=False)
    # Each unit uses one machine: more machines of one kind than units would only multiply equal states.
    rooms = {index: run.room for run in runs for index in run.ids[: len(todo)]}
    states: set[tuple[int, frozenset[tuple[Capacity, int]]]] = set()
    stack: list[tuple[int, dict[int, Capacity], tuple[int, ...]]] = [(0, rooms, ())]
    while stack:
        depth, now, path = stack.pop()
        if depth == len(todo):
            return _search_packing(batches, runs, now, todo, path)
        # Machines of equal capacity are exchangeable, so a state is the multiset of capacities.
        key = (depth, frozenset(Counter(now.values()).items()))
        if key in states:
            continue
        states.add(key)
        demand = batches[todo[depth]].demand
        # One machine stands for all of equal capacity; reversed, so that the first of them does.
        for room, index in {room: index for index, room in reversed(now.items())}.items():
            steps -= 1
            after = take(room, demand) if admits(room, demand) else None
            if after is not None:
                stack.append((depth + 1, {**now, index: after}, (*path, index)))
        # Checked once for each state, so the last state may go beyond the bound.
        if steps < 0:
            return Stuck(proven=False)
    # The rest of a device that others share goes to the first unit that fits: the order matters, and nothing is proven.
    shares = any(shares for batch in batches for _, _, shares in batch.demand.devices)
    rests = any(devices.rest for run in runs for _, devices in run.room.devices)
    return Stuck(proven=not (shares and rests))


def _search_packing(
    batches: Sequence[Batch],
    runs: Sequence[MachineRun],
    rooms: dict[int, Capacity],
    todo: Sequence[int],
    path: Sequence[int],
) -> Packing:
    spots: list[list[tuple[Sequence[int], int]]] = [[] for _ in batches]
    for i, index in sorted(zip(todo, path, strict=True)):
        spots[i].append(((index,), 1))
    after = [MachineRun(rooms.get(index, run.room), (index,)) for run in runs for index in run.ids]
    return Packing(tuple(tuple(s) for s in spots), tuple(after))
