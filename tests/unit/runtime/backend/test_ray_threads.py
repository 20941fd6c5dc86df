"""Calls of Ray that block run in threads: what decisions wait for has threads of its own."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from dljob import ray_private
from dljob.runtime.backend import ray_backend
from dljob.runtime.backend.ray_backend import RayBackend

LONG_S = 10


@pytest.mark.parametrize("bulk", ["lookup", "kill"])
async def test_the_journal_and_the_node_list_wait_for_no_call_for_each_host(bulk, monkeypatch):
    """A takeover looks up each host, and a restart of the world ends each of them: 10,000 calls at once."""
    backend, written = RayBackend(), threading.Event()

    def blocks(*_: Any, **__: Any) -> None:
        written.wait(LONG_S)

    monkeypatch.setattr(ray_backend.ray, "get_actor", blocks)
    monkeypatch.setattr(ray_backend.ray, "kill", blocks)
    monkeypatch.setattr(ray_private, "kv_put", lambda *_, **__: False)
    monkeypatch.setattr(backend, "_nodes", lambda: ())
    ref = ray_backend.ActorRef("w/0/1", object())
    calls = [backend.lookup(f"w/{n}/1") if bulk == "lookup" else backend.kill(ref) for n in range(100)]
    under_way = asyncio.gather(*calls)
    await asyncio.sleep(0)  # each of them is in the queue of its threads
    try:
        async with asyncio.timeout(LONG_S / 2):
            assert await backend.kv.put_if_absent("key", b"")
            assert await backend.nodes() == ()
    finally:
        written.set()
    await under_way
