"""Lanes keep each stretch while they are few, and the longest of each window when they are many."""

from __future__ import annotations

import pytest

from dljob.report import lanes
from dljob.report.history import JobHistory, Stretch
from dljob.telemetry.job_samples import ACCOUNTS

S = 10**6
INIT, PRODUCTIVE, REPLACE = (ACCOUNTS.index(name) for name in ("init", "productive", "replace"))


def history(*lane: Stretch) -> JobHistory:
    return JobHistory(started=100.0, lanes={("a", 1): list(lane)})


def test_a_lane_is_flat_in_unix_seconds_and_a_rank_without_one_is_empty() -> None:
    unrecorded: list[str] = []
    found = history(Stretch(0, "init"), Stretch(1600, "productive"), Stretch(2 * S, ""))
    assert lanes.lanes(found, unrecorded) == {"a": [[], [100.0, INIT, 100.002, PRODUCTIVE, 102.0, -1]]}
    assert unrecorded == []


def test_too_many_stretches_are_thinned_and_the_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "MOST", 3)
    short = [Stretch(i * S // 10, "init" if i % 2 else "productive") for i in range(20)]
    unrecorded: list[str] = []
    found = lanes.lanes(history(*short, Stretch(30 * S, "idle")), unrecorded)
    assert len(found["a"][1]) <= 6
    assert unrecorded == ["lanes: of each 1 s the longest account is drawn; dljob replay tells all of them"]


def test_the_widest_window_is_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "MOST", 0)
    unrecorded: list[str] = []
    assert lanes.lanes(history(Stretch(0, "init")), unrecorded) == {"a": [[], [100.0, INIT]]}
    assert "of each 3600 s" in unrecorded[0]


def test_each_window_shows_its_longest_account() -> None:
    lane = [Stretch(0, "init"), Stretch(9 * S, "productive"), Stretch(35 * S, "replace"), Stretch(36 * S, "productive")]
    assert lanes.thinned(lane, 10 * S) == [Stretch(0, "init"), Stretch(10 * S, "productive")]


def test_a_long_stretch_fills_all_windows_between_its_ends() -> None:
    lane = [Stretch(4 * S, "init"), Stretch(58 * S, "replace"), Stretch(61 * S, "productive")]
    assert lanes.thinned(lane, 10 * S) == [Stretch(0, "init"), Stretch(60 * S, "productive")]


def test_seconds_by_account_are_cut_to_the_time_asked_for() -> None:
    found = history(Stretch(0, "init"), Stretch(10 * S, "productive"), Stretch(20 * S, "replace"))
    assert lanes.spent(found, ("a", 1), 105.0, 112.0) == {"init": 5.0, "productive": 2.0}
    assert lanes.spent(found, ("a", 0), 105.0, 112.0) == {}


def test_the_next_time_in_an_account_is_found_or_the_end() -> None:
    found = history(Stretch(0, "productive"), Stretch(10 * S, "replace"), Stretch(20 * S, "productive"))
    assert lanes.next_in(found, ("a", 1), "productive", 112.0, 200.0) == 120.0
    assert lanes.next_in(found, ("a", 1), "productive", 105.0, 200.0) == 105.0
    assert lanes.next_in(found, ("a", 1), "idle", 105.0, 200.0) == 200.0
