"""The transport `yr`: openYuanrong's datasystem holds the buckets, and the keeper their keys.

A process of the datasystem on each node holds them in its shared memory, and fetches missing ones from other nodes. A
published version outlives its publisher and the keeper. Each reader checks a checksum: another client of the same
store, ray-ascend 0.1.1, returns memory that nobody has written.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from dljob.errors import CallError, UnreachableError, UsageError
from dljob.runtime.process.context import current_worker
from dljob.runtime.queues.storage_client import StorageClient
from dljob.runtime.weights.buckets import checksum, parted
from dljob.runtime.weights.datasystem import ABSENT, DatasystemClient, connect
from dljob.runtime.weights.model import Stored, Version
from dljob.runtime.weights.transport import Buckets, checked

LOGS = "DATASYSTEM_CLIENT_LOG_DIR"
KEPT_S = 24 * 3600
"""Seconds until the datasystem drops a version that was not replaced: the last one of an ended job."""

log = logging.getLogger(__package__)


def client(channel: str) -> DatasystemClient:
    """Return this process's client of the node's datasystem. Raises UsageError when there is none."""
    try:
        return _connect_once(os.getpid())
    except (UsageError, UnreachableError) as error:
        raise UsageError(f"{channel}: {error.message}", hint=error.hint) from error


@lru_cache(maxsize=1)
def _connect_once(_pid: int) -> DatasystemClient:
    """Return one client for each process: a fork must not use its parent's connection."""
    folder = Path(current_worker().job_dir) / "logs"
    if folder.is_dir():
        # Its logs belong to those of the job.
        os.environ.setdefault(LOGS, str(folder / "datasystem"))
    return connect("the transport yr")


class DatasystemCarrier:
    """A `transport.Carrier` for buckets in the datasystem; versions are found by the keeper, as always."""

    def __init__(self, keeper: StorageClient) -> None:
        self._keeper = keeper
        self._client = client(keeper.name)

    def publish(self, version: Version, buckets: Buckets) -> None:
        """Store each bucket, send the keys to the keeper, and delete those of versions that it has dropped."""
        me = current_worker()
        stored = tuple(
            Stored(f"dljob-{me.job_uid}-{version.nonce}-{number}", tuple(view.nbytes for view in bucket))
            for number, bucket in enumerate(buckets)
        )
        for entry, bucket in zip(stored, buckets, strict=True):
            self._set(entry, bucket)
        sums = tuple(checksum(bucket) for bucket in buckets)
        try:
            old_buckets = self._keeper.ask("stored", self._keeper.who, version.at(stored, sums), timeout_s=None)
        except UsageError:  # refused by the keeper: nobody will ever read these
            self._delete(stored)
            raise
        # After the keeper has dropped them: no reader gets their keys any more.
        self._delete(old_buckets)

    def _set(self, entry: Stored, bucket: Sequence[memoryview]) -> None:
        if not sum(entry.sizes):
            return  # the datasystem stores no empty values
        value = bucket[0] if len(bucket) == 1 else b"".join(bucket)
        try:
            self._client.set(entry.key, value, ttl_second=KEPT_S)
        except RuntimeError as error:
            raise self._failed(
                "publish", error, "it may be full: `dscli start -w ... --shared_memory_size_mb`"
            ) from error

    def _delete(self, stored: Sequence[Stored]) -> None:
        """Delete buckets; what cannot be deleted goes after KEPT_S."""
        keys = [entry.key for entry in stored if sum(entry.sizes)]
        if not keys:
            return
        try:
            self._client.delete(keys)
        except RuntimeError as error:
            log.warning("%s.publish: old versions may stay for up to %d s: %s", self._keeper.name, KEPT_S, error)

    def fetch(self, version: Version) -> Buckets | None:
        """Return checked copies of the buckets; None when they are gone, which is reported to the keeper."""
        buckets = list[Sequence[memoryview]]()
        for entry, bucket_sum in zip(version.stored, version.sums, strict=True):
            bucket = checked(lambda at=entry: self._get(at), bucket_sum, f"{self._keeper.name}.receive")
            if bucket is None:
                self._keeper.ask("lost", version.mark, timeout_s=None)
                return None
            buckets.append(bucket)
        return buckets

    def _get(self, entry: Stored) -> Sequence[memoryview] | None:
        value = memoryview(b"")
        if sum(entry.sizes):
            try:
                value = memoryview(self._client.get([entry.key])[0])
            except RuntimeError as error:
                if ABSENT in str(error):  # replaced meanwhile: the caller looks for a newer version
                    return None
                raise self._failed("receive", error, "does it run on this node? `dscli start`") from error
        return parted(value, entry.sizes)

    def _failed(self, method: str, error: RuntimeError, hint: str) -> CallError:
        me = current_worker()
        message = f"{self._keeper.name}.{method}: the datasystem of the node of {me.name} refuses: {error}"
        return CallError(message, role=me.role, rank=me.rank, hint=hint)
