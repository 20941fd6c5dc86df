"""Choice of a domain for each series of units that asks for one: machines with one value of a label, such as one rack.

Ray's label selectors know values, and not "the same value, whichever": so a value is chosen here, before anything is
placed. Of the domains that hold all units, the one with the least room beyond them is taken, so that larger ones stay
free for jobs that need them. A series that only prefers a domain gets one where all units of all series still fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from dljob.plan.capacity import UNBOUNDED, admits, copies, total_demand, total_room
from dljob.plan.conflict import Conflict, conflict_of
from dljob.plan.model import Resources, add_up
from dljob.plan.packing import SEARCH_STEPS, Batch, MachineRun, Packing, Stuck, pack
from dljob.plan.words import natural, resources_text
from dljob.telemetry.wording import counted

TRIES = 256
"""Combinations of domains that are tried, over all series."""
LEAST_STEPS = 500
"""Moves of the exact search in each of many tries."""
SHOWN = 6
"""Domains that a refusal names."""
_MOST = 100_000
"""Units of one kind that a machine is taken to hold at most."""


@dataclass(frozen=True, slots=True)
class Domain:
    """The machines with one value of a label, as one series sees them."""

    value: str
    machines: int
    holds: tuple[int, ...]
    """Number of units of each of its batches for which it has room."""
    free: Resources
    """Free amounts of the resources that the units ask for."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The domain that was chosen for a series, with the reason."""

    series: str
    key: str
    value: str
    """Empty: the series prefers one domain and does not get it."""
    reason: str


Fixed = Mapping[str, frozenset[str]]
"""Series -> the domains in which its other units live already."""


def pack_in_domains(
    batches: Sequence[Batch], runs: Sequence[MachineRun], fixed: Fixed
) -> tuple[Packing | Stuck, tuple[Choice, ...]]:
    """Place every unit, with each series that needs a domain in one; return the domains chosen, and those not had.

    A series that prefers a domain gets one if everything fits then. Of several such series each one does, in the order
    of their names, that still can beside those before it. No preference is a reason to place nothing.
    """
    wishes = sorted({batch.demand.prefers for batch in batches if batch.demand.prefers})
    verdict, chosen = _place(_granted(batches, wishes), runs, fixed)
    if isinstance(verdict, Packing) or not wishes:
        return verdict, chosen
    verdict, chosen = _place(batches, runs, fixed)
    if isinstance(verdict, Stuck):
        return verdict, ()
    had: list[tuple[str, str]] = []
    # That they do not all fit is known, so a single one needs no further try.
    for wish in wishes if len(wishes) > 1 else ():
        better, domains = _place(_granted(batches, [*had, wish]), runs, fixed)
        if isinstance(better, Packing):
            had.append(wish)
            verdict, chosen = better, domains
    missed = [
        Choice(*wish, "", _why_missed(batches, wish, runs, fixed, verdict))
        for wish in wishes
        # Units that live in several domains already have had their preference refused before.
        if wish not in had and len(fixed.get(wish[0], ())) < 2
    ]
    return verdict, (*chosen, *missed)


def _granted(batches: Sequence[Batch], wishes: Sequence[tuple[str, str]]) -> list[Batch]:
    """Return the batches with these preferences as needs."""
    return [
        replace(batch, demand=replace(batch.demand, topology=batch.demand.prefers))
        if batch.demand.prefers in wishes
        else batch
        for batch in batches
    ]


def _place(
    batches: Sequence[Batch], runs: Sequence[MachineRun], fixed: Fixed
) -> tuple[Packing | Stuck, tuple[Choice, ...]]:
    """Place every unit, with each series that needs a domain in one."""
    by_domain = _batches_by_domain(batches)
    if not by_domain:
        return pack(batches, runs), ()
    fitting = [_fitting(domains_of(members, runs, fixed), members) for members in by_domain.values()]
    verdict, chosen = _search(batches, runs, list(by_domain), fitting)
    return verdict, tuple(
        Choice(series, key, domain.value, _explain_choice(domain, key, members, len(others)))
        for ((series, key), members), domain, others in zip(by_domain.items(), chosen, fitting, strict=False)
        # A fixed domain was not chosen here.
        if series not in fixed
    )


def _search(
    batches: Sequence[Batch],
    runs: Sequence[MachineRun],
    domains_needed: Sequence[tuple[str, str]],
    fitting: Sequence[list[Domain]],
) -> tuple[Packing | Stuck, tuple[Domain, ...]]:
    """Search depth first, one series per level: those above must fit before the next one is tried."""
    # A few domains share the steps of one search without domains.
    steps = max(SEARCH_STEPS // max(1, prod(len(domains) for domains in fitting)), LEAST_STEPS)
    proven, tries = True, 0
    # Reversed, since the stack's last entry is tried first: the domain with least room.
    stack: list[tuple[Domain, ...]] = [(domain,) for domain in reversed(fitting[0])]
    while stack:
        chosen = stack.pop()
        # Many series over many domains are too many combinations: give up, and say that nothing is proven.
        if tries == TRIES:
            return Stuck(proven=False), ()
        tries += 1
        is_complete = len(chosen) == len(domains_needed)
        so_far = domains_needed[: len(chosen)]
        values = {series: domain.value for (series, _), domain in zip(so_far, chosen, strict=True)}
        # Before all series have a domain, only those with one are packed: the others' place is still open.
        some = [batch for batch in batches if is_complete or batch.demand.topology in so_far]
        verdict = pack([_pinned(batch, values) for batch in some], runs, steps)
        if not isinstance(verdict, Packing):
            # Only if every combination is proven impossible, the whole is.
            proven = proven and verdict.proven
        elif is_complete:
            return verdict, chosen
        else:
            stack.extend((*chosen, domain) for domain in reversed(fitting[len(chosen)]))
    return Stuck(proven=proven), ()


def why_not(
    batches: Sequence[Batch], runs: Sequence[MachineRun], fixed: Fixed, *, proven: bool, suffix: str = ""
) -> Conflict:
    """Return the smallest conflict among units that `pack_in_domains` could not place; `suffix` as in `conflict_of`."""
    by_domain = _batches_by_domain(batches)
    # The domains are not to blame when the units would not fit without them either.
    if not by_domain or not isinstance(pack(batches, runs), Packing):
        return conflict_of(batches, runs, proven=proven, suffix=suffix)
    for members in by_domain.values():
        domains = domains_of(members, runs, fixed)
        if not _fitting(domains, members):
            words = _no_domain(members, domains, runs, fixed, suffix)
            return Conflict(tuple(members), words, (), proven=True)
    names = " and ".join(f"{series} (one {key})" for series, key in by_domain)
    concerned = tuple(batch for members in by_domain.values() for batch in members)
    words = f"{names} fit in a domain each alone, but not beside each other and the others; {_ADVICE}"
    return Conflict(concerned, words, (), proven=proven)


_ADVICE = "add machines to a domain, ask for less, or leave topology-key out"


def domains_of(batches: Sequence[Batch], runs: Sequence[MachineRun], fixed: Fixed) -> list[Domain]:
    """Return the domains that a series may use, least room first. `batches` are its batches."""
    series, key = batches[0].demand.topology or ("", "")
    runs_by_value: dict[str, list[MachineRun]] = {}
    for run in runs:
        value = dict(run.room.labels).get(key)
        # Units of the series that hold nodes already fix its domain.
        if value is not None and value in fixed.get(series, (value,)) and admits(run.room, batches[0].demand):
            runs_by_value.setdefault(value, []).append(run)
    domains = [_domain(value, batches, members) for value, members in runs_by_value.items()]
    # The name last, so that equal jobs choose the same domain.
    return sorted(domains, key=lambda domain: (domain.holds, domain.free, natural(domain.value)))


def _batches_by_domain(batches: Sequence[Batch]) -> dict[tuple[str, str], list[Batch]]:
    """Return (series, label) -> batches of the series that ask for a domain, sorted."""
    by_domain: dict[tuple[str, str], list[Batch]] = {}
    for batch in batches:
        if batch.demand.topology:
            by_domain.setdefault(batch.demand.topology, []).append(batch)
    return dict(sorted(by_domain.items()))


def _domain(value: str, batches: Sequence[Batch], runs: Sequence[MachineRun]) -> Domain:
    holds = tuple(sum(copies(run.room, batch.demand, _MOST) * len(run.ids) for run in runs) for batch in batches)
    asked = {name for batch in batches for name, _ in total_demand(batch.demand)}
    # Memory that a machine does not state has no number to compare.
    free = add_up(
        *(
            tuple((n, a * len(r.ids)) for n, a in total_room(r.room).items() if n in asked and a < UNBOUNDED)
            for r in runs
        )
    )
    return Domain(value, sum(len(run.ids) for run in runs), holds, free)


def _fitting(domains: Sequence[Domain], batches: Sequence[Batch]) -> list[Domain]:
    return [d for d in domains if all(n >= batch.count for n, batch in zip(d.holds, batches, strict=True))]


def _pinned(batch: Batch, values: Mapping[str, str]) -> Batch:
    """Return a batch whose units select the domain of their series."""
    if batch.demand.topology is None:
        return batch
    series, key = batch.demand.topology
    selector = (*batch.demand.selector, (key, values[series]))
    return replace(batch, demand=replace(batch.demand, selector=selector))


def _explain_choice(domain: Domain, key: str, batches: Sequence[Batch], fitting: int) -> str:
    others = f"the one of {fitting} with least room beyond that" if fitting > 1 else "the only one that does"
    return f"{key}={domain.value} ({_describe_domain(domain)}) holds {_describe_demand(batches)}, {others}"


def _no_domain(
    batches: Sequence[Batch], domains: Sequence[Domain], runs: Sequence[MachineRun], fixed: Fixed, suffix: str
) -> str:
    """Return the message when no domain is large enough, with what each of them has."""
    return f"{_describe_demand(batches)} need {_describe_rooms(batches, domains, runs, fixed, suffix)}; {_ADVICE}"


def _why_missed(
    batches: Sequence[Batch], wish: tuple[str, str], runs: Sequence[MachineRun], fixed: Fixed, packing: Packing
) -> str:
    """Return why a series does not get the domain that it prefers, and where its units go instead."""
    members = [batch for batch in _granted(batches, [wish]) if batch.demand.topology == wish]
    domains = domains_of(members, runs, fixed)
    fitting = _fitting(domains, members)
    values = {index: dict(run.room.labels).get(wish[1]) for run in runs for index in run.ids}
    counts: dict[str, int] = {}
    for batch, spots in zip(batches, packing.spots, strict=True):
        for ids, count in spots if batch.demand.prefers == wish else ():
            for index in ids:
                value = values[index] or "machines without that label"
                counts[value] = counts.get(value, 0) + count
    places = ", ".join(f"{value} ({counts[value]})" for value in sorted(counts, key=natural))
    rooms = (
        f"one {wish[1]}: {fitting[0].value} would hold them, but not beside all other units"
        if fitting
        else _describe_rooms(members, domains, runs, fixed, "")
    )
    return f"{_describe_demand(members)}, preferred in {rooms}; placed without: {places}"


def _describe_rooms(
    batches: Sequence[Batch], domains: Sequence[Domain], runs: Sequence[MachineRun], fixed: Fixed, suffix: str
) -> str:
    series, key = batches[0].demand.topology or ("", "")
    rooms = [
        f"{domain.value} ({_describe_domain(domain)}{suffix}) has room for {min(domain.holds)}"
        for domain in sorted(domains, key=lambda domain: natural(domain.value))
    ]
    if len(rooms) > SHOWN:
        rooms = [*rooms[:SHOWN], f"{len(rooms) - SHOWN} more have room for no more than {domains[-1].holds[0]}"]
    text = "; ".join(rooms) or f"no machine that it may use {'is there' if series in fixed else f'has the label {key}'}"
    bound = f" ({key}={', '.join(sorted(fixed[series]))}, where its other units are)" if series in fixed else ""
    # Machines without the label are in no domain: their number may explain why there is too little room.
    bare = sum(len(run.ids) for run in runs if key not in dict(run.room.labels))
    without = f"; {counted(bare, 'machine')} without that label" if bare and rooms else ""
    return f"one {key}{bound}: {text}{without}"


def _describe_domain(domain: Domain) -> str:
    machines = counted(domain.machines, "machine")
    return f"{machines}, {resources_text(domain.free)}" if domain.free else machines


def _describe_demand(batches: Sequence[Batch]) -> str:
    return " and ".join(
        f"{counted(batch.count, 'unit')} of {batch.name} ({resources_text(total_demand(batch.demand))} each)"
        for batch in batches
    )
