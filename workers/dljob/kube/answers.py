"""Bounds of a head's answers: a head runs user code, and its answers go into the operator's memory.

Bytes alone are no bound: 31 MiB of `{},{}` become 800 MiB of Python objects. So values are counted before parsing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from dljob.kube.transport import AnyJson


@dataclass(frozen=True, slots=True)
class Bounds:
    """Largest accepted answer."""

    size: int
    """Bytes."""
    values: int
    """Objects, lists, and values separated by commas."""


USUAL = Bounds(2**20, 20_000)
LARGE = Bounds(4 * 2**20, 100_000)
"""Bounds of a placement (10,000 ranks: 1.7 MB, 70,000 values), and of logs."""


def excess(body: bytes | bytearray, bounds: Bounds) -> str:
    """Return why an answer is too large to be parsed; empty when it is not. Takes linear time."""
    if len(body) > bounds.size:
        return f"more than {bounds.size} bytes"
    # Count outside of strings: drop escapes first, so that the remaining quotes delimit strings.
    plain = bytes(body).replace(b"\\\\", b"").replace(b'\\"', b"")
    # By bytes methods in C: 5 ms for 1 MiB, while json.loads would hold the GIL and make the objects (ADR 65).
    many = f"more than {bounds.values} values"
    if plain.count(b'"') > 4 * bounds.values:  # each value has one text, and a key, at most
        return many
    # Every other part lies outside of strings; commas and brackets there separate values.
    bare = b"".join(plain.split(b'"')[::2])
    return many if sum(map(bare.count, (b",", b"[", b"{"))) > bounds.values else ""


def parsed(body: bytes) -> AnyJson:
    """Parse a body as JSON; None when it is empty. Raises ValueError, also for too deep a nesting."""
    try:
        return json.loads(body) if body else None
    # CPython's parser recurses with the nesting of the body; a hostile one is no more than a bad body.
    except RecursionError:
        raise ValueError("nested too deep") from None
