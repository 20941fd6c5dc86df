"""Room in shared memory: what Ray's store may still write, and what the kernel can still give."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from dljob.linux import shared_memory
from dljob.linux.shared_memory import SPARE, Room

MIB = 1 << 20


@pytest.mark.parametrize(
    ("free", "promised", "size", "takes"),
    [
        (100, 500, 64, True),
        (64, 500, 64, False),  # the spare is missing
        (0, 500, 8, False),
        (0, 0, 64, True),  # the store has all of its pages
        (20, 20, 64, True),  # more than these it never writes
    ],
)
def test_the_store_takes_what_the_kernel_can_give_and_what_it_has(
    free: int, promised: int, size: int, *, takes: bool
) -> None:
    assert Room(1000 * MIB, free * MIB, promised * MIB).takes(size * MIB) is takes


@pytest.fixture
def raylet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A raylet, pid 7, whose store of 4 MiB has no page yet, in a shared memory that is full."""
    shm, descriptors = tmp_path / "shm", tmp_path / "proc/7/fd"
    shm.mkdir()
    descriptors.mkdir(parents=True)
    with (shm / "plasma").open("wb") as file:
        file.truncate(4 * MIB)
    (descriptors / "3").symlink_to(shm / "plasma")
    (descriptors / "4").symlink_to(shm / "plasma")
    (descriptors / "5").symlink_to("/dev/null")
    (descriptors / "6").symlink_to(shm / "closed since it was listed")
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=1, f_frsize=4096, f_blocks=2560))
    return tmp_path


def test_a_sparse_store_in_a_full_shared_memory_has_no_room(raylet: Path) -> None:
    found = shared_memory.room(MIB, 7, raylet / "shm", raylet / "proc")
    assert found == Room(10 * MIB, 4096, 4 * MIB)
    assert shared_memory.is_full(raylet / "shm")


def test_a_store_on_disk_needs_no_shared_memory(raylet: Path) -> None:
    # As Ray does it in a pod with 64 MiB.
    assert shared_memory.room(MIB, 7, raylet / "elsewhere", raylet / "proc") is None


def test_a_raylet_that_is_gone_is_not_blamed_on_shared_memory(raylet: Path) -> None:
    assert shared_memory.room(MIB, 8, raylet / "shm", raylet / "proc") is None


def test_who_has_seen_little_room_writes_before_another_looks(raylet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "TURN_S", 0.0)
    folder = os.open(raylet / "shm", os.O_RDONLY)
    try:
        with shared_memory.turn(MIB, raylet / "shm"):
            with pytest.raises(BlockingIOError):
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with shared_memory.turn(MIB, raylet / "shm"):
                pass  # a lock that does not come is not waited for longer than TURN_S
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(folder)


def test_where_much_is_free_nobody_waits_for_a_turn(tmp_path: Path) -> None:
    with shared_memory.turn(1, tmp_path), shared_memory.turn(1, tmp_path / "absent"):
        folder = os.open(tmp_path, os.O_RDONLY)
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(folder)


def test_free_memory_needs_no_look_at_the_raylet(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path)
    assert shared_memory.room(1, 7, tmp_path, tmp_path) is None
    assert free.f_bavail * free.f_frsize > SPARE
    assert not shared_memory.is_full(tmp_path)
    assert not shared_memory.is_full(tmp_path / "absent")
