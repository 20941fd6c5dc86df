"""The carrier for ranks in Ray: checksums go with a version, and a reader checks every byte unless it asked not to."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from life_kit import context as here
from ray.exceptions import GetTimeoutError

from dljob import CallError, UsageError
from dljob.runtime.process import context
from dljob.runtime.rpc import object_store
from dljob.runtime.weights import ray_transport
from dljob.runtime.weights.buckets import checksum
from dljob.runtime.weights.model import Version
from dljob.runtime.weights.ray_transport import RayCarrier

STATE = [[b"first", b"", b"second"], [b"third" * 1000]]


class Store:
    """In the place of Ray's store and of the keeper."""

    def __init__(self) -> None:
        self.put_: list[list[bytes]] = []
        self.offered: list[Version] = []
        self.whole = True
        """Whether the keeper has the bucket as it was published."""

    def put(self, parts: Any) -> int:
        self.put_.append([bytes(part) for part in parts])
        return len(self.put_) - 1

    def get(self, refs: Any, timeout: float) -> Any:
        assert timeout >= 0
        return [self.put_[ref] for ref in refs] if isinstance(refs, list) else refs.value

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "n1")

    def get_actor(self, _: str) -> Any:
        names = ("offer", "on_bucket", "line_address")
        return SimpleNamespace(**{name: SimpleNamespace(remote=getattr(self, name)) for name in names})

    def offer(self, _: object, version: Version) -> Any:
        self.offered.append(version)
        return SimpleNamespace(value=("token", 1))

    def line_address(self) -> Any:
        return SimpleNamespace(value="\0nobody listens here")

    def on_bucket(self, _: object, number: int) -> Any:
        return SimpleNamespace(value=STATE[number] if self.whole else [b"wrong"])


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store()
    monkeypatch.setattr(ray_transport, "ray", made)
    monkeypatch.setattr(object_store, "ray", made)
    context.install(here(world_size=2, peers={"w": 2}))
    return made


def carrier(store: Store, *, verify: bool = True) -> RayCarrier:
    keeper: Any = SimpleNamespace(caller="me", name="WeightChannel('p')", address=":weights:p")
    return RayCarrier(keeper, store.get_actor, verify=verify)


def published(store: Store) -> Version:
    carrier(store).publish(Version("a", 1, b""), [[memoryview(part) for part in bucket] for bucket in STATE])
    (version,) = store.offered
    return version


def found(buckets: Any) -> list[list[bytes]]:
    return [[bytes(view) for view in bucket] for bucket in buckets]


def test_version_is_offered_with_a_checksum_of_each_bucket(store):
    version = published(store)
    assert version.sums == tuple(checksum([memoryview(part) for part in bucket]) for bucket in STATE)
    assert (version.node, version.refs) == ("n1", [0, 1])
    assert found(carrier(store).fetch(version, None)) == STATE


def test_checksums_that_another_transport_needed_are_not_made_again(store):
    carrier(store).publish(Version("a", 1, b"", sums=(5,)), [[memoryview(b"x")]])
    assert store.offered[0].sums == (5,)


def test_one_flipped_bit_is_found_and_the_bucket_fetched_again(store):
    version = published(store)
    store.put_[1] = [bytes([STATE[1][0][0] ^ 1]) + STATE[1][0][1:]]
    assert found(carrier(store).fetch(version, None)) == STATE
    store.whole = False
    with pytest.raises(CallError, match=r"WeightChannel\('p'\)\.receive: a bucket arrived damaged at .*, twice"):
        carrier(store).fetch(version, None)


def test_publisher_that_asked_not_to_makes_no_checksums_and_its_readers_take_what_comes(store):
    carrier(store, verify=False).publish(Version("a", 1, b""), [[memoryview(b"x")], [memoryview(b"y")]])
    (version,) = store.offered
    assert version.sums == (None, None)
    assert found(carrier(store).fetch(version, None)) == [[b"x"], [b"y"]]


def test_reader_that_asked_not_to_checks_nothing(store):
    version = published(store)
    store.put_[0][0] = b"FIRST"
    assert found(carrier(store, verify=False).fetch(version, None)) == [[b"FIRST", b"", b"second"], STATE[1]]


def test_version_without_room_is_refused_before_any_bucket_is_stored(store, monkeypatch):
    needed: list[int] = []

    def no_room(size: int, what: str) -> None:
        needed.append(size)
        raise UsageError(f"{what}full")

    monkeypatch.setattr(object_store, "check_room", no_room)
    with pytest.raises(UsageError, match=r"publish: full"):
        published(store)
    assert (needed, store.put_) == ([sum(len(part) for bucket in STATE for part in bucket)], [])


@pytest.mark.parametrize(
    ("node", "copied", "is_refused"), [("n2", False, True), ("n1", True, True), ("n1", False, False)]
)
def test_version_that_would_come_to_a_node_without_room_is_not_fetched(node, copied, is_refused, store, monkeypatch):
    version = replace(published(store), node=node, copied=copied)

    def no_room(size: int, what: str) -> None:
        assert size == sum(len(part) for bucket in STATE for part in bucket)
        raise UsageError(f"{what}full")

    monkeypatch.setattr(object_store, "check_room", no_room)
    monkeypatch.setattr(object_store, "would_come", lambda *_: True)
    if not is_refused:
        assert found(carrier(store).fetch(version, None)) == STATE
        return
    monkeypatch.setattr(store, "get", pytest.fail)
    with pytest.raises(UsageError, match=r"WeightChannel\('p'\)\.receive: full"):
        carrier(store).fetch(version, None)


def test_version_whose_bytes_do_not_come_in_time_is_given_up_and_not_reported_lost(store, monkeypatch):
    version = published(store)

    def never(refs: Any, timeout: float) -> Any:
        if isinstance(refs, list):  # its publisher is stopped
            raise GetTimeoutError
        return refs.value

    monkeypatch.setattr(store, "get", never)
    assert carrier(store).fetch(version, 0.0) is None


def test_next_keeper_gets_a_line_of_its_own(store, monkeypatch):
    asked: list[str] = []
    monkeypatch.setattr(ray_transport, "line_to", lambda where: asked.append(where) or f"line {len(asked)}")
    made = carrier(store)
    assert [made._found_line(), made._found_line()] == ["line 1", "line 1"]
    made._actor = None  # as `ask` leaves it where the keeper has died
    made._found_actor()
    assert made._found_line() == "line 2"
