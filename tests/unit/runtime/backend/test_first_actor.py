"""The first actor of a class, whose creation exports the class."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from dljob.runtime.backend.interface import ActorSpec
from dljob.runtime.backend.ray_backend import RayBackend


class Creations:
    """Stands for Ray's actor class; `count` creations begin before any of them ends."""

    def __init__(self, count: int) -> None:
        self.total = 0
        self.begun, self.may_end = threading.Barrier(count + 1), threading.Event()
        self.lock = threading.Lock()

    def options(self, **_: Any) -> Creations:
        return self

    def remote(self) -> str:
        with self.lock:
            self.total += 1
        self.begun.wait(60)
        assert self.may_end.wait(60)
        return "handle"


async def three(backend: RayBackend) -> None:
    await asyncio.gather(*(backend._thread(backend._make, ActorSpec(f"a{n}", "m.C", ()), {}) for n in range(3)))


async def test_one_creation_exports_a_class_and_later_ones_run_at_once():
    backend, first, later = RayBackend(), Creations(1), Creations(2)
    backend._classes["m.C"] = first
    making = asyncio.create_task(three(backend))
    await asyncio.to_thread(first.begun.wait, 60)
    assert backend._exporting.locked()
    backend._classes["m.C"] = later
    first.may_end.set()
    await asyncio.to_thread(later.begun.wait, 60)
    later.may_end.set()
    await making
    assert (first.total, later.total) == (1, 2)
