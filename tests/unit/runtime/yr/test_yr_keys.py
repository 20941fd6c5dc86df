"""The key-value store on openYuanrong's datasystem, over a client that refuses as the real one.

The real process carries the same calls in `tests/ray/backend/test_yr.py`.
"""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import pytest

pytest.importorskip("yr.datasystem", reason="openyuanrong-datasystem is not installed: pip install 'dljob[yr]'")

from dljob.errors import UnreachableError, UsageError
from dljob.runtime.yr import keys
from dljob.runtime.yr.keys import DatasystemKeyValue, LocalKeyValue, connected, escaped

ALLOWED = re.compile(r"[a-zA-Z0-9\-_!@#%^*()+=:;]{1,255}")


class Store:
    """Refuses as the datasystem of 0.8.1 does."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.full = False

    def _check(self, *keys: str) -> None:
        if self.full:
            raise RuntimeError("code: [Out of memory]")
        for key in keys:
            if not ALLOWED.fullmatch(key):
                raise RuntimeError("code: [Invalid parameter], msg: [The key contains illegal char(s)]")

    def set(self, key: str, val: bytes, *, ttl_second: int = 0) -> None:
        self._check(key)
        assert val, "dataSize value should be bigger than zero"
        self.values[key] = val

    def get(self, keys: list[str]) -> list[bytes]:
        self._check(*keys)
        if any(key not in self.values for key in keys):
            raise RuntimeError("code: [Key not found], msg: [Cannot get objects from worker]")
        return [self.values[key] for key in keys]

    def msettx(self, keys: list[str], vals: list[bytes], write_mode: Any, ttl_second: int, existence_opt: Any) -> None:
        self._check(*keys)
        assert existence_opt.name == "NX"
        with self.lock:
            if any(key in self.values for key in keys):
                raise RuntimeError(
                    "code: [Object already exist error], msg: [object[x] already exists in local worker]"
                )
            self.values.update(zip(keys, vals, strict=True))

    def delete(self, keys: list[str]) -> list[str]:
        self._check(*keys)
        for key in keys:
            self.values.pop(key, None)
        return []

    def exist(self, keys: list[str]) -> list[bool]:
        self._check(*keys)
        return [key in self.values for key in keys]


@pytest.fixture(params=["datasystem", "local"])
def pair(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """Two clients of one store."""
    if request.param == "local":
        local_store = LocalKeyValue()
        return local_store, local_store
    store = Store()
    return DatasystemKeyValue(store), DatasystemKeyValue(store)


async def test_a_process_that_comes_later_lists_all_that_was_written_before(pair):
    first, late = pair
    for key in ("a", "b", "c"):
        await first.put(key, b"")
    assert await late.keys("") == ("a", "b", "c")
    await late.put("d", b"")
    assert await first.keys("") == ("a", "b", "c", "d")


async def test_one_of_many_writers_wins_put_if_absent(pair):
    won = await asyncio.gather(*(pair[i % 2].put_if_absent("k", b"%d" % i) for i in range(8)))
    assert sum(won) == 1
    assert await pair[0].get("k") == b"%d" % won.index(True)
    assert await pair[1].keys("") == ("k",)


async def test_a_key_that_is_too_long_is_refused_with_its_length():
    with pytest.raises(UsageError, match="has 308 characters in the datasystem, which takes 255"):
        await DatasystemKeyValue(Store()).put("/" * 100, b"")
    assert escaped("a/b.c") == "a=2Fb=2Ec"


async def test_a_refusal_of_the_datasystem_says_what_to_do():
    store = Store()
    kv = DatasystemKeyValue(store)
    await kv.put("k", b"")
    store.full = True
    for call in (kv.put("k", b""), kv.put("l", b""), kv.get("k"), kv.keys(""), kv.delete("")):
        with pytest.raises(UnreachableError, match=r"the datasystem of this node refuses: code: .Out of memory"):
            await call


def test_without_an_address_the_connection_says_which_variables_to_set(monkeypatch):
    monkeypatch.setenv("DATASYSTEM_HOST", "127.0.0.1")
    monkeypatch.delenv("DATASYSTEM_PORT", raising=False)
    with pytest.raises(UsageError, match=r"the backend yr needs .*, which are 127.0.0.1 and not set"):
        connected()


async def test_many_keys_are_asked_for_in_parts(monkeypatch):
    monkeypatch.setattr(keys, "AT_ONCE", 3)
    kv = DatasystemKeyValue(Store())
    for number in range(7):
        await kv.put(f"k{number}", b"")
    assert len(await kv.keys("k")) == await kv.delete("k") == 7
