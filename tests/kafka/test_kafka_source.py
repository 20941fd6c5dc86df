"""Sources by Kafka's protocol, against Kafka's own broker: killed, with transactions, retention and new partitions."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from broker import Broker, MissingError
from kafka.admin import KafkaAdminClient, NewPartitions, NewTopic

import kafka
from dljob.runtime.data.kafka_reader import KafkaReader, open_source
from dljob.runtime.data.source_reader import SourceError, SourceEvent

pytestmark = pytest.mark.timeout(900)  # a Java and its restarts, on a machine that does more
TOPICS = ("plain", "committed", "deleted", "grown", "remade")


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    try:
        made = Broker(tmp_path_factory.mktemp("kafka"))
        made.start()
    except MissingError as error:
        pytest.skip(str(error))
    yield made
    made.kill()


@pytest.fixture(scope="module")
def admin(broker):
    made = patiently(lambda: KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{broker.port}"))
    made.create_topics([NewTopic(name, 2 if name == "plain" else 1, 1) for name in TOPICS])
    yield made
    made.close()


def patiently(ask, within: float = 300.0):
    """Ask until there is an answer: a broker that has just started refuses some."""
    deadline = time.monotonic() + within
    while True:
        try:
            if answer := ask():
                return answer
        except (kafka.errors.KafkaError, SourceError):
            if time.monotonic() > deadline:
                raise
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def reader(broker, admin, request):
    del admin
    made = open_source(f"{broker.uri}/{request.param}", {})
    yield made
    made.close()


def produce(broker, topic: str, first: int, end: int, partition: int = 0) -> None:
    producer = patiently(lambda: kafka.KafkaProducer(bootstrap_servers=f"127.0.0.1:{broker.port}"))
    for n in range(first, end):
        producer.send(topic, str(n).encode(), partition=partition)
    producer.flush(60)
    producer.close()


def read(reader: KafkaReader, name: str, offset: int, count: int) -> list[SourceEvent]:
    """Read until there are so many events, as a source does: each time from behind the last."""
    found: list[SourceEvent] = []

    def more() -> bool:
        found.extend(reader.read(name, found[-1].next if found else offset, 7))
        return len(found) >= count

    patiently(more)
    return found


@pytest.mark.parametrize("reader", ["plain"], indirect=True)
def test_events_of_a_partition_are_read_from_any_offset_before_and_after_a_broker_is_killed(broker, reader):
    produce(broker, "plain", 0, 20)
    produce(broker, "plain", 100, 103, partition=1)
    extents = patiently(reader.partitions)
    assert {name: (one.first, one.next) for name, one in extents.items()} == {"plain-0": (0, 20), "plain-1": (0, 3)}
    assert [event.value for event in read(reader, "plain-1", 0, 3)] == [b"100", b"101", b"102"]
    assert [int(event.value) for event in read(reader, "plain-0", 0, 20)] == list(range(20))
    broker.kill()
    with pytest.raises(SourceError):
        patiently(reader.partitions, 0.0)
    broker.start()
    produce(broker, "plain", 20, 25)
    assert [int(event.value) for event in read(reader, "plain-0", 15, 10)] == list(range(15, 25))
    assert abs(read(reader, "plain-0", 24, 1)[0].time - time.time()) < 600


@pytest.mark.parametrize("reader", ["committed"], indirect=True)
def test_a_broker_killed_in_the_middle_of_a_commit_loses_and_repeats_nothing(broker, reader):
    # A broker that was away for longer than a transaction may take gives it up, and the commit fails: its writer has
    # to write the events again. A restart takes 5 s, on a busy machine more than the default of 60 s.
    settings = {"transactional_id": "writer", "transaction_timeout_ms": 600_000, "delivery_timeout_ms": 600_000}
    producer = patiently(lambda: kafka.KafkaProducer(bootstrap_servers=f"127.0.0.1:{broker.port}", **settings))
    patiently(lambda: producer.init_transactions() or True)
    whole: list[int] = []
    found: list[SourceEvent] = []
    for turn in range(3):
        producer.begin_transaction()
        numbers = range(turn * 10, turn * 10 + 10)
        sent = [producer.send("committed", str(n).encode(), partition=0) for n in numbers]
        producer.flush(60)
        if turn == 1:
            extents = patiently(reader.partitions)
            assert extents["committed-0"].next <= sent[0].get(60).offset, "what is not committed is not there"
            # The commit is under way when the broker dies; the client repeats it.
            with ThreadPoolExecutor(1) as pool:
                commit = pool.submit(producer.commit_transaction)
                broker.kill()
                broker.start()
                commit.result(300)
        else:
            producer.commit_transaction()
        whole += numbers
        found += read(reader, "committed-0", found[-1].next if found else 0, 10)
        assert Counter(int(event.value) for event in found) == Counter(whole)
        given_up(producer)
    producer.close()


def given_up(producer) -> None:
    """Write events in a transaction that is aborted: their offsets are passed over."""
    producer.begin_transaction()
    for n in range(900, 905):
        producer.send("committed", str(n).encode(), partition=0)
    producer.flush(60)
    producer.abort_transaction()


@pytest.mark.parametrize("reader", ["deleted"], indirect=True)
def test_offsets_that_retention_deleted_are_not_there_and_reading_goes_on_behind_them(broker, admin, reader):
    produce(broker, "deleted", 0, 30)
    assert read(reader, "deleted-0", 0, 5)
    admin.delete_records({kafka.TopicPartition("deleted", 0): 20})
    assert patiently(lambda: reader.partitions()["deleted-0"].first) == 20
    other = open_source(f"{broker.uri}/deleted", {})
    assert patiently(lambda: not other.read("deleted-0", 3, 9))
    assert [int(event.value) for event in read(other, "deleted-0", 20, 10)] == list(range(20, 30))
    other.close()


@pytest.mark.parametrize("reader", ["grown"], indirect=True)
def test_a_partition_that_is_added_is_seen(broker, admin, reader):
    assert list(patiently(reader.partitions)) == ["grown-0"]
    admin.create_partitions({"grown": NewPartitions(2)})
    produce(broker, "grown", 0, 3, partition=1)
    assert list(patiently(lambda: len(reader.partitions()) == 2 and reader.partitions())) == ["grown-0", "grown-1"]
    assert [int(event.value) for event in read(reader, "grown-1", 0, 3)] == [0, 1, 2]
