"""The lock that serialises admissions: one turn at a time, taken over from a holder that is silent."""

from __future__ import annotations

import asyncio

import pytest
from memory_backend import MemoryKeyValue

from dljob.runtime.controller import admission
from dljob.runtime.controller.admission import AdmissionLock
from dljob.tasks import TaskOwner


async def test_one_job_at_a_time_is_admitted():
    kv, inside, most = MemoryKeyValue(), 0, 0

    async def job(name: str) -> None:
        nonlocal inside, most
        async with AdmissionLock(kv, name, TaskOwner(print)).turn():
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.01)
            inside -= 1

    await asyncio.gather(*(job(f"job{i}") for i in range(6)))
    assert most == 1


async def test_reservations_of_one_job_share_a_turn():
    lock = AdmissionLock(MemoryKeyValue(), "job", TaskOwner(print))
    async with lock.turn(), asyncio.timeout(1), lock.turn():
        assert len(await lock._kv.keys(admission.PREFIX)) == 1


async def test_a_silent_holder_loses_its_turn(monkeypatch):
    monkeypatch.setattr(admission, "LEASE_S", 0.1)
    kv = MemoryKeyValue()
    kv.values[admission.PREFIX + "000000000007"] = b"dead 3"
    async with asyncio.timeout(5):
        async with AdmissionLock(kv, "job", TaskOwner(print)).turn():
            assert await kv.keys(admission.PREFIX) == (admission.PREFIX + "000000000008",)


async def test_a_holder_that_renews_keeps_its_turn(monkeypatch):
    monkeypatch.setattr(admission, "LEASE_S", 0.2)
    monkeypatch.setattr(admission, "RENEW_S", 0.02)
    kv = MemoryKeyValue()
    async with AdmissionLock(kv, "one", TaskOwner(print)).turn():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.6), AdmissionLock(kv, "two", TaskOwner(print)).turn():
                pass
    async with asyncio.timeout(5), AdmissionLock(kv, "two", TaskOwner(print)).turn():
        pass


async def test_a_new_master_takes_over_the_turn_of_its_predecessor_at_once():
    kv = MemoryKeyValue()
    kv.values[admission.PREFIX + "000000000001"] = b"job 9"
    async with asyncio.timeout(1), AdmissionLock(kv, "job", TaskOwner(print)).turn():
        assert await kv.keys(admission.PREFIX) == (admission.PREFIX + "000000000002",)
