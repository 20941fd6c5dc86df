"""CPU time as a rate: windows of productive time, without gaps and without other processes."""

from __future__ import annotations

from dljob.runtime.journal.cpu_windows import GAP_S, WINDOW_S, CpuWindow


def rates(*samples: tuple[float, int | None] | None) -> list[float | None]:
    """Return what each sample ends; None: the rank was not productive, at the time of the sample before."""
    window, found = CpuWindow(), list[float | None]()
    for sample in samples:
        at, used = sample or (0.0, 0)
        found.append(window.take(at, used, productive=sample is not None))
    return found


def test_window_ends_after_its_time_and_the_next_begins_there():
    assert rates((0, 100), (10, 600), (20, 1100), (30, 1100), (40, 3100)) == [None, None, 0.5, None, 1.0]


def test_repeated_reading_ends_no_window():
    assert rates((0, 100), (25, 100), (30, 1600)) == [None, None, 0.5]


def test_time_in_which_a_rank_was_not_productive_counts_for_nothing():
    assert rates((0, 100), None, (15, 900), (30, 1000), (35, 1300)) == [None, None, None, None, 0.2]
    assert rates((0, 100), (10, None), (15, 900), (35, 1300)) == [None, None, None, 0.2]


def test_next_process_and_a_gap_begin_a_window():
    assert rates((0, 5000), (25, 10), (45, 1010)) == [None, None, 0.5]
    far = WINDOW_S + GAP_S + 1
    assert rates((0, 100), (far, 9000), (far + 20, 11000)) == [None, None, 1.0]
