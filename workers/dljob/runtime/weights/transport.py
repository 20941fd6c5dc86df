"""Common parts of a WeightChannel's transports: interfaces, a check, and the carrier for processes without Ray."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from dljob.errors import CallError
from dljob.runtime.process.context import current_worker
from dljob.runtime.queues.storage_client import StorageClient
from dljob.runtime.weights.buckets import checksum
from dljob.runtime.weights.model import Mark, Version

AGAIN_S = 0.1
"""Seconds until the next request, after a version that was gone before it could be fetched."""

Buckets = Sequence[Sequence[memoryview]]


class Carrier(Protocol):
    """Transfer of versions between this process and the keeper."""

    came_by: str
    """How the version that was fetched last came: "store", or "chain" over a chain of nodes."""

    def publish(self, version: Version, buckets: Buckets) -> float:
        """Send a version to the keeper; return when it took it (unix seconds)."""
        ...

    def newer(self, mark: Mark, wait_s: float, timeout_s: float | None) -> Version | None:
        """Return the newest version after `mark`, without its buckets; None if none comes within `wait_s` seconds."""
        ...

    def fetch(self, version: Version, timeout_s: float | None) -> Buckets | None:
        """Return its buckets; None when they cannot be fetched any more, or did not come in time."""
        ...


class BucketTransport(Protocol):
    """A faster way for buckets beside the store, which has them for readers that this way does not reach."""

    @property
    def ready(self) -> bool:
        """Whether it can carry the next version."""
        ...

    def check(self) -> None:
        """Raise an error that the user must get before anything else, such as a lost member."""
        ...

    def send(self, version: Version, buckets: Buckets) -> Version:
        """Send a version's buckets; return the version, marked with this transport if they were sent."""
        ...

    def take(self, version: Version) -> Buckets | None:
        """Return the buckets that came by it, unchecked; None if they did not come."""
        ...


class ByteCarrier:
    """The carrier of a process without Ray: everything travels as bytes through its host."""

    def __init__(self, keeper: StorageClient) -> None:
        self._keeper = keeper
        self.came_by = "store"

    def publish(self, version: Version, buckets: Buckets) -> float:
        """Send a version to the keeper as bytes; return when it took it."""
        # The keeper checks what arrives, so the checksums go along, also where no reader needs them.
        made = version.sums and None not in version.sums
        sums = version.sums if made else tuple(checksum(bucket) for bucket in buckets)
        parts = [[bytes(view) for view in bucket] for bucket in buckets]
        return self._keeper.ask("publish", self._keeper.who, version.summed(sums), parts, timeout_s=None)

    def newer(self, mark: Mark, wait_s: float, timeout_s: float | None) -> Version | None:
        """Return the newest version after `mark`, without its buckets; None if none comes within `wait_s` seconds."""
        return self._keeper.ask("receive", mark, wait_s, timeout_s=timeout_s)

    def fetch(self, version: Version, timeout_s: float | None) -> Buckets | None:
        """Return checked copies of the buckets, as bytes from the keeper; None when they are gone."""
        buckets = list[Sequence[memoryview]]()
        for number, said in enumerate(version.sums):
            found = checked(
                lambda at=number: self._bucket(version, at, timeout_s), said, f"{self._keeper.name}.receive"
            )
            if found is None:
                return None
            buckets.append(found)
        return buckets

    def _bucket(self, version: Version, number: int, timeout_s: float | None) -> Sequence[memoryview] | None:
        found = self._keeper.ask("bucket", version.mark, number, timeout_s=timeout_s)
        return None if found is None else [memoryview(part) for part in found]


def checked(fetch: Any, said: int | None, what: str) -> Sequence[memoryview] | None:
    """Return a bucket with the right checksum; fetch a wrong one once more. Raises CallError when both are wrong.

    `said`: the checksum; None: the publisher made none, and whatever comes is right.
    """
    # Twice: a damaged transfer passes, damaged memory does not.
    for _ in range(2):
        bucket = fetch()
        if bucket is None or said is None or checksum(bucket) == said:
            return bucket
    me = current_worker()
    said_so = f"{what}: a bucket arrived damaged at {me.name}, twice"
    raise CallError(said_so, role=me.role, rank=me.rank, hint="memory or network of this node: dljob doctor")
