"""Where a moment is in PrimeMaster's log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dljob.logs import master
from dljob.runtime.node.log_tails import find_since

FIRST = 1767225601.5
"""2026-01-01T00:00:01.5Z"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / master.NAME
    path.write_text("".join(f'{{"time": "{master.stamp(FIRST + n)}", "message": "{n}"}}\n' for n in range(3)))
    return path


def rest(log: Path, moment: float) -> list[str]:
    return log.read_text()[master.place_since(log, moment) :].splitlines()


def test_entries_of_the_log_are_read_since_a_moment(log: Path) -> None:
    whole = rest(log, 0.0)
    assert len(whole) == 3
    assert rest(log, FIRST) == whole
    assert rest(log, FIRST + 0.001) == whole[1:]
    assert rest(log, FIRST + 2) == whole[2:]
    assert rest(log, FIRST + 2.5) == []


def test_a_line_that_is_no_entry_stays_with_the_one_before_it(log: Path) -> None:
    log.write_text(log.read_text().replace('"1"}\n', '"1"}\nhalf a li\n'))
    assert rest(log, FIRST + 2) == [log.read_text().splitlines()[-1]]
    assert rest(log, FIRST + 1)[1] == "half a li"


def test_a_missing_file_or_a_pipe_has_no_entries(tmp_path: Path, log: Path) -> None:
    assert master.place_since(tmp_path / "none", 0.0) == 0
    os.mkfifo(tmp_path / "pipe")
    assert master.place_since(tmp_path / "pipe", 0.0) == 0
    log.rename(tmp_path / master.OLDER)
    assert find_since(str(tmp_path / master.OLDER), FIRST + 9) == (tmp_path / master.OLDER).stat().st_size
