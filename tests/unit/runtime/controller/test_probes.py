"""Whoever takes a bundle's device to say which it is gives it back, whatever becomes of who asked."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
from executor_kit import executor_of
from memory_backend import MemoryBackend, MemoryHost

from dljob.master.state import actions as ac
from dljob.master.state.views import HostId
from dljob.runtime.backend.interface import ActorRef, ActorSpec
from dljob.runtime.controller.executor import HOST_CLASSES, PROBE_CLASS, STORE_CLASS, SUB_MASTER_CLASS
from dljob.runtime.controller.worker_hosts import HostLaunch, WorkerHosts
from dljob.runtime.process import device_probe
from dljob.runtime.process.device_probe import DeviceProbe
from dljob.runtime.process.guard import Lease
from dljob.runtime.process.making import Making
from dljob.tasks import TaskOwner

WHO, HOST, PROBE = HostId("w", 0), "j/w/0/1", "j/w/0/1.1"
ROLE = {"name": "w", "type": "Elastic", "replicas": 2, "replicasPerGroup": 2, "entrypoint": {"command": ["true"]}}
NODES = {"name": "n", "cpu": "8", "accelerator": {"type": "GPU", "count": 2}}
BIRTH = HostLaunch(ActorSpec(HOST, "m.Host"), 60.0, (ActorSpec(PROBE, PROBE_CLASS),), "GPU")


class Device(MemoryHost):
    """A probe; its answer waits for `go`."""

    def __init__(self, name: str, go: asyncio.Event) -> None:
        super().__init__(name, "n1")
        self._go = go

    async def devices(self) -> Any:
        await self._go.wait()
        return (("GPU", ("1",)),)


class InThreads(MemoryBackend):
    """Makes actors in threads, as RayBackend does; that of a probe waits for `go`."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        super().__init__()
        self._making = Making(pool)
        self.began, self.killed, self.answer = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.go = threading.Event()

    async def lookup(self, name: str) -> ActorRef | None:
        await self._making.settled([name])
        return await super().lookup(name)

    async def spawn(self, spec: ActorSpec) -> ActorRef:
        loop = asyncio.get_running_loop()
        probes = spec.name == PROBE

        def make() -> MemoryHost:
            if probes:
                loop.call_soon_threadsafe(self.began.set)
                self.go.wait()
            self.hosts[spec.name] = made = Device(spec.name, self.answer) if probes else MemoryHost(spec.name, "n1")
            return made

        return ActorRef(spec.name, await self._making.make(spec.name, make))

    async def kill(self, ref: ActorRef) -> None:
        await super().kill(ref)
        if ref.name == PROBE:
            self.killed.set()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


@pytest.mark.parametrize("by", ["end", "deadline"])
async def test_a_probe_that_was_being_made_for_nobody_is_ended(by, pool):
    backend = InThreads(pool)

    async def offer(*_: Any) -> None: ...

    hosts = WorkerHosts(cast("Any", backend), offer, lambda: 1, lambda: None, "j/agent/", owner=TaskOwner(print))
    hosts.bring_up(WHO, 1, BIRTH)
    async with asyncio.timeout(60):
        await backend.began.wait()
        if by == "end":
            await hosts.end(HOST)
        else:  # its time is over: the task is cancelled from within, and nobody calls `end` yet
            task = hosts._watched[HOST].task
            assert task
            task.cancel()
            await asyncio.wait([task])
        backend.go.set()
        await backend.killed.wait()
    assert PROBE not in backend.hosts
    hosts.close()


async def test_a_probe_that_answered_is_ended(pool):
    backend, heard = InThreads(pool), list[Any]()

    async def offer(*events: Any) -> None:
        heard.extend(events)

    backend.go.set()
    backend.answer.set()
    hosts = WorkerHosts(cast("Any", backend), offer, lambda: 1, lambda: None, "j/agent/", owner=TaskOwner(print))
    hosts.bring_up(WHO, 1, BIRTH)
    async with asyncio.timeout(60):
        await backend.killed.wait()
    assert sorted(backend.hosts) == [HOST]
    hosts.close()


def test_a_probe_of_a_master_that_is_gone_ends_after_its_time(monkeypatch):
    leases: list[Lease] = []
    monkeypatch.setattr(device_probe, "Guard", lambda lease, _: leases.append(lease))
    DeviceProbe(7.0)
    assert [lease.seconds for lease in leases] == [7.0]


async def test_a_probe_lives_as_long_as_its_host_may_take(monkeypatch):
    role = {**ROLE, "accelerator": {"count": 1}, "nodeGroup": "n"}
    spec = {"metadata": {"name": "j"}, "spec": {"nodeGroups": [NODES], "roles": [role]}}

    made = executor_of(MemoryBackend(), job=spec)
    births: list[HostLaunch] = []
    monkeypatch.setattr(made.hosts, "bring_up", lambda *given: births.append(given[-1]))
    made._bring_up_host(ac.SpawnHost(WHO, 1, "w/0", 1, 7.0))
    made.close()
    ((probe,),) = [birth.probes for birth in births]
    assert (probe.cls, probe.args) == (PROBE_CLASS, (7.0,))


@pytest.mark.parametrize("path", [*HOST_CLASSES.values(), PROBE_CLASS, STORE_CLASS, SUB_MASTER_CLASS])
def test_each_class_that_an_actor_is_made_of_is_there(path):
    module, _, name = path.rpartition(".")
    assert isinstance(getattr(importlib.import_module(module), name), type)
