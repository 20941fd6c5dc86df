"""Why units do not fit: the smallest set that conflicts, and its numbers in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dljob.plan.labels import matches
from dljob.plan.model import NODE_GROUP_LABEL, Resources, add_up
from dljob.plan.packing import Batch, Packing, Run, alone, pack
from dljob.plan.rooms import UNBOUNDED, Demand, admits, total_demand, total_room
from dljob.plan.words import resource_text, resources_text

PROBE_STEPS = 2_000
"""Moves of the exact search at each probe for a smaller conflict."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Batches of units that do not fit together, though they do with any one of these batches left out."""

    batches: tuple[Batch, ...]
    why: str
    missing: Resources
    """What would have to be added at least; empty when it is not a matter of amounts."""
    proven: bool
    """False: no packing was found, but none was proven impossible either."""


def conflict_of(batches: Sequence[Batch], runs: Sequence[Run], *, proven: bool) -> Conflict:
    """The smallest conflict among units that `pack` found no room for."""
    for batch in batches:
        room_for = alone(batch, runs)
        if room_for < batch.count:
            why, missing = _too_many(batch, runs, room_for) if room_for else _no_machine(batch, runs)
            return Conflict((batch,), why, missing, proven=True)
    kept = list(batches)
    for batch in batches:
        fewer = [other for other in kept if other is not batch]
        verdict = pack(fewer, runs, PROBE_STEPS)
        if not isinstance(verdict, Packing):
            kept, proven = fewer, verdict.proven
    why, missing = _together(kept, runs)
    return Conflict(tuple(kept), why, missing, proven=proven)


def _no_machine(batch: Batch, runs: Sequence[Run]) -> tuple[str, Resources]:
    """Not one unit of the batch fits anywhere."""
    total = sum(len(run.ids) for run in runs)
    labelled = [run for run in runs if matches(batch.demand.selector, dict(run.room.labels))]
    if not labelled:
        wanted = ", ".join(f"{key}={value}" for key, value in batch.demand.selector)
        there = f"none of the {_machines(total)} does" if total else "there is no machine"
        return f"{_who(batch)} needs a machine labelled {wanted}; {there}" if wanted else f"{_who(batch)}: {there}", ()
    open_to = [run for run in labelled if admits(run.room, batch.demand)]
    if not open_to:
        name, role = batch.demand.apart or ("", "")
        why = (
            f"{_who(batch)} needs a machine to itself (collocation {name} keeps {role} apart); all "
            f"{_machines(sum(len(run.ids) for run in labelled))} that it may use hold another role of {name}"
        )
        return why, ()
    lacks = min((_lack(batch.demand, run) for run in open_to), key=lambda lack: (len(lack), lack))
    group = dict(batch.demand.selector).get(NODE_GROUP_LABEL)
    where = f"a machine of node group {group}" if group else "the largest machine"
    best = min(open_to, key=lambda run: (len(_lack(batch.demand, run)), _lack(batch.demand, run)))
    have = total_room(best.room)
    if not lacks:
        return f"{_who(batch)} needs shares of devices that no machine has left on one device", ()
    needs = dict(total_demand(batch.demand))
    wanted = resources_text(tuple((name, needs[name]) for name, _ in lacks))
    there = resources_text(tuple((name, have[name]) for name, _ in lacks if have.get(name)))
    return f"{_who(batch)} needs {wanted} on one machine; {where} has {there}", lacks


def _lack(demand: Demand, run: Run) -> Resources:
    have = total_room(run.room)
    return tuple((n, amount - have.get(n, 0)) for n, amount in total_demand(demand) if amount > have.get(n, 0))


def _who(batch: Batch) -> str:
    """The unit by name and by what is in it: one process, or several."""
    unit = batch.sample
    ranks = [rank for bundle in unit.bundles for rank in bundle.ranks]
    if len(ranks) == 1:
        return f"one process of role {ranks[0][0]}"
    by_role = {role: sum(1 for r, _ in ranks if r == role) for role, _ in ranks}
    inside = ", ".join(f"{count} of {role}" for role, count in sorted(by_role.items()))
    return f"unit {unit.name} ({inside})"


def _too_many(batch: Batch, runs: Sequence[Run], room_for: int) -> tuple[str, Resources]:
    """Some units of the batch fit, not all."""
    extra = batch.count - room_for
    each = total_demand(batch.demand)
    missing = tuple((name, amount * extra) for name, amount in each)
    usable = sum(len(run.ids) for run in runs if admits(run.room, batch.demand))
    group = dict(batch.demand.selector).get(NODE_GROUP_LABEL)
    where = f"{_machines(usable)} of node group {group}" if group else f"{_machines(usable)} that they may use"
    why = (
        f"{batch.name}: {batch.count} units of {resources_text(each)} each; the {where} "
        f"{'has' if usable == 1 else 'have'} room for {room_for}, so {resources_text(missing)} is missing"
    )
    return why, missing


def _together(batches: Sequence[Batch], runs: Sequence[Run]) -> tuple[str, Resources]:
    """Each batch alone would fit; all of them do not."""
    usable = [run for run in runs if any(admits(run.room, batch.demand) for batch in batches)]
    total = add_up(*(tuple((n, a * b.count) for n, a in total_demand(b.demand)) for b in batches))
    have = dict(add_up(*(tuple((n, a * len(r.ids)) for n, a in total_room(r.room).items()) for r in usable)))
    lacks = tuple((name, amount - have.get(name, 0)) for name, amount in total if amount > have.get(name, 0))
    parts = " and ".join(f"{_units(b)} ({resources_text(total_demand(b.demand))} each)" for b in batches)
    machines = _machines(sum(len(run.ids) for run in usable))
    if lacks:
        numbers = "; ".join(
            f"together {resource_text(n, dict(total)[n])}, there is {resource_text(n, have.get(n, 0))}"
            for n, _ in lacks
        )
    else:
        shown = tuple((name, have[name]) for name, _ in total if have.get(name, 0) < UNBOUNDED)
        numbers = f"together {resources_text(total)}, there is {resources_text(shown)}, but not in the right pieces"
    apart = sorted({batch.demand.apart[0] for batch in batches if batch.demand.apart})
    separate = f" (collocation {', '.join(apart)} keeps its roles on different machines)" if apart else ""
    return f"{parts} do not fit on {machines} together{separate}: {numbers}", lacks


def _units(batch: Batch) -> str:
    return f"{batch.count} unit{'s' if batch.count > 1 else ''} of {batch.name}"


def _machines(count: int) -> str:
    return f"{count} machine{'s' if count != 1 else ''}"
