"""The journal: epochs fence each other, a torn tail is normal, damage is refused with its offset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dljob.errors import JournalError
from dljob.runtime.journal import FencedError, Journal, JournalBrokenError
from dljob.runtime.stores import FileStore


def journal(folder: Path) -> Journal:
    return Journal(FileStore(folder))


def event(n: int) -> dict[str, Any]:
    return {"k": "event", "n": n}


def snapshot(n: int, parts: int = 2) -> list[dict[str, Any]]:
    return [{"k": "snapshot", "i": i, "of": parts, "d": f"{n}.{i}"} for i in range(parts)]


async def told(folder: Path) -> list[dict[str, Any]]:
    """What a next master knows."""
    mine = journal(folder)
    replay = await mine.open()
    await mine.close()
    return [dict(record) for record in replay.records]


async def written(folder: Path, *records: dict[str, Any]) -> Path:
    """A master writes and dies; its segment."""
    mine = journal(folder)
    epoch = (await mine.open()).epoch
    for record in records:
        await mine.commit([record])
    await mine.close()
    return folder / f"{epoch:06d}.jsonl"


async def test_a_first_master_knows_nothing(tmp_path: Path) -> None:
    mine = journal(tmp_path)
    replay = await mine.open()
    assert (replay.epoch, replay.records) == (1, ())


async def test_the_next_master_knows_all_of_all_before(tmp_path: Path) -> None:
    await written(tmp_path, event(1), event(2))
    await written(tmp_path, event(3))
    assert await told(tmp_path) == [event(1), event(2), event(3)]


async def test_what_an_old_master_writes_after_its_fence_does_not_count(tmp_path: Path) -> None:
    old, new = journal(tmp_path), journal(tmp_path)
    await old.open()
    await old.commit([event(1)])
    await new.open()
    with pytest.raises(FencedError, match="epoch 1 is over"):
        await old.commit([event(2)])
    await new.commit([event(3)])
    assert await told(tmp_path) == [event(1), event(3)]


async def test_a_torn_tail_is_passed_over(tmp_path: Path) -> None:
    segment = await written(tmp_path, event(1), event(2))
    segment.write_bytes(segment.read_bytes()[:-7])
    assert await told(tmp_path) == [event(1)]
    assert await told(tmp_path) == [event(1)]


@pytest.mark.parametrize("at", [0, 1, 2])
async def test_damage_is_refused_with_its_offset(tmp_path: Path, at: int) -> None:
    """One bit of the n-th line, the last included: a whole line is never a torn one."""
    segment = await written(tmp_path, event(1), event(2))
    lines = segment.read_bytes().splitlines(keepends=True)
    lines[at] = lines[at].replace(b'"r"', b'"s"')
    segment.write_bytes(b"".join(lines))
    with pytest.raises(JournalError, match="damaged") as caught:
        await told(tmp_path)
    assert caught.value.offset == len(b"".join(lines[:at]))


async def test_damage_of_an_older_segment_that_counts_is_refused(tmp_path: Path) -> None:
    segment = await written(tmp_path, event(1), event(2))
    await written(tmp_path, event(3))
    segment.write_bytes(segment.read_bytes()[:-7])
    with pytest.raises(JournalError, match="segment 000001"):
        await told(tmp_path)


async def test_a_missing_segment_is_refused(tmp_path: Path) -> None:
    segment = await written(tmp_path, event(1))
    await written(tmp_path, event(2))
    segment.unlink()
    with pytest.raises(JournalError, match="segment 000001: No such file"):
        await told(tmp_path)


async def test_a_master_that_died_before_its_header_is_passed_over(tmp_path: Path) -> None:
    await written(tmp_path, event(1))
    (tmp_path / "000002.jsonl").touch()
    (tmp_path / "000003.jsonl").write_bytes(b'{"n":0,"r":{"k":"hea')
    assert await told(tmp_path) == [event(1)]
    assert await told(tmp_path) == [event(1)]


async def test_a_replay_starts_from_the_last_whole_snapshot(tmp_path: Path) -> None:
    await written(tmp_path, event(1), *snapshot(1), event(2), *snapshot(2), event(3), snapshot(3)[0])
    assert await told(tmp_path) == [*snapshot(2), event(3), snapshot(3)[0]]


async def test_segments_before_one_that_starts_with_a_snapshot_are_not_read(tmp_path: Path) -> None:
    first = await written(tmp_path, event(1))
    await written(tmp_path, *snapshot(1), event(2))
    first.write_bytes(b"spoilt\n")
    assert await told(tmp_path) == [*snapshot(1), event(2)]


async def test_a_snapshot_that_was_cut_short_at_a_start_does_not_hide_what_is_before(tmp_path: Path) -> None:
    await written(tmp_path, event(1))
    await written(tmp_path, snapshot(1)[0])
    assert await told(tmp_path) == [event(1), snapshot(1)[0]]


async def test_after_a_failed_write_nothing_more_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = journal(tmp_path)
    await mine.open()
    await mine.commit([event(1)])

    async def full(epoch: int, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(mine.store, "append", full)
        with pytest.raises(JournalBrokenError, match="No space left on device"):
            await mine.commit([event(2)])
    with pytest.raises(JournalBrokenError, match="No space left on device"):
        await mine.commit([event(3)])
    assert await told(tmp_path) == [event(1)]


async def test_a_folder_that_cannot_be_made_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalBrokenError, match="cannot be written: Not a directory"):
        await journal(tmp_path / "file" / "journal").open()
