"""A copy of a record has, after each round of questions, what the record has."""

from __future__ import annotations

from pathlib import Path

import pytest
from growing_folder import GrowingFolder, record_answer

from dljob.report.live import record_copy
from dljob.report.live.record_copy import RecordCopy
from dljob.runtime.journal import record_files


def followed(folder: Path, copy: RecordCopy) -> int:
    """Bring a copy up to date; return the number of questions."""
    count = 1
    while copy.take(record_answer(folder, copy.question())) and copy.behind():
        count += 1
    copy.tidy()
    return count


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "spec.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_a_copy_has_what_the_record_has_after_each_round(
    growing: GrowingFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_files, "PIECE", 4096)
    copy = RecordCopy(tmp_path / "copy")
    copy.folder.mkdir()
    (growing.path / "samples").mkdir()
    while growing.left:
        (growing.path / "samples" / f"{len(growing.left):06d}.jsonl").write_text("row\n")
        growing.step(60)
        if len(growing.left) % 2:
            growing.segment()
        assert followed(growing.path, copy) > 1
        assert files(copy.folder) == files(growing.path)
    assert followed(growing.path, copy) == 1, "one question where there is nothing new"


def test_a_file_that_is_replaced_or_gone_is_so_in_the_copy(growing: GrowingFolder, tmp_path: Path) -> None:
    copy = RecordCopy(tmp_path / "copy")
    copy.folder.mkdir()
    growing.step(20)
    growing.segment()
    followed(growing.path, copy)
    (growing.path / "journal" / "000001.jsonl").unlink()
    (growing.path / "events.jsonl").write_text("short\n")
    followed(growing.path, copy)
    followed(growing.path, copy)
    assert files(copy.folder) == files(growing.path)


def test_of_too_long_a_record_the_newest_parts_are_copied(
    growing: GrowingFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = RecordCopy(tmp_path / "copy")
    copy.folder.mkdir()
    growing.step(40)
    growing.segment()
    growing.step(5)
    most = growing.part.stat().st_size + 1
    monkeypatch.setattr(record_copy, "MOST_BYTES", most)
    events = (growing.path / "events.jsonl").read_bytes() + b"x" * most
    (growing.path / "events.jsonl").write_bytes(events)
    followed(growing.path, copy)
    assert [path.name for path in (copy.folder / "journal").iterdir()] == ["000002.jsonl"]
    kept, half = (copy.folder / "events.jsonl").read_bytes(), most // 2
    assert kept == bytes(len(events) - half) + events[-half:]
    growing.step(20)
    followed(growing.path, copy)
    assert (copy.folder / "journal" / "000002.jsonl").read_bytes() == growing.part.read_bytes()


def test_names_that_are_no_record_are_never_written(tmp_path: Path) -> None:
    copy = RecordCopy(tmp_path / "copy")
    copy.folder.mkdir()
    bad = [{"file": name, "from": 0, "data": ""} for name in ("../x", "/tmp/x", "spec.json", "samples/../../x")]
    copy.take({"files": {"../x": 1}, "parts": bad})
    assert copy.behind() == []
    assert files(tmp_path) == {}
