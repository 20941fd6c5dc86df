"""An in-process backend for tests of the shell: a node, reservations, actors as plain objects, keys in a dict."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

from dljob.errors import UsageError
from dljob.master.state.views import AskedGroup, NodeView
from dljob.plan.model import GRAIN, Unit
from dljob.runtime.backend.interface import ActorLostError, ActorRef, ActorSpec, ReservationRefusedError
from dljob.runtime.process.messages import AgentRequest, Hello, NodeHeartbeat, Report
from dljob.spec.capabilities import ALL


class MemoryKeyValue:
    """A key-value store in a dict; every call yields to other tasks once, as a real one would."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    async def get(self, key: str) -> bytes | None:
        await asyncio.sleep(0)
        return self.values.get(key)

    async def put(self, key: str, value: bytes) -> None:
        await asyncio.sleep(0)
        self.values[key] = value

    async def put_if_absent(self, key: str, value: bytes) -> bool:
        await asyncio.sleep(0)
        absent = key not in self.values
        self.values.setdefault(key, value)
        return absent

    async def delete(self, prefix: str) -> int:
        await asyncio.sleep(0)
        gone = [key for key in self.values if key.startswith(prefix)]
        for key in gone:
            del self.values[key]
        return len(gone)

    async def keys(self, prefix: str) -> tuple[str, ...]:
        await asyncio.sleep(0)
        return tuple(sorted(key for key in self.values if key.startswith(prefix)))


class MemoryHost:
    """A host that only obeys orders; tests end its ranks."""

    def __init__(self, name: str, node: str) -> None:
        self.name = name
        self.node = node
        self.reports: list[Report] = []
        self.news = asyncio.Event()
        self.dead = False
        self.orders: list[tuple[str, Any]] = []

    def report(self, rank: int, incarnation: int, outcome: Any) -> None:
        self.reports.append(Report(len(self.reports) + 1, rank, incarnation, 4711, outcome))
        self.news.set()

    async def hello(self) -> Hello:
        return Hello(4711, self.node, (), "127.0.0.1:1")

    async def start(self, order: Any) -> None:
        self.orders.append(("start", order))
        for start in order.ranks:
            self.report(start.rank, start.incarnation, None)

    async def stop(self, order: Any) -> None:
        self.orders.append(("stop", order))

    async def resize(self, order: Any) -> None:
        self.orders.append(("resize", order))

    async def beat(self, packed: bytes) -> bytes:
        ask = AgentRequest.unpacked(packed)
        await asyncio.sleep(ask.pause_s)
        if self.dead:
            raise ActorLostError("killed")
        return NodeHeartbeat(4711, ask.acked + 1).packed()

    async def watch(self, epoch: int, acked: int) -> tuple[Report, ...]:
        while True:
            if self.dead:
                raise ActorLostError("killed")
            if fresh := tuple(report for report in self.reports if report.seq > acked):
                return fresh
            self.news.clear()
            await self.news.wait()


class MemoryBackend:
    """A backend with one node of eight CPUs."""

    name = "memory"
    capabilities = ALL

    def __init__(self) -> None:
        self.kv = MemoryKeyValue()
        self.groups: dict[str, str] = {}
        self.hosts: dict[str, MemoryHost] = {}
        self.refuse: str = ""
        self.calls: list[str] = []
        self.cleared: list[str] = []
        self.asked: tuple[AskedGroup, ...] = ()

    def own_node(self) -> str:
        return ""

    async def nodes(self) -> tuple[NodeView, ...]:
        amount = (("CPU", 8 * GRAIN),)
        return (NodeView("n1", amount, amount, (), "127.0.0.1"),)

    async def reserve(self, unit: Unit, node: str, name: str, deadline_s: float) -> None:
        await asyncio.sleep(0)
        self.calls.append(f"reserve {name}")
        if self.refuse:
            raise ReservationRefusedError(self.refuse)
        self.groups[name] = node

    async def release(self, name: str) -> None:
        self.calls.append(f"release {name}")
        self.groups.pop(name, None)

    async def reservations(self, prefix: str) -> tuple[str, ...]:
        return tuple(sorted(name for name in self.groups if name.startswith(prefix)))

    async def spawn(self, spec: ActorSpec) -> ActorRef:
        await asyncio.sleep(0)
        self.calls.append(f"spawn {spec.name}")
        if spec.name in self.hosts:
            raise UsageError(f"an actor named {spec.name} exists already")
        importlib.import_module(spec.cls.rpartition(".")[0])
        self.hosts[spec.name] = host = MemoryHost(spec.name, "n1")
        return ActorRef(spec.name, host)

    async def lookup(self, name: str) -> ActorRef | None:
        await asyncio.sleep(0)
        host = self.hosts.get(name)
        return ActorRef(name, host) if host else None

    async def call(self, ref: ActorRef, method: str, *args: Any) -> Any:
        if ref.native.dead:
            raise ActorLostError("killed")
        return await getattr(ref.native, method)(*args)

    async def kill(self, ref: ActorRef) -> None:
        self.calls.append(f"kill {ref.name}")
        ref.native.dead = True
        ref.native.news.set()
        if self.hosts.get(ref.name) is ref.native:
            del self.hosts[ref.name]

    async def actors(self, prefix: str) -> tuple[str, ...]:
        return tuple(sorted(name for name in self.hosts if name.startswith(prefix)))

    async def asked_groups(self, owner: str) -> tuple[AskedGroup, ...]:
        return self.asked

    async def clear_drivers(self, owner: str) -> None:
        self.cleared.append(owner)
