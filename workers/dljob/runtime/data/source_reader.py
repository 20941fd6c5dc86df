"""Interface of a source of events without an end, which a package implements and names as an entry point.

    [project.entry-points."dljob.sources"]
    pulsar = "my_package.pulsar:open_source"

`source("clicks", "pulsar://broker:6650/clicks")` then calls `open_source(uri, options)`. A reader has no state that
matters: it is asked for the events of a partition from an offset on, and PrimeMaster's journal knows the offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from dljob.errors import DLJobError


class SourceError(DLJobError):
    """The source does not answer, or cannot be read now; it is asked again."""


@dataclass(frozen=True, slots=True)
class SourceEvent:
    """An event of a partition."""

    partition: str
    offset: int
    next: int
    """The offset from which reading goes on after it."""
    value: bytes
    time: float
    """When it happened, or when the source got it (unix seconds)."""


@dataclass(frozen=True, slots=True)
class Extent:
    """What a partition has now: the offsets [first, next)."""

    first: int
    next: int
    note: str = ""
    """What is wrong with it, for users; empty: nothing."""


class SourceReader(Protocol):
    """Reads partitions. One thread at a time calls it; it must not wait longer than about a second."""

    def partitions(self) -> Mapping[str, Extent]:
        """Return the partitions by name, each name for one history of offsets: a file made anew has another name.

        Raises:
            SourceError: The source does not answer.
        """
        ...

    def read(self, partition: str, offset: int, most: int) -> Sequence[SourceEvent]:
        """Return at most `most` events from an offset on, in order; empty when there is none yet.

        Raises:
            SourceError: The source does not answer.
        """
        ...

    def close(self) -> None:
        """Close connections and files."""
        ...


OpenSource: TypeAlias = Callable[[str, Mapping[str, Any]], SourceReader]
"""What an entry point of `dljob.sources` names: (uri, options of the user) -> reader. It may raise UsageError."""
