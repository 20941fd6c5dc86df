"""What the ledger needs to know and no event of a rank tells: when a host was last heard, and how far its ranks were.

Beacons tell it, and they are not journaled; so it is written into the events that are.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping

from dljob.master import events as ev
from dljob.master.state import JobState, RankPhase
from dljob.runtime.messages import Beacon

ROOM = 1000


class Evidence:
    """What one master heard. A later one begins without it, and hears of what lives again."""

    def __init__(self) -> None:
        self.progress: dict[tuple[str, int], tuple[int, Mapping[str, float]]] = {}
        """The last step of each rank that told one, and its metrics."""
        self._highest: dict[tuple[str, int], int] = {}
        self._heard: dict[str, float] = {}
        """Actor -> when it was heard last; of those that were ended some, until `_room` of them are there."""
        self._room = ROOM

    def heard(self, state: JobState, beacon: Beacon, now: float) -> Iterator[ev.Event]:
        """Take a beacon; gives what the core should know of it."""
        if not beacon.silent_s:
            self._heard[beacon.actor] = now
        if len(self._heard) > self._room:
            self._forget(state)
        for rank, (incarnation, step, metrics) in beacon.steps.items():
            key = beacon.role, rank
            self._step(key, step, metrics)
            own = state.ranks.get(key)
            if own is None or own.goal is None or own.phase is not RankPhase.READY or own.incarnation != incarnation:
                continue
            if step >= own.goal or not own.stepped:
                yield ev.Stepped(beacon.role, rank, incarnation, step)

    def _forget(self, state: JobState) -> None:
        """Keep those that are hosts now: the others were ended, or are spares, which tell again soon."""
        hosts = {own.actor for own in state.hosts.values()}
        self._heard = {actor: at for actor, at in self._heard.items() if actor in hosts}
        self._room = 2 * len(self._heard) + ROOM

    def ended(self, event: ev.Event) -> None:
        """A rank that ends tells its last step, which no beacon may have told yet."""
        if isinstance(event, ev.RankEnded) and event.outcome.step is not None:
            self._step((event.role, event.rank), event.outcome.step, dict(event.outcome.metrics))

    def _step(self, key: tuple[str, int], step: int, metrics: Mapping[str, float]) -> None:
        self.progress[key] = step, metrics
        self._highest[key] = max(step, self._highest.get(key, step))

    def told(self, state: JobState, event: ev.Event) -> ev.Event:
        """An event with what is known beside it."""
        match event:
            case ev.HostLost():
                host = state.hosts.get(event.host)
                actor = host.actor if host is not None and host.life == event.life else ""
                return dataclasses.replace(event, seen=self._heard.pop(actor, None))
            case ev.RankEnded() if not all(math.isfinite(value) for _, value in event.outcome.metrics):
                # The journal is JSON, which has no word for them; a loss that is no number must not end the job.
                sound = tuple((name, value) for name, value in event.outcome.metrics if math.isfinite(value))
                return dataclasses.replace(event, outcome=dataclasses.replace(event.outcome, metrics=sound))
            case ev.RankReady() if event.incarnation > 1:
                return dataclasses.replace(event, goal=self._highest.get((event.role, event.rank)))
            case ev.CheckpointDecided():
                return dataclasses.replace(event, reached=self._reached(event.world))
            case ev.NodesSeen():
                return dataclasses.replace(event, silent=self._silent(state, {node.id for node in event.nodes}))
            case _:
                return event

    def _reached(self, world: str) -> int | None:
        """How far a world had come; an Actor rank's is looked up, since ten thousand of them may ask at once."""
        role, _, rank = world.partition("/")
        if rank.isdecimal():
            return self._highest.get((role, int(rank)))
        return max((step for (name, _), step in self._highest.items() if name == role), default=None)

    def _silent(self, state: JobState, nodes: set[str]) -> tuple[tuple[str, float], ...]:
        """When nodes that are gone were last heard."""
        if all(node.id in nodes for node in state.nodes):
            return ()
        last: dict[str, float] = {}
        for own in state.hosts.values():
            at = self._heard.get(own.actor)
            if at is not None and own.node and own.node not in nodes:
                last[own.node] = max(at, last.get(own.node, at))
        return tuple(sorted(last.items()))
