"""WeightChannel by openYuanrong's datasystem, which is a dict here: what is stored, deleted and told.

`tests/ray/data/test_queues_and_weights.py` has the real one.
"""

from __future__ import annotations

import inspect
import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from dljob import UsageError, WeightChannel
from dljob.runtime.weights import yr_transport
from dljob.runtime.weights.yr_transport import YrTransport


class Store:
    """What `KVClient` does, with its words."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, val: Any, *, ttl_second: int) -> None:
        assert ttl_second == yr_transport.KEPT_S
        assert len(val)
        self.values[key] = bytes(val)

    def get(self, keys: list[str]) -> list[bytes]:
        if any(key not in self.values for key in keys):
            raise RuntimeError("code: [Key not found], msg: [Cannot get objects from worker]")
        return [self.values[key] for key in keys]

    def delete(self, keys: list[str]) -> list[str]:
        return [key for key in keys if self.values.pop(key, None) is None]


@pytest.fixture(autouse=True)
def me(monkeypatch) -> Any:
    rank = SimpleNamespace(name="trainer/0", job_uid="0" * 32, job_dir="")
    monkeypatch.setattr(yr_transport, "current_worker", lambda: rank)
    yr_transport._connect_once.cache_clear()
    yield rank
    yr_transport._connect_once.cache_clear()


def test_buckets_come_back_an_empty_one_is_not_stored_and_the_last_two_versions_are_kept(monkeypatch):
    datasystem = Store()
    monkeypatch.setattr(yr_transport, "connect", lambda _: datasystem)
    publisher, reader = YrTransport("policy"), YrTransport("policy")
    buckets = [[memoryview(b"one")], [memoryview(b"")], [memoryview(b"two"), memoryview(b"three")]]
    addresses = [publisher.publish(number, buckets) for number in range(4)]
    assert len(datasystem.values) == 4
    assert reader.receive(addresses[2], [3, 0, 8]) == [b"one", b"", b"twothree"]
    with pytest.raises(RuntimeError, match="Key not found"):
        reader.receive(addresses[1], [3, 0, 8])
    assert publisher.publish(4, [[memoryview(b"")]])
    assert publisher.publish(5, [[memoryview(b"")]])
    assert publisher.publish(6, [[memoryview(b"")]])
    assert datasystem.values == {}


def delete_nothing(keys: list[str]) -> list[str]:
    raise RuntimeError("code: [RPC unavailable]")


@pytest.mark.parametrize(("delete", "reason"), [(delete_nothing, "RPC unavailable"), (list, "it gave no reason")])
def test_values_that_cannot_be_deleted_are_named_once_and_versions_go_on(monkeypatch, caplog, delete, reason):
    datasystem = Store()
    monkeypatch.setattr(yr_transport, "connect", lambda _: datasystem)
    publisher = YrTransport("policy")
    bucket = [memoryview(b"one")]
    addresses = [publisher.publish(number, [bucket]) for number in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(datasystem, "delete", delete)
        addresses += [publisher.publish(number, [bucket] * 6) for number in range(2, 6)]
    (warning,) = caplog.messages
    assert warning.startswith("WeightChannel('policy').publish: the datasystem has not deleted values")
    assert f"{addresses[0]}-0" in warning
    assert reason in warning
    assert publisher.receive(addresses[-1], [3]) == [b"one"]
    publisher.publish(6, [bucket])  # it works again
    assert f"{addresses[4]}-0" not in datasystem.values
    monkeypatch.setattr(datasystem, "delete", delete)
    publisher.publish(7, [bucket])
    assert len(caplog.messages) == 2
    assert caplog.messages[1].count(addresses[5]) == 3
    assert "and 3 more" in caplog.messages[1]


def test_values_of_a_version_that_could_not_be_stored_whole_are_deleted(monkeypatch):
    """Nobody learns their address, and a datasystem that is full is filled by them."""
    datasystem = Store()
    monkeypatch.setattr(yr_transport, "connect", lambda _: datasystem)
    publisher, store_value = YrTransport("policy"), datasystem.set

    def refuse_third(key: str, val: Any, *, ttl_second: int) -> None:
        if len(datasystem.values) == 3:
            raise RuntimeError("code: [Out of memory]")
        store_value(key, val, ttl_second=ttl_second)

    publisher.publish(1, [[memoryview(b"one")]])
    with monkeypatch.context() as patch:
        patch.setattr(datasystem, "set", refuse_third)
        for number in (2, 3):
            with pytest.raises(RuntimeError, match="Out of memory"):
                publisher.publish(number, [[memoryview(b"one")]] * 3)
            assert len(datasystem.values) == 1
    addresses = [publisher.publish(number, [[memoryview(b"one")]]) for number in (4, 5)]
    assert list(datasystem.values) == [f"{address}-0" for address in addresses]


# -- the real client, without a datasystem


@pytest.mark.parametrize("port", ["", "x"])
def test_without_an_address_the_transport_says_which_variables_to_set(monkeypatch, port):
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
def test_a_failed_connection_to_the_datasystem_is_told(monkeypatch, module, words):
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


def test_each_process_has_one_client_and_logs_in_the_folder_of_the_job(me, monkeypatch, tmp_path):
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
    me.job_dir = str(tmp_path)
    assert YrTransport("a")._client is YrTransport("b")._client
    monkeypatch.setattr(os, "getpid", lambda: -1)
    YrTransport("a")
    assert addresses == [("h", 7)] * 2
    assert os.environ["DATASYSTEM_CLIENT_LOG_DIR"] == str(tmp_path / "logs" / "datasystem")
