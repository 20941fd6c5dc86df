"""Slowness as pure functions: who became slow, what for, and since when; and memory that runs out. It is only told.

A rank is *slower* where several steps in a row took SLOW times as long as its steps before. That alone is no problem:
it becomes one by what is measured beside it, such as a busy machine or a callee that is waited for. Evaluations,
checkpoints and long tails are single steps, which never make a rank slower here. What holds a rank back whatever its
steps say, a quota or a leak, is told without them. Times are seconds of one clock of the caller's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import NamedTuple, TypeAlias

from dljob.master.state.early_end import ranks_in_words
from dljob.master.state.hang import Where
from dljob.telemetry.wording import moment, seconds

SLOW = 2.0
"""A step is slow that takes so many times as long as is usual."""
SLOW_SHARE, LASTS_S, SLOW_FEWEST, SLOW_MOST = 0.8, 15.0, 3, 6
"""A rank is slower once steps have been slow for LASTS_S: this share of what was measured, as often as slow steps fit
into that time, SLOW_FEWEST to SLOW_MOST times."""
RUN_FACTOR, LONGEST_RUN_S = 3.0, 60.0
"""And for RUN_FACTOR times as long as slow steps have lasted before and ended by themselves, as far as that was up to
LONGEST_RUN_S: where long steps are usual, some follow each other by chance. In simulated jobs with tails of 100 times
the usual step (test_slowness.py), this and SLOW_MOST leave one finding in 80 hours; there were seven an hour."""
USUAL_STEPS, USUAL_FEWEST, USUAL_MOST = 20, 2, 32
"""What is usual is known after so many steps, measured so many times; the last USUAL_MOST of these count."""
THROTTLED, UNTHROTTLED = 0.5, 0.1
"""Share of the time for which a quota holds a rank back that is told, in two measurements one after the other; and up
to which a rank does not count as held back."""
STARVED, WANTED, BUSY_LOAD = 0.5, 0.3, 1.5
"""A rank is starved by a busy machine that waits for this share of the time in which it wants a CPU, wants one for
WANTED of all time at least, where BUSY_LOAD threads a CPU want to run."""
WAITED = 0.6
"""Share of a slower rank's time in which it waits for another role, from which that role is told."""
EXCEEDED = 1.05
"""A rank's memory exceeds that of its role from this factor on, in two measurements one after the other."""
GROWS_S, GROWS_READINGS, GROWS_SHARE = 50.0, 5, 0.8
"""Memory grows that was measured so often over so long, and was more than before in this share of the times."""
GROWS_MIB, GROWS_PART = 64, 0.05
"""Growth by less, or by a smaller part of it, is none."""
LOOKS_SHARE, LOOKS_FEWEST = 0.6, 3
"""Share of the steps in which processes were looked at, and their least number, in which something must be seen to
count."""
FULL_S = 1800.0
"""Seconds until growing memory is full below which it is told."""
MEMORY_READINGS, FEW_READINGS, WAIT_READINGS = 24, 12, 60
"""Most readings that are kept; of memory the last FEW_READINGS alone may show that it grows."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """How long the steps of a rank's process take, from the first look at which it had made one."""

    incarnation: int
    step: int
    at: float
    """When that step was first seen."""
    steps: int = 0
    usual: tuple[float, ...] = ()
    """Seconds a step, of the last times that were not slow."""
    recent: tuple[tuple[float, float], ...] = ()
    """(when, seconds a step) of the last LASTS_S, of a few times at least."""
    slow_since: float | None = None
    """When steps became slow; None: they are not."""
    run_since: float | None = None
    """Since when each step was slow; None: the last one was not."""
    longest_run: float = 0.0
    """Seconds for which steps have been slow at most, and then were not any more."""


class SlowSteps(NamedTuple):
    """Steps that became slower."""

    usual_s: float
    now_s: float
    since: float

    def __str__(self) -> str:
        """Return it in words."""
        return f"a step takes {seconds(self.now_s)}, {seconds(self.usual_s)} before"


def timed(old: StepTimes | None, incarnation: int, step: int, now: float) -> StepTimes:
    """Return the step times of a rank after a look at its last step."""
    if old is None or old.incarnation != incarnation or step < old.step:
        return StepTimes(incarnation, step, now)
    if step == old.step:
        return old
    step_s = (now - old.at) / (step - old.step)
    usual_s = _usual(old)
    slow = usual_s is not None and step_s >= SLOW * usual_s
    usual = old.usual if slow else (*old.usual, step_s)[-USUAL_MOST:]
    fewest = SLOW_MOST if usual_s is None else max(SLOW_FEWEST, min(SLOW_MOST, round(LASTS_S / (SLOW * usual_s))))
    recent = (*old.recent, (now, step_s))
    young = sum(at > now - LASTS_S for at, _ in recent)
    recent = recent[-max(fewest, young) :]
    since = old.slow_since
    if usual_s is not None and len(recent) >= fewest:
        slow_ones = [(at, spent) for at, spent in recent if spent >= SLOW * usual_s]
        if len(slow_ones) < SLOW_SHARE * len(recent):
            since = None
        elif since is None:
            since = slow_ones[0][0] - slow_ones[0][1]
    ended_runs = [old.at - began for began in (old.slow_since, old.run_since) if began is not None and not slow]
    longest_run = old.longest_run if since is not None else max(old.longest_run, *ended_runs, 0.0)
    run_since = (old.at if old.run_since is None else old.run_since) if slow else None
    steps = old.steps + step - old.step
    return StepTimes(incarnation, step, now, steps, usual, recent, since, run_since, longest_run)


def _usual(times: StepTimes) -> float | None:
    known = times.steps >= USUAL_STEPS and len(times.usual) >= USUAL_FEWEST
    return median(times.usual) if known else None


def slow_steps(times: StepTimes | None, now: float) -> SlowSteps | None:
    """Return how much slower a rank's steps became; None: they did not, or too short a time ago."""
    if times is None or times.slow_since is None:
        return None
    if now - times.slow_since < max(LASTS_S, RUN_FACTOR * min(times.longest_run, LONGEST_RUN_S)):
        return None
    return SlowSteps(median(times.usual), median(spent for _, spent in times.recent), times.slow_since)


# -- what is measured beside the steps


class Pressure(NamedTuple):
    """What kept a rank's process from a CPU so far (`runtime.worker.usage`); times in milliseconds."""

    at: float
    """Seconds of the machine's clock."""
    ran: float = 0
    waited: float = 0
    periods: float = 0
    throttled: float = 0
    throttled_ms: float = 0
    quota: float = 0
    """Hundredths of a CPU; 0: there is no quota."""


class Machine(NamedTuple):
    """How busy a rank's machine is."""

    load: float
    cpus: float
    free_mib: float


class MemoryReading(NamedTuple):
    """The memory of a rank, with all processes that it started."""

    at: float
    mib: float
    step: int | None = None


@dataclass(frozen=True, slots=True)
class RankReadings:
    """What was measured of a rank's process, the latest last."""

    incarnation: int
    pressures: tuple[Pressure, ...] = ()
    memory: tuple[MemoryReading, ...] = ()
    waited: tuple[tuple[float, Mapping[str, float]], ...] = ()
    """(when, role -> milliseconds for which the rank stood still for its answers)."""
    served: tuple[tuple[float, float], ...] = ()
    """(when, milliseconds for which the rank ran calls of others)."""
    machine: Machine | None = None


def measured(
    old: RankReadings | None,
    incarnation: int,
    now: float,
    *,
    pressure: Pressure | None = None,
    memory: MemoryReading | None = None,
    waited: Mapping[str, float] | None = None,
    served: float | None = None,
    machine: Machine | None = None,
) -> RankReadings:
    """Return the readings of a rank with new ones; a pressure of the same time as the last is none."""
    if old is None or old.incarnation != incarnation:
        old = RankReadings(incarnation)
    pressures = old.pressures
    if pressure is not None and (not pressures or pressures[-1].at < pressure.at):
        pressures = (*pressures, pressure)[-3:]
    readings = old.memory if memory is None else (*old.memory, memory)[-MEMORY_READINGS:]
    waits = old.waited if waited is None else (*old.waited, (now, waited))[-WAIT_READINGS:]
    calls = old.served if served is None else (*old.served, (now, served))[-WAIT_READINGS:]
    machine = machine or old.machine
    return replace(old, pressures=pressures, memory=readings, waited=waits, served=calls, machine=machine)


def throttled_share(before: Pressure, after: Pressure) -> float:
    """Return the share of the time between two readings in which a quota held the process back.

    Of several CPUs the times add up: it is not more than the share of the periods in which the quota was used up.
    """
    passed, periods = 1000 * (after.at - before.at), after.periods - before.periods
    if passed <= 0 or periods <= 0 or not before.quota == after.quota > 0:
        return 0.0
    shares = (after.throttled_ms - before.throttled_ms) / passed, (after.throttled - before.throttled) / periods
    return max(0.0, min(*shares, 1.0))


def starved_share(before: Pressure, after: Pressure) -> float:
    """Return the share of the time in which a process wanted a CPU, and waited for one; 0 where it wanted little."""
    ran, waited = after.ran - before.ran, after.waited - before.waited
    demand = ran + waited
    if min(ran, waited) < 0 or demand < WANTED * 1000 * (after.at - before.at) or not demand:
        return 0.0
    return waited / demand


class SlowRank(NamedTuple):
    """What holds a rank back, as words that follow its name. A larger `weight` is worse."""

    weight: float
    words: str


def throttled(readings: RankReadings) -> SlowRank | None:
    """Return by how much the quota of a control group holds a rank back; None: it does not."""
    last = readings.pressures[-3:]
    shares = [throttled_share(*pair) for pair in pairwise(last)]
    if len(shares) < 2 or min(shares) < THROTTLED:
        return None
    cpus = f"{last[-1].quota / 100:g}"
    words = f"is throttled {shares[-1]:.0%} of the time by its cgroup, whose quota is {cpus} of a CPU"
    return SlowRank(shares[-1], words)


def starved(readings: RankReadings, steps: SlowSteps | None) -> SlowRank | None:
    """Return how the load of its machine holds a rank back; None: it does not, or its steps are as fast as before."""
    machine, last = readings.machine, readings.pressures[-2:]
    if steps is None or machine is None or len(last) < 2 or machine.load < BUSY_LOAD * machine.cpus:
        return None
    share = starved_share(*last)
    # A thread that a quota holds back waits for a CPU, too: by nobody's load.
    if share < STARVED or last[0].quota != last[1].quota or throttled_share(*last) > UNTHROTTLED:
        return None
    load = f"load {machine.load:.0f} on {machine.cpus:g} CPUs"
    return SlowRank(share, f"waits for a CPU {share:.0%} of the time that it wants one ({load}): {steps}")


def exceeds(readings: RankReadings, limit: float) -> SlowRank | None:
    """Return by how much a rank uses more than its role's `memory`, in MiB (0: none is said); None: it does not."""
    last = readings.memory[-2:]
    if not limit or len(last) < 2 or min(reading.mib for reading in last) < EXCEEDED * limit:
        return None
    used, growth = last[-1].mib, growth_of(readings.memory)
    more = "" if growth is None else f", and grows by {growth}"
    return SlowRank(used / limit, f"uses {used:.0f} MiB of memory{more}: its role's `memory` is {limit:.0f} MiB")


class Growth(NamedTuple):
    """Memory that grows all the time."""

    mib_a_second: float
    mib_a_step: float | None
    """None: no steps are reported."""

    def __str__(self) -> str:
        """Return it in words."""
        if self.mib_a_step is not None:
            return f"{self.mib_a_step:.3g} MiB a step"
        return f"{60 * self.mib_a_second:.3g} MiB a minute"


def growth_of(readings: Sequence[MemoryReading]) -> Growth | None:
    """Return the growth of a rank's memory; None: it does not grow, or has not been seen to for long enough."""
    return _growth(readings[-FEW_READINGS:]) or _growth(readings)


def _growth(readings: Sequence[MemoryReading]) -> Growth | None:
    if len(readings) < GROWS_READINGS or readings[-1].at - readings[0].at < GROWS_S:
        return None
    first, last = readings[0], readings[-1]
    grown = last.mib - first.mib
    # What filled up at first, such as a cache, and grows no more, is no leak.
    late = last.mib - readings[len(readings) // 2].mib
    if grown < max(GROWS_MIB, GROWS_PART * first.mib) or late < grown / 4:
        return None
    rises = [later.mib > earlier.mib for earlier, later in pairwise(readings)]
    if sum(rises) < GROWS_SHARE * len(rises):
        return None
    steps = (last.step or 0) - (first.step or 0)
    return Growth(grown / (last.at - first.at), grown / steps if steps > 0 else None)


def grows(readings: RankReadings, limit: float, now: float) -> SlowRank | None:
    """Return when the memory of a rank will be full, which grows all the time; None: it does not, or not soon.

    `limit`: its role's `memory` in MiB; 0: none is said. `now`: unix seconds.
    """
    growth = growth_of(readings.memory)
    if growth is None:
        return None
    used = readings.memory[-1].mib
    rooms = [(limit - used, f"its role's `memory`, {limit:.0f} MiB,")] if limit > used else []
    if readings.machine is not None:
        free_mib = readings.machine.free_mib
        rooms.append((free_mib, f"its machine, which has {free_mib:.0f} MiB free,"))
    room, room_name = min(rooms, default=(float("inf"), ""))
    seconds_left = room / growth.mib_a_second
    if seconds_left > FULL_S:
        return None
    words = (
        f"grows by {growth}, to {used:.0f} MiB of memory now: {room_name} is full at about {moment(now + seconds_left)}"
    )
    return SlowRank(1 / max(seconds_left, 1.0), words)


class Callee(NamedTuple):
    """A role for which a rank waits, as its own calls tell."""

    role: str
    share: float
    """The share of its time in which the rank waits for it."""


def waits_for(readings: RankReadings, steps: SlowSteps | None) -> Callee | None:
    """Return the role for whose answers a slower rank waits most; None: it waits for none for long."""
    if steps is None:
        return None
    slow = [wait for wait in readings.waited if wait[0] >= steps.since]
    if len(slow) < 2 or slow[-1][0] - slow[0][0] < LASTS_S / 2:
        return None
    (begin, first), (end, last) = slow[0], slow[-1]
    waits = {role: (value - first.get(role, 0)) / 1000 / (end - begin) for role, value in last.items()}
    role, share = max(waits.items(), key=lambda item: item[1], default=("", 0.0))
    return Callee(role, min(share, 1.0)) if share >= WAITED else None


def called(callee: Callee, steps: SlowSteps, ranks: Mapping[int, RankReadings], lines: Mapping[int, str]) -> SlowRank:
    """Return a rank that is slower as it waits for another role.

    `ranks`: what was measured of that role. `lines`: its rank -> the line of user code at which a call was seen there.
    """
    shares = {rank: share for rank, readings in ranks.items() if (share := _serves(readings, steps.since)) is not None}
    busiest = max(shares, key=lambda rank: (shares[rank], -rank), default=None)
    line = f" at {lines[busiest]}" if busiest is not None and busiest in lines else ""
    runs = (
        "" if busiest is None else f", where {callee.role}/{busiest} runs calls {shares[busiest]:.0%} of the time{line}"
    )
    # What stands where a call has its role is a queue's address, such as `:queue:samples`.
    callee_name = callee.role.lstrip(":").replace(":", " ")
    return SlowRank(callee.share, f"waits {callee.share:.0%} of its time for {callee_name}{runs}: {steps}")


def _serves(readings: RankReadings, since: float) -> float | None:
    served = [reading for reading in readings.served if reading[0] >= since]
    if len(served) < 2 or served[-1][0] <= served[0][0]:
        return None
    (begin, first), (end, last) = served[0], served[-1]
    return max(0.0, min((last - first) / 1000 / (end - begin), 1.0))


# -- what is seen by looking at processes, where a slower rank has no other cause


class Look(NamedTuple):
    """What a rank was at, at one moment."""

    activity: Where
    line: str
    """Innermost line of user code, "file.py:12 in f"."""
    loads: bool
    """Whether it was in torch's DataLoader."""
    step: int
    """The last step that it had reported."""


Looks: TypeAlias = "Sequence[Mapping[int, Look]]"
"""Rank -> look, several times; ranks whose node did not answer are left out."""


def _one_for_each_step(looks: Looks, rank: int) -> Looks:
    """Return the last look in each step of a rank: many looks in one long step, a save say, are worth no more."""
    return list({look[rank].step: look for look in looks if rank in look}.values())


def last_of_group(looks: Looks) -> tuple[int, SlowRank] | None:
    """Return the rank of a torch group for which all others wait in a collective in nearly each step."""
    for rank in dict.fromkeys(rank for look in looks for rank in look):
        looks_of_rank = _one_for_each_step(looks, rank)
        waiting_looks = [look for look in looks_of_rank if _is_awaited(rank, look)]
        if len(waiting_looks) >= max(LOOKS_FEWEST, LOOKS_SHARE * len(looks_of_rank)):
            others = len(waiting_looks[0]) - 1
            waiters = "the other rank waits" if others == 1 else f"the {others} other ranks wait"
            line = _line_of([look[rank] for look in waiting_looks])
            return rank, SlowRank(
                len(waiting_looks), f"comes last to its group's collectives: {waiters} for it while it is {line}"
            )
    return None


def _is_awaited(rank: int, look: Mapping[int, Look]) -> bool:
    others = [sample.activity for peer, sample in look.items() if peer != rank]
    return look[rank].activity is Where.USER and {*others} == {Where.COLLECTIVE}


def loading(looks: Looks, rank: int) -> SlowRank | None:
    """Return that a rank waits for its data loader in nearly each step; None: it does not."""
    looks_of_rank = [look[rank] for look in _one_for_each_step(looks, rank)]
    loads = [look for look in looks_of_rank if look.loads]
    if len(loads) < max(LOOKS_FEWEST, LOOKS_SHARE * len(looks_of_rank)):
        return None
    words = f"waits for its DataLoader in {len(loads)} of {len(looks_of_rank)} steps, {_line_of(loads)}"
    return SlowRank(len(loads), words)


def _line_of(looks: Sequence[Look]) -> str:
    lines = Counter(look.line for look in looks if look.line)
    return f"at {lines.most_common(1)[0][0]}" if lines else "in user code"


# -- the line of a problem


class SlowProblem(NamedTuple):
    """A problem to be told."""

    reason: str
    target: str
    message: str


def problem_of(reason: str, role: str, ranks: Mapping[int, SlowRank]) -> SlowProblem:
    """Return the problem of the ranks of a role that the same thing holds back, at least one: the worst one's words."""
    worst = max(ranks, key=lambda rank: (ranks[rank].weight, -rank))
    others = sorted(ranks.keys() - {worst})
    beside = f"; the same holds for {ranks_in_words(role, others)}" if others else ""
    return SlowProblem(reason, role, f"{role}/{worst} {ranks[worst].words}{beside}")
