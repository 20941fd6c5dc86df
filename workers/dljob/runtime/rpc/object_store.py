"""Objects for Ray's store, put or fetched where there is room: a raylet that finds none dies, and with it its ranks."""

from __future__ import annotations

import os
import weakref
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import ObjectStoreFullError, OutOfDiskError

from dljob.errors import UsageError
from dljob.linux import shared_memory
from dljob.ray_private import would_come
from dljob.runtime.process.messages import Reply
from dljob.runtime.process.wire import LARGE

LOCATE_S = 1.0
"""Most seconds to ask where objects lie."""
_HINT = (
    "free some of it (DataLoader workers and NCCL use it, too), or have more: nodeGroups[].sharedMemory, and "
    "--shm-size for a container"
)


def check_room(size: int, prefix: str = "") -> None:
    """Check that Ray's store on this node can take `size` bytes; `prefix` begins the message.

    Raises:
        UsageError: It cannot; the message has the needed and the free MiB.
    """
    raylet = int(os.environ.get("RAY_RAYLET_PID") or os.getppid())
    shortage = shared_memory.room(size, raylet)
    if shortage is not None:
        raise UsageError(
            f"{prefix}{shared_memory.SHM} of this node is full: {size >> 20} MiB are needed for Ray's object store, "
            f"{shortage.free >> 20} of {shortage.total >> 20} MiB are free",
            hint=_HINT,
        )


def check_to_fetch(refs: Sequence[Any], size: int, prefix: str = "") -> None:
    """Check that this node has room for objects of `size` bytes in all that are to be fetched, as far as they come.

    Raises:
        UsageError: It has not, as `check_room` says.
    """
    try:
        check_room(size, prefix)
    except UsageError:
        # Asked only now: the answer may come from another machine.
        if would_come(refs, LOCATE_S):
            raise


@contextmanager
def room_to_fetch(refs: Sequence[Any], size: int, prefix: str = "") -> Generator[None]:
    """Hold the turn on shared memory for a block that fetches objects; raises UsageError as `check_to_fetch` does."""
    with shared_memory.turn(size):
        check_to_fetch(refs, size, prefix)
        yield


def put(value: Any, size: int, prefix: str = "") -> Any:
    """Put a value of `size` bytes into Ray's store; return its reference. Raises UsageError as `put_in_turn` does."""
    with shared_memory.turn(size):
        return put_in_turn(value, size, prefix)


def put_in_turn(value: Any, size: int, prefix: str = "") -> Any:
    """Put a value into Ray's store, within the block of a `shared_memory.turn` for it; return its reference.

    Raises:
        UsageError: The store has no room for it, and neither has the disk that Ray takes then.
    """
    check_room(size, prefix)
    try:
        return ray.put(value)
    except (ObjectStoreFullError, OutOfDiskError) as error:
        message = f"{prefix}Ray's object store of this node takes no {size >> 20} MiB more: {type(error).__name__}"
        raise UsageError(
            message, hint="free disk space under Ray's folder, where it puts what the store cannot hold"
        ) from error


def answer(reply: Reply, callee_name: str) -> bytes | Reply:
    """Return an answer as Ray carries it: small as bytes, large through its store; an error where that has no room."""
    if len(reply.payload) < LARGE:
        return reply.packed()
    with ExitStack() as turn:
        turn.enter_context(shared_memory.turn(len(reply.payload)))
        try:
            check_room(len(reply.payload), f"the answer of {callee_name}: ")
        except UsageError as error:
            return replace(reply, payload=b"", error_type=type(error).__name__, message=str(error)).packed()
        # Ray stores it after this call has returned, and then drops it.
        weakref.finalize(reply, turn.pop_all().close)
    # Ray passes it through shared memory without a copy.
    return reply
