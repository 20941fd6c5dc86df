"""The usage of a host's ranks: what is measured, how often, and how much of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dljob.runtime.process.step_counters import ROOM, StepCounters
from dljob.runtime.process.worker_context import RankCall
from dljob.runtime.rpc import client
from dljob.runtime.rpc.client import AGAIN, SENT, CallCounts
from dljob.runtime.worker import usage
from dljob.runtime.worker.usage import ProcessTree, Usage, resident_mib, tree_of

REAL_PRESSURE, REAL_MACHINE = usage.pressure_of, usage.machine


@pytest.fixture
def counters() -> Iterator[StepCounters]:
    made = StepCounters.create(2)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def pressure(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    monkeypatch.setattr(usage, "pressure_of", lambda _pid, _now: found.get("rank"))
    monkeypatch.setattr(usage, "machine", lambda: found.get("machine", []))
    return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(usage.time, "monotonic", lambda: now[0])
    return now


def call(role: str, method: str) -> RankCall:
    return RankCall(role, 0, method, b"", None, False)


def test_calls_notes_memory_and_queues_are_measured(counters):
    first, second = CallCounts(), CallCounts()
    for counts in (first, second):
        counts.add(call("rollout", "generate"), SENT)
    second.add(call("rollout", "generate"), AGAIN)
    second.add(call("rollout", ":pull"), SENT)
    second.add(call(":queue:samples", "put"), SENT)
    counters.slots[1].begin(7, 1)
    counters.slots[1].note(7, 1, "held:policy", 3)
    own = Usage(
        8, lambda: (first, second), lambda: {7: os.getpid(), 8: 0}, {"busy": dict[int, int], "open": lambda: {7: 2}}
    )
    own.sample(counters)
    said = json.loads(counters.usage())
    ((rank, mib),) = said.pop("memory")
    ((_, peak),), ((_, cpu),), ((_, resident),) = said.pop("peak"), said.pop("cpu"), said.pop("resident")
    assert peak >= mib
    assert resident > 10
    assert cpu > 0
    assert (rank, said) == (
        7,
        {
            "calls": {"rollout.generate": [2, 0, 1, 0, 0, 0]},
            "noted": [["held:policy", 7, 3]],
            "stores": [":queue:samples"],
            "open": [[7, 2]],
        },
    )
    assert 10 < mib < 10_000
    assert own.unsent == (
        1,
        {**said, "memory": [[7, mib]], "peak": [[7, peak]], "cpu": [[7, cpu]], "resident": [[7, resident]]},
    )


def test_calls_under_way_and_the_time_of_ended_ones_are_measured(counters, clock):
    counts = CallCounts()
    slow, fast = call("rollout", "generate"), call("rollout", "generate")
    own = Usage(8, lambda: (counts, CallCounts()), dict[int, int])
    for each in (slow, fast, call(":queue:samples", "put")):
        counts.begin(each)
    clock[0] += 0.5
    for each in (fast, fast, call("rollout", "generate")):  # the end of a call counts once, and of one that began
        counts.end(each)
    own.sample(counters)
    assert json.loads(counters.usage())["calls"] == {"rollout.generate": [2, 0, 0, 0, 1, 500]}


def test_usage_is_measured_less_often_in_large_jobs(counters, clock):
    for ranks, pause in ((3, 2.0), (1000, 5.0), (10**6, 60.0)):
        counts = CallCounts()
        own, before = Usage(ranks, lambda counts=counts: [counts], dict[int, int]), counters.usage_number()
        counts.add(call("t", "run"), SENT)
        own.sample(counters)
        counts.add(call("t", "run"), SENT)
        clock[0] += pause - 0.01
        own.sample(counters)
        assert counters.usage_number() == before + 1
        clock[0] += 0.01
        own.sample(counters)
        clock[0] += pause
        own.sample(counters)  # nothing changed
        assert counters.usage_number() == before + 2


def test_usage_of_a_rank_that_has_come_is_measured_at_once_and_only_once(counters, clock):
    pids, measured = {7: os.getpid()}, list[int]()

    def counts() -> list[CallCounts]:
        measured.append(len(pids))
        return []

    own = Usage(1, counts, lambda: dict(pids))
    own.sample(counters)
    pids[8] = 0  # it is about to start: no process can be measured
    for _ in range(3):
        clock[0] += 0.1
        own.sample(counters)
    assert measured == [1, 2]
    del pids[8]
    pids[9] = os.getpid()
    own.sample(counters)
    assert [rank for rank, _ in json.loads(counters.usage())["memory"]] == [7, 9]
    clock[0] += 1.9
    own.sample(counters)
    assert measured == [1, 2, 2]


def test_usage_is_unsent_until_it_is_marked(counters, clock):
    counts = CallCounts()
    own = Usage(1, lambda: [counts], dict[int, int])
    assert own.unsent == (0, {})
    counts.add(call("t", "run"), SENT)
    own.sample(counters)
    number, _ = own.unsent
    clock[0] += 10
    counts.add(call("t", "run"), SENT)
    own.sample(counters)
    own.mark_sent(number)
    assert own.unsent == (2, {"calls": {"t.run": [2, 0, 0, 0, 0, 0]}})
    own.mark_sent(2)
    assert own.unsent == (2, {})


def test_usage_that_is_too_long_is_left_out(counters):
    counters.put_usage(b"{}")
    counters.put_usage(b"x" * ROOM)
    assert counters.usage() == b"{}"


def test_number_of_counted_methods_is_bounded(monkeypatch):
    monkeypatch.setattr(client, "METHODS", 2)
    counts = CallCounts()
    for method in ("a", "b", "c", "a"):
        counts.add(call("t", method), SENT)
    assert counts.methods == {"t.a": [2, 0, 0, 0], "t.b": [1, 0, 0, 0]}


def test_memory_of_a_process_that_is_gone_is_unknown(tmp_path):
    assert resident_mib(1, tmp_path) is None
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "statm").write_text("900 512 1")
    assert resident_mib(1, tmp_path) == round(512 * os.sysconf("SC_PAGE_SIZE") / 2**20)


def process(proc: Path, pid: int, ticks: tuple[int, int, int, int], pages: tuple[int, int], children: str = "") -> None:
    folder = proc / str(pid)
    (folder / "task" / str(pid)).mkdir(parents=True)
    (folder / "task" / str(pid) / "children").write_text(children)
    (folder / "stat").write_text(f"{pid} (a (b) c) S 1 1 1 0 0 0 0 0 0 0 {' '.join(map(str, ticks))} 0 0")
    (folder / "statm").write_text(f"9999 {pages[0]} {pages[1]} 1")
    (folder / "status").write_text("Name:\tx\nVmPeak:\t 999 kB\nVmHWM:\t 20480 kB\nVmRSS:\t 1 kB\n")


def test_processes_that_a_rank_started_count_with_it(tmp_path):
    mib, second = 2**20 // os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
    process(tmp_path, 1, (second, second, 0, second), (15 * mib, 0), "2 3 ")
    process(tmp_path, 2, (second, 0, 0, 0), (8 * mib, 2 * mib), "4")
    process(tmp_path, 4, (0, second // 2, 0, 0), (3 * mib, 0))
    # 15 of its own and 6 and 3 of others are more than the 20 that it had by itself; process 3 has ended meanwhile.
    assert tree_of(1, tmp_path) == ProcessTree(24, 450, 24)
    assert tree_of(4, tmp_path) == ProcessTree(20, 50, 3)
    assert tree_of(5, tmp_path) is None


def test_started_processes_are_looked_at_now_and_then_and_a_peak_stays(counters, clock, monkeypatch):
    found: list[ProcessTree | None] = [ProcessTree(30, 7, 5), ProcessTree(20, 1, 6), None]
    monkeypatch.setattr(usage, "tree_of", lambda _pid: found.pop(0))
    own = Usage(1, list, lambda: {3: 0})
    for pause, *values in ((0.0, 30, 7, 5), (usage.TREE_S - 0.1, 30, 7, 5), (2.1, 30, 1, 6), (usage.TREE_S, 30, 1, 6)):
        clock[0] += pause
        own.sample(counters)
        names = ("peak", "cpu", "resident")
        assert json.loads(counters.usage()) == {name: [[3, value]] for name, value in zip(names, values, strict=True)}
    assert not found


def test_what_keeps_ranks_from_a_cpu_is_measured_with_their_processes(counters, clock, pressure, monkeypatch):
    monkeypatch.setattr(usage, "tree_of", lambda _pid: ProcessTree(9, 9, 9))
    monkeypatch.setattr(usage, "PRESSED", 1)
    pressure |= {"rank": [1000.0, 5, 6, 0, 0, 0, 0], "machine": [3.5, 2, 900]}
    pids = {3: 0, 4: 0}
    own = Usage(1, list, lambda: pids)
    own.sample(counters)
    said = json.loads(counters.usage())
    assert (said["pressure"], said["machine"]) == ([[3, 1000.0, 5, 6, 0, 0, 0, 0]], [3.5, 2, 900])
    pressure["rank"] = [1002.0, 9, 9, 0, 0, 0, 0]
    del pids[3]
    clock[0] += usage.LEAST_S
    own.sample(counters)
    assert "pressure" not in json.loads(counters.usage()), "it is measured every ten seconds"
    clock[0] += usage.TREE_S
    own.sample(counters)
    assert json.loads(counters.usage())["pressure"] == [[4, 1002.0, 9, 9, 0, 0, 0, 0]]


def test_pressure_of_this_process_and_machine():
    assert REAL_PRESSURE(0, 5.0) is None
    row, machine = REAL_PRESSURE(os.getpid(), 5.04), REAL_MACHINE()
    assert row is None or (row[0], len(row)) == (5.0, 7)
    assert not machine or machine[1] >= 1
