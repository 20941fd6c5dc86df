"""plain_files: what others put in the place of a file neither blocks nor fills the memory."""

from __future__ import annotations

import io
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from dljob.linux import plain_files
from dljob.linux.plain_files import DEPTH, bounded_lines, open_plain, parse_json, read_json, read_plain


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, listen, Path.mkdir, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to(path)],
    ids=["fifo", "socket", "folder", "device", "link to itself"],
)
def test_only_a_regular_file_is_opened(make: Callable[[Path], object], tmp_path: Path) -> None:
    make(tmp_path / "file")
    with pytest.raises(OSError, match="file") as raised:
        open_plain(tmp_path / "file")
    assert raised.value.strerror
    assert not isinstance(raised.value, FileNotFoundError), "there is something"


def test_what_is_put_there_between_the_look_and_the_opening_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("{}")
    os.mkfifo(tmp_path / "fifo")
    opened = os.open
    monkeypatch.setattr(plain_files.os, "open", lambda _, flags: opened(tmp_path / "fifo", flags))
    with pytest.raises(OSError, match="Not a regular file"):
        open_plain(tmp_path / "file")


def test_a_larger_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"1234")
    assert read_plain(file, 4) == b"1234"
    os.truncate(file, 10 << 30)
    with pytest.raises(OSError, match="Larger than 32 MiB"):
        read_json(file)


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 100_000 + "]" * 100_000, "[" * (DEPTH + 1) + "]" * (DEPTH + 1)])
def test_json_that_is_nested_too_deep_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"nested deeper|Expecting value"):
        parse_json(text)


@pytest.mark.parametrize("value", [[[]] * 1000, "[" * 1000, {"a": {"b": [{}] * 99}}])
def test_json_of_many_brackets_that_is_not_deep_is_read(value: object) -> None:
    assert parse_json(json.dumps(value).encode()) == value
    deepest: object = value
    for _ in range(DEPTH - 4):
        deepest = [deepest]
    assert parse_json(json.dumps(deepest)) == deepest


def test_a_long_line_is_cut_and_the_next_one_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_files, "_PIECE", 3)
    assert list(bounded_lines(io.BytesIO(b"ab\n123456789\nc\nd"), 4)) == [b"ab\n", b"1234", b"c\n", b"d"]
    monkeypatch.setattr(plain_files, "SKIPPED_BYTES", 4)
    assert list(bounded_lines(io.BytesIO(b"ab\n123456789012\nc\nd"), 4)) == [b"ab\n", b"1234"]
