"""A source that reads a topic by Kafka's protocol, without a consumer group: PrimeMaster's journal has the offsets.

    source("clicks", "kafka://broker-1:9092,broker-2:9092/clicks", security_protocol="SSL")

Options are those of `kafka.KafkaConsumer`. Events of transactions that are not committed are not read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from dljob.errors import UsageError, not_installed
from dljob.runtime.data.source_reader import Extent, SourceError, SourceEvent

ASK_MS = 1000
"""Longest wait for an answer about offsets."""
POLL_MS = 20
"""Longest wait for events that are not here yet, and until a partition that had none is asked again."""
REFRESH_MS = 10_000
"""Age at which the list of partitions is asked for again, where the user sets none; added ones are seen then."""
RECORDS = 500
"""Most records that are taken at once, over all partitions."""
OWN = ("auto_offset_reset", "bootstrap_servers", "enable_auto_commit", "group_id", "isolation_level")
"""Options of the consumer that are not the user's: offsets are PrimeMaster's."""


def open_source(uri: str, options: Mapping[str, Any]) -> KafkaReader:
    """Open `kafka://HOST:PORT[,HOST:PORT...]/TOPIC`."""
    try:
        import kafka
    except ModuleNotFoundError as error:
        raise not_installed(error) or error from None
    parts = urlsplit(uri)
    topic = parts.path.removeprefix("/")
    if not parts.netloc or not topic or "/" in topic:
        raise UsageError(f"source({uri!r}): wanted brokers and a topic, as in kafka://broker:9092/clicks")
    if wrong := sorted(set(options) & set(OWN)):
        raise UsageError(f"source({uri!r}, {wrong[0]}=...): offsets are journaled by dljob, without a consumer group")
    defaults = {"auto_offset_reset": "none", "enable_auto_commit": False, "isolation_level": "read_committed"}
    fixed_options = {**defaults, "group_id": None, "bootstrap_servers": parts.netloc.split(",")}
    return KafkaReader(kafka, topic, {"metadata_max_age_ms": REFRESH_MS, **options, **fixed_options})


class KafkaReader:
    """The partitions of one topic. It connects when it is first asked, and again after an error of the connection."""

    def __init__(self, library: Any, topic: str, settings: Mapping[str, Any]) -> None:
        self._kafka = library
        self._topic = topic
        self._settings = dict(settings)
        self._consumer: Any = None
        self._ready: dict[int, deque[Any]] = {}
        """Partition -> records that were taken and not given; a partition that nobody reads is not in it."""
        self._next: dict[int, int] = {}
        """Partition -> the offset that its consumer reads next."""
        self._paused = set[int]()
        self._gave = set[int]()
        """The partitions that had records at the last poll; they may have more."""
        self._polled_at = float("-inf")

    def partitions(self) -> Mapping[str, Extent]:
        """Return the topic's partitions, and what each of them has now."""
        try:
            consumer = self._connected()
            numbers = consumer.partitions_for_topic(self._topic)
            if not numbers:
                # Not "gone": its rest would be given up for a right that is missing for a while, or a broker that lags.
                raise SourceError(f"the brokers know no topic {self._topic}, or this user may not read it")
            places = [self._kafka.TopicPartition(self._topic, number) for number in sorted(numbers)]
            first = consumer.beginning_offsets(places, timeout_ms=ASK_MS)
            last = consumer.end_offsets(places, timeout_ms=ASK_MS)
        except self._kafka.errors.KafkaError as error:
            raise SourceError(_words(error)) from error
        return {f"{self._topic}-{place.partition}": Extent(first[place], last[place]) for place in places}

    def read(self, partition: str, offset: int, most: int) -> Sequence[SourceEvent]:
        """Return the records of a partition that are here, or come soon."""
        number = int(partition.rpartition("-")[2])
        try:
            ready = self._moved(number, offset)
            # A poll asks all of them: a rank with a thousand silent partitions would otherwise wait a thousand times.
            if not ready and (number in self._gave or monotonic() - self._polled_at >= POLL_MS / 1000):
                self._poll()
        except self._kafka.errors.OffsetOutOfRangeError:
            # Deleted by retention: the next look at the partitions says which offsets there are.
            self._next.clear()
            return ()
        except self._kafka.errors.KafkaError as error:
            raise SourceError(_words(error)) from error
        events: list[SourceEvent] = []
        for record in list(ready)[:most]:
            ready.popleft()
            value = record.value if record.value is not None else b""
            events.append(SourceEvent(partition, record.offset, record.offset + 1, value, record.timestamp / 1000))
            self._next[number] = record.offset + 1
        return events

    def close(self) -> None:
        """Close the connections."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _connected(self) -> Any:
        if self._consumer is None:
            try:
                self._consumer = self._kafka.KafkaConsumer(**self._settings)
            except (AssertionError, self._kafka.errors.KafkaConfigurationError) as error:
                raise UsageError(f"source of topic {self._topic}: {error}") from error
            self._ready, self._next, self._paused, self._gave = {}, {}, set(), set()
        return self._consumer

    def _moved(self, number: int, offset: int) -> deque[Any]:
        """Return the records of a partition from an offset on that are here, after moving its consumer there."""
        consumer = self._connected()
        place = self._kafka.TopicPartition(self._topic, number)
        if number not in self._ready:
            self._ready[number] = deque()
            consumer.assign(
                [self._kafka.TopicPartition(self._topic, ready_number) for ready_number in sorted(self._ready)]
            )
        if self._next.get(number) != offset:
            self._ready[number].clear()
            consumer.seek(place, offset)
            self._next[number] = offset
        return self._ready[number]

    def _poll(self) -> None:
        """Take records of the partitions that have none here: the others have to be read first."""
        full = {number for number, ready in self._ready.items() if ready}
        for number in self._paused ^ full:
            change = self._consumer.pause if number in full else self._consumer.resume
            change(self._kafka.TopicPartition(self._topic, number))
        self._paused = full
        records_by_place = self._consumer.poll(timeout_ms=0 if full else POLL_MS, max_records=RECORDS)
        for place, records in records_by_place.items():
            self._ready[place.partition] += records
        self._gave = {place.partition for place in records_by_place}
        self._polled_at = monotonic()


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
