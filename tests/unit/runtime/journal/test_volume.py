"""The volume of a job's folder: when it is full, and room that others cannot fill."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dljob.runtime.journal.stores import RESERVE, FileStore
from dljob.runtime.journal.volume import ENOUGH, LEAST, WORTH_NAMING, largest_files, reserve, volume_problem

MIB = 1 << 20


def seen(monkeypatch: pytest.MonkeyPatch, free: int, **other: Any) -> None:
    facts = {"f_flag": 0, "f_files": 9, "f_favail": 5, "f_frsize": 1, "f_blocks": 20 * MIB, "f_bavail": free}
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(**{**facts, "f_bfree": free, **other}))


def test_a_volume_is_full_until_it_has_a_little_more_room(monkeypatch):
    place = Path("/jobs/a")
    seen(monkeypatch, LEAST - 1)
    said = volume_problem(place, known=False)
    assert said.startswith("the volume of /jobs/a is full (0.1 of 20 MiB are free): ")
    seen(monkeypatch, LEAST)
    assert volume_problem(place, known=False) == ""
    assert "is full" in volume_problem(place, known=True)
    seen(monkeypatch, ENOUGH)
    assert volume_problem(place, known=True) == ""


def test_the_largest_files_of_a_volume_are_named(tmp_path, monkeypatch):
    logs = tmp_path / "job" / "logs"
    logs.mkdir(parents=True)
    for name, size in (("a.log", 2), ("b.log", 4), ("c.log", 1), ("d.log", 3)):
        (logs / name).write_bytes(b"x" * size * MIB)
    (logs / "small.log").write_bytes(b"x" * (WORTH_NAMING // 2))
    said = largest_files([tmp_path / "job", tmp_path / "gone"], tmp_path)
    assert said == f"{logs}/b.log (4 MiB), {logs}/d.log (3 MiB), {logs}/a.log (2 MiB)"
    assert largest_files([tmp_path], Path("/proc")) == "", "what lies on another volume frees nothing there"
    assert largest_files([tmp_path], tmp_path / "gone") == ""
    seen(monkeypatch, 0)
    assert volume_problem(tmp_path, known=False).endswith(f"; its largest files: {said}")


def test_checkpoints_on_another_volume_are_not_lost(tmp_path, monkeypatch):
    seen(monkeypatch, 0)
    assert volume_problem(tmp_path, known=False).endswith(": logs, events and checkpoints of the job are lost")
    (tmp_path / "checkpoints").symlink_to("/proc")
    assert volume_problem(tmp_path, known=False).endswith(": logs and events of the job are lost")


def test_a_volume_without_inodes_or_that_can_only_be_read_is_told(monkeypatch):
    seen(monkeypatch, ENOUGH, f_favail=0)
    assert "has no inode left" in volume_problem(Path("/jobs/a"), known=False)
    seen(monkeypatch, ENOUGH, f_favail=0, f_files=0)  # btrfs has no number of them
    assert volume_problem(Path("/jobs/a"), known=False) == ""
    seen(monkeypatch, ENOUGH, f_flag=os.ST_RDONLY)
    assert "is read-only" in volume_problem(Path("/jobs/a"), known=False)


def test_a_volume_that_cannot_be_asked_is_no_problem_of_this_kind(tmp_path):
    assert volume_problem(tmp_path / "gone", known=True) == ""


def test_reserved_room_is_behind_the_end_of_a_file_and_asked_for_once_only(tmp_path):
    with (tmp_path / "a").open("wb", buffering=0) as file:
        file.write(b"x" * 10)
        assert reserve(file.fileno(), MIB)
        kept = os.fstat(file.fileno())
        assert kept.st_size == 10
        if kept.st_blocks * 512 < MIB:
            pytest.skip("this file system reserves no room")
        file.write(b"x" * 1000)
        assert reserve(file.fileno(), MIB)
        assert os.fstat(file.fileno()).st_blocks == kept.st_blocks


async def test_the_journal_gives_its_room_back_at_the_end(tmp_path):
    store, segment = FileStore(tmp_path), tmp_path / "000001.jsonl"
    assert await store.claim(1)
    await store.append(1, b"x\n")
    held = segment.stat().st_blocks * 512
    await store.close()
    end = segment.stat()
    assert end.st_size == 2
    assert end.st_blocks * 512 < RESERVE <= held or held < RESERVE, "where the file system reserves at all"
