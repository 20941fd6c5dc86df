"""Who was made for an earlier master is known to the next one, however long that ends others first."""

from __future__ import annotations

import asyncio
from typing import Any

from executor_kit import JOB, executor_of
from memory_backend import MemoryBackend

from dljob.master.state import actions as ac
from dljob.master.state.views import HostId
from dljob.plan.plan import plan
from dljob.spec.model import DLJobManifest

HOST, SPARE = "01234567/w/1/1", "01234567/w/spare-n1-0/1"


class Slow(MemoryBackend):
    """A name takes long to look up."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def lookup(self, name: str) -> Any:
        await self.go.wait()
        return await super().lookup(name)


async def test_hosts_about_to_be_made_or_found_are_known_while_others_are_ended():
    backend, told = Slow(), asyncio.Event()

    async def offer(*_: Any) -> None:
        told.set()

    made = executor_of(backend, offer, epoch=2)
    await backend.reserve(plan(DLJobManifest.model_validate(JOB)).units["w/1"], "n1", "01234567/w/1/1", 1.0)
    made.execute(
        [
            ac.KillHost(HostId("w", 0), 1, ""),
            ac.SpawnHost(HostId("w", 1), 1, "w/1", 1, 60.0),
            ac.SpawnSpare("w", "n1", 0, 1),
        ]
    )
    for _ in range(5):
        await asyncio.sleep(0)
        assert made.hosts.knows(HOST)
        assert made.hosts.knows(SPARE)
    assert not made.hosts.knows("01234567/w/0/1")
    backend.go.set()
    async with asyncio.timeout(60):
        await told.wait()
    assert made.hosts.knows(HOST)
    assert not made.hosts._expected
    made.close()
    assert made.hosts.knows("01234567/w/0/1"), "who closes ends all, or leaves all to a later master"
