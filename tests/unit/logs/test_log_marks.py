"""Marks tell when what of a log was written, to the second, however long the log and the job."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest

from dljob.api import logs
from dljob.api.logs import Since
from dljob.logs import cut, marks
from dljob.logs.marks import place_since, read, thinned
from dljob.logs.watch import LogWatch
from dljob.master.state.actions import RankStart
from dljob.runtime.process.logfile import open_log
from dljob.runtime.process.messages import JobInfo

SECOND = 1_000_000_000
START = 1_000_000.0


class Clock:
    """The time that marks are given."""

    def __init__(self) -> None:
        self.now = START

    def time_ns(self) -> int:
        return int(self.now * SECOND)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(marks.time, "time_ns", made.time_ns)
    return made


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs" / "w-0.log"


@pytest.fixture
def watch() -> LogWatch:
    made = LogWatch()
    made._running = True  # the thread looks in its own time
    return made


def begin(log: Path, incarnation: int = 1) -> None:
    job = JobInfo("0" * 32, "j", str(log.parent.parent), "n", "m", 30.0, 0.2, "", (("w", 1),))
    fd, _ = open_log(job, "w", RankStart(0, incarnation, 0, 1, 0))
    os.close(fd)


def write(log: Path, *lines: str) -> None:
    with log.open("a") as out:
        out.writelines(lines)


def since(log: Path, moment: float, said: list[str] | None = None, tail: int | None = None) -> list[str]:
    begin = Since(moment, [].append if said is None else said.append)
    return [line.text for line in logs.read(log.parent.parent, tail=tail, since=begin) if "starts," not in line.text]


def test_only_lines_written_since_the_moment_are_read(log: Path, clock: Clock, watch: LogWatch) -> None:
    begin(log)
    watch.begin(str(log), log.stat().st_size)
    for n in range(5):
        write(log, f"line {n}\n")
        clock.now += 10
        watch.look()
    assert since(log, START - 1) == [f"line {n}" for n in range(5)]
    assert since(log, START + 20) == ["line 2", "line 3", "line 4"]
    assert since(log, START + 29.5) == ["line 2", "line 3", "line 4"], "it may have been written since"
    assert since(log, START + 30) == ["line 3", "line 4"]
    assert since(log, START + 20, tail=1) == ["line 4"]
    assert since(log, START + 50) == []
    write(log, "not marked yet\n")
    assert since(log, START + 9999) == ["not marked yet"]


def test_a_log_at_rest_is_not_marked(log: Path, clock: Clock, watch: LogWatch) -> None:
    begin(log)
    watch.begin(str(log), log.stat().st_size)
    write(log, "a\n")
    for _ in range(5):
        clock.now += 1
        watch.look()
    assert [size for _, size in read(log)] == [0, log.stat().st_size]


def test_a_later_process_begins_with_a_mark(log: Path, clock: Clock) -> None:
    begin(log)
    write(log, "Traceback\n")
    clock.now += 60
    begin(log, incarnation=2)
    write(log, "again\n")
    assert since(log, START + 60) == ["again"]
    assert since(log, START + 59) == ["Traceback", "again"]


def test_a_line_that_had_no_end_is_shown_whole(log: Path, clock: Clock, watch: LogWatch) -> None:
    begin(log)
    watch.begin(str(log), log.stat().st_size)
    write(log, "first\n", "half ")
    clock.now += 1
    watch.look()
    write(log, "whole\n")
    assert since(log, clock.now) == ["half whole"]
    write(log, "x" * 2 * marks.LINE_BYTES)
    clock.now += 1
    watch.look()
    (text,) = since(log, clock.now)
    assert len(text) == marks.LINE_BYTES


def test_a_log_without_times_is_shown_whole_and_told(log: Path, clock: Clock) -> None:
    write(log, "old\n")
    told = ["the output of w/0 has no known times: its log is shown whole"]
    said: list[str] = []
    assert since(log, START, said) == ["old"]
    assert said == told
    clock.now += 60
    begin(log)
    write(log, "new\n")
    assert since(log, clock.now, said) == ["new"]
    assert said == told
    assert since(log, START, said) == ["old", "new"]
    assert said == told * 2


def test_following_a_log_begins_at_the_given_moment(log: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "POLL_S", 0)
    begin(log)
    write(log, "old\n")
    clock.now += 10
    begin(log, incarnation=2)
    write(log, "new\n", "last")
    turns: list[int] = []

    def over() -> bool:
        turns.append(0)
        if len(turns) == 2:
            write(log, " line\n")
            log.with_name("w-1.log").write_text("")  # it is opened, and not marked yet
        return len(turns) > 2

    said: list[str] = []
    which = {"since": Since(clock.now, said.append)}
    texts = [line.text for line in logs.follow(log.parent.parent, over, **which) if "starts," not in line.text]
    assert (texts, said) == (["new", "last line"], [])
    lines = logs.follow(log.parent.parent, lambda: True, tail=1, **which)
    assert [line.text for line in lines] == ["last line"]
    assert list(logs.follow(log.parent.parent, lambda: True, tail=1, since=Since(clock.now + 9, said.append)))


def test_marks_survive_the_cut(log: Path, clock: Clock, watch: LogWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut, "MOST_BYTES", 64 << 10)
    monkeypatch.setattr(cut, "SLACK_BYTES", 16 << 10)
    begin(log)
    watch.begin(str(log), 0)
    for n in range(30):
        write(log, *(f"line {n} {m:08}\n" for m in range(1000)))
        clock.now += 1
        watch.look()
    first = since(log, START + 1)
    assert first[0] == "line 1 00000000"
    middle = since(log, START + 15)
    assert middle[0] == cut.cut_line(0).decode().strip().replace("         0", middle[0][8:18]), "the cut is told"
    assert len(middle) < 6000
    assert middle[-1] == "line 29 00000999"
    assert since(log, START + 29)[0] == "line 29 00000000"
    assert not any("\0" in line for line in first)


def test_the_marks_of_a_log_are_bounded(log: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "MOST", 256)
    monkeypatch.setattr(marks, "FINE", 8)
    write(log, "x" * 100_000)
    for second in range(20_000):
        clock.now = START + second
        marks.add(log, second * 5)
    kept = read(log)
    assert len(kept) < 256
    assert kept[0] == (int(START * SECOND), 0)
    now = clock.now
    for age in (5, 31, 320, 3200, 10_000):
        place = max(size for at, size in kept if at <= (now - age) * SECOND)
        assert 20_000 - 1 - age - place / 5 <= max(1, age / 8) + 1, age
    assert list(log.parent.glob("*-new")) == []


def test_no_mark_is_dropped_as_long_as_there_are_few(log: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "FINE", 8)
    for second in range(100):
        clock.now = START + second
        marks.add(log, second)
    assert len(read(log)) == 100


def test_a_mark_behind_the_end_of_a_log_means_its_last_line(log: Path) -> None:
    """The size is read before the marks: meanwhile the log may have grown, and been marked."""
    write(log, "first\nlast")
    marks.add(log, 1000)
    assert place_since(log, START) == len("first\n")


def test_thinned_marks_of_bursts_do_not_go_back_far() -> None:
    bursts = [(hour * 3600 * SECOND + n * SECOND, 0) for hour in range(100) for n in range(60)]
    now = 100 * 3600 * SECOND
    kept = thinned(bursts, now)
    assert len(kept) < len(bursts) / 2
    ends = {hour * 3600 + 59 for hour in range(100)}
    for end in ends:
        before = max(at for at, _ in kept if at <= end * SECOND)
        assert end - before / SECOND <= max(1, (100 * 3600 - end) / marks.FINE)
    assert all(earlier < later for earlier, later in pairwise(kept))
    assert thinned([], now) == []
    assert thinned([(1, 1)], now) == [(1, 1)]


def test_a_mark_that_was_written_by_half_harms_no_other(log: Path, clock: Clock) -> None:
    write(log, "a\n")
    marks.add(log, 0)
    with log.with_suffix(".marks").open("ab") as file:
        file.write(b"half")
    assert len(read(log)) == 1
    clock.now += 1
    marks.add(log, 2)
    assert read(log) == [(int(START * SECOND), 0), (int((START + 1) * SECOND), 2)]


def test_a_file_in_the_place_of_the_marks_is_passed_over(log: Path, watch: LogWatch) -> None:
    write(log, "a\n")
    os.mkfifo(log.with_suffix(".marks"))
    assert read(log) == []
    assert place_since(log, START) is None
    assert place_since(log.with_name("w-7.log"), START) == 0
    watch.begin(str(log), 0)
    watch.look()
    assert log.read_text() == "a\n"
    begin(log)
    assert "incarnation 1" in log.read_text()
