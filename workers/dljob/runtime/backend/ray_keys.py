"""The key-value store of the backend: that of Ray's GCS."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dljob import ray_private

NAMESPACE = "dljob"
"""The namespace of dljob's actors and keys in Ray."""


class RayKeyValue:
    """The GCS's key-value store, under dljob's namespace. `thread` runs a blocking call in a thread."""

    def __init__(self, thread: Callable[..., Any]) -> None:
        self._thread = thread

    async def get(self, key: str) -> bytes | None:
        """Return the value of a key; None if it has none."""
        return await self._thread(ray_private.kv_get, key, namespace=NAMESPACE)

    async def put(self, key: str, value: bytes) -> None:
        """Write a value, replacing an older one."""
        await self._thread(ray_private.kv_put, key, value, overwrite=True, namespace=NAMESPACE)

    async def put_if_absent(self, key: str, value: bytes) -> bool:
        """Write a value if there is none; return whether it was written."""
        return not await self._thread(ray_private.kv_put, key, value, overwrite=False, namespace=NAMESPACE)

    async def delete(self, prefix: str) -> int:
        """Delete all keys with this prefix; return their number."""
        return await self._thread(ray_private.kv_delete, prefix, namespace=NAMESPACE)

    async def keys(self, prefix: str) -> tuple[str, ...]:
        """Return all keys with this prefix, sorted."""
        raw_keys: list[bytes] = await self._thread(ray_private.kv_keys, prefix, namespace=NAMESPACE)
        return tuple(sorted(key.decode() for key in raw_keys))
