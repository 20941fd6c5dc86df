"""What is known of a published version, at its keeper and at its readers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Mark = tuple[str, int]
"""What a reader had last: the keeper's token, and a number that counts what was published there."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a bucket is, by the transport yr."""

    key: str
    sizes: tuple[int, ...]
    """Bytes of each of its buffers, which follow each other."""


@dataclass(frozen=True, slots=True)
class Version:
    """A published state: its index, and where its buckets are."""

    nonce: str
    """Of one `publish`, which may arrive twice."""
    version: int
    index: bytes = field(repr=False)
    node: str = ""
    """Where the publisher is; empty when the bytes came through its host."""
    refs: Sequence[Any] = field(default=(), repr=False)
    sums: tuple[int, ...] | None = None
    """The checksum of each bucket; None: not told yet."""
    mark: Mark = ("", 0)
    copied: bool = False
    """Whether the buckets are the keeper's own."""

    stored: tuple[Stored, ...] = ()
    """Where each bucket is, when it went by the transport yr: then there are no references."""
    way: str = ""
    """How else the buckets went to who was there: the full name of a collective group, or "rdt"."""
    sizes: Sequence[Sequence[int]] = ()
    """Bytes of each buffer, by bucket, when they went by another way too: there a bucket is one piece of memory."""

    def at(self, stored: tuple[Stored, ...], sums: tuple[int, ...]) -> Version:
        """With where its buckets are, and their checksums."""
        return replace(self, stored=stored, sums=sums)

    def summed(self, sums: tuple[int, ...]) -> Version:
        """With its checksums."""
        return replace(self, sums=sums)

    def sent(self, way: str) -> Version:
        """With the way that its buckets went besides."""
        return replace(self, way=way)


@dataclass(frozen=True, slots=True)
class Broadcast:
    """A version that its publisher is about to broadcast in a collective group."""

    group: str
    """Its full name, another one in each epoch."""
    nonce: str
    root: int
    """The publisher's number in the group."""
    sizes: Sequence[Sequence[int]]
