"""What a job used, measured on its record: peaks, CPU time, saves, kills and failures."""

from __future__ import annotations

from typing import Any

import pytest

from dljob.report.advice.job_use import SaveUse, measure
from dljob.report.history import IncidentRecord, JobHistory
from dljob.report.job_folder import RecordedJob
from dljob.runtime.journal.samples import Samples

MIB = 2**20
SPEC = {"roles": [{"name": "t", "replicas": 2}, {"replicas": 1}, "no role"]}


def record(samples: Samples | None = None, history: JobHistory | None = None, **status: Any) -> RecordedJob:
    return RecordedJob(status, {"spec": SPEC}, [], history, {}, (), samples or Samples())


def test_peaks_steps_and_time_are_those_of_the_record() -> None:
    samples = Samples(
        times=[0.0, 10.0, 20.0, 30.0],
        peak={"t": [[None, 10 * MIB, 10 * MIB, 12 * MIB], [0, 0, None, None]]},
        steps={"t": [[1, 5, 3, 9], [None, 4, 4, 4]]},
    )
    accounts = {"productive": 30.0, "init": 10.0, "recompute": 2.0, "spare": 99.0}
    ledger = {"seconds": 21.0, "goodput": 0.75, "roles": [{"name": "t", "accounts": accounts}]}
    use = measure(record(samples, ledger=ledger), "j")
    own = use.roles["t"]
    assert list(use.roles) == ["t"]
    assert (use.name, use.seconds, use.goodput, use.journal) == ("j", 21.0, 0.75, False)
    assert (own.peaks, own.steps, own.recompute_s) == ((12 * MIB,), 9, 2.0)
    assert (own.productive_s, own.productive) == (30.0, pytest.approx(30 / 42))
    assert own.growth == pytest.approx(0.0)


def test_peak_that_rises_late_is_told_as_growth() -> None:
    samples = Samples(times=[0.0, 1.0, 2.0, 3.0, 4.0], peak={"t": [[10, 10, 10, 10, 15], [7, None, None, None, None]]})
    assert measure(record(samples), "j").roles["t"].growth == pytest.approx(0.5)


def test_cpu_time_becomes_a_rate_while_the_rank_is_productive() -> None:
    times = [10.0 * n for n in range(12)]
    #             init       productive: 2 CPUs           restarted         a gap of 600 s
    cpu = [None, 50, 100, 2100, 2100, 4100, 6100, 100, 1100, 2100, 3100, 4100]
    samples = Samples([*times[:10], 700.0, 710.0], cpu={"t": [cpu]}, accounts={"t": ["i", "i", *"pppppppppp"]})
    # 20 s with 4,000 hundredths each; then another process, whose last readings lie behind the gap.
    assert measure(record(samples), "j").roles["t"].cpus == (1.0, pytest.approx(4000 / 100 / 30))
    short = Samples([0.0, 30.0], cpu={"t": [[0, 3000], [0, 3000]]}, accounts={"t": ["p", None]})
    assert measure(record(short), "j").roles["t"].cpus == ()


def test_saves_count_over_the_lives_of_a_rank() -> None:
    samples = Samples(
        times=[0.0, 1.0, 2.0, 3.0],
        saves={"t": [[2, None, 1, 3], [1, 1, 1, 1], [None, 0, 0, 0]]},
        saving={"t": [[100, None, 50, 150], [90, 90, 90, 90], [0, 0, 0, 0]]},
    )
    assert measure(record(samples), "j").roles["t"].saves == SaveUse(5, 0.25)
    assert measure(record(), "j").roles["t"].saves is None


def test_kills_for_memory_and_failures_are_counted_by_role() -> None:
    history = JobHistory(
        faults={
            1: {"reason": "OOMKilled", "rank": "t/0", "target": "t/0", "detected_at": 10.0, "recovered_at": 14.0},
            2: {"reason": "OOMKilled", "rank": "other/0", "detected_at": 10.0, "recovered_at": 90.0},
            3: {"reason": "Crashed", "rank": "t/1", "detected_at": 20.0, "recovered_at": None},
        },
        incidents=[IncidentRecord(1.0, "t", [("t", 0), ("t", 1)], [1]), IncidentRecord(2.0, "o", [("o", 0)], [2])],
    )
    own = measure(record(history=history), "j").roles["t"]
    assert (own.out_of_memory, own.lost_s, own.failures) == (1, 4.0, 1)
    # Of a folder without its journal the status tells the last ones.
    told = [
        {"reason": "OOMKilled", "rank": "t/0", "seconds": 3.5},
        {"reason": "OOMKilled", "target": "t/1", "seconds": None},
    ]
    own = measure(record(recentFaults=told), "j").roles["t"]
    assert (own.out_of_memory, own.lost_s, own.failures) == (2, 3.5, 0)


LATER = {"version": 99, "roles": {"t": {"productive": 9.0}}, "goodput": {"share": 0.9}, "seconds": {"all": 60}}
"""As another version of dljob could write it: the same names, and other things under them."""


@pytest.mark.parametrize(
    "ledger",
    [None, 7, {"roles": 3, "goodput": "much", "seconds": "x"}, {"roles": [3], "goodput": 9}, LATER],
    ids=["none", "a number", "wrong kinds", "wrong rows", "of another version"],
)
def test_damaged_ledger_tells_nothing(ledger: object) -> None:
    use = measure(record(ledger=ledger), "j")
    assert (use.seconds, use.goodput) == (0.0, None)
    assert (use.roles["t"].productive_s, use.roles["t"].productive) == (0.0, None)


def test_waits_count_where_the_caller_is_productive() -> None:
    times = [10.0 * n for n in range(8)]
    samples = Samples(
        times=[*times[:7], 900.0],
        accounts={"t": ["ii", "ip", "ip", "ip", "ip", "ip", "ii", "ip"]},
        #                                  restarted
        waited={"t": {"r": [[1] * 8, [0, 100, 4100, 8100, 2000, 6000, 9000, 9500]]}},
        served={"r": [[None, 1000, 2000, 3000, 4000, 5000, 6000, 6000]]},
    )
    found = measure(record(samples), "j").calls["t", "r"]
    # From 10 to 30 s it waited 8 s; then 2 + 4 s, of a process that began anew.
    assert (found.seconds, found.waited_s, found.served_s) == (40.0, pytest.approx(14.0), (4.0,))
    assert found.windows == (pytest.approx(0.4), pytest.approx(0.3))
    assert measure(record(), "j").calls == {}
