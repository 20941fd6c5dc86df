"""What the reports of 1,000 nodes with 8 hosts each cost PrimeMaster: its share of a core, and how often it asks.

PrimeMaster's own ear (`NodeWatch`, `HeartbeatLog`) in an actor of its own; the agents are made up: a few actors that
answer for hundreds of nodes each, and every answer brings a step of every host. What is not in the figure is that real
agents are as many connections as nodes.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import ray

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row, cluster, runs

from dljob.master.state.state import RankPhase
from dljob.master.state.views import HostId, NodeView
from dljob.runtime.backend.interface import ActorRef
from dljob.runtime.backend.ray_backend import RayBackend
from dljob.runtime.controller.heartbeat_log import HeartbeatLog
from dljob.runtime.controller.node_watch import NodeWatch
from dljob.runtime.process.messages import AgentRequest, BeaconReply, Heartbeat, JobInfo, NodeHeartbeat
from dljob.spec.policy import FaultTolerance
from dljob.tasks import TaskOwner

NODES, HOSTS, FLEETS = 1000, 8, 2
WARM_S, FOR_S = 4.0, 8.0
INFO = JobInfo("0123456789abcdef" * 2, "bench", "/nowhere", "dljob", "m", 30, 0.2, "", (("w", NODES * HOSTS),))


class Fleet:
    """The agents of many nodes."""

    def __init__(self) -> None:
        self._step = 0

    async def beat(self, node: int, packed: bytes) -> bytes:
        """As an agent whose hosts have news all the time."""
        await asyncio.sleep(AgentRequest.unpacked(packed).news_s)
        self._step += 1
        ranks = range(node * HOSTS, (node + 1) * HOSTS)
        steps = {rank: {rank: (1, self._step, {"loss": 0.5})} for rank in ranks}
        return NodeHeartbeat(
            1, self._step, tuple(Heartbeat("w", f"01234567/w/{rank}/1", 1, steps[rank]) for rank in ranks)
        ).packed()


class Backend(RayBackend):
    """Every agent is there already."""

    def __init__(self, fleets: list[Any]) -> None:
        super().__init__()
        self._fleets = fleets
        self.calls = 0

    async def lookup(self, name: str) -> ActorRef:
        """The fleet that answers for a node."""
        return ActorRef(name, int(name.rpartition("/n")[2]))

    async def call(self, ref: ActorRef, method: str, *args: Any) -> Any:
        """One question."""
        self.calls += 1
        return await getattr(self._fleets[ref.native % len(self._fleets)], method).remote(ref.native, *args)


class Master:
    """What of PrimeMaster hears nodes."""

    def __init__(self, nodes: int, fleets: list[Any]) -> None:
        self.state: Any = _state(nodes)
        self.evidence = HeartbeatLog()
        self._at: dict[str, float] = {}
        self._known = {own.actor: who for who, own in self.state.hosts.items()}
        self._backend = Backend(fleets)
        self._watch = NodeWatch(
            INFO,
            self._backend,
            self._offer,
            lambda: self.state,
            epoch=lambda: 1,
            on_heartbeat=self._heard,
            owner=TaskOwner(sys.exit),
        )

    async def _offer(self, *events: object) -> None:
        raise SystemExit(f"nothing happens here, but: {events}")

    def _heard(self, beacon: Heartbeat) -> BeaconReply:
        for _ in self.evidence.record(self.state, beacon, time.time()):
            raise SystemExit("no step matters here")
        self._at[beacon.actor] = time.time()
        self._watch.record_answer(self._known.get(beacon.actor))
        return BeaconReply(1, beacon.actor in self._known)

    async def measure(self, warm_s: float, for_s: float) -> tuple[float, float, float]:
        """Seconds of CPU a second, questions a second, and the greatest age of what is known of a rank, in seconds."""
        work = asyncio.create_task(self._watch.run())
        await asyncio.sleep(warm_s)
        calls, used, begin = self._backend.calls, _used(), time.monotonic()
        await asyncio.sleep(for_s)
        took = time.monotonic() - begin
        figures = (_used() - used) / took, (self._backend.calls - calls) / took
        oldest = time.time() - min(self._at.values())
        if len(self.evidence.progress) != len(self._known):
            raise SystemExit(f"heard of {len(self.evidence.progress)} ranks of {len(self._known)}")
        work.cancel()
        return *figures, oldest


def _used() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime


def _state(nodes: int) -> SimpleNamespace:
    each = range(nodes * HOSTS)
    return SimpleNamespace(
        nodes=tuple(NodeView(f"n{i}", (), (), ()) for i in range(nodes)),
        units={f"w/{i}": SimpleNamespace(node=f"n{i // HOSTS}") for i in each},
        hosts={HostId("w", i): SimpleNamespace(node=f"n{i // HOSTS}", actor=f"01234567/w/{i}/1") for i in each},
        ranks={("w", i): SimpleNamespace(goal=None, phase=RankPhase.READY, incarnation=1) for i in each},
        exclusions={},
        running_at=1.0,
        verdict=None,
        job=SimpleNamespace(own_nodes=True, fault_tolerance=FaultTolerance()),
    )


def once(nodes: int) -> tuple[float, float, float]:
    """One master and its nodes."""
    fleets: list[Any] = [ray.remote(num_cpus=0, max_concurrency=NODES * 10)(Fleet).remote() for _ in range(FLEETS)]
    master: Any = ray.remote(num_cpus=0, max_concurrency=100)(Master).remote(nodes, fleets)
    try:
        return ray.get(master.measure.remote(WARM_S, FOR_S), timeout=300)
    finally:
        for actor in (master, *fleets):
            ray.kill(actor)


def main() -> None:
    """One row; a tenth of the nodes beside it."""
    with cluster(2):
        found = [once(NODES) for _ in range(runs(3))]
        small = once(NODES // 10)
    Row(
        "agents",
        f"PrimeMaster hears {NODES:,} nodes x {HOSTS} hosts, each with progress: its share of a core",
        "<= 0.3",
        median(share for share, _, _ in found),
        0.3,
        unit="cores",
        samples={"share": [share for share, _, _ in found], "age_s": [age for _, _, age in found]},
        facts={"heard in less than half of freezeSeconds": max(age for _, _, age in found) < 3.0},
        note=f"{median(calls for _, calls, _ in found):.0f} questions a second; 100 nodes: {small[0]:.2f} of a core",
    ).emit()


if __name__ == "__main__":
    main()
