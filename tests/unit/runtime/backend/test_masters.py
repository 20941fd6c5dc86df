"""The PrimeMaster of the latest epoch is found by the key under which it announced itself, not by an actor's name."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from master_shell_kit import UID, World
from memory_backend import MemoryKeyValue

from dljob import ray_private
from dljob.runtime.backend import masters
from dljob.runtime.backend.interface import ActorLostError
from dljob.runtime.backend.masters import FIRST, SECOND, actor_name, announce, find_commander, find_master

NAMES = {number: actor_name(UID, number) for number in (FIRST, SECOND)}


class RayOfMasters:
    """Ray as far as a process of a job asks it for its PrimeMaster: actors by name, and keys."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.actors = set(NAMES.values())
        self.kv = MemoryKeyValue()
        self.asked: list[str] = []
        monkeypatch.setattr(ray, "get_actor", self.get_actor)
        monkeypatch.setattr(ray_private, "kv_keys", self.kv_keys)

    def get_actor(self, name: str, namespace: str) -> str:
        assert namespace == "dljob"
        if name not in self.actors:
            raise ValueError(f"no actor {name}")
        return name

    def kv_keys(self, prefix: str, *, namespace: str) -> list[bytes]:
        assert namespace == "dljob"
        self.asked.append(prefix)
        # In no order, as Ray returns them.
        return [key.encode() for key in sorted(self.kv.values, reverse=True) if key.startswith(prefix)]


@pytest.fixture
def its_ray(monkeypatch: pytest.MonkeyPatch) -> RayOfMasters:
    return RayOfMasters(monkeypatch)


def job(standby: str = NAMES[SECOND]) -> Any:
    return SimpleNamespace(uid=UID, master=NAMES[FIRST], standby=standby, namespace="dljob")


@pytest.mark.parametrize(
    ("announced", "number"),
    [
        ((), FIRST),
        (((1, FIRST),), FIRST),
        (((1, FIRST), (7, SECOND)), SECOND),
        (((7, SECOND), (1, FIRST)), SECOND),  # late: of a master that was stopped
        (((7, SECOND), (12, FIRST)), FIRST),
        (((99_999, FIRST), (100_000, SECOND)), SECOND),
    ],
)
async def test_a_process_of_the_job_finds_the_master_of_the_latest_epoch(its_ray, announced, number):
    """Ranks' heartbeats, savers and callers ask this way; both actors are there all the time."""
    for epoch, by in announced:
        await announce(its_ray.kv, UID, epoch, by)
    await announce(its_ray.kv, "f" * 32, 1_000_000, SECOND)
    assert find_master(job()) == NAMES[number]
    backend: Any = World(Path()).backend
    backend.kv, backend.hosts = its_ray.kv, dict.fromkeys(NAMES.values(), SimpleNamespace())
    found = await find_commander(backend, UID)
    assert found is not None
    assert found.name == NAMES[number], "the launcher, the gateway and clients ask this way"


async def test_the_other_master_is_asked_while_the_one_that_commanded_is_gone_for_good(its_ray):
    await announce(its_ray.kv, UID, 2, SECOND)
    its_ray.actors = {NAMES[FIRST]}
    assert find_master(job()) == NAMES[FIRST]
    its_ray.actors = set()
    with pytest.raises(ValueError, match=f"no actor {NAMES[FIRST]}$"):
        find_master(job())


async def test_a_job_without_a_standby_reads_no_keys(its_ray):
    await announce(its_ray.kv, UID, 2, SECOND)
    assert find_master(job(standby="")) == NAMES[FIRST]
    assert its_ray.asked == []


class DeafMaster:
    """A master whose calls hang."""

    dead = False

    async def status(self) -> None:
        await asyncio.Event().wait()


async def test_a_call_ends_once_another_master_commands(monkeypatch):
    backend: Any = World(Path()).backend
    monkeypatch.setattr(masters, "LOOKS_S", (0.01,))
    backend.hosts[actor_name(UID)] = DeafMaster()
    await masters.announce(backend.kv, UID, 1, FIRST)
    first = await find_commander(backend, UID)
    assert first is not None
    call = asyncio.ensure_future(masters.call_commander(backend, first, UID, "status"))
    await asyncio.sleep(0.05)
    assert not call.done()
    await masters.announce(backend.kv, UID, 2, SECOND)
    await masters.announce(backend.kv, UID, 1, FIRST)  # late: of a master that was stopped
    with pytest.raises(ActorLostError, match="does not command any more"):
        await call
    assert (await backend.kv.keys(f"dljob/{UID}/commands/"))[-1].endswith("000000002/2")
    found = await find_commander(backend, UID)
    assert found is not None, "without the second one's actor the first one is asked"
    assert found.name == actor_name(UID)
