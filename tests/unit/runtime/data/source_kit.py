"""What tests of sources share: a clock that moves while a rank waits, and what a source gave and told."""

from __future__ import annotations

from desk_kit import Desk

from dljob.runtime.data.source import EventBatch


class Stopping:
    """The clock moves while a rank waits; it ends after many waits."""

    def __init__(self) -> None:
        self.now, self.waits, self.end = 0.0, 0, 10_000

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        self.waits += 1
        return self.waits >= self.end


def offsets(batch: EventBatch | None) -> list[tuple[str, int]]:
    assert batch is not None
    return [(event.partition, event.offset) for event in batch.events]


def told(desk: Desk) -> list[str]:
    return [word for event in desk.journal for word in event.news]
