"""Whole logs on the volume of the checkpoints: what is written since the last time is appended, by incarnation."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from dljob.api.logs import LogTail
from dljob.logs import archive, cut
from dljob.logs.archive import keep, keep_all, register_calls, trim
from dljob.master.state.actions import RankStart
from dljob.runtime.process.logfile import open_log
from dljob.runtime.process.messages import JobInfo


def info(folder: Path) -> JobInfo:
    """Return the JobInfo of a job with this folder, in its second attempt."""
    return JobInfo("0123456789abcdef" * 2, "j", str(folder), "dljob", "m", 30, 0.2, "", (("w", 1),), attempt=2)


@pytest.fixture
def volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The volume; free, however full the disk of the tests is."""
    free = SimpleNamespace(f_blocks=100, f_frsize=1 << 20, f_bavail=100)
    monkeypatch.setattr(os, "statvfs", lambda _: free)
    monkeypatch.setenv("DLJOB_CHECKPOINT", str(tmp_path / "my ckpt"))
    return tmp_path / "my ckpt" / "j-01234567" / "logs" / "attempt-2"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def writes(home: Path, incarnation: int, *words: str, rank: int = 0) -> None:
    fd, _ = open_log(info(home / "jobs" / "j-01234567"), "w", RankStart(rank, incarnation, 0, 1, 0))
    for word in words:
        os.write(fd, f"{word}\n".encode())
    os.close(fd)


def kept(volume: Path) -> dict[str, list[str]]:
    return {path.name: path.read_text().splitlines()[1:] for path in sorted(volume.iterdir())}


def test_each_incarnation_has_a_file_that_grows_with_it(home: Path, volume: Path) -> None:
    assert keep_all(home) == ""
    writes(home, 1, "one")
    writes(home, 1, "other", rank=1)
    assert keep_all(home) == ""
    assert kept(volume) == {"w-0.1.log": ["one"], "w-1.1.log": ["other"]}
    with (home / "jobs" / "j-01234567" / "logs" / "w-0.log").open("a") as log:
        log.write("more\n")
    writes(home, 2, "two")
    for _ in range(2):
        assert keep_all(home) == ""
        assert kept(volume) == {"w-0.1.log": ["one", "more"], "w-0.2.log": ["two"], "w-1.1.log": ["other"]}
    assert "w/0 starts, incarnation 2" in (volume / "w-0.2.log").read_text()
    assert (volume / "w-0.2.log").stat().st_mode & 0o077 == 0


def test_without_a_checkpoint_path_nothing_is_kept(home: Path, volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DLJOB_CHECKPOINT")
    writes(home, 1, "one")
    assert keep_all(home) == ""
    assert not volume.exists()
    assert [path.name for path in (home / "jobs" / "j-01234567" / "logs").glob("w*.[lp]*")] == ["w-0.log"]


def test_a_log_without_end_is_cut_in_the_middle(home: Path, volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut, "MOST_BYTES", 64 << 10)
    monkeypatch.setattr(cut, "SLACK_BYTES", 4096)
    writes(home, 1, *(f"{n:09}" for n in range(20_000)))
    assert keep_all(home) == ""
    log = home / "jobs" / "j-01234567" / "logs" / "w-0.log"
    cut.cut(log, 0)
    with log.open("a") as more:
        more.writelines(f"{n:09}\n" for n in range(20_000, 40_000))
    cut.cut(log, 0)
    writes(home, 2, "short")
    for _ in range(3):
        assert keep_all(home) == ""
    stored = volume / "w-0.1.log"
    assert stored.stat().st_blocks * 512 < 80 << 10
    text = b"".join(LogTail("w", 0, stored).pieces())
    lines = text.decode().splitlines()
    assert (lines[1], lines[-1]) == ("000000000", "000039999")
    assert b"MiB of this process's output are left out here" in text
    assert b"\0" not in text
    assert kept(volume)["w-0.2.log"] == ["short"]


def test_a_volume_that_keeps_files_whole_has_the_beginning(
    home: Path, volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cut, "MOST_BYTES", 200)
    monkeypatch.setattr(archive, "PIECE", 64)
    monkeypatch.setattr(cut, "can_cut", lambda _: False)
    writes(home, 1, *("x" * 9 for _ in range(30)))
    for _ in range(3):
        assert keep_all(home) == ""
    text = (volume / "w-0.1.log").read_bytes()
    assert text[200:] == archive.CUT


def test_checkpoints_come_first_on_a_volume_that_is_nearly_full(
    home: Path, volume: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes(home, 1, "one")
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=100, f_frsize=1 << 20, f_bavail=5))
    assert keep_all(home) == "logs are not kept: less than 5 MiB would be free on the volume"
    assert kept(volume) == {"w-0.1.log": []}
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=100, f_frsize=1 << 20, f_bavail=6))
    assert keep_all(home) == ""
    assert kept(volume) == {"w-0.1.log": ["one"]}


def test_a_volume_that_is_not_there_is_said(home: Path, volume: Path) -> None:
    writes(home, 1, "one")
    volume.parents[2].write_text("in the way")
    assert keep(home / "jobs" / "j-01234567" / "logs") == "logs are not kept: Not a directory"


def test_traced_calls_are_followed_and_copied_anew_once_they_were_thinned(home: Path, volume: Path) -> None:
    job, place = home / "jobs" / "j-01234567", volume.parents[1] / "calls" / "attempt-2"
    writes(home, 1, "one")
    register_calls(job / "calls", place)
    file, copy = job / "calls" / "w-0.ab.jsonl", place / "w-0.ab.jsonl"
    for text in ("one\n", "one\ntwo\n", "one\ntwo\n", "three\nfour\nfive\n", "x\n", ""):
        file.write_text(text)
        assert keep_all(home) == ""
        assert copy.read_text() == text
    assert copy.stat().st_mode & 0o077 == 0


def test_traced_calls_of_all_attempts_have_one_bound(home: Path, volume: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "CALLS_BYTES", 100)
    place = volume.parents[1] / "calls"
    writes(home, 1, "one")
    register_calls(home / "jobs" / "j-01234567" / "calls", place / "attempt-2")
    (home / "jobs" / "j-01234567" / "calls" / "new.jsonl").write_text("x" * 60)
    (place / "attempt-1").mkdir(parents=True)
    for age, name in ((3, "oldest"), (2, "older")):
        (place / "attempt-1" / f"{name}.jsonl").write_text("x" * 30)
        os.utime(place / "attempt-1" / f"{name}.jsonl", (1000 - age, 1000 - age))
    assert keep_all(home) == ""
    assert {path.stem for path in place.rglob("*.jsonl")} == {"older", "new"}


def test_files_that_vanish_meanwhile_are_no_error(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trim([tmp_path / "gone"], 0)
    writes(home, 1, "one")
    register_calls(home / "jobs" / "j-01234567" / "calls", tmp_path / "kept")
    (home / "jobs" / "j-01234567" / "calls" / "a.jsonl").symlink_to(tmp_path / "gone")
    assert keep_all(home) == ""


def test_a_log_that_was_removed_costs_no_other_its_place(home: Path, volume: Path) -> None:
    writes(home, 1, "one")
    writes(home, 1, "other", rank=1)
    (home / "jobs" / "j-01234567" / "logs" / "w-0.log").unlink()
    assert keep_all(home) == ""
    assert kept(volume) == {"w-1.1.log": ["other"]}
    writes(home, 2, "again")
    assert keep_all(home) == ""
    assert kept(volume)["w-0.2.log"] == ["again"]


def test_an_error_of_one_log_is_said_and_the_others_are_kept(home: Path, volume: Path) -> None:
    for rank in range(3):
        writes(home, 1, "one", rank=rank)
    for rank in range(2):
        (volume / f"w-{rank}.1.log").mkdir(parents=True)
    assert keep_all(home) == "logs are not kept: Is a directory"
    assert (volume / "w-2.1.log").read_text().splitlines()[1:] == ["one"]


@pytest.mark.parametrize(
    "torn",
    [
        "1 6",
        "one 6 /dev/null/vol",
        "1 6 vol",
        "1 6 /dev/null/v\0l",
        "2 3 /dev/null/vol",
        "\n",
        "1 " + "6" * 5000 + " /dev/null/vol",
    ],
)
def test_a_line_that_a_full_disk_tore_is_no_place(home: Path, volume: Path, torn: str) -> None:
    writes(home, 1, "one")
    writes(home, 1, "other", rank=1)
    parts = home / "jobs" / "j-01234567" / "logs" / "w-0.parts"
    with parts.open("a") as out:
        out.write(torn if torn == "2 3 /dev/null/vol" else f"{torn}\n")  # that one looks whole, but for its end
    assert keep_all(home) == ""
    assert kept(volume) == {"w-0.1.log": ["one"], "w-1.1.log": ["other"]}


def test_a_beginning_is_recorded_whole_or_not_at_all(home: Path, volume: Path) -> None:
    writes(home, 1, "one")
    log = home / "jobs" / "j-01234567" / "logs" / "w-0.log"
    parts = log.with_suffix(archive.PARTS)
    before = parts.read_text()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 3, hard))
    try:
        archive.begins(log, 2, log.stat().st_size, volume)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert parts.read_text() == before
    archive.begins(log, 3, log.stat().st_size, volume)
    assert parts.read_text().splitlines()[1:] == [f"3 {log.stat().st_size} {volume}"]
