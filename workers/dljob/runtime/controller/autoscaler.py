"""Autoscaler: reads the load of roles that scale themselves, and offers the core what it asks for.

What is decided from the readings is decided by the core (`dljob.master.placement.autoscale`), here only when: an event
is journaled, so the core hears of a load that changes something, and of no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping

from dljob.master.placement.autoscale import Reading, decide
from dljob.master.state.events import LoadSeen
from dljob.master.state.state import Phase
from dljob.plan.role import AutoscalePlan
from dljob.runtime.controller.heartbeat_log import calls_under_way
from dljob.runtime.controller.sampler import SampledMaster
from dljob.runtime.controller.worker_hosts import Offer

log = logging.getLogger(__package__)

LOOK_S = 1.0
"""Seconds between two readings."""


class Autoscaler:
    """The autoscaler of one master; `queues` returns `queues/<name>` -> items and capacity."""

    def __init__(
        self, view: Callable[[], SampledMaster], queues: Callable[[], Mapping[str, list[int]]], offer: Offer
    ) -> None:
        self._view = view
        self._queues = queues
        self._offer = offer
        self._readings: dict[str, deque[Reading]] = {}
        self._said: dict[str, str] = {}

    async def run(self) -> None:
        """Read and offer until the task is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            for event in self.look(self._view()):
                await self._offer(event)

    def look(self, view: SampledMaster) -> list[LoadSeen]:
        """Read the loads; return what they ask for."""
        found: list[LoadSeen] = []
        for role, own in view.state.sizes.items() if view.state.phase is Phase.RUNNING else ():
            plan = view.state.job.roles[role].plan
            if plan.autoscale is None or (load := self._load(view, role, plan.autoscale)) is None:
                continue
            readings = self._readings.setdefault(role, deque())
            readings.append(Reading(view.at, load))
            # One reading of before the cooldown stays: it tells that all of it is known.
            while len(readings) > 1 and readings[1].at <= view.at - plan.autoscale.cooldown_s:
                readings.popleft()
            decision = decide(plan, own, readings, view.at)
            if decision.count:
                log.info("%s is to have %d ranks: %s", role, decision.count, decision.why)
                found.append(LoadSeen(role, decision.count, decision.why))
        return found

    def _load(self, view: SampledMaster, role: str, policy: AutoscalePlan) -> float | None:
        """Return the load of a role; None while it is not known."""
        match policy.by:
            case "queue":
                fill = self._queues().get(f"queues/{policy.name}")
                return None if fill is None else float(fill[0])
            case "calls":
                return float(sum(calls_under_way(view.state, role, view.usage).values()))
            case _:
                return _metric(view, policy.name)


def _metric(view: SampledMaster, name: str) -> float | None:
    """Return a metric of the first driver role, from its lowest rank that reports it."""
    driver = view.state.job.drivers[0]
    told = sorted((rank, metrics) for (role, rank), (_, metrics) in view.progress.items() if role == driver)
    return next((float(metrics[name]) for _, metrics in told if name in metrics), None)
