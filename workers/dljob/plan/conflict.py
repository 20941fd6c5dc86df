"""The reason why units do not fit: the smallest conflicting set, and its numbers as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dljob.plan.capacity import UNBOUNDED, Demand, admits, total_demand, total_room
from dljob.plan.labels import matches
from dljob.plan.model import NODE_GROUP_LABEL, Resources, add_up
from dljob.plan.packing import Batch, MachineRun, Packing, count_that_fits, pack
from dljob.plan.words import resources_text
from dljob.telemetry.wording import counted

PROBE_STEPS = 2_000
"""Moves of the exact search in each probe for a smaller conflict."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Batches of units that do not fit together, although any of them can be left out to make the others fit."""

    batches: tuple[Batch, ...]
    reason: str
    missing: Resources
    """The least that would have to be added; empty when amounts are not the reason."""
    proven: bool
    """False: no packing was found, but it is not proven that there is none."""


def conflict_of(batches: Sequence[Batch], runs: Sequence[MachineRun], *, proven: bool, suffix: str = "") -> Conflict:
    """Return the smallest conflict among units for which `pack` found no room.

    `suffix` is " free" where other jobs may use the machines, and empty where the machines are empty.
    """
    # A batch that does not fit by itself is the whole conflict, and counting proves it.
    for batch in batches:
        room_for = count_that_fits(batch, runs)
        if room_for < batch.count:
            reason, missing = _too_many(batch, runs, room_for) if room_for else _no_machine(batch, runs, suffix)
            return Conflict((batch,), reason, missing, proven=True)
    # Leave out one batch after the other: it belongs to the conflict if the rest then fits.
    conflict = list(batches)
    for batch in batches:
        fewer = [rest for rest in conflict if rest is not batch]
        # One search for each batch, so each gets few steps.
        verdict = pack(fewer, runs, PROBE_STEPS)
        if not isinstance(verdict, Packing):
            # Still no room without it, so it is no part of the conflict.
            conflict, proven = fewer, verdict.proven
    reason, missing = _together(conflict, runs, suffix)
    return Conflict(tuple(conflict), reason, missing, proven=proven)


def _no_machine(batch: Batch, runs: Sequence[MachineRun], suffix: str) -> tuple[str, Resources]:
    """Return why not even one unit of the batch fits on any machine."""
    unit, total = _describe_unit(batch), sum(len(run.ids) for run in runs)
    # From the widest reason to the narrowest: no machine, no label, others there, too little of something.
    labelled = [run for run in runs if matches(batch.demand.selector, dict(run.room.labels))]
    if not total:
        return f"{unit} needs a machine; there is none", ()
    if not labelled:
        labels = ", ".join(f"{key}={value}" for key, value in batch.demand.selector)
        return f"{unit} needs a machine labelled {labels}; none of the {_machines(total)} is", ()
    open_to = [run for run in labelled if admits(run.room, batch.demand)]
    if not open_to:
        count = _machines(sum(len(run.ids) for run in labelled))
        if all(batch.demand.spread in run.room.spread for run in labelled):
            return f"{unit} wants a machine without another of {batch.demand.spread}; {count} of {count} has one", ()
        name = batch.demand.apart[0] if batch.demand.apart else ""
        return f"{unit} shares no machine with other roles of collocation {name}; none of {count} is without them", ()
    return _too_big(batch, open_to, suffix)


def _too_big(batch: Batch, runs: Sequence[MachineRun], suffix: str) -> tuple[str, Resources]:
    """Return why every machine is too small for the unit, by one resource or by their combination."""
    needs = total_demand(batch.demand)
    most = {name: max(total_room(run.room).get(name, 0) for run in runs) for name, _ in needs}
    short = tuple((name, amount - most[name]) for name, amount in needs if amount > most[name])
    group = dict(batch.demand.selector).get(NODE_GROUP_LABEL)
    none = f"no machine of node group {group}" if group else "no machine"
    if short:
        demand_text = resources_text(tuple((name, dict(needs)[name]) for name, _ in short))
        most_text = resources_text(tuple((name, most[name]) for name, _ in short if most[name]))
        has = f"has more than {most_text}{suffix}" if any(most[name] for name, _ in short) else f"has any{suffix}"
        return f"{_describe_unit(batch)} needs {demand_text} on one machine; {none} {has}", short
    # Each resource is enough somewhere, but never all on one machine: name the machine that lacks least.
    lacks = min((_lack(batch.demand, run) for run in runs), key=lambda lack: (len(lack), lack))
    demand_text = f"{_describe_unit(batch)} needs {resources_text(needs)} on one machine"
    if lacks:
        return f"{demand_text}; {none} has all of it{suffix}, the nearest lacks {resources_text(lacks)}", lacks
    return f"{demand_text}; what is free of devices is in pieces that are too small", ()


def _lack(demand: Demand, run: MachineRun) -> Resources:
    have = total_room(run.room)
    return tuple((n, amount - have.get(n, 0)) for n, amount in total_demand(demand) if amount > have.get(n, 0))


def _describe_unit(batch: Batch) -> str:
    """Name the unit by its content: one process, or several."""
    unit = batch.sample
    ranks = [rank for bundle in unit.bundles for rank in bundle.ranks]
    if len(ranks) == 1:
        return f"one process of role {ranks[0][0]}"
    if not ranks:
        # A piece of a quota, which holds no ranks.
        return f"a piece of {unit.name.rpartition('/')[0]}"
    by_role = {role: sum(1 for r, _ in ranks if r == role) for role, _ in ranks}
    inside = ", ".join(f"{count} of {role}" for role, count in sorted(by_role.items()))
    return f"unit {unit.name} ({inside})"


def _too_many(batch: Batch, runs: Sequence[MachineRun], room_for: int) -> tuple[str, Resources]:
    """Return why only some units of the batch fit."""
    usable = [run for run in runs if admits(run.room, batch.demand)]
    per_unit = total_demand(batch.demand)
    if batch.demand.spread:
        return _too_few(batch, usable, room_for), ()
    # If the sum is enough, the pieces are not: then whole units are missing.
    missing = _shortage([batch], usable) or tuple((n, amount * (batch.count - room_for)) for n, amount in per_unit)
    count = sum(len(run.ids) for run in usable)
    group = dict(batch.demand.selector).get(NODE_GROUP_LABEL)
    machines = f"{_machines(count)} of node group {group}" if group else f"{_machines(count)} that they may use"
    reason = (
        f"{batch.name}: {counted(batch.count, 'unit')} of {resources_text(per_unit)} each; the {machines} "
        f"{'has' if count == 1 else 'have'} room for {room_for}, so at least {resources_text(missing)} is missing"
    )
    return reason, missing


def _too_few(batch: Batch, runs: Sequence[MachineRun], room_for: int) -> str:
    """Return the message for units that want a machine each, where there are fewer machines."""
    count = sum(len(run.ids) for run in runs)
    room = f"there {'is' if count == 1 else 'are'} {_machines(count)} that they may use"
    lack = f", {room_for} with room for one" if room_for < count else ""
    return f"{batch.name}: {counted(batch.count, 'unit')}, each on a machine of its own (STRICT_SPREAD); {room}{lack}"


def _shortage(batches: Sequence[Batch], runs: Sequence[MachineRun]) -> Resources:
    """Return the amounts by which the batches exceed all these machines together."""
    have = _sum_of(runs)
    return tuple(
        (name, amount - have.get(name, 0)) for name, amount in _total_demand(batches) if amount > have.get(name, 0)
    )


def _total_demand(batches: Sequence[Batch]) -> Resources:
    return add_up(*(tuple((n, amount * b.count) for n, amount in total_demand(b.demand)) for b in batches))


def _sum_of(runs: Sequence[MachineRun]) -> dict[str, int]:
    return dict(add_up(*(tuple((n, a * len(r.ids)) for n, a in total_room(r.room).items()) for r in runs)))


def _together(batches: Sequence[Batch], runs: Sequence[MachineRun], suffix: str) -> tuple[str, Resources]:
    """Return why batches do not fit together that would fit alone."""
    # Machines that none of the batches may use explain nothing.
    usable = [run for run in runs if any(admits(run.room, batch.demand) for batch in batches)]
    lacks, have, asked = _shortage(batches, usable), _sum_of(usable), _total_demand(batches)
    parts = " and ".join(_units(batch) for batch in batches)
    machines = _machines(sum(len(run.ids) for run in usable))
    if lacks:
        asked_text = resources_text(tuple((name, dict(asked)[name]) for name, _ in lacks))
        free_text = resources_text(tuple((name, have.get(name, 0)) for name, _ in lacks))
        numbers = f"together {asked_text}, there is {free_text}{suffix}"
    else:
        # Memory that machines do not state has no number to show.
        shown = tuple((name, have[name]) for name, _ in asked if have[name] < UNBOUNDED)
        free_text = resources_text(shown)
        numbers = f"together {resources_text(asked)}, there is {free_text}{suffix}, but divided so that they do not fit"
    apart = sorted({batch.demand.apart[0] for batch in batches if batch.demand.apart})
    separate = f" (collocation {', '.join(apart)} keeps its roles on different machines)" if apart else ""
    spread = sorted({batch.demand.spread for batch in batches if batch.demand.spread})
    separate += f" (each unit of {', '.join(spread)} on a machine of its own)" if spread else ""
    return f"{parts} do not fit on {machines} together{separate}: {numbers}", lacks


def _units(batch: Batch) -> str:
    takes = resources_text(total_demand(batch.demand))
    several = f"{counted(batch.count, 'unit')} of {batch.name} ({takes} each)"
    return several if batch.count > 1 else f"1 unit of {batch.name} ({takes})"


def _machines(count: int) -> str:
    return counted(count, "machine")
