"""Busy time beside the ledger: what servers ran, what others did not wait for, and what the rest was waited for."""

from __future__ import annotations

from typing import Any

from dljob.runtime.journal.busy_times import BusyTimes, without_stalls


def rows(*samples: dict[str, Any], every: float = 10.0) -> dict[str, Any]:
    times = BusyTimes()
    for number, columns in enumerate(samples):
        times.take(number * every, columns)
    return dict(times.rows)


def test_a_server_is_busy_in_calls_and_waits_for_calls_in_the_rest():
    found = rows(
        {"accounts/reward": "pp-", "served/reward": [None, 1000, None]},
        {"accounts/reward": "pp-", "served/reward": [500, 1500, None]},
    )
    assert found == {"reward": {"share": 0.05, "seconds": 20.0, "waited": {"calls": 0.95}}}


def test_a_role_that_steps_is_busy_when_it_waits_for_nothing():
    waits = "waited/trainer/reward", "waited/trainer/:queue:done", "waited/trainer/:weights:policy"
    found = rows(
        {"accounts/trainer": "p", "steps/trainer": [1], **{key: [0] for key in waits}},
        {"accounts/trainer": "p", "steps/trainer": [9], waits[0]: [4000], waits[1]: [1000], waits[2]: [0]},
    )
    assert found == {"trainer": {"share": 0.5, "seconds": 10.0, "waited": {"calls of reward": 0.4, "queue done": 0.1}}}


def test_only_productive_time_counts_and_a_new_process_begins_at_0():
    found = rows(
        {"accounts/w": "ip", "served/w": [None, 9000]},
        {"accounts/w": "pp", "served/w": [8000, 1000]},  # rank 1 has another process
        {"accounts/w": "pt", "served/w": [9000, 9000]},  # rank 1 stands still
    )
    assert found == {"w": {"share": 0.05, "seconds": 40.0, "waited": {"calls": 0.45}}}


def test_a_script_that_reports_nothing_has_no_busy_time():
    quiet = {"accounts/w": "p", "steps/w": [None]}
    assert rows(quiet, quiet) == {}
    assert rows({"accounts/w": "p", "steps/w": [1]}, {"accounts/w": "p", "steps/w": [1]}, every=0.0) == {}
    # A counter that was read late says more than there was time.
    late = rows({"accounts/w": "p", "served/w": [0]}, {"accounts/w": "p", "served/w": [99000]})
    assert late["w"]["share"] == 1.0


def test_counters_that_are_told_less_often_than_samples_are_taken_lose_nothing():
    told = [0, 0, 2000, 2000, 4000, 4000, 6000]
    found = rows(*({"accounts/w": "p", "served/w": [value]} for value in told), every=1.0)
    assert found["w"]["share"] == 1.0


def test_time_that_was_booked_as_stalled_later_was_neither_work_nor_a_productive_wait():
    row = {"share": 0.1, "seconds": 100.0, "waited": {"calls of reward": 0.6, "queue done": 0.3}}
    assert without_stalls(row, {"productive": 100.0, "spare": 9.0}) == row
    shown = without_stalls(row, {"productive": 25.0, "stalled": 75.0, "spare": 9.0})
    assert shown == {"share": 0.1, "seconds": 100.0, "waited": {"calls of reward": 0.1, "queue done": 0.05}}
    assert without_stalls({**row, "waited": {}}, {"productive": 5.0, "stalled": 95.0})["share"] == 0.05
