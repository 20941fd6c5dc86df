"""WeightChannel by openYuanrong's datasystem, which is a dict here: what is stored, deleted, checked and told.

`tests/ray/data/test_queues_and_weights.py` has the real one.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dljob import CallError, UsageError, WeightChannel
from dljob.calls.backlog import QueueCaller
from dljob.runtime.rpc import storage_actor
from dljob.runtime.weights import channel, transport, yr_transport
from dljob.runtime.weights.keeper import WeightsKeeper
from dljob.runtime.weights.model import Stored, Version


class Store:
    """What `KVClient` does, with its words."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.refuses = ""
        self.keeps = False

    def set(self, key: str, val: Any, *, ttl_second: int) -> None:
        assert ttl_second == yr_transport.KEPT_S
        if self.refuses:
            raise RuntimeError(self.refuses)
        assert len(val)
        self.values[key] = bytes(val)

    def get(self, keys: list[str]) -> list[bytes]:
        if self.refuses:
            raise RuntimeError(self.refuses)
        if any(key not in self.values for key in keys):
            raise RuntimeError("code: [Key not found], msg: [Cannot get objects from worker]")
        return [self.values[key] for key in keys]

    def delete(self, keys: list[str]) -> list[str]:
        if self.keeps:
            raise RuntimeError("code: [RPC unavailable]")
        return [key for key in keys if self.values.pop(key, None) is None]


class Line:
    """In the place of `StorageClient`: straight to a keeper in a loop of its own."""

    name, who, address = "WeightChannel('policy')", QueueCaller("trainer/0", 1, "line"), ":weights:policy"

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        job: Any = SimpleNamespace(lease_s=30.0)
        self.keeper = WeightsKeeper(job, "policy")

    def ask(self, method: str, *args: Any, timeout_s: float | None) -> Any:
        return self.loop.run_until_complete(getattr(self.keeper, f"on_{method}")(*args))


@pytest.fixture
def store(monkeypatch) -> Store:
    datasystem = Store()
    monkeypatch.setattr(yr_transport, "client", lambda _: datasystem)
    return datasystem


@pytest.fixture
def line(monkeypatch) -> Iterator[Line]:
    monkeypatch.setattr(storage_actor, "Guard", lambda *_: None)
    monkeypatch.setattr(storage_actor.storage_actors, "follow_master", lambda *_: None)
    noted: dict[str, int] = {}
    me = SimpleNamespace(
        name="trainer/0", role="trainer", rank=0, job_uid="0" * 32, job_dir="", calls=None, note=noted.__setitem__
    )
    for module in (yr_transport, channel, transport):
        monkeypatch.setattr(module, "current_worker", lambda: me)
    keeper_line = Line()
    yield keeper_line
    keeper_line.loop.close()


def a_channel(line: Line, **options: Any) -> WeightChannel:
    channel = WeightChannel("policy", **options)
    channel._keeper = line
    channel._datasystem = None
    return channel


def test_a_version_published_by_yr_is_received_by_a_channel_without_yr(store, line):
    reader = a_channel(line)
    a_channel(line, transport="yr").publish(1, {"w": np.arange(9.0), "x": np.ones(3), "none": np.zeros(0), "step": 1})
    version, state = reader.receive(60)
    assert (version, state["step"]) == (1, 1)
    assert np.array_equal(state["w"], np.arange(9.0))
    assert np.array_equal(state["x"], np.ones(3))
    assert state["none"].shape == (0,)
    assert len(store.values) == 1


def test_an_empty_value_is_not_stored(store, line):
    a_channel(line, transport="yr").publish(1, {"none": np.zeros(0), "step": 4})
    assert store.values == {}
    assert a_channel(line).receive(60)[1]["step"] == 4


def test_the_last_two_are_kept_and_what_they_replace_is_deleted(store, line):
    channel = a_channel(line, transport="yr")
    for version in range(1, 5):
        channel.publish(version, {"w": np.full(8, version, dtype=np.uint8)})
    assert list(store.values.values()) == [bytes([3] * 8), bytes([4] * 8)]


def test_keys_of_a_version_refused_by_the_keeper_are_deleted(store, line):
    channel = a_channel(line, transport="yr")
    channel.publish(2, {"w": np.ones(3)})
    line.keeper._publisher = QueueCaller("trainer/1", 1, "other")
    with pytest.raises(UsageError, match="trainer/1 publishes here, not trainer/0"):
        channel.publish(3, {"w": np.ones(3)})
    assert len(store.values) == 1


def test_a_key_that_cannot_be_deleted_is_left_to_expire(store, line, caplog):
    channel = a_channel(line, transport="yr")
    store.keeps = True
    for version in range(1, 4):
        channel.publish(version, {"w": np.full(8, version, dtype=np.uint8)})
    assert channel.latest() == 3
    assert len(store.values) == 3
    warning = "WeightChannel('policy').publish: old versions may stay for up to 86400 s: code: [RPC unavailable]"
    assert caplog.messages == [warning]
    line.keeper._publisher = QueueCaller("trainer/1", 1, "other")
    with pytest.raises(UsageError, match="trainer/1 publishes here, not trainer/0"):
        channel.publish(4, {"w": np.ones(3)})


def test_a_version_that_is_gone_is_offered_no_more(store, line):
    channel = a_channel(line, transport="yr")
    channel.publish(1, {"w": np.ones(3)})
    channel.publish(2, {"w": np.ones(4)})
    del store.values[list(store.values)[1]]
    with pytest.raises(TimeoutError, match="version 2 did not come whole in 0 s"):
        a_channel(line).receive(0)
    assert channel.latest() == 1
    assert a_channel(line).receive(60)[0] == 1


def test_a_changed_byte_is_detected(store, line):
    a_channel(line, transport="yr").publish(1, {"w": np.ones(3)})
    key = next(iter(store.values))
    store.values[key] = b"x" + store.values[key][1:]
    with pytest.raises(CallError, match=r"a bucket arrived damaged at trainer/0, twice"):
        a_channel(line).receive(60)


def test_a_store_that_refuses_is_told_with_its_own_words(store, line):
    channel = a_channel(line, transport="yr")
    channel.publish(1, {"w": np.ones(3)})
    store.refuses = "code: [Out of memory]"
    with pytest.raises(
        CallError, match=r"publish: the datasystem of the node of trainer/0 refuses: code: .Out of"
    ) as error:
        channel.publish(2, {"w": np.ones(3)})
    assert "--shared_memory_size_mb" in error.value.hint
    with pytest.raises(CallError, match=r"receive: the datasystem of the node of trainer/0 refuses"):
        a_channel(line).receive(60)


async def test_a_version_that_is_stored_is_not_copied_and_may_be_told_twice(line):
    stored = Version("n", 1, b"", stored=(Stored("k", (1,)),), sums=(5,))
    assert await line.keeper.on_stored(Line.who, stored) == ()
    assert await line.keeper.on_stored(Line.who, stored) == ()
    assert not line.keeper._tasks.tasks
    assert (await line.keeper.on_receive(("", 0), 0)).stored == stored.stored


# -- the real client, without a datasystem


@pytest.mark.parametrize("port", ["", "x"])
def test_without_an_address_the_transport_says_which_variables_to_set(line, monkeypatch, port):
    monkeypatch.delenv("DATASYSTEM_HOST", raising=False)
    monkeypatch.setenv("DATASYSTEM_PORT", port)
    with pytest.raises(
        UsageError, match=r"policy'\): the transport yr needs DATASYSTEM_HOST and DATASYSTEM_PORT"
    ) as error:
        WeightChannel("policy", transport="yr")
    assert "spec.env" in error.value.hint


def refuse(*_: Any, **__: Any) -> None:
    raise RuntimeError("code: [1001]")


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (SimpleNamespace(KVClient=refuse), "no datasystem of openYuanrong answers at h:7: code: .1001."),
        (None, "the transport yr is not installed"),
    ],
)
def test_a_failed_connection_to_the_datasystem_is_told(line, monkeypatch, module, words):
    monkeypatch.setenv("DATASYSTEM_HOST", "h")
    monkeypatch.setenv("DATASYSTEM_PORT", "7")
    monkeypatch.setitem(sys.modules, "yr.datasystem", module)
    with pytest.raises(UsageError, match=rf"policy'\): {words}"):
        WeightChannel("policy", transport="yr")


def test_the_stand_in_has_the_signatures_of_the_real_client(monkeypatch, tmp_path):
    monkeypatch.setenv("DATASYSTEM_CLIENT_LOG_DIR", str(tmp_path))
    real = pytest.importorskip("yr.datasystem").KVClient
    for method in ("set", "get", "delete"):
        our_names = list(inspect.signature(getattr(Store, method)).parameters)
        real_names = inspect.signature(getattr(real, method)).parameters
        assert set(our_names) <= set(real_names)
        positional = [name for name in our_names if name != "ttl_second"]
        assert positional == list(real_names)[: len(positional)]
    assert {"host", "port", "connect_timeout_ms", "req_timeout_ms"} <= set(inspect.signature(real).parameters)


def test_each_process_has_one_client_and_logs_in_the_folder_of_the_job(line, monkeypatch, tmp_path):
    datasystem = pytest.importorskip("yr.datasystem")
    addresses: list[tuple[Any, ...]] = []

    class Client:
        def __init__(self, *args: Any, **_: Any) -> None:
            addresses.append(args)

        def init(self) -> None:
            pass

    monkeypatch.setattr(datasystem, "KVClient", Client)
    monkeypatch.setenv("DATASYSTEM_HOST", "h")
    monkeypatch.setenv("DATASYSTEM_PORT", "7")
    monkeypatch.setenv("DATASYSTEM_CLIENT_LOG_DIR", "")
    monkeypatch.delenv("DATASYSTEM_CLIENT_LOG_DIR")
    (tmp_path / "logs").mkdir()
    yr_transport.current_worker().job_dir = str(tmp_path)
    yr_transport._connect_once.cache_clear()
    assert yr_transport.client("a") is yr_transport.client("b")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    yr_transport.client("a")
    assert addresses == [("h", 7)] * 2
    assert os.environ["DATASYSTEM_CLIENT_LOG_DIR"] == str(tmp_path / "logs" / "datasystem")
    yr_transport._connect_once.cache_clear()
