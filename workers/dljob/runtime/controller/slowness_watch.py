"""Slowness watch: tells the core who became slow and what for, and whose memory runs out, while it lasts.

Most of it comes with heartbeats, as steps and as `worker.usage`. Where that has no cause for slower steps, the nodes
are asked for the stacks of the role's ranks, a few times. The judgement is pure (`dljob.master.state.slowness`).
Nothing is restarted. A restarted PrimeMaster measures anew; what an earlier one told
stands until this one has measured for long enough to say that it is over.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from dljob.master.state import events as ev
from dljob.master.state import slowness
from dljob.master.state.memory_overrides import planned_memory_of
from dljob.master.state.problems import SLOWNESS
from dljob.master.state.slowness import (
    Look,
    Machine,
    MemoryReading,
    Pressure,
    RankReadings,
    SlowProblem,
    SlowRank,
    SlowSteps,
    StepTimes,
)
from dljob.master.state.state import JobState, RankKey, RankPhase
from dljob.master.state.waits import parse
from dljob.plan.amounts import GRAIN
from dljob.runtime.backend.interface import Backend
from dljob.runtime.controller.heartbeat_log import HeartbeatLog
from dljob.runtime.controller.stack_collector import RankSampler
from dljob.runtime.process.worker_context import WAITED
from dljob.tasks import TaskOwner, nobody_waits
from dljob.telemetry import reasons

EVERY_S, RANKS_A_SECOND = 1.0, 500
"""Seconds between two looks, and ranks of a job that are looked at in a second: larger ones are so less often."""
JUDGED = 3
"""At one look in so many it is judged what is slow: the looks between only measure steps."""
ENDS_S, FIRST_S = 25.0, 60.0
"""Seconds for which a problem must not have been found before it is over, as some are measured every ten seconds; and
in which a new watch finds none over."""
SLOW = frozenset((reasons.CPU_THROTTLED, reasons.MACHINE_BUSY, reasons.SLOW_CALLEE))
"""Causes of a role's slower steps for which no process is looked at."""
AGAIN_S = 60.0
"""Least seconds between two reports of a problem with other words; each is twice as long after the last."""

LOOKS, PAUSE_S, PAUSE_STEPS, LOOKED_AT = 8, 1.0, 0.6, 32
"""Number of looks at the ranks of a slower role; the least seconds, and steps, between two; the most ranks that are
looked at."""
LOADER = "_next_data"
"""Function of torch's DataLoader in which its user waits for a batch."""

Offer = Callable[..., Awaitable[None]]


class SlownessWatch:
    """Watches the ranks of one job. `now` returns unix seconds of the job's clock."""

    def __init__(
        self,
        backend: Backend,
        offer: Offer,
        state: Callable[[], JobState],
        heartbeats: HeartbeatLog,
        *,
        owner: TaskOwner,
        now: Callable[[], float],
    ) -> None:
        self._owner = owner
        self._offer = offer
        self._state = state
        self._heartbeats = heartbeats
        self._now = now
        self._began = now()
        self._turns = 0
        self._times: dict[RankKey, StepTimes] = {}
        self._readings: dict[RankKey, RankReadings] = {}
        self._idle: set[RankKey] = set()
        """Ranks of which no work was heard, as of scripts without steps: only the size of their memory counts."""
        self._usage: dict[str, Mapping[str, Any]] = {}
        """Actor -> the usage that was read last."""
        self._found: dict[tuple[str, str], float] = {}
        """(reason, target) of a problem -> when it was found last."""
        self._told: dict[tuple[str, str], tuple[float, float, str]] = {}
        """(reason, target) -> when it was reported last, the seconds until it may be again, and the words."""
        self._looks: dict[str, list[dict[int, Look]]] = {}
        """Role -> what its ranks were seen at since it became slower."""
        self._looking: dict[str, tuple[float, float]] = {}
        """Role -> when its ranks were looked at last, and the seconds until they are again."""
        self._sampler = RankSampler(backend, state)
        self._lines: dict[RankKey, str] = {}
        """Rank -> the line of a call that ran in it."""

    async def run(self) -> None:
        """Watch until the job ends."""
        while True:
            await asyncio.sleep(max(EVERY_S, len(self._state().ranks) / RANKS_A_SECOND))
            await self.turn()

    async def turn(self) -> None:
        """Look once, and report what has changed."""
        state, now = self._state(), self._now()
        if state.verdict is not None or state.running_at is None:
            return
        self._read(state, now)
        self._turns += 1
        if self._turns % JUDGED:
            return
        problems = self._problems(state, now)
        for problem in problems:
            key = problem.reason, problem.target
            self._found[key] = now
            at, pause, words = self._told.get(key, (now, 0.0, ""))
            if words != problem.message and now >= at + pause:
                self._told[key] = now, max(AGAIN_S, 2 * pause), problem.message
                await self._offer(ev.ProblemReported(problem.reason, problem.target, problem.message))
        for problem in state.problems:
            key = problem.reason, problem.target
            if problem.reason in SLOWNESS and now > self._found.get(key, self._began + FIRST_S) + ENDS_S:
                self._told.pop(key, None)
                await self._offer(ev.ProblemReported(*key))

    # -- what is measured

    def _read(self, state: JobState, now: float) -> None:
        for key, (step, _) in self._heartbeats.progress.items():
            rank = state.ranks.get(key)
            if rank is not None and rank.phase is RankPhase.READY:
                self._times[key] = slowness.timed(self._times.get(key), rank.incarnation, step, now)
        present = {host.actor for host in state.hosts.values()}
        self._usage = {actor: usage for actor, usage in self._usage.items() if actor in present}
        for actor, (role, usage) in self._heartbeats.usage.items():
            if actor in present and self._usage.get(actor) is not usage:
                self._usage[actor] = usage
                self._read_usage(state, role, usage, now)

    def _read_usage(self, state: JobState, role: str, usage: Mapping[str, Any], now: float) -> None:
        machine = Machine(*usage["machine"]) if usage.get("machine") else None
        pressures = {row[0]: Pressure(*row[1:]) for row in usage.get("pressure", ())}
        served: dict[int, float] = dict(usage.get("served", ()))
        waited = defaultdict[int, dict[str, float]](dict)
        for name, rank, value in usage.get("noted", ()):
            if name.startswith(WAITED):
                waited[rank][name.removeprefix(WAITED)] = value
        for rank, mib in usage.get("resident", ()):
            key = role, rank
            rank_state = state.ranks.get(key)
            if rank_state is None or rank_state.phase is not RankPhase.READY:
                continue
            # Memory and pressure are measured together, and less often than the rest.
            before, pressure = self._readings.get(key), pressures.get(rank)
            # What is loaded before the first work fills memory once, and is no growth.
            if rank_state.has_worked and key in self._idle:
                before = None
            (self._idle.discard if rank_state.has_worked else self._idle.add)(key)
            is_new = pressure is not None and not (before and before.pressures and before.pressures[-1] == pressure)
            step = self._heartbeats.progress.get(key, (None,))[0]
            self._readings[key] = slowness.measured(
                before,
                rank_state.incarnation,
                now,
                pressure=pressure,
                memory=MemoryReading(now, mib, step) if is_new else None,
                waited=waited.get(rank),
                served=served.get(rank),
                machine=machine,
            )

    # -- what is found

    def _problems(self, state: JobState, now: float) -> list[SlowProblem]:
        slow_ranks = defaultdict[tuple[str, str], dict[int, SlowRank]](dict)
        unexplained = defaultdict[str, dict[int, SlowSteps]](dict)
        for (role, rank), readings in self._readings.items():
            rank_state = state.ranks[role, rank]
            if rank_state.phase is not RankPhase.READY or rank_state.incarnation != readings.incarnation:
                continue
            limit = planned_memory_of(state.job.plan, role) / GRAIN / 2**20
            if (role, rank) in self._idle:
                if slow := slowness.exceeds(readings, limit):
                    slow_ranks[reasons.MEMORY_EXCEEDED, role][rank] = slow
                continue
            steps = slowness.slow_steps(self._times.get((role, rank)), now)
            if cause := self._cause(readings, steps):
                slow_ranks[cause[0], role][rank] = cause[1]
            elif steps is not None:
                unexplained[role][rank] = steps
            if cause := _memory(readings, limit, now):
                slow_ranks[cause[0], role][rank] = cause[1]
        explained = {role for reason, role in slow_ranks if reason in SLOW}
        to_look_at = {role: slower for role, slower in unexplained.items() if role not in explained}
        self._look(
            state, {role: max(steps.now_s for steps in slower.values()) for role, slower in to_look_at.items()}, now
        )
        for role in self._looks:
            for reason, rank, slow in self._slow_ranks(state, role, unexplained[role]):
                slow_ranks[reason, role][rank] = slow
        return [slowness.problem_of(reason, role, ranks) for (reason, role), ranks in slow_ranks.items()]

    def _cause(self, readings: RankReadings, steps: SlowSteps | None) -> tuple[str, SlowRank] | None:
        """Return what holds a rank back by what was measured of it, with its reason."""
        if slow := slowness.throttled(readings):
            return reasons.CPU_THROTTLED, slow
        if slow := slowness.starved(readings, steps):
            return reasons.MACHINE_BUSY, slow
        callee = slowness.waits_for(readings, steps)
        if callee is None or steps is None:
            return None
        ranks = {rank: readings for (role, rank), readings in self._readings.items() if role == callee.role}
        return reasons.SLOW_CALLEE, slowness.called(callee, steps, ranks, self._lines_of(callee.role, ranks))

    def _lines_of(self, role: str, ranks: Iterable[int]) -> Mapping[int, str]:
        """Return rank -> the line at which it was seen last in a call that took seconds: its own word."""
        for rank in ranks:
            incarnation, offset, text = self._heartbeats.activities.get((role, rank), (0, 0.0, "{}"))
            with suppress(ValueError):
                calls = parse(incarnation, text, offset).activities
                if line := next((call.line for call in calls if call.kind == "call" and call.line), ""):
                    self._lines[role, rank] = line
        return {rank: line for (name, rank), line in self._lines.items() if name == role}

    # -- looks at the processes of roles that are slower without a known cause

    def _slow_ranks(
        self, state: JobState, role: str, slower: Mapping[int, SlowSteps]
    ) -> Iterator[tuple[str, int, SlowRank]]:
        """Yield (reason, rank, cause) of a role's slower ranks by what they were seen at."""
        if state.job.roles[role].is_torch_world and slower and (last := slowness.last_of_group(self._looks[role])):
            rank, slow = last
            steps = slower.get(rank) or next(iter(slower.values()))
            yield reasons.SLOW_PEER, rank, slow._replace(words=f"{slow.words}: {steps}")
            return
        for rank, steps in slower.items():
            if slow := slowness.loading(self._looks[role], rank):
                yield reasons.SLOW_LOADER, rank, slow._replace(words=f"{slow.words}: {steps}")

    def _look(self, state: JobState, step_times: Mapping[str, float], now: float) -> None:
        """Look at the ranks of roles, whose steps take so long, and forget what was seen of others."""
        for role in self._looks.keys() - step_times.keys():
            del self._looks[role]
            self._looking.pop(role, None)
        for role, step_s in step_times.items():
            at, pause = self._looking.get(role, (now, 0.0))
            if now < at + pause:
                continue
            self._looking[role] = now, max(AGAIN_S, 2 * pause)
            ranks = [rank for rank in state.job.roles[role].ranks if state.ranks[role, rank].phase is RankPhase.READY]
            self._owner.start("slowness inquiry", self._inquire(role, ranks[:LOOKED_AT], step_s), nobody_waits)

    async def _inquire(self, role: str, ranks: Sequence[int], step_s: float) -> None:
        looks: list[dict[int, Look]] = []
        for _ in range(LOOKS):
            await asyncio.sleep(max(PAUSE_S, PAUSE_STEPS * step_s))
            samples = await self._sampler.sample([(role, rank) for rank in ranks], stacks=True)
            looks.append(
                {
                    rank: Look(
                        stack.sample.activity,
                        stack.sample.at_line,
                        LOADER in stack.stack,
                        self._heartbeats.progress.get((role, rank), (0,))[0],
                    )
                    for (_, rank), stack in samples.items()
                }
            )
        self._looks[role] = looks


def _memory(readings: RankReadings, limit: float, now: float) -> tuple[str, SlowRank] | None:
    """Return that a rank's memory runs out, with its reason; `limit`: that of its role in MiB, 0: none is said."""
    if slow := slowness.exceeds(readings, limit):
        return reasons.MEMORY_EXCEEDED, slow
    slow = slowness.grows(readings, limit, now)
    return None if slow is None else (reasons.MEMORY_GROWS, slow)
