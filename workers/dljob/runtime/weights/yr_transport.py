"""The transport `yr`: openYuanrong's datasystem holds the buckets.

A process of the datasystem on each node holds them in its shared memory, and fetches missing ones from other nodes.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from dljob.errors import UnreachableError, UsageError
from dljob.runtime.process.context import current_worker
from dljob.runtime.weights.datasystem import DatasystemClient, connect
from dljob.runtime.weights.transport import Buckets, WeightTransport

log = logging.getLogger(__package__)

LOGS = "DATASYSTEM_CLIENT_LOG_DIR"
KEPT = 2
"""Versions that a publisher keeps there."""
SHOWN = 3
"""Keys that a warning names."""
KEPT_S = 600
"""Seconds until the datasystem drops a version that was not replaced, as one of a publisher that died: then the store
has it."""


@lru_cache(maxsize=1)
def _connect_once(_pid: int) -> DatasystemClient:
    """Return one client for each process: a fork must not use its parent's connection."""
    folder = Path(current_worker().job_dir) / "logs"
    if folder.is_dir():
        # Its logs belong to those of the job.
        os.environ.setdefault(LOGS, str(folder / "datasystem"))
    return connect("the transport yr")


class YrTransport(WeightTransport):
    """The transport. Raises UsageError where this process can reach no datasystem."""

    name = "yr"
    timeout_s = 60.0  # of a request: its client gives up by itself

    def __init__(self, channel: str) -> None:
        try:
            self._client = _connect_once(os.getpid())
        except (UsageError, UnreachableError) as error:
            raise UsageError(f"WeightChannel({channel!r}): {error.message}", hint=error.hint) from error
        self._channel = channel
        self._keys: list[list[str]] = []
        """Of the last versions, in their order."""
        self._can_delete = True
        """Whether the last deletion succeeded, so that the next one that does not is worth a warning."""

    def publish(self, version: int, buckets: Buckets) -> str:  # noqa: ARG002
        """Store each bucket, and delete the versions before the last two."""
        address = f"dljob-{current_worker().job_uid}-{secrets.token_hex(8)}"
        keys: list[str] = []
        try:
            for number, bucket in enumerate(buckets):
                if any(bucket):  # the datasystem stores no empty values
                    keys.append(f"{address}-{number}")
                    value = bucket[0] if len(bucket) == 1 else b"".join(bucket)
                    self._client.set(keys[-1], value, ttl_second=KEPT_S)
        except Exception:
            self._delete(keys)  # nobody gets to know their address
            raise
        self._keys.append(keys)
        while len(self._keys) > KEPT:
            self._delete(self._keys.pop(0))
        return address

    def _delete(self, keys: list[str]) -> None:
        """Delete values that nobody needs; one that stays is no error of the version that is being published."""
        if not keys:
            return
        reason = "it gave no reason"
        try:
            keys = list(self._client.delete(keys))
        except RuntimeError as error:
            reason = str(error)
        if keys and self._can_delete:
            log.warning(
                "WeightChannel(%r).publish: the datasystem has not deleted values that nobody needs (%s%s): %s; it "
                "drops them %d s after they were stored, and versions go on. Its logs: logs/datasystem of the job",
                self._channel,
                ", ".join(keys[:SHOWN]),
                f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else "",
                reason,
                KEPT_S,
            )
        self._can_delete = not keys

    def receive(self, address: str, sizes: Sequence[int]) -> Sequence[bytes]:
        """Return copies of the buckets: the datasystem's own views do not keep their memory alive."""
        keys = [f"{address}-{number}" for number in range(len(sizes))]
        return [self._client.get([key])[0] if size else b"" for key, size in zip(keys, sizes, strict=True)]
