"""Who became slow and what for, whose memory runs out; and what is no slowness."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from dljob.master.state import slowness
from dljob.master.state.hang import Where
from dljob.master.state.slowness import (
    Look,
    Machine,
    MemoryReading,
    Pressure,
    RankReadings,
    SlowRank,
    SlowSteps,
    StepTimes,
)
from dljob.telemetry import reasons

BUSY = Machine(load=20.0, cpus=2, free_mib=4000)
SLOWER = SlowSteps(0.1, 2.5, 100.0)


def walk(
    spans: Iterable[tuple[float, float]], incarnation: int = 1, every: float = 1.0
) -> tuple[StepTimes | None, float]:
    """Return the step times after looks every second; `spans`: (how long, seconds a step), one after the other."""
    times, now, step, progress = None, 0.0, 0, 0.0
    for length, each in spans:
        end = now + length
        while now < end:
            now += every
            progress += every / each
            step = int(progress)
            times = slowness.timed(times, incarnation, step, now)
    return times, now


@pytest.mark.parametrize(
    ("spans", "slower"),
    [
        (((30, 0.1), (20, 2.5)), True),
        (((4, 0.1), (20, 1.6)), True),
        (((30, 0.1), (20, 0.25)), True),
        (((30, 0.1), (60, 0.1)), False),
        (((30, 0.1), (60, 0.15)), False),
        (((30, 0.1), (10, 1.0)), False),  # not for long enough
        (((30, 0.1), (40, 40.0), (3, 0.1)), False),  # an evaluation
        (((30, 0.1), (40, 40.0), (9, 0.1), (40, 40.0), (1, 0.1)), False),  # two of them
        (((30, 0.1), (20, 2.5), (20, 0.1)), False),  # it is over
        (((1, 0.1), (60, 2.5)), False),  # what is usual is not known
    ],
)
def test_steps_are_slower_that_take_longer_several_times_in_a_row(
    spans: tuple[tuple[float, float], ...], *, slower: bool
) -> None:
    times, now = walk(spans)
    found = slowness.slow_steps(times, now)
    assert (found is not None) == slower
    if found is not None:
        assert found.usual_s == pytest.approx(0.1, rel=0.2)
        assert found.now_s == pytest.approx(spans[1][1], rel=0.3)
        assert found.since == pytest.approx(spans[0][0], abs=spans[1][1] + 1)


def ends_of_steps(seed: int, seconds: float, *, slow_from: float = float("inf")) -> list[list[float]]:
    """When the steps of two ranks end that have tails, and wait for each other's long answers of a third one."""
    chances, free_at = [Random(f"{seed} {rank}") for rank in range(2)], 0.0  # noqa: S311 - it keeps no secret

    def takes(chance: Random) -> float:
        return 0.07 * (100 if chance.random() < 0.005 else chance.choice((0.5, 1, 1, 1, 2, 3)))

    ends: list[list[float]] = [[0.0], [0.0]]
    while min(own[-1] for own in ends) < seconds:
        own = min(ends, key=lambda own: own[-1])
        chance, now = chances[ends.index(own)], own[-1]
        now += (6 if now > slow_from else 1) * takes(chance) + chance.uniform(0.015, 0.06)
        if chance.random() < 0.2:
            now = free_at = max(now, free_at) + takes(chance)
        own.append(now)
    return ends


def found_slower(ends: list[float]) -> list[float]:
    """When a rank becomes slower whose steps end at these times, by looks every second."""
    times, found, was_slower = None, list[float](), False
    for now in range(1, int(ends[-1])):
        times = slowness.timed(times, 1, bisect(ends, now), now)
        is_slower = slowness.slow_steps(times, now) is not None
        found += [float(now)] if is_slower and not was_slower else []
        was_slower = is_slower
    return found


def test_long_steps_that_are_usual_make_nobody_slower() -> None:
    hours = [rank for seed in range(5) for rank in ends_of_steps(seed, 3600)]
    assert [found_slower(ends) for ends in hours] == [[]] * len(hours)


@pytest.mark.parametrize("seed", range(5))
def test_a_rank_with_long_steps_that_becomes_slower_is_found(seed: int) -> None:
    for ends in ends_of_steps(seed, 1800, slow_from=1500):
        found = found_slower(ends)
        assert found
        assert 1500 < found[0] < 1620


def test_what_is_usual_stays_while_steps_are_slow() -> None:
    times, now = walk(((30, 0.1), (3600, 2.5)))
    found = slowness.slow_steps(times, now)
    assert found is not None
    assert str(found) == "a step takes 2.5 s, 0.10 s before"


def test_steps_of_another_process_and_of_a_way_back_begin_anew() -> None:
    times, now = walk(((30, 0.1), (20, 2.5)))
    assert times is not None
    assert slowness.timed(times, 1, times.step, now + 9) is times
    for incarnation, step in ((2, times.step + 1), (1, times.step - 1)):
        again = slowness.timed(times, incarnation, step, now)
        assert again == StepTimes(incarnation, step, now)
        assert slowness.slow_steps(again, now) is None
    assert slowness.slow_steps(None, now) is None


def quota(*readings: tuple[float, float, float], granted: float = 6) -> RankReadings:
    """Readings of (at, periods of which all but one in ten are throttled, throttled ms)."""
    return RankReadings(1, tuple(Pressure(at, 0, 0, n, 0.9 * n, ms, granted) for at, n, ms in readings))


@pytest.mark.parametrize(
    ("readings", "words"),
    [
        (quota((0, 0, 0), (10, 100, 9000), (20, 200, 18000)), "is throttled 90% of the time by its cgroup"),
        # Of eight CPUs, all of which are held back: the times add up.
        (quota((0, 0, 0), (10, 100, 60000), (20, 200, 120000)), "is throttled 90% of the time by its cgroup"),
        (quota((0, 0, 0), (10, 100, 9000), (20, 200, 11000)), ""),  # no longer
        (quota((10, 100, 9000), (20, 200, 18000)), ""),  # once
        (quota((0, 0, 0), (10, 100, 4000), (20, 200, 8000)), ""),  # not for most of the time
        (quota((0, 0, 0), (10, 0, 0), (20, 0, 0)), ""),  # it was idle
        (quota((0, 0, 0), (10, 100, 9000), (20, 200, 18000), granted=0), ""),
    ],
)
def test_a_quota_that_holds_a_rank_back(readings: RankReadings, words: str) -> None:
    found = slowness.throttled(readings)
    assert (found is not None) == bool(words)
    if found is not None:
        assert found.words == f"{words}, whose quota is 0.06 of a CPU"


def test_a_process_that_was_moved_to_another_group_is_measured_anew() -> None:
    assert slowness.throttled_share(Pressure(0, quota=100), Pressure(10, 0, 0, 100, 100, 9999, 6)) == 0.0


@pytest.mark.parametrize(
    ("ran", "waited", "machine", "steps", "words"),
    [
        (
            *(1000, 9000, BUSY, SLOWER),
            "waits for a CPU 90% of the time that it wants one (load 20 on 2 CPUs): a step takes 2.5 s, 0.10 s before",
        ),
        (1000, 9000, BUSY, None, ""),
        (1000, 9000, Machine(2.5, 2, 4000), SLOWER, ""),
        (1000, 9000, None, SLOWER, ""),
        (9000, 1000, BUSY, SLOWER, ""),
        (100, 900, BUSY, SLOWER, ""),  # it wants little
        (-5, 9000, BUSY, SLOWER, ""),  # a thread of long has ended
        (0, 0, BUSY, SLOWER, ""),
    ],
)
def test_a_busy_machine_that_slows_a_rank(
    ran: float, waited: float, machine: Machine | None, steps: SlowSteps | None, words: str
) -> None:
    readings = RankReadings(1, (Pressure(0, 0, 0), Pressure(10, ran, waited)), machine=machine)
    found = slowness.starved(readings, steps)
    assert (found.words if found else "") == words
    assert slowness.starved(RankReadings(1, readings.pressures[:1], machine=machine), steps) is None


@pytest.mark.parametrize(
    ("first", "last", "told"),
    [
        (Pressure(0, quota=6), Pressure(10, 1000, 9000, 100, 90, 9000, 6), False),
        (Pressure(0, quota=0), Pressure(10, 1000, 9000, 100, 90, 9000, 6), False),
        (Pressure(0, quota=100), Pressure(10, 1000, 9000, 100, 9, 900, 100), True),
    ],
)
def test_a_rank_that_a_quota_holds_back_is_not_slow_by_the_load(first: Pressure, last: Pressure, *, told: bool) -> None:
    assert bool(slowness.starved(RankReadings(1, (first, last), machine=BUSY), SLOWER)) == told


def memory(*sizes: float, every: float = 10.0, step: int | None = 5, **more: Any) -> RankReadings:
    """Readings every ten seconds, in each of which the rank makes so many steps."""
    rows = (MemoryReading(every * n, mib, None if step is None else step * n) for n, mib in enumerate(sizes))
    return RankReadings(1, memory=tuple(rows), **more)


LEAK = tuple(range(300, 1000, 50))


@pytest.mark.parametrize(
    ("readings", "limit", "words"),
    [
        (memory(200, 400, 1200), 300, "uses 1200 MiB of memory: its role's `memory` is 300 MiB"),
        (memory(*LEAK), 500, "uses 950 MiB of memory, and grows by 10 MiB a step: its role's `memory` is 500 MiB"),
        (memory(200, 1200), 300, ""),
        (memory(310, 310), 300, ""),
        (memory(1200), 300, ""),
        (memory(1200, 1200), 0, ""),
    ],
)
def test_memory_beyond_that_of_the_role(readings: RankReadings, limit: float, words: str) -> None:
    found = slowness.exceeds(readings, limit)
    assert (found.words if found else "") == words


FULL = "is full at about 1970-01-01T00:02:29Z"


@pytest.mark.parametrize(
    ("readings", "limit", "words"),
    [
        (
            memory(*LEAK),
            1050,
            f"grows by 10 MiB a step, to 950 MiB of memory now: its role's `memory`, 1050 MiB, {FULL}",
        ),
        (
            *(memory(*LEAK, step=None), 1050),
            f"grows by 300 MiB a minute, to 950 MiB of memory now: its role's `memory`, 1050 MiB, {FULL}",
        ),
        (
            *(memory(*LEAK, machine=Machine(1, 2, 100)), 0),
            f"grows by 10 MiB a step, to 950 MiB of memory now: its machine, which has 100 MiB free, {FULL}",
        ),
        (memory(*LEAK), 0, ""),  # into nothing that is known
        (memory(*LEAK, machine=Machine(1, 2, 40_000)), 0, ""),  # not soon
        (memory(*LEAK[:5]), 1050, ""),  # not for long enough
        (memory(*[300, 600] * 10), 1050, ""),  # it goes up and down
        (memory(*range(300, 330, 2)), 1050, ""),  # next to nothing
        (memory(*[300 + 50 * min(n, 6) for n in range(12)]), 1050, ""),  # a cache that is full
        (memory(300, 800, *range(801, 811)), 1050, ""),  # it was loaded
    ],
)
def test_memory_that_grows_all_the_time(readings: RankReadings, limit: float, words: str) -> None:
    found = slowness.grows(readings, limit, 129.0)
    assert (found.words if found else "") == words


def test_slow_growth_is_seen_by_all_readings_that_are_kept() -> None:
    slow = memory(*[300 + 4 * n for n in range(24)])
    assert slowness.growth_of(slow.memory[-12:]) is None
    assert str(slowness.growth_of(slow.memory)) == "0.8 MiB a step"


def waiting(*rows: tuple[float, dict[str, float]]) -> RankReadings:
    return RankReadings(1, waited=rows)


@pytest.mark.parametrize(
    ("readings", "steps", "found"),
    [
        (waiting((90, {}), (101, {"r": 500}), (120, {"r": 19000, "q": 600})), SLOWER, ("r", 0.97)),
        (waiting((101, {}), (120, {"r": 99000})), SLOWER, ("r", 1.0)),
        (waiting((101, {"r": 500}), (120, {"r": 4000})), SLOWER, None),
        (waiting((101, {"r": 500}), (120, {"r": 19000})), None, None),
        (waiting((90, {}), (120, {"r": 19000})), SLOWER, None),
        (waiting((118, {}), (120, {"r": 2000})), SLOWER, None),
        (waiting((101, {}), (120, {})), SLOWER, None),
    ],
)
def test_a_role_that_a_slower_rank_waits_for(
    readings: RankReadings, steps: SlowSteps | None, found: tuple[str, float] | None
) -> None:
    callee = slowness.waits_for(readings, steps)
    assert (callee and (callee.role, round(callee.share, 2))) == found


def serving(*rows: tuple[float, float]) -> RankReadings:
    return RankReadings(1, served=rows)


@pytest.mark.parametrize(
    ("role", "ranks", "words"),
    [
        ("r", {1: serving((101, 0), (111, 9800))}, ", where r/1 runs calls 98% of the time"),
        ("r", {2: serving((101, 0), (111, 9800))}, ", where r/2 runs calls 98% of the time at r.py:7 in f"),
        (
            "r",
            {0: serving((101, 0), (111, 1000)), 1: serving((101, 0), (111, 9800))},
            ", where r/1 runs calls 98% of the time",
        ),
        ("r", {0: serving((90, 0), (111, 1000)), 1: serving((111, 0), (111, 1))}, ""),
        ("r", {}, ""),
    ],
)
def test_the_busiest_rank_of_a_callee_is_named(role: str, ranks: dict[int, RankReadings], words: str) -> None:
    found = slowness.called(slowness.Callee(role, 0.97), SLOWER, ranks, {2: "r.py:7 in f"})
    assert found == (0.97, f"waits 97% of its time for r{words}: a step takes 2.5 s, 0.10 s before")


def test_a_queue_is_named_as_one() -> None:
    found = slowness.called(slowness.Callee(":queue:samples", 0.97), SLOWER, {}, {})
    assert found.words == "waits 97% of its time for queue samples: a step takes 2.5 s, 0.10 s before"


IN, OUT = (Where.COLLECTIVE, "t.py:3 in f", False), (Where.USER, "t.py:9 in g", False)
LOADS, NO_LINE = (Where.USER, "t.py:5 in h", True), (Where.USER, "", True)


def looked(looks: list[dict[int, tuple[Any, ...]]], *, looks_a_step: int = 1) -> list[dict[int, Look]]:
    """Looks at what ranks were at, so many of them in each step."""
    return [
        {rank: Look(*seen, step=number // looks_a_step) for rank, seen in look.items()}
        for number, look in enumerate(looks)
    ]


@pytest.mark.parametrize(
    ("looks", "found"),
    [
        ([{0: IN, 1: OUT}] * 4 + [{0: IN, 1: IN}], (1, "the other rank waits for it while it is at t.py:9 in g")),
        ([{0: IN, 1: IN, 2: NO_LINE}] * 3, (2, "the 2 other ranks wait for it while it is in user code")),
        ([{0: IN, 1: OUT}] * 2, None),
        ([{0: IN, 1: OUT}] * 3 + [{0: OUT, 1: IN}] * 3, None),
        ([{0: OUT, 1: OUT}] * 5, None),
        ([{0: OUT}] * 5, None),
        ([{}] * 5, None),
    ],
)
def test_the_rank_of_a_group_that_comes_last(looks: list[Any], found: tuple[int, str] | None) -> None:
    last = slowness.last_of_group(looked(looks))
    assert (last and (last[0], last[1].words)) == (
        found and (found[0], f"comes last to its group's collectives: {found[1]}")
    )


@pytest.mark.parametrize(
    ("looks", "found"),
    [
        ([{0: LOADS}] * 4 + [{0: OUT}], "waits for its DataLoader in 4 of 5 steps, at t.py:5 in h"),
        ([{0: NO_LINE}] * 5, "waits for its DataLoader in 5 of 5 steps, in user code"),
        ([{0: LOADS}] * 2 + [{}] * 3, None),
        ([{0: LOADS}] * 2, None),
        ([{1: LOADS}] * 5, None),
    ],
)
def test_a_rank_that_waits_for_its_loader(looks: list[Any], found: str | None) -> None:
    slow = slowness.loading(looked(looks), 0)
    assert (slow and slow.words) == found


def test_one_long_step_is_no_evidence_however_often_one_looks() -> None:
    for looks_a_step, is_told in (1, True), (2, True), (3, False), (8, False):
        last = slowness.last_of_group(looked([{0: OUT, 1: IN}] * 6, looks_a_step=looks_a_step))
        loading = slowness.loading(looked([{0: LOADS}] * 6, looks_a_step=looks_a_step), 0)
        assert (last is not None, loading is not None) == (is_told, is_told)
    # What was seen last in a step counts: at its beginning no rank is late yet.
    late = looked([{0: OUT, 1: OUT}, {0: OUT, 1: OUT}, {0: OUT, 1: IN}] * 3, looks_a_step=3)
    last = slowness.last_of_group(late)
    assert last is not None
    assert last[0] == 0


def test_readings_are_kept_for_one_process_and_not_for_ever() -> None:
    readings = None
    for n in range(200):
        at = float(n // 2)
        readings = slowness.measured(
            *(readings, 1, float(n)),
            pressure=Pressure(at),
            memory=MemoryReading(n, 5),
            waited={"r": n},
            served=float(n),
            machine=BUSY if n == 3 else None,
        )
    assert readings is not None
    assert [pressure.at for pressure in readings.pressures] == [97.0, 98.0, 99.0]
    assert (len(readings.memory), len(readings.waited), len(readings.served), readings.machine) == (24, 60, 60, BUSY)
    assert slowness.measured(readings, 1, 300.0) == readings
    assert slowness.measured(readings, 2, 300.0) == RankReadings(2)


def test_one_line_tells_of_all_ranks_of_a_role() -> None:
    slow = {0: SlowRank(0.6, "is slow"), 3: SlowRank(0.9, "is slower"), 5: SlowRank(0.9, "is it, too")}
    found = slowness.problem_of(reasons.CPU_THROTTLED, "w", slow)
    assert found == (reasons.CPU_THROTTLED, "w", "w/3 is slower; the same holds for w/0 and 5")
    assert slowness.problem_of(reasons.CPU_THROTTLED, "w", {1: slow[0]}).message == "w/1 is slow"
