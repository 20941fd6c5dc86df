"""The end of a job that failed: the rank, its incarnation, its traceback, its last lines, and where the rest is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dljob.cli.failure import LAST_LINES, MOST_LINES, report
from dljob.telemetry import reasons

TRACEBACK = """Traceback (most recent call last):
  File "/home/me/train.py", line 12, in main
    raise ValueError("no such data set")
ValueError: no such data set
"""
WHOLE = "all of it: dljob logs train --role trainer --rank 0"


def status(**fault: Any) -> dict[str, Any]:
    return {"reason": "UserErrorRepeats", "message": "trainer/0: ValueError", "lastFault": fault or None}


FAULT = status(rank="trainer/0", incarnation=2)


def write(folder: Path, *lives: str) -> Path:
    (folder / "logs").mkdir()
    head = "[dljob] 10:00:0{n} trainer/0 starts, incarnation {n}{why}\n"
    text = "".join(
        head.format(n=n, why=", after: it failed" if n > 1 else "") + life for n, life in enumerate(lives, start=1)
    )
    (folder / "logs" / "trainer-0.log").write_text(text)
    return folder


def test_the_report_ends_with_the_traceback_of_the_failing_process(tmp_path):
    folder = write(tmp_path, "first life\n", "".join(f"line {n}\n" for n in range(50)) + TRACEBACK)
    lines = report("train", folder, FAULT)
    assert lines[0] == "error: job train failed: UserErrorRepeats: trainer/0: ValueError"
    assert lines[1] == "trainer/0 failed first, in its incarnation 2. The end of its log:"
    assert lines[2:-5] == [f"  line {n}" for n in range(34, 50)]
    assert lines[-5:-1] == [f"  {line}" for line in TRACEBACK.splitlines()]
    assert len(lines[2:-1]) == LAST_LINES
    assert lines[-1] == WHOLE


def test_a_long_traceback_is_whole_and_so_are_those_that_led_to_it(tmp_path):
    long = TRACEBACK.replace("ValueError: no", "".join(f"    frame {n}\n" for n in range(40)) + "ValueError: no")
    chained = f"{long}\nDuring handling of the above exception, another exception occurred:\n\n{TRACEBACK}"
    lines = report("train", write(tmp_path, "", f"before\n{TRACEBACK}between\n{chained}"), FAULT)
    shown = [line.removeprefix("  ") for line in lines[2:-1]]
    assert shown == chained.splitlines()


def test_no_end_is_longer_than_the_most(tmp_path):
    endless = TRACEBACK.replace("ValueError: no", "    frame\n" * 500 + "ValueError: no")
    assert len(report("train", write(tmp_path, "", endless), FAULT)[2:-1]) == MOST_LINES


def test_the_process_that_failed_is_shown_not_a_later_one(tmp_path):
    folder = write(tmp_path, "mine 1\n", "mine 2\n", "the next one\n")
    assert report("train", folder, FAULT)[2:-1] == ["  mine 2"]


def test_a_progress_bar_and_bytes_that_are_no_text_are_lines_too(tmp_path):
    folder = write(tmp_path, "", "")
    with (folder / "logs" / "trainer-0.log").open("ab") as log:
        log.write(b"\r10%\r90%\n\xff\n\n\n")
    assert report("train", folder, FAULT)[2:-1] == ["  90%", "  \\xff"]


@pytest.mark.parametrize("reason", [reasons.STOPPED, reasons.DEADLINE_EXCEEDED, reasons.SUSPENDED])
def test_a_rank_in_backoff_is_not_blamed_for_the_end_of_its_job(reason, tmp_path):
    folder = write(tmp_path, TRACEBACK, TRACEBACK)
    backing_off = status(rank="trainer/0", incarnation=2, level="Process")
    assert len(report("train", folder, {**backing_off, "reason": reason})) == 1
    last_failure = status(rank="trainer/0", incarnation=2, level="Fail")
    assert report("train", folder, {**last_failure, "reason": reason})[-1] == WHOLE


def test_a_log_that_lies_elsewhere_is_named(tmp_path):
    lines = report("train", tmp_path, FAULT)
    assert lines[1:] == [
        f"trainer/0 failed first, in its incarnation 2; its log, if there is one: {WHOLE.removeprefix('all of it: ')}"
    ]


def test_where_the_ranks_meet_failed_the_log_of_primemaster_is_named(tmp_path):
    fault = status(rank="trainer/0", level="Fail", firstCause="trainer/store: UserError: KeyError: 'ring' (in setup)")
    assert report("train", tmp_path, fault)[1:] == [
        "trainer/store, where the ranks of trainer meet, failed first: dljob logs train --master"
    ]


def test_a_rank_that_the_job_recovered_from_is_not_blamed(tmp_path):
    late = {**status(rank="trainer/0", incarnation=2, recoveredAt="2026-01-01T00:00:01Z"), "reason": "DeadlineExceeded"}
    assert report("train", write(tmp_path, "mine 1\n", "mine 2\n"), late) == [
        "error: job train failed: DeadlineExceeded: trainer/0: ValueError"
    ]


def test_a_job_that_no_rank_failed_is_reported_in_one_line(tmp_path):
    assert report("train", tmp_path, status()) == ["error: job train failed: UserErrorRepeats: trainer/0: ValueError"]


def test_a_crash_is_shown_without_frames_of_dljob_and_without_the_list_of_modules(tmp_path):
    shown = ["what():  7 of 32000", "Fatal Python error: Aborted", '  File "/home/me/train.py", line 4 in main']
    ours = '  File "/opt/dljob/runtime/worker/script.py", line 142 in body\n\nExtension modules: numpy, torch._C\n'
    lines = report("train", write(tmp_path, "", "\n".join(shown) + "\n" + ours * 30), FAULT)
    assert [line.removeprefix("  ") for line in lines[2:-1] if line] == shown
