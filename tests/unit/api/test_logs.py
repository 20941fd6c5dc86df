"""Logs in a job's folder, read in pieces."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dljob.api import logs
from dljob.errors import NotFoundError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path


def texts(folder: Path, **which: int) -> list[str]:
    return [line.text for line in logs.read(folder, **which)]


def test_a_line_longer_than_the_limit_is_broken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LINE_BYTES", 2 << 20)
    (folder / "logs" / "w-0.log").write_bytes(b"x" * (3 * logs.LINE_BYTES + 5))
    assert [len(text) for text in texts(folder)] == [logs.LINE_BYTES] * 3 + [5]


def test_a_line_of_megabytes_is_whole(folder: Path) -> None:
    (folder / "logs" / "w-0.log").write_bytes(b"before\n" + b"x" * (5 << 20) + b"\nafter\n")
    for lines in (texts(folder), texts(folder, tail=3), [line.text for line in logs.follow(folder, lambda: True)]):
        assert [len(text) for text in lines] == [6, 5 << 20, 5]


@pytest.mark.parametrize("end", [b"\r%d of 9,000,000", b"%d of 9,000,000\r"])
def test_an_unfinished_progress_bar_is_broken_where_it_is_rewritten(folder: Path, end: bytes) -> None:
    (folder / "logs" / "w-0.log").write_bytes(b"".join(end % number for number in range(10_000)))
    lines = texts(folder)
    assert all(len(text) <= 3 * logs.PIECE for text in lines)
    assert len(lines) > 1
    assert lines[-1].endswith("9999 of 9,000,000")


def test_bytes_that_are_no_text_are_shown_as_escapes(folder: Path) -> None:
    (folder / "logs" / "w-0.log").write_bytes(b"\xff\xfe\n\xe6\x97\xa5\n")
    assert texts(folder) == ["\\xff\\xfe", "日"]


def test_a_hole_in_a_log_is_skipped(folder: Path) -> None:
    path = folder / "logs" / "w-0.log"
    with path.open("wb") as log:
        log.write(b"first\n")
        log.seek(64 << 20)
        log.write(b"last\n")
    lines = texts(folder)
    assert (lines[0], lines[-1].strip("\0")) == ("first", "last")
    assert sum(map(len, lines)) < 1 << 20


def test_the_last_lines_of_a_log_are_read_from_its_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "PIECE", 16)
    (folder / "logs" / "w-0.log").write_text("".join(f"line {n}\n" for n in range(1000)) + "open")
    assert texts(folder, tail=3) == ["line 998", "line 999", "open"]
    assert texts(folder, tail=0) == []
    assert len(texts(folder, tail=5000)) == 1001


def test_a_log_that_is_no_plain_file_is_passed_over(folder: Path) -> None:
    os.mkfifo(folder / "logs" / "w-0.log")
    (folder / "logs" / "w-1.log").write_text("here\n")
    assert texts(folder) == ["here"]


def test_a_role_without_output_is_refused_with_the_roles_that_have_some(folder: Path) -> None:
    (folder / "logs" / "w-0.log").write_text("here\n")
    with pytest.raises(NotFoundError) as none:
        logs.read(folder, role="x")
    assert "there is output of: w" in none.value.hint


def test_the_part_of_one_process_is_found_from_the_end_of_the_log(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "PIECE", 64)
    path = folder / "logs" / "w-0.log"
    lives = [f"[dljob] 10:00:00 w/0 starts, incarnation {n}\n" + f"life {n}\n" * 20 for n in (1, 2, 12)]
    path.write_text("".join(lives))

    def end(incarnation: int, most: int) -> bytes:
        with path.open("rb") as log:
            return logs.of_incarnation(log, "w/0", incarnation, most)

    for n in (1, 2, 12):
        assert end(n, 1 << 20) == f"life {n}\n".encode() * 20
    assert end(2, 15) == b"\nlife 2\nlife 2\n"
