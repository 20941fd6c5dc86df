"""The journal: epochs fence each other, it rolls, a torn tail is normal, damage is refused with its offset."""

from __future__ import annotations

import asyncio
import errno
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from memory_backend import MemoryKeyValue

from dljob.errors import JournalError
from dljob.runtime.journal import journal as journal_module
from dljob.runtime.journal.journal import FencedError, Journal, JournalBrokenError
from dljob.runtime.journal.stores import FileStore, KeyValueStore
from dljob.telemetry import records


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


async def test_a_first_master_knows_nothing(tmp_path):
    mine = journal(tmp_path)
    replay = await mine.open()
    assert (replay.epoch, replay.records) == (1, ())


async def test_the_next_master_knows_all_of_all_before(tmp_path):
    await written(tmp_path, event(1), event(2))
    await written(tmp_path, event(3))
    assert await told(tmp_path) == [event(1), event(2), event(3)]


async def test_events_an_old_master_writes_after_its_fence_do_not_count(tmp_path):
    old, new = journal(tmp_path), journal(tmp_path)
    await old.open()
    await old.commit([event(1)])
    await new.open()
    with pytest.raises(FencedError, match="epoch 1 is over"):
        await old.commit([event(2)])
    await new.commit([event(3)])
    assert await told(tmp_path) == [event(1), event(3)]


async def test_a_torn_tail_is_passed_over(tmp_path):
    segment = await written(tmp_path, event(1), event(2))
    segment.write_bytes(segment.read_bytes()[:-7])
    assert await told(tmp_path) == [event(1)]
    assert await told(tmp_path) == [event(1)]


@pytest.mark.parametrize("at", [0, 1, 2])
async def test_damage_is_refused_with_its_offset(tmp_path, at):
    """One bit of the n-th line, the last included: a whole line is never a torn one."""
    segment = await written(tmp_path, event(1), event(2))
    lines = segment.read_bytes().splitlines(keepends=True)
    lines[at] = lines[at].replace(b'"r"', b'"s"')
    segment.write_bytes(b"".join(lines))
    with pytest.raises(JournalError, match="damaged") as caught:
        await told(tmp_path)
    assert caught.value.offset == len(b"".join(lines[:at]))


@pytest.mark.parametrize("missing", [True, False])
async def test_an_older_segment_that_counts_may_be_neither_damaged_nor_missing(tmp_path, missing):
    segment = await written(tmp_path, event(1), event(2))
    await written(tmp_path, event(3))
    if missing:
        segment.unlink()
    else:
        segment.write_bytes(segment.read_bytes()[:-7])
    with pytest.raises(JournalError, match="segment 000001" + ": No such file" * missing):
        await told(tmp_path)


async def test_a_master_that_died_before_its_header_is_passed_over(tmp_path):
    await written(tmp_path, event(1))
    (tmp_path / "000002.jsonl").touch()
    (tmp_path / "000003.jsonl").write_bytes(b'{"n":0,"r":{"k":"hea')
    assert await told(tmp_path) == [event(1)]
    assert await told(tmp_path) == [event(1)]


async def test_a_replay_starts_from_the_last_whole_snapshot(tmp_path):
    await written(tmp_path, event(1), *snapshot(1), event(2), *snapshot(2), event(3), snapshot(3)[0])
    assert await told(tmp_path) == [*snapshot(2), event(3), snapshot(3)[0]]


async def test_a_snapshot_is_due_by_records_or_by_bytes_but_not_for_fewer_bytes_than_it_has_itself(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(journal_module, "SNAPSHOT_BYTES", 1000)
    mine, large = journal(tmp_path), {"k": "event", "d": "x" * 900}
    await mine.open()
    await mine.commit([large])
    assert [mine.snapshot_due(records) for records in (1, 2)] == [True, False]
    await mine.commit([large])
    assert mine.snapshot_due(100)
    await mine.snapshot([{**part, "d": "x" * 1500} for part in snapshot(1)])
    assert not mine.snapshot_due(1)
    for _ in range(3):
        await mine.commit([large])
        assert not mine.snapshot_due(100), "a snapshot has more bytes than these records"
    await mine.commit([large])
    assert mine.snapshot_due(100)
    await mine.close()


async def test_segments_before_one_that_starts_with_a_snapshot_are_not_read(tmp_path):
    first = await written(tmp_path, event(1))
    await written(tmp_path, *snapshot(1), event(2))
    first.write_bytes(b"spoilt\n")
    assert await told(tmp_path) == [*snapshot(1), event(2)]


async def test_a_snapshot_that_was_cut_short_at_a_start_does_not_hide_what_is_before(tmp_path):
    await written(tmp_path, event(1))
    await written(tmp_path, snapshot(1)[0])
    assert await told(tmp_path) == [event(1), snapshot(1)[0]]


async def test_after_a_failed_write_nothing_more_is_written(tmp_path, monkeypatch):
    mine = journal(tmp_path)
    await mine.open()
    await mine.commit([event(1)])

    async def full(epoch: int, data: bytes) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(mine.store, "append", full)
        with pytest.raises(JournalBrokenError, match="Input/output error"):
            await mine.commit([event(2)])
    with pytest.raises(JournalBrokenError, match="Input/output error"):
        await mine.commit([event(3)])
    assert await told(tmp_path) == [event(1)]


async def test_a_folder_that_cannot_be_made_is_said_so(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(JournalBrokenError, match="cannot be written: Not a directory"):
        await journal(tmp_path / "file" / "journal").open()


async def test_a_volume_that_is_full_for_a_moment_delays_a_commit(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(journal_module, "FIRST_S", 0.001)
    mine, failures = journal(tmp_path), [3]
    await mine.open()
    append = mine.store.append

    async def full(epoch: int, data: bytes) -> None:
        if failures[0]:
            failures[0] -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        await append(epoch, data)

    monkeypatch.setattr(mine.store, "append", full)
    await mine.commit([event(1)])
    assert mine.stalled_s == pytest.approx(0.001 + 0.002 + 0.004)
    assert len([record for record in caplog.records if "is full" in record.getMessage()]) == 1
    await mine.close()
    assert await told(tmp_path) == [event(1)]


async def test_a_claim_whose_look_for_a_later_one_fails_says_which_journal_it_is(tmp_path, monkeypatch):
    mine = journal(tmp_path)

    async def fails(_epoch: int) -> bool:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(mine.store, "superseded", fails)
    with pytest.raises(
        JournalBrokenError, match=f"the journal in {tmp_path}.* cannot be written: Input/output error"
    ) as caught:
        await mine.claim(1)
    assert "dmesg" in str(caught.value.hint)
    assert mine.epoch == 0


async def test_a_volume_that_stays_full_breaks_the_journal_in_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "FIRST_S", 0.001)
    monkeypatch.setattr(journal_module, "FULL_S", 0.005)
    mine = journal(tmp_path)
    await mine.open()

    async def full(epoch: int, data: bytes) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(mine.store, "append", full)
    with pytest.raises(JournalBrokenError, match=r"cannot be written: Disk quota exceeded \(for 0 s\)") as caught:
        await mine.commit([event(1)])
    assert caught.value.hint == "make room there, or set spec.master.journal.path"
    await mine.close()


async def test_writes_that_are_ended_wait_for_no_room(tmp_path, monkeypatch):
    """A job that is to end is not kept by a full volume: not by a record, a snapshot, nor its new segment."""
    mine = journal(tmp_path)
    await mine.open()
    await mine.commit([event(1)])

    async def full(*_: object) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(mine.store, "append", full)
        waiting = asyncio.create_task(mine.commit([event(2)]))
        while not mine.stall:  # noqa: ASYNC110 - a moment
            await asyncio.sleep(0.001)
        mine.end_writes()
        await waiting
    assert (mine.stall, mine.snapshot_due(0)) == ("", False)
    await mine.commit([event(3)])  # there is room again, but what follows a gap would mislead a successor
    monkeypatch.setattr(mine, "_lines", journal_module.FEW + 1)
    await mine.snapshot([event(4)])
    assert mine.segment == mine._claimed == 1
    other = journal(tmp_path)
    await other.open()
    with pytest.raises(FencedError):
        await mine.commit([event(5)])
    await mine.close()
    assert await told(tmp_path) == [event(1)]


async def test_a_master_that_is_fenced_waits_for_no_room(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "FIRST_S", 0.001)
    old, new = journal(tmp_path), journal(tmp_path)
    await old.open()

    async def full(epoch: int, data: bytes) -> None:
        if not new.epoch:
            await new.open()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(old.store, "append", full)
    with pytest.raises(FencedError):
        await old.commit([event(1)])


@pytest.fixture
def _rolls_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "FEW", 1)


async def test_a_snapshot_of_a_segment_of_few_lines_stays_in_it(tmp_path):
    mine = journal(tmp_path)
    await mine.open()
    await mine.commit([event(1)])
    await mine.snapshot(snapshot(1))
    assert mine.segment == 1
    await mine.close()
    assert await told(tmp_path) == snapshot(1)


@pytest.mark.usefixtures("_rolls_at_once")
async def test_each_snapshot_but_a_segments_first_goes_on_in_the_next_segment(tmp_path):
    mine = journal(tmp_path)
    await mine.open()
    await mine.snapshot(snapshot(1))
    await mine.commit([event(1)])
    assert (mine.epoch, mine.segment) == (1, 1)
    await mine.snapshot(snapshot(2))
    await mine.commit([event(2)])
    assert (mine.epoch, mine.segment, mine.superseded_now()) == (1, 2, False)
    await mine.close()
    (tmp_path / "000001.jsonl").unlink()
    assert await told(tmp_path) == [*snapshot(2), event(2)]


class DeathError(BaseException):
    """The process is gone."""


@pytest.mark.usefixtures("_rolls_at_once")
@pytest.mark.parametrize("torn", [0.0, 0.5, 1.0])
async def test_a_death_at_any_write_of_a_roll_loses_nothing(tmp_path, monkeypatch, torn):
    """Claim, header, snapshot, the first commit after it: each is written by this part of its bytes. The next master
    knows all that was acknowledged, and no later one knows more than it.
    """
    for at in range(1, 6):
        folder, writes = tmp_path / str(at), [0]
        mine = journal(folder)
        await mine.open()
        await mine.snapshot(snapshot(1))
        await mine.commit([event(1)])
        claim, append = mine.store.claim, mine.store.append

        async def mortal_claim(epoch: int, claim: Any = claim, at: int = at, writes: list[int] = writes) -> bool:
            writes[0] += 1
            if writes[0] == at and torn < 1:
                raise DeathError
            won = await claim(epoch)
            if writes[0] == at:
                raise DeathError
            return won

        async def mortal(
            epoch: int, data: bytes, append: Any = append, at: int = at, writes: list[int] = writes
        ) -> None:
            writes[0] += 1
            if writes[0] == at:
                await append(epoch, data[: int(len(data) * torn)])
                raise DeathError
            await append(epoch, data)

        monkeypatch.setattr(mine.store, "claim", mortal_claim)
        monkeypatch.setattr(mine.store, "append", mortal)
        acknowledged = [*snapshot(1), event(1)]
        with suppress(DeathError):
            await mine.snapshot(snapshot(2))
            acknowledged = snapshot(2)
            await mine.commit([event(2)])
            acknowledged = [*snapshot(2), event(2)]
            await mine.commit([event(3)])
        await mine.close()
        known = await told(folder)
        replayed = folded(known)
        assert replayed in {folded(acknowledged), folded([*acknowledged, event(2)]), folded([*acknowledged, event(3)])}
        assert folded(acknowledged) <= replayed
        assert await told(folder) == known


def folded(records: list[dict[str, Any]]) -> tuple[int, ...]:
    """The events that a replay knows of; snapshot n holds those up to n - 1."""
    known: tuple[int, ...] = ()
    for at, record in enumerate(records):
        whole = record["k"] == "snapshot" and record["i"] == 0 and len(records) > at + 1
        if whole and records[at + 1]["k"] == "snapshot":
            known = tuple(range(1, int(record["d"].split(".")[0])))
        elif record["k"] == "event":
            known = (*known, record["n"])
    return known


@pytest.mark.usefixtures("_rolls_at_once")
@pytest.mark.parametrize("at", range(4))
async def test_a_successor_at_any_write_of_a_roll_fences_it(tmp_path, monkeypatch, at):
    """Before the claim, the header, the snapshot, or the next commit of the old master another one opens the journal.

    What the old one was acknowledged is known to the new one; what it writes after that is known to nobody.
    """
    old, new, writes = journal(tmp_path), journal(tmp_path), [0]
    await old.open()
    await old.snapshot(snapshot(1))
    await old.commit([event(1)])
    heard: list[dict[str, Any]] = []
    claim, append = old.store.claim, old.store.append

    async def overtake() -> None:
        if writes[0] == at:
            heard.extend(dict(record) for record in (await new.open()).records)
        writes[0] += 1

    async def slow_claim(epoch: int) -> bool:
        await overtake()
        return await claim(epoch)

    async def slow(epoch: int, data: bytes) -> None:
        await overtake()
        await append(epoch, data)

    monkeypatch.setattr(old.store, "claim", slow_claim)
    monkeypatch.setattr(old.store, "append", slow)
    acknowledged = (1,)

    async def go_on() -> None:
        await old.snapshot(snapshot(2))
        await old.commit([event(2)])

    with pytest.raises(FencedError):
        await go_on()
    assert folded(heard) == acknowledged
    await new.commit([event(7)])
    await new.close()
    assert folded(await told(tmp_path)) == (1, 7)


@pytest.mark.usefixtures("_rolls_at_once")
async def test_the_guard_never_takes_a_roll_for_a_successor(tmp_path, monkeypatch):
    """It looks from a thread, at any moment of the roll."""
    mine, seen = journal(tmp_path), list[bool | None]()
    await mine.open()
    await mine.snapshot(snapshot(1))
    claim, append = mine.store.claim, mine.store.append

    async def looked_at(epoch: int) -> bool:
        seen.append(mine.superseded_now())
        won = await claim(epoch)
        seen.append(mine.superseded_now())
        return won

    async def appended(epoch: int, data: bytes) -> None:
        seen.append(mine.superseded_now())
        await append(epoch, data)
        seen.append(mine.superseded_now())

    monkeypatch.setattr(mine.store, "claim", looked_at)
    monkeypatch.setattr(mine.store, "append", appended)
    await mine.snapshot(snapshot(2))
    assert len(seen) == 6
    assert not any(seen)
    await journal(tmp_path).open()
    assert mine.superseded_now()


@pytest.mark.usefixtures("_rolls_at_once")
async def test_a_look_during_a_roll_takes_it_for_no_successor_and_finds_one_in_a_quiet_job(monkeypatch):
    monkeypatch.setattr(journal_module, "FENCE_S", 0.0)
    kv = MemoryKeyValue()
    mine, later = Journal(KeyValueStore(kv, "j/")), Journal(KeyValueStore(kv, "j/"))
    await mine.open()
    looks = asyncio.create_task(mine.watch_fence())
    for number in range(30):
        await mine.snapshot(snapshot(number))
        await mine.forget()
    assert mine.segment == 30
    assert not looks.done()
    await later.open()
    with pytest.raises(FencedError, match="epoch 1 is over"):
        await looks


async def test_an_old_journal_is_not_read_before_its_last_snapshot(tmp_path, monkeypatch):
    """Older code wrote all snapshots of an epoch into one segment, 10 GiB of them after months."""
    segment = await written(tmp_path, *(event(n) for n in range(500)), *snapshot(1), event(501))
    monkeypatch.setattr(records, "WINDOW", 1024)
    monkeypatch.setattr(records, "HEADER_MAX", 1024)
    with segment.open("rb") as file:
        data = file.read()
    hole = tmp_path / "hole"
    with hole.open("wb") as file:
        head = data.index(b"\n") + 1
        tail = len(data) - data.rindex(b'{"n":501,')
        file.write(data[:head])
        file.truncate(10 * 2**30)
        file.seek(0, 2)
        file.write(b"\n" + data[-tail:])
    hole.replace(segment)
    assert await told(tmp_path) == [*snapshot(1), event(501)]
