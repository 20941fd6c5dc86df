"""A stand-in for the package `kafka`: one topic in memory, with a consumer's answers and errors."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple


class KafkaError(Exception):
    pass


class KafkaTimeoutError(KafkaError):
    pass


class OffsetOutOfRangeError(KafkaError):
    pass


class KafkaConfigurationError(KafkaError):
    pass


class TopicPartition(NamedTuple):
    topic: str
    partition: int


class FakeTopic:
    """The records of each partition by offset; offsets that have none are markers of transactions, or compacted."""

    def __init__(self, *partitions: Sequence[int], topic: str = "t") -> None:
        self.topic = topic
        self.records = [dict.fromkeys(offsets, b"") for offsets in partitions]
        for log in self.records:
            log.update({offset: str(offset).encode() for offset in log})
        self.first = [0] * len(self.records)
        self.end = [max(log, default=-1) + 1 for log in self.records]
        self.away = ""
        self.hidden = False
        self.refused = ""
        self.consumers: list[FakeConsumer] = []
        self.errors = SimpleNamespace(
            KafkaError=KafkaError,
            KafkaConfigurationError=KafkaConfigurationError,
            OffsetOutOfRangeError=OffsetOutOfRangeError,
        )
        self.TopicPartition = TopicPartition

    def KafkaConsumer(self, **settings: Any) -> FakeConsumer:  # noqa: N802 - the package's name
        if self.refused:
            raise KafkaConfigurationError(self.refused)
        self.check()
        self.consumers.append(FakeConsumer(self, settings))
        return self.consumers[-1]

    def check(self) -> None:
        if self.away:
            raise KafkaTimeoutError(self.away)

    def delete(self, partition: int, first: int) -> None:
        """Delete records below an offset, as retention does."""
        self.first[partition] = first
        for offset in [offset for offset in self.records[partition] if offset < first]:
            del self.records[partition][offset]

    def append(self, partition: int, *values: bytes | None) -> None:
        for value in values:
            self.records[partition][self.end[partition]] = value  # type: ignore[assignment] - a tombstone
            self.end[partition] += 1


class FakeConsumer:
    def __init__(self, topic: FakeTopic, settings: dict[str, Any]) -> None:
        self.topic, self.settings = topic, settings
        self.at: dict[int, int] = {}
        self.paused: set[int] = set()
        self.polls = self.switched = 0
        self.waits: list[int] = []
        self.closed = False

    def partitions_for_topic(self, topic: str) -> set[int]:
        self.topic.check()
        known = topic == self.topic.topic and not self.topic.hidden
        return set(range(len(self.topic.records))) if known else set()

    def beginning_offsets(self, places: Sequence[TopicPartition], timeout_ms: int) -> dict[TopicPartition, int]:
        assert timeout_ms <= 1000, "a look must not hold a batch up"
        self.topic.check()
        return {place: self.topic.first[place.partition] for place in places}

    def end_offsets(self, places: Sequence[TopicPartition], timeout_ms: int) -> dict[TopicPartition, int]:
        assert timeout_ms <= 1000, "a look must not hold a batch up"
        self.topic.check()
        return {place: self.topic.end[place.partition] for place in places}

    def assign(self, places: Sequence[TopicPartition]) -> None:
        self.at = {place.partition: self.at.get(place.partition, -1) for place in places}

    def seek(self, place: TopicPartition, offset: int) -> None:
        self.at[place.partition] = offset

    def pause(self, place: TopicPartition) -> None:
        self.paused.add(place.partition)
        self.switched += 1

    def resume(self, place: TopicPartition) -> None:
        self.paused.discard(place.partition)
        self.switched += 1

    def poll(self, timeout_ms: int, max_records: int) -> dict[TopicPartition, list[Any]]:
        assert timeout_ms <= 100, "a rank waits for events in `stopping.wait`"
        self.topic.check()
        self.polls += 1
        self.waits.append(timeout_ms)
        found: dict[TopicPartition, list[Any]] = {}
        for number, at in self.at.items():
            if number in self.paused or self.topic.hidden:
                continue
            if not self.topic.first[number] <= at <= self.topic.end[number]:
                raise OffsetOutOfRangeError({number: at})
            records = [
                SimpleNamespace(offset=offset, value=value, timestamp=offset * 1000)
                for offset, value in sorted(self.topic.records[number].items())
                if offset >= at
            ][:max_records]
            if records:
                found[TopicPartition(self.topic.topic, number)] = records
                self.at[number] = records[-1].offset + 1
        return found

    def close(self) -> None:
        self.closed = True
