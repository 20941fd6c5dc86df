"""Gaps: which groups a role has at another size.

The ranks of a world are 0 to n-1. Those of a fleet keep their numbers: who goes leaves a gap, and the lowest gap is the
first that is given again. Of the groups of a fleet goes first the one that leaves already, then one that lost its node,
one on a departing node, one that is not ready, the one with the fewest calls under way, and of equal ones the highest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from dljob.master.state.job import Job, RoleFacts
from dljob.master.state.state import RankPhase
from dljob.master.state.transaction import StateTransaction


def group_numbers(tx: StateTransaction, role: str, size: int) -> Sequence[int]:
    """Return the numbers of the groups that a role has with so many ranks."""
    facts = tx.facts(role)
    count = size // facts.plan.group_size
    if not facts.fleet:
        return range(count)
    present = facts.groups
    if count <= len(present):
        return sorted(groups_in_order(tx, role)[:count])
    present_numbers = set(present)
    free = (number for number in range(count + len(facts.plan.gone)) if number not in present_numbers)
    return sorted([*present, *(next(free) for _ in range(count - len(present)))])


def groups_in_order(tx: StateTransaction, role: str) -> list[int]:
    """Return the groups of a role; the last one goes first."""
    facts, sizing = tx.facts(role), tx.sizes[role]
    calls = dict(sizing.calls)

    def worth(group: int) -> tuple[bool, bool, bool, bool, int, int]:
        ranks = facts.group_ranks(group)
        stays = not any(rank in sizing.leaving for rank in ranks)
        node = tx.units[f"{facts.series}/{group}"].node
        safe = node not in tx.departures
        ready = all(tx.ranks[role, rank].phase is RankPhase.READY for rank in ranks)
        # One on a departing node works to the end: it goes after its calls, not for one that lost its node.
        return stays, bool(node), safe, ready, sum(calls.get(rank, 0) for rank in ranks), -group

    return sorted(facts.groups, key=worth, reverse=True)


def missing_numbers(present: Sequence[int]) -> tuple[int, ...]:
    """Return the gaps in the numbers of a role's groups."""
    if len(present) == present[-1] + 1:
        return ()
    present_numbers = set(present)
    return tuple(number for number in range(present[-1]) if number not in present_numbers)


def resized_job(tx: StateTransaction, sizes: Mapping[str, int]) -> Job:
    """Return the job with these numbers of ranks."""
    return tx.job.sized(sizes, {role: missing_numbers(group_numbers(tx, role, size)) for role, size in sizes.items()})


def units_without(facts: RoleFacts, groups: Iterable[int], without: Iterable[int]) -> tuple[str, ...]:
    """Return the units of groups, without those of others."""
    left_out = frozenset(without)
    return tuple(f"{facts.series}/{group}" for group in groups if group not in left_out)
