"""Both journal stores keep segments of bytes by epoch, each epoch claimed once."""

from __future__ import annotations

import asyncio
import errno
import gzip
import os
import resource
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from memory_backend import MemoryKeyValue

from dljob.runtime.journal import closed_segments, stores
from dljob.runtime.journal.stores import FileStore, JournalStore, KeyValueStore

Make = Callable[[], JournalStore]


async def whole(store: JournalStore, epoch: int) -> bytes:
    """All bytes of a segment."""
    return await store.read(epoch, lambda source: source.read(0, source.size))


@pytest.fixture(params=["file", "kv"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    kv = MemoryKeyValue()
    if request.param == "file":
        return lambda: FileStore(tmp_path / "journal")
    return lambda: KeyValueStore(kv, "dljob/u/journal/")


async def test_appended_data_is_read_in_order_by_another_store(make):
    one, two = make(), make()
    assert await one.claim(1)
    await one.append(1, b"a\n")
    await one.append(1, b"b\n")
    assert await whole(two, 1) == b"a\nb\n"
    assert await two.epochs() == (1,)
    await one.close()
    await two.close()


async def test_an_epoch_has_one_owner(make):
    stores = [make() for _ in range(8)]
    assert sum(await asyncio.gather(*(store.claim(1) for store in stores))) == 1
    for store in stores:
        await store.close()


async def test_a_later_claim_supersedes_an_earlier_one(make):
    one, two = make(), make()
    await one.claim(1)
    assert not await one.superseded(1)
    await two.claim(2)
    assert await one.superseded(1)
    assert not await two.superseded(2)
    await one.close()
    await two.close()


async def test_the_guard_thread_sees_a_later_file_without_a_loop(tmp_path):
    store = FileStore(tmp_path)
    await store.claim(1)
    assert store.superseded_now(1) is False
    (tmp_path / "000003.jsonl").touch()
    assert store.superseded_now(1) is True
    await store.close()


async def test_a_write_that_does_not_fit_leaves_no_part_of_itself(tmp_path):
    """A file may be 100 bytes long: the second append is cut off, fails, and is taken back."""
    store = FileStore(tmp_path)
    await store.claim(1)
    await store.append(1, b"x" * 80)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            await store.append(1, b"y" * 80)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.EFBIG
    assert await whole(store, 1) == b"x" * 80
    await store.close()


async def test_keys_go_when_they_are_superseded():
    store = KeyValueStore(kv := MemoryKeyValue(), "j/")
    for segment in (1, 2, 3):
        await store.claim(segment)
        await store.append(segment, b"a\n")
    assert await store.forget(3) == ""
    assert sorted(kv.values) == ["j/000003/000000000000", "j/000003/000000000001"]


class Counted(MemoryKeyValue):
    """Counts calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    async def get(self, key: str) -> bytes | None:
        self.calls.append("get")
        return await super().get(key)

    async def keys(self, prefix: str) -> tuple[str, ...]:
        self.calls.append("keys")
        return await super().keys(prefix)


async def test_a_commit_in_the_key_value_store_lists_no_keys():
    """Listing them costs by their number: 58 ms at 40,000 commits."""
    kv = Counted()
    store = KeyValueStore(kv, "j/")
    await store.claim(1)
    kv.calls.clear()
    await store.append(1, b"a\n")
    assert not await store.superseded(1)
    assert kv.calls == ["get", "get"]


@pytest.mark.parametrize("claims", [2, 3, 5])
async def test_a_master_is_fenced_by_any_later_claim_though_the_next_ones_are_gone(claims):
    """Later masters put away what they supersede, the claim of the fenced one among it."""
    kv = MemoryKeyValue()
    old, new = KeyValueStore(kv, "j/"), KeyValueStore(kv, "j/")
    for segment in range(1, claims + 1):
        await (old if segment == 1 else new).claim(segment)
        assert await old.superseded(1) == (segment > 1)
        await new.forget(segment)
        assert await old.superseded(1) == (segment > 1)


async def test_claim_that_comes_after_its_number_was_forgotten_is_lost(make):
    """Its machine was paused, or its put waited for a head: other masters have gone on and deleted their old claims."""
    late, others = make(), make()
    await late.claim(1)
    for number in (2, 3, 4):
        await others.claim(number)
    await others.forget(4)
    won = await late.claim(2)
    assert not won or await late.superseded(2)
    assert not await others.superseded(4)
    assert max(await others.epochs()) == 4
    for store in (late, others):
        await store.close()


async def test_late_claim_in_the_key_value_store_leaves_no_key():
    kv = MemoryKeyValue()
    late, others = KeyValueStore(kv, "j/"), KeyValueStore(kv, "j/")
    for number in (1, 2, 3):
        assert await others.claim(number)
    await others.forget(3)
    assert not await late.claim(2)
    assert await others.epochs() == (3,)


async def test_claim_that_was_outrun_at_once_still_fences_the_master_before_it(monkeypatch):
    kv = MemoryKeyValue()
    old, second, third = (KeyValueStore(kv, "j/") for _ in range(3))
    await old.claim(1)
    epochs = second.epochs

    async def after_the_third_one() -> tuple[int, ...]:
        await third.claim(3)
        return await epochs()

    monkeypatch.setattr(second, "epochs", after_the_third_one)
    await second.claim(2)
    assert await old.superseded(1)
    assert await second.superseded(2)
    assert not await third.superseded(3)


async def test_claim_is_lost_when_the_whole_journal_goes_meanwhile(monkeypatch):
    kv = MemoryKeyValue()
    store, put = KeyValueStore(kv, "j/"), kv.put_if_absent

    async def put_before_the_end(key: str, value: bytes) -> bool:
        won = await put(key, value)
        await kv.delete("j/")
        return won

    monkeypatch.setattr(kv, "put_if_absent", put_before_the_end)
    assert not await store.claim(1)


async def test_many_values_are_read_at_a_time_and_in_order():
    class Waiting(MemoryKeyValue):
        most = now = 0

        async def get(self, key: str) -> bytes | None:
            self.now += 1
            self.most = max(self.most, self.now)
            value = await super().get(key)
            self.now -= 1
            return value

    store = KeyValueStore(kv := Waiting(), "j/")
    await store.claim(1)
    for n in range(200):
        await store.append(1, b"%d\n" % n)
    kv.most = 0
    assert await whole(store, 1) == b"".join(b"%d\n" % n for n in range(200))
    assert kv.most == stores.AT_ONCE


async def test_superseded_files_are_kept_compressed_within_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(closed_segments, "WORTH_BYTES", 100)
    monkeypatch.setattr(closed_segments, "KEPT_BYTES", 250)
    store = FileStore(tmp_path)
    texts = {segment: os.urandom(100) for segment in (1, 2, 3)}
    for segment, text in texts.items():
        await store.claim(segment)
        await store.append(segment, text)
    assert await store.forget(3) == ""
    assert await store.epochs() == (3,)
    closed = tmp_path / "closed"
    assert {path.name: gzip.decompress(path.read_bytes()) for path in closed.iterdir()} == {
        "000001.jsonl.gz": texts[1],
        "000002.jsonl.gz": texts[2],
    }
    await store.claim(4)
    said = await store.forget(4)
    assert said == f"000001.jsonl in {closed}, which keeps 0 MiB; no restart needs them"
    assert sorted(path.name for path in closed.iterdir()) == ["000002.jsonl.gz", "000003.jsonl.gz"]
    await store.close()


async def test_folder_that_may_not_be_listed_is_no_empty_journal(tmp_path, monkeypatch):
    """Else a new master would begin the job anew, or try to claim the first number for ever."""
    store = FileStore(tmp_path)
    assert await store.claim(1)

    def refuses(_path: object) -> None:
        raise PermissionError(13, "Permission denied")

    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, refuses)
    with pytest.raises(PermissionError):
        await store.epochs()
    assert not await store.superseded(1), "the next number tells it alone"
    monkeypatch.undo()
    assert await FileStore(tmp_path / "none").epochs() == ()
    await store.close()


async def test_small_files_stay_as_they_are(tmp_path):
    store = FileStore(tmp_path)
    for segment in (1, 2):
        await store.claim(segment)
    assert await store.forget(2) == ""
    assert await store.epochs() == (1, 2)
    await store.close()


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files and folders that were synced, in order."""
    found, fsync = list[Path](), os.fsync

    def noting(fd: int) -> None:
        fsync(fd)
        found.append(Path(f"/proc/self/fd/{fd}").readlink())

    monkeypatch.setattr(os, "fsync", noting)
    return found


async def test_a_power_cut_loses_no_folder_of_a_claimed_segment(tmp_path, synced):
    folder = tmp_path / "volume" / "job" / "journal"
    store = FileStore(folder)
    assert await store.claim(1)
    assert synced == [tmp_path, tmp_path / "volume", tmp_path / "volume" / "job", folder]
    assert await store.claim(2)
    assert synced[4:] == [folder]
    await store.close()


def test_the_folder_of_superseded_files_is_on_disk_before_an_original_is_deleted(tmp_path, monkeypatch, synced):
    monkeypatch.setattr(closed_segments, "WORTH_FILES", 1)
    path, unlink, at_unlink = tmp_path / "000001.jsonl", Path.unlink, list[Path]()
    path.write_bytes(b"a\n")

    def noting(self: Path, missing_ok: bool = False) -> None:
        at_unlink[:] = synced
        unlink(self, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", noting)
    assert closed_segments.archive([path], tmp_path / "closed") == ""
    assert tmp_path in at_unlink
    assert not path.exists()


def test_a_part_that_a_killed_master_left_goes_with_the_next_archive(tmp_path, monkeypatch):
    monkeypatch.setattr(closed_segments, "WORTH_FILES", 1)
    path, closed = tmp_path / "000002.jsonl", tmp_path / "closed"
    path.write_bytes(b"a\n")
    closed.mkdir()
    for name in (".000001.jsonl.gz.4711", "000001.jsonl.gz"):
        (closed / name).touch()
    assert closed_segments.archive([path], closed) == ""
    assert sorted(found.name for found in closed.iterdir()) == ["000001.jsonl.gz", "000002.jsonl.gz"]


@pytest.mark.parametrize("at", range(5))
def test_a_death_while_a_file_is_put_away_loses_nothing(tmp_path, monkeypatch, at):
    """It is in one place or in both, and the next call does the rest."""
    monkeypatch.setattr(closed_segments, "WORTH_FILES", 1)
    path, closed, steps = tmp_path / "000001.jsonl", tmp_path / "closed", [0]
    path.write_bytes(b"a\n")

    def mortal(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **more: Any) -> Any:
            steps[0] += 1
            if steps[0] == at + 1:
                raise DeathError
            return real(*args, **more)

        return step

    with monkeypatch.context() as patch, suppress(DeathError):
        patch.setattr(Path, "mkdir", mortal(Path.mkdir))
        patch.setattr(shutil, "copyfileobj", mortal(shutil.copyfileobj))
        patch.setattr(Path, "replace", mortal(Path.replace))
        patch.setattr(closed_segments, "sync_folder", mortal(closed_segments.sync_folder))
        closed_segments.archive([path], closed)
    assert steps == [at + 1]
    assert path.exists()
    assert closed_segments.archive([path], closed) == ""
    assert not path.exists()
    assert gzip.decompress((closed / "000001.jsonl.gz").read_bytes()) == b"a\n"


class DeathError(BaseException):
    """The process is gone."""


def test_a_segment_far_larger_than_the_limit_is_dropped_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(closed_segments, "KEPT_BYTES", 1024)
    path = tmp_path / "000001.jsonl"
    path.touch()
    os.truncate(path, 10 * 2**30)
    assert "000001.jsonl" in closed_segments.archive([path], tmp_path / "closed")
    assert not path.exists()


async def test_a_claim_that_cannot_be_made_durable_is_none(tmp_path, monkeypatch):
    """Its file would fence whoever tries again."""
    store = FileStore(tmp_path)

    def full(_: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(stores, "sync_folder", full)
        with pytest.raises(OSError, match="No space left"):
            await store.claim(1)
    assert await store.epochs() == ()
    assert await store.claim(1)
    await store.close()


async def test_the_rest_of_a_failed_append_is_cut_off_by_the_next_try(tmp_path, monkeypatch):
    store = FileStore(tmp_path)
    await store.claim(1)
    await store.append(1, b"a\n")

    def fails(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fails)
        patch.setattr(os, "ftruncate", fails)
        with pytest.raises(OSError, match="No space left"):
            await store.append(1, b"b\n")
    assert await whole(store, 1) == b"a\nb\n"
    await store.append(1, b"b\n")
    assert await whole(store, 1) == b"a\nb\n"
    await store.close()


async def test_bytes_that_a_successor_may_have_read_are_not_cut_off(tmp_path, monkeypatch):
    old, new = FileStore(tmp_path), FileStore(tmp_path)
    await old.claim(1)
    await new.claim(2)

    def fails(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fails)
        with pytest.raises(OSError, match="No space left"):
            await old.append(1, b"a\n")
    assert await whole(new, 1) == b"a\n"
    await old.close()
    await new.close()


async def test_a_put_that_a_lost_head_stored_unconfirmed_is_appended_once():
    """Ray's client sends a put again whose head is lost; the next head has it already."""

    class Sent(MemoryKeyValue):
        lost = True

        async def put_if_absent(self, key: str, value: bytes) -> bool:
            first = await super().put_if_absent(key, value)
            return await super().put_if_absent(key, value) if self.lost else first

    kv = Sent()
    store = KeyValueStore(kv, "j/")
    assert not await store.claim(1), "a claim says not whose it is: the next epoch is tried"
    kv.lost = False
    assert await store.claim(2)
    kv.lost = True
    await store.append(2, b"a\n")
    await store.append(2, b"b\n")
    assert await whole(store, 2) == b"a\nb\n"


async def test_two_writers_of_one_key_value_segment_are_noticed():
    kv = MemoryKeyValue()
    store = KeyValueStore(kv, "j/")
    await store.claim(1)
    kv.values["j/000001/000000000001"] = b"not mine"
    with pytest.raises(OSError, match="another process writes"):
        await store.append(1, b"mine")
