"""Autoscale: the number of ranks that a role needs for its load.

As many as the load over the target, rounded up to whole groups, within the bounds. More ranks are wanted at once; fewer
only when the load was low for a whole cooldown, so that a load that goes up and down does not drag the role along. Two
changes are at least a cooldown apart. An order to scale counts as a change: the load says nothing for a cooldown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dljob.master.start import starting
from dljob.master.state.events import LoadSeen
from dljob.master.state.evolve import evolve
from dljob.master.state.sizing import Sizing
from dljob.master.state.state import Phase
from dljob.master.state.transaction import StateTransaction
from dljob.plan.role import AutoscalePlan, RolePlan
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted

SLACK = 0.1
"""Part of the target by which the load must be below that of a smaller role: hysteresis against a load at its edge."""
_LOADS = {"queue": "items in queue {name}", "calls": "calls under way", "metric": "{name}"}


@dataclass(frozen=True, slots=True)
class Reading:
    """The load of a role at a time (unix seconds)."""

    at: float
    load: float


@dataclass(frozen=True, slots=True)
class SizeDecision:
    """The number of ranks that a role is to have, and the reason; `count` 0: as many as it is to have already."""

    count: int
    reason: str


def decide_size(plan: RolePlan, sizing: Sizing, readings: Sequence[Reading], now: float) -> SizeDecision:
    """Return whether a role is to have another number of ranks, by the readings of its last cooldown."""
    policy = plan.autoscale
    if policy is None or not readings:
        return SizeDecision(0, "its load is not known")
    if (hold_time := hold_s(policy, sizing, now)) > 0:
        return SizeDecision(0, f"its wanted size was changed {policy.cooldown_s - hold_time:.0f} s ago")
    last_reading = readings[-1]
    needed_count = needed_ranks(plan, policy, last_reading.load)
    load_words = f"{last_reading.load:g} {_LOADS[policy.by].format(name=policy.name)}, {policy.target} for each rank"
    if needed_count > sizing.want:
        return SizeDecision(needed_count, f"{load_words}: {counted(needed_count, 'rank')} instead of {sizing.want}")
    cooldown_readings = [reading for reading in readings if reading.at >= now - policy.cooldown_s]
    # A reading of before the cooldown: else the load of a part of it is not known.
    if readings[0].at > now - policy.cooldown_s:
        return SizeDecision(0, f"{load_words}; it is known for less than {policy.cooldown_s:g} s")
    peak_load = max(reading.load for reading in (*cooldown_readings, last_reading))
    peak_count = needed_ranks(plan, policy, peak_load / (1 - SLACK))
    if peak_count < sizing.want:
        change = f"{counted(peak_count, 'rank')} instead of {sizing.want}"
        return SizeDecision(peak_count, f"{load_words}, for {policy.cooldown_s:g} s: {change}")
    return SizeDecision(0, load_words)


def needed_ranks(plan: RolePlan, policy: AutoscalePlan, load: float) -> int:
    """Return the number of ranks for a load, in whole groups and within the bounds."""
    group_target = policy.target * plan.group_size
    groups = -(-max(load, 0.0) // group_target)
    max_groups = plan.max_replicas // plan.group_size
    return max(plan.min_replicas, int(min(groups, max_groups)) * plan.group_size)


def hold_s(policy: AutoscalePlan, sizing: Sizing, now: float) -> float:
    """Return the seconds for which the wanted size stays as it is, since it was changed just before."""
    return 0.0 if sizing.scaled is None else sizing.scaled + policy.cooldown_s - now


def follow_load(tx: StateTransaction, event: LoadSeen) -> None:
    """Want the number of ranks that the load asks for; one that comes after another change is out of date."""
    sizing = tx.sizes.get(event.role)
    if sizing is None or tx.phase is Phase.STOPPING:
        return
    plan = tx.facts(event.role).plan
    policy = plan.autoscale
    if policy is None or event.count == sizing.want or hold_s(policy, sizing, tx.now) > 0:
        return
    if not plan.min_replicas <= event.count <= plan.max_replicas or event.count % plan.group_size:
        return
    if starting.is_role_completed(tx, event.role):
        return
    # Only the wish, as an order's: `elastic.follow` looks for room after this event.
    tx.sizes = tx.sizes.set(event.role, evolve(sizing, want=event.count, scaled=tx.now, calls=event.calls))
    tx.note(reasons.AUTOSCALED, event.role, event.why)
