"""What is put into Ray's store, and what is said where there is no room."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import ray.experimental
from ray.exceptions import GetTimeoutError, ObjectStoreFullError, OutOfDiskError

from dljob.errors import UsageError
from dljob.linux import shared_memory
from dljob.linux.shared_memory import Room
from dljob.runtime.process.messages import Reply
from dljob.runtime.process.wire import LARGE
from dljob.runtime.rpc import object_store

SCARCE = Room(64 << 20, 1 << 20, 80 << 20)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared memory that takes no large object."""
    monkeypatch.setattr(shared_memory, "room", lambda size, _: SCARCE if size >= LARGE else None)


def test_nothing_is_put_where_the_raylet_would_die_of_it(full, monkeypatch):
    puts: list[Any] = []
    monkeypatch.setattr(ray, "put", puts.append)
    with pytest.raises(UsageError, match=r"^w/0: /dev/shm of this node is full: 8 MiB .* 1 of 64 MiB are free") as info:
        object_store.put(b"", 8 << 20, "w/0: ")
    assert "nodeGroups[].sharedMemory" in info.value.hint
    assert not puts


@pytest.mark.parametrize("kind", [ObjectStoreFullError, OutOfDiskError])
def test_a_store_whose_disk_is_full_too_is_named(kind, monkeypatch):
    def put(_: Any) -> None:
        raise kind("no")

    monkeypatch.setattr(ray, "put", put)
    with pytest.raises(UsageError, match=f"^w/0: Ray's object store .* takes no 1 MiB more: {kind.__name__}") as info:
        object_store.put(b"", 1 << 20, "w/0: ")
    assert "disk space" in info.value.hint


@pytest.mark.parametrize(
    ("places", "comes"),
    [
        ({"a": ["n1", "n2"], "b": ["n1"]}, False),
        ({"a": ["n1"], "b": ["n2"]}, True),
        ({"a": ["n1"]}, False),
        (None, True),
    ],
)
def test_only_objects_that_come_from_elsewhere_need_room(places, comes, full, monkeypatch):
    def located(refs: list[str], timeout_ms: int) -> dict[str, Any]:
        assert (refs, timeout_ms) == (["a", "b"], 1000)
        if places is None:
            raise GetTimeoutError
        return {ref: {"node_ids": nodes} for ref, nodes in places.items()}

    monkeypatch.setattr(ray.experimental, "get_object_locations", located)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "n1"))
    said = pytest.raises(UsageError, match="w/0: /dev/shm of this node is full") if comes else nullcontext()
    with said, object_store.room_to_fetch(("a", "b"), LARGE, "w/0: "):
        assert not comes
    with object_store.room_to_fetch(("not", "asked"), 1):
        pass


def test_an_answer_without_room_becomes_an_error_and_a_small_one_needs_none(full):
    said = object_store.answer(Reply(payload=bytes(LARGE), idempotent=True), "t/0")
    assert isinstance(said, bytes)
    reply = Reply.unpacked(said)
    assert (reply.error_type, reply.payload, reply.idempotent) == ("UsageError", b"", True)
    assert reply.message.startswith("the answer of t/0: /dev/shm of this node is full")
    small = Reply(payload=b"1")
    assert object_store.answer(small, "t/0") == small.packed()


def test_the_turn_of_an_answer_ends_when_ray_has_stored_it(monkeypatch):
    turns: list[str] = []

    @contextmanager
    def turn(_: int) -> Generator[None]:
        turns.append("begins")
        yield
        turns.append("ends")

    monkeypatch.setattr(shared_memory, "turn", turn)
    monkeypatch.setattr(shared_memory, "room", lambda *_: None)
    stored = [object_store.answer(Reply(payload=bytes(LARGE)), "t/0")]
    assert turns == ["begins"]
    stored.clear()
    assert turns == ["begins", "ends"]
    monkeypatch.setattr(shared_memory, "room", lambda *_: SCARCE)
    object_store.answer(Reply(payload=bytes(LARGE)), "t/0")
    assert turns == ["begins", "ends"] * 2


def test_a_large_answer_with_room_goes_by_the_store(monkeypatch):
    monkeypatch.setattr(shared_memory, "room", lambda *_: None)
    reply = Reply(payload=bytes(LARGE))
    assert object_store.answer(reply, "t/0") is reply
