"""A key-value store on openYuanrong's datasystem, and one in this process for the local mode.

The datasystem takes neither empty values nor all characters in keys, and cannot list keys (openyuanrong-datasystem
0.8.1). So keys are escaped, values have a byte in front, and a new key is first noted in an index, of which each entry
is written once: the datasystem's own put-if-absent is atomic. A list reads new entries of the index, and asks which of
the keys exist. The index never shrinks.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Sequence
from typing import Any, Protocol, cast

from dljob.errors import UnreachableError, UsageError

HOST, PORT = "DATASYSTEM_HOST", "DATASYSTEM_PORT"
"""Address of the datasystem's process on this node; its own clients read the same variables."""
ABSENT, PRESENT = "Key not found", "already exist"
"""Parts of the datasystem's errors, which have no class or code for these cases."""
CONNECT_MS = 10_000
REQUEST_MS = 60_000
LONGEST = 255
"""Most characters of a key in the datasystem."""
AT_ONCE = 500
"""Keys in one request."""
_ODD = re.compile(r"[^a-zA-Z0-9_-]")


class KeyClient(Protocol):
    """The methods of `yr.datasystem.KVClient` in use. Source: openyuanrong-datasystem 0.8.1."""

    def set(self, key: str, val: bytes) -> None:
        """Write a value, over an older one. Raises RuntimeError when it cannot."""
        ...

    def get(self, keys: list[str]) -> Sequence[bytes]:
        """Return copies of values. Raises RuntimeError with `Key not found` if one is missing."""
        ...

    def msettx(self, keys: list[str], vals: list[bytes], write_mode: Any, ttl_second: int, existence_opt: Any) -> None:
        """Write values of new keys, all or none. Raises RuntimeError with `already exist`."""
        ...

    def delete(self, keys: list[str]) -> Sequence[str]:
        """Delete those of these keys that exist; return the ones that could not be deleted."""
        ...

    def exist(self, keys: list[str]) -> Sequence[bool]:
        """Return for each key whether it exists."""
        ...


def escaped(key: str) -> str:
    """Encode a key in the datasystem's characters: every other byte as `=` and two hex digits.

    Raises:
        UsageError: The result is too long.
    """
    made = _ODD.sub(lambda odd: "".join(f"={byte:02X}" for byte in odd[0].encode()), key)
    if len(made) > LONGEST:
        raise UsageError(f"the key {key[:60]}... has {len(made)} characters in the datasystem, which takes {LONGEST}")
    return made


class DatasystemKeyValue:
    """A `backend.interface.KeyValue` on the datasystem; each `scope` has keys of its own."""

    def __init__(self, client: KeyClient, scope: str = "dljob") -> None:
        from yr.datasystem.kv_client import ExistenceOpt, WriteMode

        self._client = client
        self._scope = scope
        self._new = (WriteMode.NONE_L2_CACHE, 0, ExistenceOpt.NX)
        self._lock = threading.Lock()
        self._read = 0
        """Number of index entries that this process has read."""
        # A set, though the index is a list: two processes may have noted the same key.
        self._known: set[str] = set()

    async def get(self, key: str) -> bytes | None:
        """Return the value of a key; None if it has none."""
        return await asyncio.to_thread(self._get, self._at(key))

    async def put(self, key: str, value: bytes) -> None:
        """Write a value, over an older one."""
        await asyncio.to_thread(self._put, key, value)

    async def put_if_absent(self, key: str, value: bytes) -> bool:
        """Write a value if there is none; return whether it was written."""
        return await asyncio.to_thread(self._put_if_absent, key, value)

    async def delete(self, prefix: str) -> int:
        """Delete all keys with a prefix; return their number."""
        return await asyncio.to_thread(self._delete, prefix)

    async def keys(self, prefix: str) -> tuple[str, ...]:
        """Return all keys with a prefix, sorted."""
        return await asyncio.to_thread(self._keys, prefix)

    # -- run in a thread, since each asks another process

    def _at(self, key: str) -> str:
        return escaped(f"{self._scope}:{key}")

    def _entry(self, number: int) -> str:
        return escaped(f"{self._scope}#{number}")

    def _get(self, at: str) -> bytes | None:
        try:
            # Without the byte in front, by which an empty value is none for the datasystem.
            return bytes(self._client.get([at])[0])[1:]
        except RuntimeError as error:
            if ABSENT in str(error):
                return None
            raise _failed(error) from error

    def _put(self, key: str, value: bytes) -> None:
        self._note(key)
        try:
            self._client.set(self._at(key), b"=" + value)
        except RuntimeError as error:
            raise _failed(error) from error

    def _put_if_absent(self, key: str, value: bytes) -> bool:
        self._note(key)
        return self._put_new(self._at(key), value)

    def _put_new(self, at: str, value: bytes) -> bool:
        try:
            self._client.msettx([at], [b"=" + value], *self._new)
        except RuntimeError as error:
            # Another process was faster: that is an answer, and no failure.
            if PRESENT in str(error):
                return False
            raise _failed(error) from error
        return True

    def _note(self, key: str) -> None:
        """Add a key to the end of the index, before its value is written, so that every value is listed."""
        with self._lock:
            # Write at the first free entry; if another process was faster there, read on and try the next one.
            while key not in self._known:
                if self._put_new(self._entry(self._read), key.encode()):
                    self._known.add(key)
                    self._read += 1
                else:
                    self._catch_up()

    def _catch_up(self) -> None:
        while (entry := self._get(self._entry(self._read))) is not None:
            self._known.add(entry.decode())
            self._read += 1

    def _keys(self, prefix: str) -> tuple[str, ...]:
        with self._lock:
            self._catch_up()
            meant = sorted(key for key in self._known if key.startswith(prefix))
        found: list[str] = []
        # The index keeps deleted keys for ever, so the store says which of them exist.
        for first in range(0, len(meant), AT_ONCE):
            some = meant[first : first + AT_ONCE]
            try:
                there = self._client.exist([self._at(key) for key in some])
            except RuntimeError as error:
                raise _failed(error) from error
            found += [key for key, is_there in zip(some, there, strict=True) if is_there]
        return tuple(found)

    def _delete(self, prefix: str) -> int:
        # Only what exists: the index holds every key that ever was.
        there = self._keys(prefix)
        for first in range(0, len(there), AT_ONCE):
            try:
                self._client.delete([self._at(key) for key in there[first : first + AT_ONCE]])
            except RuntimeError as error:
                raise _failed(error) from error
        return len(there)


class LocalKeyValue:
    """Keys in this process, for a job that lives in it."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._lock = threading.Lock()

    async def get(self, key: str) -> bytes | None:
        """Return the value of a key; None if it has none."""
        return self._values.get(key)

    async def put(self, key: str, value: bytes) -> None:
        """Write a value, over an older one."""
        with self._lock:
            self._values[key] = value

    async def put_if_absent(self, key: str, value: bytes) -> bool:
        """Write a value if there is none; return whether it was written."""
        with self._lock:
            absent = key not in self._values
            self._values.setdefault(key, value)
            return absent

    async def delete(self, prefix: str) -> int:
        """Delete all keys with a prefix; return their number."""
        with self._lock:
            gone = [key for key in self._values if key.startswith(prefix)]
            for key in gone:
                del self._values[key]
            return len(gone)

    async def keys(self, prefix: str) -> tuple[str, ...]:
        """Return all keys with a prefix, sorted."""
        with self._lock:
            return tuple(sorted(key for key in self._values if key.startswith(prefix)))


def connected() -> DatasystemKeyValue:
    """Connect to the store on this node's datasystem.

    Raises:
        UsageError: No address is given.
        UnreachableError: Nothing answers there.
    """
    host, port = os.environ.get(HOST, ""), os.environ.get(PORT, "")
    if not host or not port.isdigit():
        raise UsageError(
            f"the backend yr keeps its keys in openYuanrong's datasystem: {HOST} is {host or 'not set'} and {PORT} is "
            f"{port or 'not set'}",
            hint="start `dscli start` on each node, and set both",
        )
    from yr.datasystem import KVClient

    client = KVClient(host, int(port), connect_timeout_ms=CONNECT_MS, req_timeout_ms=REQUEST_MS)
    try:
        client.init()
    except RuntimeError as error:
        raise UnreachableError(
            f"no datasystem of openYuanrong answers at {host}:{port}: {error}",
            hint=f"does it run on this node? `dscli start`; {HOST} and {PORT} say where",
        ) from error
    return DatasystemKeyValue(cast("KeyClient", client))


def _failed(error: RuntimeError) -> UnreachableError:
    return UnreachableError(
        f"the datasystem of this node refuses: {error}", hint="is it full, or gone? `dscli start` on this node"
    )
