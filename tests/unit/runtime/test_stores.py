"""Both journal stores keep segments of bytes by epoch, each epoch claimed once."""

from __future__ import annotations

import asyncio
import errno
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
from memory_backend import MemoryKeyValue

from dljob.runtime.stores import FileStore, JournalStore, KeyValueStore

Make = Callable[[], JournalStore]


@pytest.fixture(params=["file", "kv"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    kv = MemoryKeyValue()
    if request.param == "file":
        return lambda: FileStore(tmp_path / "journal")
    return lambda: KeyValueStore(kv, "dljob/u/journal/")


async def test_what_is_appended_is_read_in_order_by_another(make: Make) -> None:
    one, two = make(), make()
    assert await one.claim(1)
    await one.append(1, b"a\n")
    await one.append(1, b"b\n")
    assert await two.read(1) == b"a\nb\n"
    assert await two.epochs() == (1,)
    await one.close()
    await two.close()


async def test_an_epoch_has_one_owner(make: Make) -> None:
    stores = [make() for _ in range(8)]
    assert sum(await asyncio.gather(*(store.claim(1) for store in stores))) == 1
    for store in stores:
        await store.close()


async def test_a_later_claim_supersedes(make: Make) -> None:
    one, two = make(), make()
    await one.claim(1)
    assert not await one.superseded(1)
    await two.claim(2)
    assert await one.superseded(1)
    assert not await two.superseded(2)
    await one.close()
    await two.close()


async def test_a_store_without_segments_is_empty(make: Make) -> None:
    store = make()
    assert await store.epochs() == ()
    await store.close()


async def test_the_guard_thread_sees_a_later_file_without_a_loop(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    await store.claim(1)
    assert store.superseded_now(1) is False
    (tmp_path / "000003.jsonl").touch()
    assert store.superseded_now(1) is True
    await store.close()


async def test_a_write_that_does_not_fit_leaves_no_part_of_itself(tmp_path: Path) -> None:
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
    assert await store.read(1) == b"x" * 80
    await store.close()


async def test_files_stay_and_keys_go_when_they_are_not_needed(tmp_path: Path) -> None:
    kv = MemoryKeyValue()
    stores: list[JournalStore] = [FileStore(tmp_path), KeyValueStore(kv, "j/")]
    for store, left in zip(stores, [(1, 2), (2,)], strict=True):
        await store.claim(1)
        await store.claim(2)
        await store.forget(2)
        assert await store.epochs() == left
        await store.close()


async def test_what_a_head_stored_and_did_not_live_to_confirm_is_appended_once() -> None:
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
    assert await store.read(2) == b"a\nb\n"


async def test_two_writers_of_one_key_value_segment_are_noticed() -> None:
    kv = MemoryKeyValue()
    store = KeyValueStore(kv, "j/")
    await store.claim(1)
    kv.values["j/000001/000000000001"] = b"not mine"
    with pytest.raises(OSError, match="somebody else"):
        await store.append(1, b"mine")
