"""A key-value store on openYuanrong's datasystem, and one in this process for the local mode.

The datasystem takes neither empty values nor all characters in keys, and cannot list keys (openyuanrong-datasystem
0.8.1). So keys are escaped, values have a byte in front, and a new key is first noted in an index, of which each entry
is written once: the datasystem's own put-if-absent is atomic. A list reads new entries of the index, and asks which of
the keys exist. The index never shrinks.
"""

from __future__ import annotations

import asyncio
import re
import threading

from dljob.errors import UnreachableError, UsageError
from dljob.runtime.weights.datasystem import ABSENT, PRESENT, DatasystemClient, connect

LONGEST = 255
"""Most characters of a key in the datasystem."""
AT_ONCE = 500
"""Keys in one request."""
_ODD = re.compile(r"[^a-zA-Z0-9_-]")


def escaped(key: str) -> str:
    """Encode a key in the datasystem's characters: every other byte as `=` and two hex digits.

    Raises:
        UsageError: The result is too long.
    """
    encoded = _ODD.sub(lambda odd: "".join(f"={byte:02X}" for byte in odd[0].encode()), key)
    if len(encoded) > LONGEST:
        raise UsageError(
            f"the key {key[:60]}... has {len(encoded)} characters in the datasystem, which takes {LONGEST}"
        )
    return encoded


class DatasystemKeyValue:
    """A `backend.interface.KeyValue` on the datasystem; each `scope` has keys of its own."""

    def __init__(self, client: DatasystemClient, scope: str = "dljob") -> None:
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
            matching_keys = sorted(key for key in self._known if key.startswith(prefix))
        existing_keys: list[str] = []
        # The index keeps deleted keys for ever, so the store says which of them exist.
        for first in range(0, len(matching_keys), AT_ONCE):
            some = matching_keys[first : first + AT_ONCE]
            try:
                exist_flags = self._client.exist([self._at(key) for key in some])
            except RuntimeError as error:
                raise _failed(error) from error
            existing_keys += [key for key, exists in zip(some, exist_flags, strict=True) if exists]
        return tuple(existing_keys)

    def _delete(self, prefix: str) -> int:
        # Only what exists: the index holds every key that ever was.
        existing_keys = self._keys(prefix)
        for first in range(0, len(existing_keys), AT_ONCE):
            try:
                self._client.delete([self._at(key) for key in existing_keys[first : first + AT_ONCE]])
            except RuntimeError as error:
                raise _failed(error) from error
        return len(existing_keys)


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
            dropped_keys = [key for key in self._values if key.startswith(prefix)]
            for key in dropped_keys:
                del self._values[key]
            return len(dropped_keys)

    async def keys(self, prefix: str) -> tuple[str, ...]:
        """Return all keys with a prefix, sorted."""
        with self._lock:
            return tuple(sorted(key for key in self._values if key.startswith(prefix)))


def connected() -> DatasystemKeyValue:
    """Connect to the store on this node's datasystem. Raises as `connect`."""
    return DatasystemKeyValue(connect("the backend yr"))


def _failed(error: RuntimeError) -> UnreachableError:
    return UnreachableError(
        f"the datasystem of this node refuses: {error}", hint="is it full, or gone? `dscli start` on this node"
    )
