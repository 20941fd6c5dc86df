"""The carrier for ranks in Ray: by reference, so that each node has a version once and readers map it in place."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from dljob.errors import CallTimeoutError, UsageError
from dljob.linux import shared_memory
from dljob.runtime.queues.storage_client import LOOK_S, StorageClient
from dljob.runtime.rpc import object_store
from dljob.runtime.weights.buckets import bytes_in, checksum, parcel
from dljob.runtime.weights.chain import LEAST_BYTES, places
from dljob.runtime.weights.chain_reader import read_chain
from dljob.runtime.weights.model import Mark, Version
from dljob.runtime.weights.transport import AGAIN_S, Buckets, checked
from dljob.runtime.weights.version_lines import VersionLine, line_to


class RayCarrier:
    """A `transport.Carrier` for ranks in Ray; `verify`: a reader checks every byte, a publisher makes it possible."""

    def __init__(self, keeper: StorageClient, find: Callable[[str], Any], *, verify: bool = True) -> None:
        self._keeper = keeper
        self._find = find
        self._verify = verify
        self._beside: ThreadPoolExecutor | None = None
        self._actor: Any = None
        self._line: VersionLine | None = None
        self._line_of: Any = None
        """The actor to which that line is."""
        self.came_by = "store"
        self._node: str = ray.get_runtime_context().get_node_id()

    def publish(self, version: Version, buckets: Buckets) -> float:
        """Put each bucket once, with its checksum, and offer the version to the keeper; return when it took it."""
        # By value, now: the state may be changed once `publish` returns.
        refs, sums, sizes = list[Any](), list[int | None](), list[tuple[int, ...]]()
        subject = f"{self._keeper.name}.publish: "
        # All of it at first: nothing of a version that does not fit is stored.
        size = bytes_in(buckets)
        with shared_memory.turn(size):
            object_store.check_room(size, subject)
            for bucket in buckets:
                # Beside the copy, which reads the same memory.
                summing = self._thread().submit(checksum, bucket) if self._verify and not version.sums else None
                refs.append(object_store.put_in_turn(parcel(bucket), sum(view.nbytes for view in bucket), subject))
                sums.append(None if summing is None else summing.result())
                sizes.append(tuple(view.nbytes for view in bucket))
        stored_version = replace(
            version, node=self._node, refs=refs, sums=version.sums or tuple(sums), sizes=tuple(sizes)
        )
        line = self._found_line()
        by_line = line and line.offer(self._keeper.caller, stored_version)
        answer = by_line[0] if by_line else self.ask("offer", self._keeper.caller, stored_version)
        if isinstance(answer, str):
            raise UsageError(f"{self._keeper.name}.publish: {answer}")
        return answer

    def _thread(self) -> ThreadPoolExecutor:
        if self._beside is None:
            self._beside = ThreadPoolExecutor(1, "dljob-sums")
        return self._beside

    def newer(self, mark: Mark, wait_s: float, timeout_s: float | None) -> Version | None:
        """Return the newest version after `mark`, without its buckets; None if none comes within `wait_s` seconds."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        if (line := self._found_line(timeout_s)) is not None:
            try:
                by_line = line.ask("newer", mark, wait_s, self._node, end=end)
            except TimeoutError:
                raise self._no_answer(timeout_s) from None
            if by_line:
                return by_line[0]
        seconds_left = None if end is None else max(0.0, end - time.monotonic())
        return self.ask(
            "newer",
            mark,
            wait_s if seconds_left is None else min(seconds_left, wait_s),
            self._node,
            timeout_s=seconds_left,
        )

    def fetch(self, version: Version, timeout_s: float | None) -> Buckets | None:
        """Map the version's buckets, and check them against their checksums."""
        self.came_by = "store"
        end = None if timeout_s is None else time.monotonic() + timeout_s
        if (came := self._by_chain(version, timeout_s)) is not None:
            self.came_by = "chain"
            return came
        try:
            with self._room(version):
                parts: Any = _wait_interruptibly(list(version.refs), end)
        except GetTimeoutError:  # its publisher is stopped, or its node cannot be reached
            return None
        except RayError:
            # Its publisher died before the keeper had a copy: without this report each reader would try in vain.
            self.ask("lost", version.mark, timeout_s=timeout_s)
            return None
        buckets = [[memoryview(part) for part in bucket] for bucket in parts]
        return self._checked(version, buckets) if self._verify else buckets

    def _room(self, version: Version) -> AbstractContextManager[None]:
        """Return the block in which a version's buckets are fetched; entering it raises UsageError without room."""
        # They lie here, as Ray's owner of them may not know yet. A copy lies where the keeper is.
        if version.node == self._node and not version.copied:
            return nullcontext()
        return object_store.room_to_fetch(version.refs, sum(map(sum, version.sizes)), f"{self._keeper.name}.receive: ")

    def _by_chain(self, version: Version, timeout_s: float | None) -> Buckets | None:
        """Return the buckets that come to this node by a chain; None if none comes here, or it broke."""
        if version.node in {"", self._node} or places(version.sizes)[1] < LEAST_BYTES:
            return None
        relay = self.ask("relay", version.nonce, self._node, timeout_s=timeout_s)
        return relay and read_chain(
            relay, version, _wait_interruptibly, f"{self._keeper.name}.receive", verify=self._verify
        )

    def _checked(self, version: Version, buckets: list[list[memoryview]]) -> Buckets | None:
        checked_buckets = list[Sequence[memoryview]]()
        for number, bucket in enumerate(buckets):
            first: list[Sequence[memoryview]] = [bucket]
            got = checked(
                lambda at=number, had=first: had.pop() if had else self._bucket(version, at),
                version.sums[number],
                f"{self._keeper.name}.receive",
            )
            if got is None:
                return None
            checked_buckets.append(got)
        return checked_buckets

    def _bucket(self, version: Version, number: int) -> Sequence[memoryview] | None:
        """Fetch a damaged bucket again, as bytes from the keeper instead of by reference."""
        parts = self.ask("on_bucket", version.mark, number)
        return None if parts is None else [memoryview(part) for part in parts]

    def ask(self, method: str, *args: Any, timeout_s: float | None = None) -> Any:
        """Return the keeper's answer; when the keeper dies, the next one is asked."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            try:
                return _wait_interruptibly(getattr(self._found_actor(), method).remote(*args), end)
            except GetTimeoutError:
                raise self._no_answer(timeout_s) from None
            except (RayActorError, ValueError):
                # The keeper died: the next look-up by its address creates another one.
                self._actor = None
                if end is not None and time.monotonic() > end:
                    message = f"{self._keeper.name}: its keeper was not there within {timeout_s:g} s"
                    raise CallTimeoutError(message, role="", rank=0) from None
                time.sleep(AGAIN_S)

    def _found_actor(self) -> Any:
        if self._actor is None:
            self._actor = self._find(self._keeper.address)
        return self._actor

    def _found_line(self, timeout_s: float | None = None) -> VersionLine | None:
        """Return the line to the keeper that was found last; None on another machine, or where it broke."""
        if self._actor is None or self._line_of is not self._actor:
            address = self.ask("line_address", timeout_s=timeout_s)
            self._line, self._line_of = line_to(address), self._actor
        return self._line

    def _no_answer(self, timeout_s: float | None) -> CallTimeoutError:
        message = f"{self._keeper.name}: its keeper gave no answer within {timeout_s:g} s"
        return CallTimeoutError(message, role="", rank=0)


def _wait_interruptibly(answer: Any, end: float | None) -> Any:
    """Wait for an answer in slices, so that this thread can be interrupted in between."""
    while True:
        slice_s = LOOK_S if end is None else min(LOOK_S, end - time.monotonic())
        try:
            return ray.get(answer, timeout=max(0.0, slice_s))
        except GetTimeoutError:
            if end is not None and time.monotonic() >= end:
                raise
