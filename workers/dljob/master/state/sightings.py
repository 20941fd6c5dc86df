"""Outside witnesses as pure functions: readings -> conditions that have held long enough -> the rank that they mean.

A node agent reads and judges; PrimeMaster, which knows who runs where on which devices, says whose trouble it is. A
reading that fails, or has no finite number, says nothing, and ends the row of those before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dljob.master.state.state import HostState, JobState, RankKey, RankPhase, RankState
from dljob.master.state.views import Labels, Sighting
from dljob.plan.witnesses import WitnessPlan

NO_VALUE = 2.0**62
"""Numbers beyond it stand for "unknown": DCGM writes the highest 64-bit numbers where a device has no value."""
MOST = 64
"""Sightings of one witness on one node that are reported: one for each device, and some."""
WORDS = 200
"""Characters of labels in a sighting's words."""

Sample = tuple[Labels, float]
"""Labels of a sample, sorted, and its value."""

RANK, LOCAL_RANK, PID = "rank", "local_rank", "pid"
DEVICE = ("gpu", "device", "minor_number", "UUID", "uuid", "id", "npuID", "npu_id")
"""Labels with the number or UUID of a device, as DCGM's, NVIDIA's and Ascend's exporters have them."""


@dataclass(frozen=True, slots=True)
class Row:
    """The samples of one witness that say so, and since when without a gap."""

    since: Mapping[Labels, tuple[float, float]] = field(default_factory=dict[Labels, tuple[float, float]])
    """Labels -> when it began, and the last value."""

    def after(self, plan: WitnessPlan, samples: Iterable[Sample], now: float) -> Row:
        """Return the row after a reading; an empty one where it failed."""
        says = [(labels, value) for labels, value in samples if is_value(value) and plan.says(value)][:MOST]
        return Row({labels: (self.since[labels][0] if labels in self.since else now, value) for labels, value in says})

    def lasting_sightings(self, plan: WitnessPlan, now: float) -> tuple[Sighting, ...]:
        """Return the samples that have said so for the time of the spec."""
        return tuple(
            Sighting(plan.name, value, labels, round(now - since, 3))
            for labels, (since, value) in self.since.items()
            if now - since >= plan.for_s
        )


def is_value(value: float) -> bool:
    """Whether a number is a reading: not NaN, not infinite, not a monitor's word for "unknown"."""
    return math.isfinite(value) and abs(value) < NO_VALUE


def rank_of(state: JobState, node: str, labels: Labels) -> RankKey | None:
    """Return the one ready rank on a node that a sample is about; None where it may be several.

    The most exact label decides: the process, the rank, its number on the node, its device. A sample without any of
    them is about the only rank of the node.
    """
    ready_ranks = _ready_on(state, node)
    values = dict(labels)
    if PID in values:
        pids = {key: str(rank_state.pid or _host(state, key).pid) for key, rank_state in ready_ranks.items()}
        return _single_rank(key for key, pid in pids.items() if pid == values[PID])
    if RANK in values:
        return _single_rank(_prefer_torch_worlds(state, (key for key in ready_ranks if str(key[1]) == values[RANK])))
    if LOCAL_RANK in values:
        keys = (key for key in ready_ranks if str(_local_rank(key, ready_ranks)) == values[LOCAL_RANK])
        return _single_rank(_prefer_torch_worlds(state, keys))
    devices = {values[name].removeprefix("nvidia") for name in DEVICE if name in values}
    if devices:
        return _single_rank(key for key in ready_ranks if devices & set(_devices(state, key)))
    return _single_rank(ready_ranks)


def may_accuse(state: JobState, key: RankKey, sighting: Sighting, now: float) -> bool:
    """Whether a sighting can be about the present process of a rank: it began after that one was ready.

    A monitor may show the trouble of an earlier process for ever, and would have each of its successors restarted.
    """
    return now - sighting.held_s >= state.ranks[key].ready_at


def words(plan: WitnessPlan, sighting: Sighting) -> str:
    """Return a sighting in words."""
    labels = ", ".join(f"{name}={value}" for name, value in sighting.labels if value)
    about = f" of {labels[:WORDS]}" if labels else ""
    return f"witness {plan.name}: {plan.condition}{about}"


def _ready_on(state: JobState, node: str) -> dict[RankKey, RankState]:
    """Return the ready ranks of a node. Only its own units are searched: each heartbeat of each node may ask."""
    members = (member for unit in state.housed.get(node, ()) for member in state.job.plan.units[unit].members)
    keys = ((role, rank) for role, group in members for rank in state.job.roles[role].group_ranks(group))
    return {
        key: rank_state
        for key in keys
        if (rank_state := state.ranks[key]).phase is RankPhase.READY and _host(state, key).node == node
    }


def _single_rank(keys: Iterable[RankKey]) -> RankKey | None:
    key_list = list(keys)
    return key_list[0] if len(key_list) == 1 else None


def _prefer_torch_worlds(state: JobState, keys: Iterable[RankKey]) -> list[RankKey]:
    """Leave out ranks without a world where some have one: torch's numbers are theirs."""
    key_list = list(keys)
    return [key for key in key_list if state.job.roles[key[0]].is_torch_world] or key_list


def _host(state: JobState, key: RankKey) -> HostState:
    return state.hosts[state.job.roles[key[0]].host_of(key[1])]


def _local_rank(key: RankKey, keys: Iterable[RankKey]) -> int:
    """Return the number of a rank among those of its role on its node."""
    return sorted(rank for role, rank in keys if role == key[0]).index(key[1])


def _devices(state: JobState, key: RankKey) -> tuple[str, ...]:
    """Return the ids of the devices of a rank; those of its host where ranks of a host share them."""
    host, facts = _host(state, key), state.job.roles[key[0]]
    index = tuple(facts.ranks_of(facts.host_of(key[1]).index)).index(key[1])
    if index < len(host.slots) and host.slots[index]:
        return host.slots[index]
    return tuple(device for _, ids in host.devices for device in ids)
