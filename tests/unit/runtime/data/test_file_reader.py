"""The file reader: whole lines, by byte; rotation keeps offsets, and what is cut off or torn is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from dljob.errors import UsageError
from dljob.runtime.data import file_reader
from dljob.runtime.data.file_reader import FileReader, open_source
from dljob.runtime.data.source_reader import SourceError


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "a b.log"


def values(reader: FileReader, name: str, offset: int = 0, most: int = 9) -> list[tuple[int, int, bytes]]:
    return [(event.offset, event.next, event.value) for event in reader.read(name, offset, most)]


def test_whole_lines_are_events_and_a_line_without_its_end_is_none_yet(log):
    reader = open_source(f"file:{log}".replace(" ", "%20"), {})
    assert reader.partitions() == {}
    log.write_bytes(b"one")
    assert reader.partitions() == {}
    log.write_bytes(b"one\n\ntwo\nthr")
    (name,) = found = reader.partitions()
    assert (found[name].first, found[name].next, found[name].note) == (0, 9, "")
    assert values(reader, name) == [(0, 4, b"one"), (4, 5, b""), (5, 9, b"two")]
    assert values(reader, name, 4, 1) == [(4, 5, b"")]
    assert values(reader, name, 9) == []
    reader.close()


def test_a_rotated_file_keeps_its_name_and_the_new_one_is_another_partition(log):
    reader = FileReader(log)
    log.write_bytes(b"one\n")
    (old,) = reader.partitions()
    log.rename(log.with_name("a b.log.1"))
    assert values(reader, old) == [], "its path is not known any more"
    log.write_bytes(b"two\n")
    assert values(reader, old) == [], "the path is another file's now"
    log.with_name("a b.log.2.gz").write_bytes(b"packed\n")
    found = reader.partitions()
    assert len(found) == 2
    assert values(reader, old) == [(0, 4, b"one")]


def test_a_file_that_is_cut_and_written_anew_is_another_partition(log):
    reader = FileReader(log)
    log.write_bytes(b"one\nmore\n")
    (old,) = reader.partitions()
    log.write_bytes(b"two\n")
    (new,) = reader.partitions()
    assert new != old
    log.write_bytes(b"one\n")
    assert {old: 4} == {name: extent.next for name, extent in reader.partitions().items()}


def test_a_torn_last_line_of_a_rotated_file_is_told(log):
    log.with_name("a b.log.1").write_bytes(b"one\ntor")
    (extent,) = FileReader(log).partitions().values()
    assert extent.note == "the last line of a b.log.1 has no end: its 3 bytes are left out"


def test_lines_longer_than_what_is_read_at_once_come_whole(log, monkeypatch):
    reader = FileReader(log, chunk=4)
    log.write_bytes(b"x" * 30 + b"\n" + b"y" * 5000)
    (name,) = found = reader.partitions()
    assert found[name].next == 31
    assert values(reader, name) == [(0, 31, b"x" * 30)]
    monkeypatch.setattr(file_reader, "MOST_LINE", 8)
    with pytest.raises(SourceError, match="a line of more than 8 bytes at offset 0"):
        reader.read(name, 0, 1)


def test_a_first_line_without_an_end_names_the_file_by_its_first_bytes(log):
    log.write_bytes(b"x" * 5000)
    (extent,) = FileReader(log).partitions().values()
    assert extent.next == 0


def test_a_file_that_goes_meanwhile_is_none_and_one_that_cannot_be_read_is_told(log, monkeypatch):
    reader = FileReader(log)
    log.write_bytes(b"one\n")
    (name,) = reader.partitions()
    log.unlink()
    assert values(reader, name) == []
    log.write_bytes(b"one\n")

    def refuses(error: OSError):
        def opened(*_: object) -> None:
            raise error

        monkeypatch.setattr(Path, "open", opened)

    refuses(PermissionError(13, "Permission denied"))
    with pytest.raises(SourceError, match="Permission denied"):
        reader.partitions()
    reader._files[name] = log
    with pytest.raises(SourceError, match="Permission denied"):
        reader.read(name, 0, 1)
    refuses(FileNotFoundError())
    assert reader.partitions() == {}

    def no_folder(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "glob", no_folder)
    with pytest.raises(SourceError, match="Permission denied"):
        reader.partitions()


@pytest.mark.parametrize("uri", ["file:clicks.log", "file://host/clicks.log", "file:"])
def test_a_path_is_absolute_and_of_this_machine(uri):
    with pytest.raises(UsageError, match="wanted an absolute path"):
        open_source(uri, {})


def test_a_file_takes_no_options():
    with pytest.raises(UsageError, match="a file takes no option 'group'"):
        open_source("file:/x", {"group": 1})
