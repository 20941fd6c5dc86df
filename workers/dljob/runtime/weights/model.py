"""Records of a published version, shared by the keeper and readers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Mark = tuple[str, int, str]
"""A reader's position: the keeper's token, the number of the version at that keeper, and the version's nonce."""
NO_MARK: Mark = ("", 0, "")
"""Of a reader without a version."""


@dataclass(frozen=True, slots=True)
class Version:
    """A published state: its index, and the place of its buckets."""

    nonce: str
    """Identifies one `publish`, whose message may arrive twice."""
    version: int
    index: bytes = field(repr=False)
    node: str = ""
    """The publisher's node; empty when the bytes came through its host."""
    refs: Sequence[Any] = field(default=(), repr=False)
    sums: tuple[int | None, ...] = ()
    """The checksum of each bucket; None where its publisher made none."""
    mark: Mark = NO_MARK
    taken_at: float = 0.0
    """When the keeper took it (unix seconds): the order of versions of all keepers, whose numbers may go back."""
    since: float = 0.0
    """When the series of growing numbers began that it belongs to; 0: this keeper knows of no earlier one."""
    first: int = 0
    """The number with which that series began."""
    by: tuple[str, int] = ("", 0)
    """The publisher's rank, and its incarnation; ("", 0): not known."""
    learned_since: float = 0.0
    """The earliest time of the events of sources that are new in it (unix seconds); 0: there are none."""
    copied: bool = False
    """Whether the keeper owns the buckets, so that they outlive the publisher."""

    transport: str = ""
    """The name of the transport that has its buckets beside the store; empty: only the store has them."""
    address: str = ""
    """The text by which that transport finds them."""
    sizes: Sequence[Sequence[int]] = ()
    """Bytes of each buffer, by bucket: another transport, or a chain, has them in one piece of memory."""

    def summed(self, sums: tuple[int | None, ...]) -> Version:
        """Return a copy with its checksums."""
        return replace(self, sums=sums)


@dataclass(frozen=True, slots=True)
class Broadcast:
    """A version that its publisher is about to broadcast in a collective group."""

    group: str
    """The group's full name, which is another one in each epoch."""
    nonce: str
    root: int
    """The publisher's rank in the group."""
    sizes: Sequence[int]
    """Bytes of each bucket."""
