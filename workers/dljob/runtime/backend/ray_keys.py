"""The GCS's key-value store as a backend's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dljob.runtime import ray_private

NAMESPACE = "dljob"
"""Of our actors and our keys."""


class RayKeyValue:
    """The GCS's key-value store, under a namespace of our own."""

    def __init__(self, thread: Callable[..., Any]) -> None:
        self._thread = thread

    async def get(self, key: str) -> bytes | None:
        """The value, None without one."""
        return await self._thread(ray_private.kv_get, key, namespace=NAMESPACE)

    async def put(self, key: str, value: bytes) -> None:
        """Write a value, over an older one."""
        await self._thread(ray_private.kv_put, key, value, overwrite=True, namespace=NAMESPACE)

    async def put_if_absent(self, key: str, value: bytes) -> bool:
        """Write a value if there is none; True when it was written."""
        return not await self._thread(ray_private.kv_put, key, value, overwrite=False, namespace=NAMESPACE)

    async def delete(self, prefix: str) -> int:
        """Delete all keys that start so; how many there were."""
        return await self._thread(ray_private.kv_delete, prefix, namespace=NAMESPACE)

    async def keys(self, prefix: str) -> tuple[str, ...]:
        """All keys that start so, sorted."""
        found: list[bytes] = await self._thread(ray_private.kv_keys, prefix, namespace=NAMESPACE)
        return tuple(sorted(key.decode() for key in found))
