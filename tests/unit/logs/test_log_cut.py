"""A log keeps the beginning and the end of what a process wrote, and tells what is missing."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from dljob.api.logs import LogTail
from dljob.logs import cut
from dljob.logs import watch as watch_module
from dljob.logs.watch import LogWatch
from dljob.runtime.node import log_tails

MOST, SLACK = 64 << 10, 16 << 10


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut, "MOST_BYTES", MOST)
    monkeypatch.setattr(cut, "SLACK_BYTES", SLACK)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs" / "w-0.log"


def write(log: Path, count: int, first: int = 0) -> None:
    with log.open("a") as out:
        out.writelines(f"line {n:010}\n" for n in range(first, first + count))


def on_disk(log: Path) -> int:
    return log.stat().st_blocks * 512


def read(log: Path) -> list[str]:
    return [line.text for line in LogTail("w", 0, log).lines()]


def test_a_cut_log_keeps_both_ends_and_tells_the_cut(log: Path) -> None:
    write(log, 20_000)
    size = log.stat().st_size
    missing = cut.cut(log, 0)
    assert log.stat().st_size == size, "who writes to it, or reads from a place in it, need not know"
    assert on_disk(log) < MOST + SLACK
    lines = read(log)
    assert (lines[0], lines[-1]) == ("line 0000000000", "line 0000019999")
    (told,) = [n for n, line in enumerate(lines) if line.startswith("[dljob]")]
    assert lines[told] == cut.cut_line(missing).decode().strip()
    assert size - missing == pytest.approx(MOST, abs=8192)
    assert "\0" not in "".join(lines)
    assert told == pytest.approx(MOST // 2 // 16, abs=512)


def test_the_cut_grows_with_the_log(log: Path) -> None:
    write(log, 20_000)
    first = cut.cut(log, 0)
    assert cut.cut(log, 0) == first
    write(log, 20_000, first=20_000)
    second = cut.cut(log, 0)
    assert second == pytest.approx(first + 20_000 * 16, abs=8192)
    assert on_disk(log) < MOST + SLACK
    told = [line for line in read(log) if line.startswith("[dljob]")]
    assert told == [cut.cut_line(second).decode().strip()]


def test_the_log_of_an_earlier_process_is_not_cut(log: Path) -> None:
    write(log, 20_000)
    start = log.stat().st_size
    write(log, 1000, first=20_000)
    assert cut.cut(log, start) == 0
    write(log, 20_000, first=21_000)
    assert cut.cut(log, start) > 0
    lines = read(log)
    assert lines[:21_000] == [f"line {n:010}" for n in range(21_000)]
    assert lines[-1] == "line 0000040999"


def test_a_follower_skips_the_hole_of_a_cut_log(log: Path, tmp_path: Path) -> None:
    write(log, 100)
    follower = LogTail("w", 0, log)
    assert len(list(follower.lines())) == 100
    write(log, 60_000, first=100)
    cut.cut(log, 0)
    lines = [line.text for line in follower.lines()]
    assert (lines[0], lines[-1]) == ("line 0000000100", "line 0000060099")
    assert len(lines) < 6000
    size, data, at = log_tails.read_from(str(log), MOST, 100)
    assert at > size - MOST
    assert b"line" in data
    assert b"\0" not in data


def test_a_log_that_is_short_and_what_is_no_log_are_left_alone(log: Path) -> None:
    write(log, 10)
    assert cut.cut(log, 0) == 0
    fifo = log.with_name("w-1.log")
    os.mkfifo(fifo)
    with pytest.raises(OSError, match="No such device"):  # nobody reads it, and nobody waits for a reader
        cut.cut(fifo, 0)
    link = log.with_name("w-2.log")
    link.symlink_to(log)
    with pytest.raises(OSError, match="symbolic links"):
        cut.cut(link, 0)


def test_a_watch_looks_at_each_log_from_where_its_process_began(log: Path) -> None:
    watch = LogWatch()
    watch.begin("", 0)
    write(log, 20_000)
    watch._running = True  # the thread looks in its own time
    watch.begin(str(log), log.stat().st_size)
    watch.look()
    assert on_disk(log) >= 20_000 * 16
    watch.begin(str(log), 0)
    watch.look()
    assert on_disk(log) < MOST + SLACK
    log.unlink()
    watch.look()
    assert watch._logs == {}


def test_an_error_of_the_log_watch_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    errors: list[BaseException] = [KeyError("a"), KeyError("a"), KeyError("b"), SystemExit()]

    def look(_watch: LogWatch) -> None:
        raise errors.pop(0)

    monkeypatch.setattr(watch_module, "PERIOD_S", 0.0)
    monkeypatch.setattr(LogWatch, "look", look)
    with pytest.raises(SystemExit):
        LogWatch()._run()
    assert capsys.readouterr().err == "".join(f"[dljob] cannot mark and shorten logs: KeyError: '{n}'\n" for n in "ab")


def test_a_file_system_that_keeps_files_whole_is_told_once(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(cut, "_punch", refuse)
    with log.open("w") as file:
        assert not cut.can_cut(file.fileno())
    write(log, 20_000)
    watch = LogWatch()
    watch._running = True
    watch.begin(str(log), 0)
    for _ in range(2):
        watch.look()
    assert [line for line in read(log) if line.startswith("[dljob]")] == [
        "[dljob] this file system cannot punch holes into files: this log is not shortened"
    ]
    assert read(log)[:2] == ["line 0000000000", "line 0000000001"]


def test_a_passing_error_is_told_once_and_the_log_is_shortened_later(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    write(log, 20_000)
    watch = LogWatch()
    watch._running = True
    watch.begin(str(log), 0)
    with monkeypatch.context() as patch:
        patch.setattr(cut, "_punch", refuse)
        for _ in range(2):
            watch.look()
    assert [line for line in read(log) if line.startswith("[dljob]")] == [
        "[dljob] Too many open files: this log is not shortened until that has passed"
    ]
    watch.look()
    assert on_disk(log) < MOST + SLACK


@pytest.mark.parametrize("read_by", ["nobody", "somebody"])
def test_a_pipe_or_a_link_in_place_of_a_log_holds_up_no_other_and_gets_no_word(log: Path, read_by: str) -> None:
    pipe, link, target = log.with_name("a-0.log"), log.with_name("b-0.log"), log.with_name("target")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK) if read_by == "somebody" else None
    target.write_text("of the user\n")
    link.symlink_to(target)
    write(log, 20_000)
    watch = LogWatch()
    watch._running = True
    for path in (pipe, link, log):
        watch.begin(str(path), 0)
    looking = threading.Thread(target=watch.look, daemon=True)
    looking.start()
    looking.join(10)
    assert not looking.is_alive()
    assert on_disk(log) < MOST + SLACK
    assert target.read_text() == "of the user\n"
    if reader is not None:
        assert os.read(reader, 100) == b""
        os.close(reader)
