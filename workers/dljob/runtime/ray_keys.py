"""The GCS's key-value store as a backend's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NAMESPACE = "dljob"
"""Of our actors and our keys."""


class RayKeyValue:
    """The GCS's key-value store, under a namespace of our own."""

    def __init__(self, thread: Callable[..., Any]) -> None:
        self._thread = thread

    async def get(self, key: str) -> bytes | None:
        """The value, None without one."""
        from ray.experimental import internal_kv

        return await self._thread(internal_kv._internal_kv_get, key, namespace=NAMESPACE)

    async def put(self, key: str, value: bytes) -> None:
        """Write a value, over an older one."""
        from ray.experimental import internal_kv

        await self._thread(internal_kv._internal_kv_put, key, value, overwrite=True, namespace=NAMESPACE)

    async def put_if_absent(self, key: str, value: bytes) -> bool:
        """Write a value if there is none; True when it was written."""
        from ray.experimental import internal_kv

        return not await self._thread(internal_kv._internal_kv_put, key, value, overwrite=False, namespace=NAMESPACE)

    async def delete(self, prefix: str) -> int:
        """Delete all keys that start so; how many there were."""
        from ray.experimental import internal_kv

        return await self._thread(internal_kv._internal_kv_del, prefix, del_by_prefix=True, namespace=NAMESPACE)

    async def keys(self, prefix: str) -> tuple[str, ...]:
        """All keys that start so, sorted."""
        from ray.experimental import internal_kv

        found: list[bytes] = await self._thread(internal_kv._internal_kv_list, prefix, namespace=NAMESPACE)
        return tuple(sorted(key.decode() for key in found))
