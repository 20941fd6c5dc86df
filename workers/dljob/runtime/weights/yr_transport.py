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
from typing import Any, Protocol, cast

from dljob.errors import CallError, UsageError
from dljob.runtime.process.context import current_worker
from dljob.runtime.queues.storage_client import StorageClient
from dljob.runtime.weights.buckets import checksum, parted
from dljob.runtime.weights.model import Stored, Version
from dljob.runtime.weights.transport import Buckets, checked

HOST, PORT = "DATASYSTEM_HOST", "DATASYSTEM_PORT"
"""Address of the datasystem's process on this node; its own clients read the same variables."""
LOGS = "DATASYSTEM_CLIENT_LOG_DIR"
KEPT_S = 24 * 3600
"""Seconds until the datasystem drops a version that was not replaced: the last one of an ended job."""
CONNECT_MS = 10_000
REQUEST_MS = 60_000
ABSENT = "Key not found"
"""Part of the datasystem's error for an unknown key; it has no error class or code for that."""

log = logging.getLogger(__package__)


class BufferClient(Protocol):
    """The methods of `yr.datasystem.KVClient` in use. Source: openyuanrong-datasystem 0.8.1."""

    def set(self, key: str, val: Any, *, ttl_second: int) -> None:
        """Write a value. Raises RuntimeError when it cannot."""
        ...

    def get(self, keys: list[str]) -> Sequence[bytes]:
        """Return copies of values. Raises RuntimeError with `Key not found` if one is missing."""
        ...

    def delete(self, keys: list[str]) -> object:
        """Delete those of these keys that exist."""
        ...


def client(what: str) -> BufferClient:
    """Return this process's client of the node's datasystem.

    Raises:
        UsageError: It is not installed, no address is given, or nothing answers there.
    """
    host, port = os.environ.get(HOST, ""), os.environ.get(PORT, "")
    if not host or not port.isdigit():
        raise UsageError(
            f"{what}: the transport yr needs {HOST} and {PORT}, which are {host or 'not set'} and {port or 'not set'}",
            hint="start `dscli start` on each node, and set both in spec.env",
        )
    try:
        return _connected(host, int(port), os.getpid())
    except ImportError as error:
        raise UsageError(
            f"{what}: the transport yr is not installed: {error}", hint="pip install 'dljob[yr]'"
        ) from error
    except RuntimeError as error:
        raise UsageError(
            f"{what}: no datasystem of openYuanrong answers at {host}:{port}: {error}",
            hint=f"does it run on this node? `dscli start`; {HOST} and {PORT} say where",
        ) from error


@lru_cache(maxsize=1)
def _connected(host: str, port: int, _pid: int) -> BufferClient:
    """Return one client for each process: a fork must not use its parent's connection."""
    folder = Path(current_worker().job_dir) / "logs"
    if folder.is_dir():
        # Its logs belong to those of the job.
        os.environ.setdefault(LOGS, str(folder / "datasystem"))
    from yr.datasystem import KVClient

    made = KVClient(host, port, connect_timeout_ms=CONNECT_MS, req_timeout_ms=REQUEST_MS)
    made.init()
    return cast("BufferClient", made)


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
        for where, bucket in zip(stored, buckets, strict=True):
            self._set(where, bucket)
        sums = tuple(checksum(bucket) for bucket in buckets)
        try:
            gone = self._keeper.ask("stored", self._keeper.who, version.at(stored, sums), timeout_s=None)
        except UsageError:  # refused by the keeper: nobody will ever read these
            self._delete(stored)
            raise
        # After the keeper has dropped them: no reader gets their keys any more.
        self._delete(gone)

    def _set(self, where: Stored, bucket: Sequence[memoryview]) -> None:
        if not sum(where.sizes):
            return  # the datasystem stores no empty values
        value = bucket[0] if len(bucket) == 1 else b"".join(bucket)
        try:
            self._client.set(where.key, value, ttl_second=KEPT_S)
        except RuntimeError as error:
            raise self._failed(
                "publish", error, "it may be full: `dscli start -w ... --shared_memory_size_mb`"
            ) from error

    def _delete(self, stored: Sequence[Stored]) -> None:
        """Delete buckets; what cannot be deleted goes after KEPT_S."""
        keys = [where.key for where in stored if sum(where.sizes)]
        if not keys:
            return
        try:
            self._client.delete(keys)
        except RuntimeError as error:
            log.warning("%s.publish: old versions may stay for up to %d s: %s", self._keeper.name, KEPT_S, error)

    def fetch(self, version: Version) -> Buckets | None:
        """Return checked copies of the buckets; None when they are gone, which is reported to the keeper."""
        found = list[Sequence[memoryview]]()
        for where, said in zip(version.stored, version.sums, strict=True):
            bucket = checked(lambda at=where: self._get(at), said, f"{self._keeper.name}.receive")
            if bucket is None:
                self._keeper.ask("lost", version.mark, timeout_s=None)
                return None
            found.append(bucket)
        return found

    def _get(self, where: Stored) -> Sequence[memoryview] | None:
        whole = memoryview(b"")
        if sum(where.sizes):
            try:
                whole = memoryview(self._client.get([where.key])[0])
            except RuntimeError as error:
                if ABSENT in str(error):  # replaced meanwhile: the caller looks for a newer version
                    return None
                raise self._failed("receive", error, "does it run on this node? `dscli start`") from error
        return parted(whole, where.sizes)

    def _failed(self, method: str, error: RuntimeError, hint: str) -> CallError:
        me = current_worker()
        said = f"{self._keeper.name}.{method}: the datasystem of the node of {me.name} refuses: {error}"
        return CallError(said, role=me.role, rank=me.rank, hint=hint)
