"""Log of heartbeats: when each host was last heard, and the steps of its ranks.

Heartbeats are not journaled: there are too many. The parts that the core needs, for the ledger and for the way back to
a step, are copied into the events that are journaled (`HeartbeatLog.with_heartbeats`).
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from statistics import median
from typing import Any

from dljob.master.state import events as ev
from dljob.master.state.evolve import evolve
from dljob.master.state.state import JobState, RankPhase, RankState
from dljob.master.state.views import Outcome
from dljob.master.status import rfc3339
from dljob.runtime.process.messages import Heartbeat
from dljob.runtime.process.worker_context import COUNTED, DEVICE

_HEARD = frozenset(phase.value for phase in RankPhase if phase.live)
"""Phases of ranks whose host sends heartbeats."""
ROOM = 1000
WORK_S = 1.0
"""Least seconds between two events about the first work of processes."""
RECENT = 9
"""Number of recent intervals between steps whose median is shown."""


class StepRate:
    """Step rate of the first driver role: the time of its latest step, and the usual seconds per step."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._top = 0
        self._top_at = 0.0
        self._gaps: deque[float] = deque(maxlen=RECENT)

    def add_step(self, step: int, before: int | None, now: float) -> None:
        """Take a rank's step; `before` is its step before, None for its first; `now` in unix seconds."""
        if step == before:
            return
        if self._at is None or (before is not None and step < before):  # a later incarnation goes on from a checkpoint
            self._top, self._top_at = step, now
        # Only a step beyond the highest counts: ranks of one world report the same step one after the other.
        elif step > self._top:
            self._gaps.append((now - self._top_at) / (step - self._top))
            self._top, self._top_at = step, now
        self._at = now

    def shown(self) -> dict[str, Any]:
        """Return the fields for a status: `stepTime` (RFC 3339), and `secondsPerStep` once one is known."""
        if self._at is None:
            return {}
        usual = {"secondsPerStep": round(median(self._gaps), 6)} if self._gaps else {}
        return {"stepTime": rfc3339(self._at), **usual}


class HeartbeatLog:
    """The heartbeats that one master heard. A later master begins without them; live hosts send all of it again."""

    def __init__(self) -> None:
        self.progress: dict[tuple[str, int], tuple[int, Mapping[str, float]]] = {}
        """Last step and metrics of each rank that reported one."""
        self._highest: dict[tuple[str, int], int] = {}
        self._counting: dict[tuple[str, int], tuple[int, int]] = {}
        """Rank that counts its work from 1 in each process -> (incarnation, what the processes before it did)."""
        self._furthest: dict[str, int] = {}
        """Role -> highest step that any of its ranks reported."""
        self._advanced: float | None = None
        """When some role last reported a higher step than ever before (unix seconds)."""
        self._last_heartbeats: dict[str, float] = {}
        """Actor -> time of its last heartbeat; ended actors stay until there are more than `_room` entries."""
        self._room = ROOM
        self.usage: dict[str, tuple[str, Mapping[str, Any]]] = {}
        """Actor -> its role, and the last usage of its ranks."""
        self.activities: dict[tuple[str, int], tuple[int, float, str]] = {}
        """Rank -> (incarnation, seconds to add to the report's times, report): what it does and waits for."""
        self._paces: dict[tuple[str, int], tuple[int, float, float | None]] = {}
        """Rank -> its last step, when it was first reported, and the seconds of a step before it."""
        self.rate = StepRate()
        self._queued: set[tuple[str, int, int, bool]] = set()
        """Steps that the core is yet to fold: rank, incarnation, whether the rank has made up for its restart."""
        self._begun: dict[tuple[str, int], tuple[int, float]] = {}
        """Rank -> (its incarnation, when it did its first work), for the next event about that."""
        self._queued_work: set[tuple[str, int, int]] = set()
        """The processes, as (role, rank, incarnation), of such events that the core is yet to fold."""
        self._work_due = 0.0
        """When the next event about first work may be offered (unix seconds)."""

    def record(self, state: JobState, heartbeat: Heartbeat, now: float) -> Iterator[ev.Event]:
        """Take a heartbeat; yield the events that the core has to know of.

        These are few: the first step of an incarnation, and the step that the rank had reached before its restart. The
        state stands still while the journal waits for room on its volume; each of them is yielded once all the same.
        """
        if not heartbeat.silent_s:  # else the node agent speaks for a host that itself is silent
            self._last_heartbeats[heartbeat.actor] = now
        if heartbeat.usage:
            self.usage[heartbeat.actor] = heartbeat.role, heartbeat.usage
        for rank, (incarnation, clock, report) in heartbeat.activities.items():
            self.activities[heartbeat.role, rank] = incarnation, now - clock, report
        if len(self._last_heartbeats) > self._room:
            self._forget(state)
        self._note_counting(heartbeat)
        for rank, (incarnation, reported, metrics) in heartbeat.steps.items():
            key = heartbeat.role, rank
            step = self._counted(key, incarnation, reported)
            if heartbeat.role == state.job.drivers[0]:
                self.rate.add_step(step, self.progress[key][0] if key in self.progress else None, now)
            self._step(key, step, metrics, now)
            rank_state = state.ranks.get(key)
            self._note_work(key, rank_state, incarnation, now)
            # Steps of an earlier incarnation, or of a rank that ends, are shown but decide nothing.
            if (
                rank_state is None
                or rank_state.goal is None
                or rank_state.phase is not RankPhase.READY
                or rank_state.incarnation != incarnation
            ):
                continue
            queued = (*key, incarnation, step >= rank_state.goal)
            if (step >= rank_state.goal or not rank_state.stepped) and queued not in self._queued:
                self._queued.add(queued)
                yield ev.Stepped(heartbeat.role, rank, incarnation, step)
        if heartbeat.usage:
            self._note_usage(state, heartbeat, now)
        yield from self._first_works(now)

    def _first_works(self, now: float) -> Iterator[ev.WorkBegan]:
        """Yield the event about first work: all of a second together, as a large job's ranks begin at nearly once."""
        if self._begun and now >= self._work_due:
            self._work_due = now + WORK_S
            begun = tuple((*key, incarnation, at) for key, (incarnation, at) in self._begun.items())
            self._queued_work.update(row[:3] for row in begun)
            self._begun.clear()
            yield ev.WorkBegan(begun)

    def _note_usage(self, state: JobState, heartbeat: Heartbeat, now: float) -> None:
        """Note the ranks of a host that ran a call of others, or that called others or used a queue themselves."""
        for rank, served_ms in heartbeat.usage.get("served", ()):
            key = heartbeat.role, rank
            rank_state = state.ranks.get(key)
            # The calls of an earlier process of the rank, in the same host, may be reported late.
            if rank_state is not None and served_ms / 1000 <= now - rank_state.ready_at + 1:
                self._note_work(key, rank_state, rank_state.incarnation, now - served_ms / 1000)
        ranks = heartbeat.usage.get("memory", ())
        # Of a host with several ranks it is not known which of them called.
        if len(ranks) == 1 and (heartbeat.usage.get("calls") or heartbeat.usage.get("stores")):
            key = heartbeat.role, ranks[0][0]
            rank_state = state.ranks.get(key)
            if rank_state is not None:
                self._note_work(key, rank_state, rank_state.incarnation, now)

    def _note_work(self, key: tuple[str, int], rank_state: RankState | None, incarnation: int, at: float) -> None:
        """Note the first work of a rank's present process."""
        if (
            rank_state is None
            or rank_state.has_worked
            or rank_state.phase is not RankPhase.READY
            or rank_state.incarnation != incarnation
        ):
            return
        if (*key, incarnation) not in self._queued_work and self._begun.get(key, (0, at))[0] != incarnation:
            self._begun[key] = incarnation, at

    def record_folded(self, event: ev.Event) -> None:
        """Take an event that the core has folded: from here on the state has the step in it."""
        if isinstance(event, ev.Stepped):
            incarnation = (event.role, event.rank, event.incarnation)
            self._queued -= {(*incarnation, False), (*incarnation, True)}
        elif isinstance(event, ev.WorkBegan):
            self._queued_work.difference_update(row[:3] for row in event.ranks)

    def _forget(self, state: JobState) -> None:
        """Forget all actors but the present hosts: others were ended, or are spares, which are heard again soon.

        The limit then doubles with the number of hosts, so that this walk over all of them stays rare.
        """
        hosts = {host_state.actor for host_state in state.hosts.values()}
        self._last_heartbeats = {actor: at for actor, at in self._last_heartbeats.items() if actor in hosts}
        self.usage = {actor: usage for actor, usage in self.usage.items() if actor in hosts}
        self._room = 2 * len(self._last_heartbeats) + ROOM

    def recall(self, earlier: HeartbeatLog) -> None:
        """Merge the steps found in the journal; heartbeats that arrived during the replay are newer and win."""
        for key, report in earlier.progress.items():
            self.progress.setdefault(key, report)
            self._highest[key] = max(earlier._highest[key], self._highest.get(key, 0))
        for role, step in earlier._furthest.items():
            self._furthest[role] = max(step, self._furthest.get(role, step))
        self._advanced = earlier._advanced if self._advanced is None else self._advanced

    def record_end(self, event: ev.Event, now: float) -> None:
        """Take the last step from a rank's end: it may have ended before the next heartbeat."""
        if isinstance(event, ev.RankEnded) and event.outcome.step is not None:
            self._step((event.role, event.rank), event.outcome.step, dict(event.outcome.metrics), now)

    def with_rank_fields(self, ranks: Iterable[Mapping[str, Any]], now: float) -> list[dict[str, Any]]:
        """Return the ranks of a status with the fields that only heartbeats tell; `now` in unix seconds."""
        used = self._used()
        return [
            {**rank, **self._rank_fields(rank, now), **used.get((rank["role"], rank["rank"]), {})} for rank in ranks
        ]

    def _rank_fields(self, rank: Mapping[str, Any], now: float) -> dict[str, float]:
        fields: dict[str, float] = {}
        heard_at, pace = self._last_heartbeats.get(rank["actor"]), self._paces.get((rank["role"], rank["rank"]))
        # Of a rank that has ended nothing is heard, and nothing is expected.
        if heard_at is not None and rank["phase"] in _HEARD:
            fields["heartbeatAge"] = round(max(0.0, now - heard_at), 1)
        if pace is not None and pace[2] is not None:
            fields["secondsPerStep"] = round(pace[2], 3)
        return fields

    def heard_at(self, actor: str) -> float | None:
        """Return when a host was last heard (unix seconds); None: never."""
        return self._last_heartbeats.get(actor)

    def _used(self) -> dict[tuple[str, int], dict[str, int]]:
        """Return rank -> its memory, and that of its device, as last told."""
        memory: dict[tuple[str, int], dict[str, int]] = {}
        for role, usage in self.usage.values():
            for rank, mib in usage.get("memory", ()):
                memory.setdefault((role, rank), {})["memoryMib"] = mib
            for name, rank, value in usage.get("noted", ()):
                if name == DEVICE:
                    memory.setdefault((role, rank), {})["deviceMib"] = value
        return memory

    def _keep_pace(self, key: tuple[str, int], step: int, now: float) -> None:
        last, since, usual = self._paces.get(key, (step, now, None))
        if step != last:
            # A later incarnation goes on from a checkpoint: the time between tells nothing about a step.
            usual = (now - since) / (step - last) if step > last else None
            last, since = step, now
        self._paces[key] = last, since, usual

    def _step(self, key: tuple[str, int], step: int, metrics: Mapping[str, float], now: float) -> None:
        self._keep_pace(key, step, now)
        self.progress[key] = step, metrics
        self._highest[key] = max(step, self._highest.get(key, step))
        self._reach(key[0], step, now)

    def _note_counting(self, heartbeat: Heartbeat) -> None:
        """Note the ranks that report work without a step."""
        for name, rank, _ in heartbeat.usage.get("noted", ()):
            if name == COUNTED:
                present = heartbeat.steps[rank][0] if rank in heartbeat.steps else 0
                self._counting.setdefault((heartbeat.role, rank), (present, 0))

    def _counted(self, key: tuple[str, int], incarnation: int, step: int) -> int:
        """Return the step of a process; of one that counts its work from 1, on top of what those before it did."""
        if key not in self._counting:
            return step
        present, before = self._counting[key]
        if incarnation > present:
            before = self._highest.get(key, 0) if present else 0
            self._counting[key] = incarnation, before
        return before + step

    def _reach(self, role: str, step: int, now: float) -> None:
        if step > self._furthest.get(role, -1):
            self._furthest[role], self._advanced = step, now

    def with_heartbeats(self, now: float, state: JobState, event: ev.Event) -> ev.Event:
        """Return an event with the fields filled in that only heartbeats tell; others are returned as they are."""
        match event:
            case ev.Commanded() | ev.LoadSeen():
                role = event.target if isinstance(event, ev.Commanded) else event.role
                calls = work_under_way(state, role, self.usage) if role in state.sizes else {}
                return evolve(event, calls=tuple(sorted(calls.items()))) if calls else event
            case ev.HostLost():
                # By incarnation: heartbeats of the actor that has taken its place say nothing about the lost one.
                host = state.hosts.get(event.host)
                actor = host.actor if host is not None and host.incarnation == event.incarnation else ""
                outcome = dataclasses.replace(event.outcome, advanced=self._advanced)
                return dataclasses.replace(event, outcome=outcome, seen=self._last_heartbeats.pop(actor, None))
            case ev.HangFound():
                step = self.progress.get((event.role, event.rank), (None, {}))[0]
                return dataclasses.replace(event, step=step, advanced=self._advanced)
            case ev.RankEnded() if not event.outcome.ok:
                return dataclasses.replace(event, outcome=self._sound(event, now))
            case ev.RankEnded():
                return dataclasses.replace(event, outcome=_finite(event.outcome))
            case ev.RankReady() if event.incarnation > 1:
                key = event.role, event.rank
                # Who counts its work from 1 repeats nothing.
                return evolve(event, goal=None if key in self._counting else self._highest.get(key))
            case ev.CheckpointDecided():
                return dataclasses.replace(event, reached=self._reached(event.world))
            case ev.NodesSeen():
                return dataclasses.replace(event, silent=self._silent(state, {node.id for node in event.nodes}))
            case _:
                return event

    def _sound(self, event: ev.RankEnded, now: float) -> Outcome:
        """Return the outcome of a failed rank with the time of the job's last progress, its own last step included."""
        step = event.outcome.step
        if step is not None:
            step = self._counted((event.role, event.rank), event.incarnation, step)
            self._reach(event.role, step, now)
        return dataclasses.replace(_finite(event.outcome), step=step, advanced=self._advanced)

    def _reached(self, world: str) -> int | None:
        """Return the highest step of a world, None if unknown.

        The world of a single Actor rank (`role/rank`) is a look-up, not a scan: ten thousand of them may ask at once.
        """
        role, _, rank = world.partition("/")
        if rank.isdecimal():
            return self._highest.get((role, int(rank)))
        return max((step for (name, _), step in self._highest.items() if name == role), default=None)

    def _silent(self, state: JobState, nodes: set[str]) -> tuple[tuple[str, float], ...]:
        """Return (node, time of its last heartbeat) for the nodes that are gone."""
        # The usual case, answered without a walk over all hosts.
        if all(node.id in nodes for node in state.nodes):
            return ()
        last: dict[str, float] = {}
        for host_state in state.hosts.values():
            at = self._last_heartbeats.get(host_state.actor)
            if at is not None and host_state.node and host_state.node not in nodes:
                last[host_state.node] = max(at, last.get(host_state.node, at))
        return tuple(sorted(last.items()))


def _finite(outcome: Outcome) -> Outcome:
    """Return an outcome without metrics that are not finite: JSON has no NaN, and a NaN loss must not end the job."""
    sound = tuple((name, value) for name, value in outcome.metrics if math.isfinite(value))
    return outcome if len(sound) == len(outcome.metrics) else dataclasses.replace(outcome, metrics=sound)


def calls_under_way(state: JobState, role: str, usage: Mapping[str, tuple[str, Mapping[str, Any]]]) -> dict[int, int]:
    """Return rank -> calls of others that run in it or wait there, for the present processes of a role."""
    return _reported_counts(state, role, usage, "busy")


def work_under_way(state: JobState, role: str, usage: Mapping[str, tuple[str, Mapping[str, Any]]]) -> dict[int, int]:
    """Return rank -> calls of others, and connections to its ports: what would be lost or drained if the rank went."""
    calls, connections = (_reported_counts(state, role, usage, key) for key in ("busy", "open"))
    return {rank: calls.get(rank, 0) + connections.get(rank, 0) for rank in {*calls, *connections}}


def _reported_counts(
    state: JobState, role: str, usage: Mapping[str, tuple[str, Mapping[str, Any]]], key: str
) -> dict[int, int]:
    present = {host_state.actor for host, host_state in state.hosts.items() if host.role == role}
    counts = (role_counts.get(key, ()) for actor, (_, role_counts) in usage.items() if actor in present)
    return {rank: count for rows in counts for rank, count in rows}
