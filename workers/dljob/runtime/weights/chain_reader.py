"""A reader's part of a chain: it maps the memory that its node's relay fills, and checks each bucket as it comes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from ray.exceptions import GetTimeoutError, RayError

from dljob.runtime.weights.buckets import checksum
from dljob.runtime.weights.chain import STALL_S, cut, places
from dljob.runtime.weights.chain_transfer import Filled, mapped
from dljob.runtime.weights.model import Version
from dljob.runtime.weights.transport import Buckets

WAIT_S = 1.0
"""Seconds that one request for more bytes may wait at the relay."""

log = logging.getLogger(__package__)

Wait = Callable[[Any, float], Any]
"""Returns the value of a reference, until a time by the monotonic clock. Raises GetTimeoutError after it."""


def read_chain(relay: Any, version: Version, wait: Wait, reader_name: str, *, verify: bool) -> Buckets | None:
    """Return a version's buckets as a chain brings them; None if they do not come, or not right."""
    begins, size = places(version.sizes)
    ends = [
        max(map(sum, zip(at, sizes, strict=True)), default=0) for at, sizes in zip(begins, version.sizes, strict=True)
    ]
    buckets: list[list[memoryview]] = []
    for number, (end, expected_sum) in enumerate(zip(ends, version.sums, strict=True)):
        at = _until(relay, version.nonce, end, wait)
        if at is None:
            log.warning(
                "%s: version %d did not come by its chain; fetching it from the store", reader_name, version.version
            )
            return None
        if not buckets:
            memory = mapped(at, size)
            if memory is None:
                log.warning("%s: the memory of this node's relay cannot be mapped: the store is used", reader_name)
                return None
            buckets = cut(memory, version.sizes)
        # While later buckets are on their way.
        if verify and expected_sum is not None and checksum(buckets[number]) != expected_sum:
            log.warning("%s: version %d arrived damaged; fetching it from the store", reader_name, version.version)
            return None
    return buckets


def _until(relay: Any, nonce: str, least: int, wait: Wait) -> Filled | None:
    """Wait until so many bytes are there; None once the relay gives the chain up, is dead, or does not answer."""
    while True:
        try:
            at: Filled | None = wait(relay.filled.remote(nonce, least, WAIT_S), time.monotonic() + STALL_S)
        except (GetTimeoutError, RayError):
            return None
        if at is None or at.bytes >= least:
            return at
