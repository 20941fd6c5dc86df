"""The reader of Kafka's topics: offsets, gaps, retention, partitions and errors, on a topic in memory."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from desk_kit import Desk
from kafka_kit import FakeTopic
from source_kit import offsets, told

from dljob.errors import UsageError
from dljob.runtime.data import kafka_reader
from dljob.runtime.data import source as module
from dljob.runtime.data.kafka_reader import KafkaReader, open_source
from dljob.runtime.data.source import BatchLimits, EventSource
from dljob.runtime.data.source_reader import Extent, SourceError, SourceEvent


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests have a clock of their own: what was asked just now is asked again."""
    monkeypatch.setattr(kafka_reader, "POLL_MS", 0)


def reader(topic: FakeTopic, name: str = "t", **settings: Any) -> KafkaReader:
    return KafkaReader(topic, name, settings)


def given(made: KafkaReader, partition: str, offset: int, most: int = 100) -> list[int]:
    return [event.offset for event in made.read(partition, offset, most)]


def opened(desk: Desk, me: Any, topic: FakeTopic, limits: BatchLimits | None = None) -> EventSource:
    limits = limits or BatchLimits(4, 100, 0.0)
    return EventSource(desk, "s", reader(topic), limits, clock=lambda: me.stopping.now)  # type: ignore[arg-type]


# -- the reader alone


def test_events_have_their_offsets_times_and_values():
    topic = FakeTopic(range(3))
    topic.append(0, None)
    made = reader(topic)
    assert made.partitions() == {"t-0": Extent(0, 4)}
    found = made.read("t-0", 2, 9)
    assert list(found) == [SourceEvent("t-0", 2, 3, b"2", 2.0), SourceEvent("t-0", 3, 4, b"", 3.0)], "a tombstone, too"
    assert given(made, "t-0", 4) == []


def test_an_offset_without_a_record_is_passed_over():
    made = reader(FakeTopic([0, 1, 4, 9]))
    assert given(made, "t-0", 0, 2) == [0, 1]
    assert given(made, "t-0", 2) == [4, 9], "markers of transactions, and records that were compacted away"


def test_records_that_were_taken_are_given_before_more_are_asked_for():
    topic = FakeTopic(range(9), range(4))
    made = reader(topic)
    assert [given(made, "t-0", at, 3) for at in (0, 3, 6)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    (consumer,) = topic.consumers
    assert consumer.polls == 1
    given(made, "t-0", 9)
    made.read("t-1", 0, 1)
    topic.append(0, b"x")
    given(made, "t-0", 9)
    assert consumer.paused == {1}, "a partition that has records here does not fill memory with more"


def test_partitions_without_records_are_asked_together_and_not_one_after_another(monkeypatch):
    monkeypatch.setattr(kafka_reader, "POLL_MS", 100)
    monkeypatch.setattr(kafka_reader, "monotonic", lambda: now)
    topic = FakeTopic(range(9), *([] for _ in range(127)))
    made, now = reader(topic), 0.0
    names = [f"t-{number}" for number in range(128)]
    assert given(made, "t-0", 0, 3) == [0, 1, 2]
    (consumer,) = topic.consumers
    for name in names[1:]:
        assert given(made, name, 0) == []
    assert consumer.polls == 1
    now += 0.2
    assert given(made, "t-1", 0) == []
    polls, switched = consumer.polls, consumer.switched
    for _ in range(3):
        now += 0.2
        for name in names[1:]:
            assert given(made, name, 0) == []
    assert consumer.polls == polls + 3
    assert consumer.switched == switched, "none has changed"
    assert consumer.waits[-1] == 0, "records that are here wait for nobody"
    topic.append(1, b"x")
    now += 0.2
    assert given(made, "t-2", 0) == []
    assert given(made, "t-1", 0) == [0], "it came when another was asked"
    topic.append(1, b"y")
    assert given(made, "t-1", 1) == [1], "one that had records is asked at once"


def test_a_reader_that_is_asked_for_earlier_offsets_goes_back():
    made = reader(FakeTopic(range(9)))
    assert given(made, "t-0", 0, 5) == [0, 1, 2, 3, 4]
    assert given(made, "t-0", 3, 2) == [3, 4]
    assert given(made, "t-0", 7) == [7, 8]


def test_deleted_offsets_give_nothing_and_the_other_partitions_go_on():
    topic = FakeTopic(range(9), range(4))
    made = reader(topic)
    given(made, "t-0", 0, 1)
    topic.delete(1, 3)
    assert given(made, "t-1", 0) == []
    assert made.partitions()["t-1"] == Extent(3, 4)
    assert given(made, "t-1", 3) == [3]
    assert given(made, "t-0", 1, 2) == [1, 2]


def test_a_broker_that_does_not_answer_is_said_in_words_and_asked_again():
    topic = FakeTopic(range(3))
    topic.away = "no answer in 1000 ms"
    made = reader(topic)
    for ask in (made.partitions, lambda: made.read("t-0", 0, 9)):
        with pytest.raises(SourceError, match="KafkaTimeoutError: no answer in 1000 ms"):
            ask()
    topic.away = ""
    assert given(made, "t-0", 0) == [0, 1, 2]
    topic.away = "gone again"
    with pytest.raises(SourceError, match="gone again"):
        made.partitions()
    topic.away = ""
    assert list(made.partitions()) == ["t-0"]
    assert len(topic.consumers) == 1, "its client connects again by itself"
    made.close()
    made.close()
    assert topic.consumers[0].closed


def test_a_topic_that_is_not_there_does_not_answer_and_a_wrong_option_is_the_users():
    topic = FakeTopic(range(3))
    with pytest.raises(SourceError, match="the brokers know no topic other, or this user may not read it"):
        reader(topic, "other").partitions()
    topic.refused = "Unrecognized configs: {'colour'}"
    with pytest.raises(UsageError, match="source of topic t: Unrecognized configs"):
        reader(topic).partitions()


@pytest.mark.parametrize(
    ("uri", "options", "why"),
    [
        ("kafka://broker:9092", {}, "wanted brokers and a topic"),
        ("kafka:///clicks", {}, "wanted brokers and a topic"),
        ("kafka://broker:9092/a/b", {}, "wanted brokers and a topic"),
        ("kafka://broker:9092/clicks", {"group_id": "g"}, "group_id=.*offsets are journaled by dljob"),
    ],
)
def test_wrong_addresses_and_options_of_a_topic_are_named(monkeypatch, uri, options, why):
    monkeypatch.setitem(sys.modules, "kafka", SimpleNamespace())
    with pytest.raises(UsageError, match=why):
        open_source(uri, options)


def test_a_topic_is_read_without_a_group_and_new_partitions_are_seen_within_seconds(monkeypatch):
    topic = FakeTopic(range(1), topic="clicks")
    monkeypatch.setitem(sys.modules, "kafka", topic)
    open_source("kafka://a:9092,b:9092/clicks", {"security_protocol": "SSL"}).partitions()
    settings = topic.consumers[0].settings
    assert settings.pop("metadata_max_age_ms") <= 10_000
    assert settings == {
        "bootstrap_servers": ["a:9092", "b:9092"],
        "group_id": None,
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
        "isolation_level": "read_committed",
        "security_protocol": "SSL",
    }
    open_source("kafka://a:9092/clicks", {"metadata_max_age_ms": 60_000}).partitions()
    assert topic.consumers[1].settings["metadata_max_age_ms"] == 60_000


def test_a_missing_package_names_the_extra_that_has_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "kafka", None)
    with pytest.raises(UsageError, match=r"dljob\[kafka\]"):
        open_source("kafka://broker:9092/clicks", {})


def test_the_stand_in_has_no_setting_that_the_package_lacks():
    if importlib.util.find_spec("kafka") is None:
        pytest.skip("the extra kafka is not installed")
    import kafka

    topic = FakeTopic(range(1), topic="clicks")
    made = open_source("kafka://a:9092/clicks", {})
    made._kafka = topic
    made.partitions()
    assert set(topic.consumers[0].settings) <= set(kafka.KafkaConsumer.DEFAULT_CONFIG)
    for name in vars(topic.errors):
        assert issubclass(getattr(kafka.errors, name), kafka.errors.KafkaError), name


# -- through a source, on the real core


def test_gaps_in_offsets_are_no_loss(desk, me):
    mine = opened(desk, me, FakeTopic([0, 1, 4, 9]))
    assert offsets(mine.take()) == [("t-0", n) for n in (0, 1, 4, 9)]
    me.stopping.now += 2
    assert mine.take(timeout=0) is None
    assert (told(desk), [event.lost for event in desk.journal if event.lost]) == ([], [])


def test_a_topic_that_is_unknown_for_a_while_is_not_given_up(desk, me):
    topic = FakeTopic(range(8))
    mine = opened(desk, me, topic)
    mine.take()
    topic.hidden = True
    assert offsets(mine.take()) == [("t-0", n) for n in range(4, 8)], "they were taken before"
    assert mine.take(timeout=20) is None
    topic.hidden = False
    topic.append(0, b"x")
    assert offsets(mine.take()) == [("t-0", 8)]
    assert [event.lost for event in desk.journal if event.lost] == []
    assert told(desk) == [
        "it does not answer: the brokers know no topic t, or this user may not read it; it is asked again"
    ]


def test_a_topic_that_is_silent_for_an_hour_is_waited_for(desk, me, monkeypatch):
    monkeypatch.setattr(module, "POLL_S", 1.0)
    topic = FakeTopic(range(2))
    mine = opened(desk, me, topic)
    list(mine.take() or ())
    me.stopping.end = 1_000_000
    journal = len(desk.journal)
    assert mine.take(timeout=3600) is None
    assert len(desk.journal) <= journal + 1, "silence writes nothing: only what was done before"
    assert mine.watermark == 1.0
    topic.append(0, b"at last")
    assert offsets(mine.take()) == [("t-0", 2)]
