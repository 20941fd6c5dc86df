"""record_files: what a record has, and the bytes that a copy of it lacks; nothing that is no record leaves the node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dljob.runtime.journal import record_files
from dljob.runtime.journal.record_files import record_news


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("samples", "journal/closed", "logs"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("events.jsonl", "journal/000002.jsonl", "journal/closed/000001.jsonl.gz", "samples/000001.jsonl"):
        (tmp_path / name).write_text("0123456789")
    for name in ("spec.json", "result.json", "logs/a-0.log", "samples/.000002.tmp"):
        (tmp_path / name).write_text("secret")
    return tmp_path


def test_only_the_files_of_a_record_are_listed_with_their_sizes(folder):
    news = record_news(str(folder), {"spec.json": 0, "logs/a-0.log": 0})
    names = ("events.jsonl", "samples/000001.jsonl", "journal/000002.jsonl", "journal/closed/000001.jsonl.gz")
    assert news.files == dict.fromkeys(names, 10)
    assert news.parts == []
    assert record_news(str(folder / "none"), {"events.jsonl": 0}) == ({}, [])


def test_what_a_copy_lacks_comes_in_pieces(folder, monkeypatch):
    monkeypatch.setattr(record_files, "PIECE", 6)
    have = {"events.jsonl": 6, "journal/000002.jsonl": 0, "samples/000001.jsonl": 0}
    parts = record_news(str(folder), have).parts
    assert parts == [("events.jsonl", 6, b"6789"), ("journal/000002.jsonl", 0, b"01")]
    assert record_news(str(folder), {"events.jsonl": 10}).parts == []


def test_a_file_that_became_shorter_and_the_status_come_whole(folder):
    status = folder / "status.json"
    status.write_text("{}")
    found = record_news(str(folder), {"events.jsonl": 70, "status.json": 3})
    assert found.parts == [("events.jsonl", 0, b"0123456789"), ("status.json", 0, b"{}")]
    assert found.files["status.json"] == status.stat().st_mtime_ns
    assert record_news(str(folder), {"status.json": found.files["status.json"]}).parts == []


def test_links_and_pipes_in_place_of_files_are_left_out(folder):
    (folder / "events.jsonl").unlink()
    (folder / "events.jsonl").symlink_to(folder / "spec.json")
    os.mkfifo(folder / "samples" / "000003.jsonl")
    news = record_news(str(folder), {"events.jsonl": 0, "samples/000003.jsonl": 0})
    assert "events.jsonl" not in news.files
    assert "samples/000003.jsonl" not in news.files
    assert news.parts == []
    assert record_files._read(folder / "events.jsonl", 0, 9) == b""
