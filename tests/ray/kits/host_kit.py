"""Helpers of the host tests: a fake master, orders to hosts, and reading their reports."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from patience import patience
from ray_kit_paths import USER_DIR

from dljob.master.state.actions import RankStart
from dljob.plan.role import RolePlan
from dljob.runtime.process.messages import (
    BeaconReply,
    Heartbeat,
    HostSpec,
    JobInfo,
    Peer,
    Report,
    RoleTable,
    StartOrder,
    StopOrder,
)

_numbers = itertools.count(1)


class FakeMaster:
    """An actor that answers heartbeats and peer lookups as PrimeMaster does; the test sets its answers."""

    def __init__(self) -> None:
        self.known = True
        self.beacons: list[Heartbeat] = []
        self.table: dict[tuple[str, int], Peer] = {}
        self.changed = asyncio.Event()

    async def beacon(self, beacon: Heartbeat) -> BeaconReply:
        self.beacons.append(beacon)
        return BeaconReply(epoch=1, known=self.known)

    async def count(self) -> int:
        return len(self.beacons)

    async def set_known(self, known: bool) -> None:
        self.known = known

    async def steps(self) -> dict[int, Any]:
        seen: dict[int, Any] = {}
        for beacon in self.beacons:
            seen.update(beacon.steps)
        return seen

    async def set_peer(self, peer: Peer) -> None:
        self.table[peer.role, peer.rank] = peer
        self.changed.set()
        self.changed = asyncio.Event()

    async def peers(self, role: str) -> RoleTable:
        return RoleTable(role, 1, tuple(p for (r, _), p in sorted(self.table.items()) if r == role))

    async def callees(self, role: str) -> list[tuple[int, int, bool, bool]]:
        found = sorted((rank, peer) for (name, rank), peer in self.table.items() if name == role)
        return [(rank, peer.incarnation, peer.ready, bool(peer.gone_reason)) for rank, peer in found]

    async def await_peer(self, role: str, rank: int, after: int) -> Peer:
        while True:
            peer = self.table.get((role, rank))
            if peer is not None and (peer.gone_reason or (peer.ready and peer.incarnation > after)):
                return peer
            await self.changed.wait()

    async def endpoints(self, seen: Any) -> dict[str, Any]:
        return {}

    async def queue_opened(self, name: str, token: str) -> dict[str, Any]:
        return {"epoch": 0, "path": "", "crc": 0}

    async def pid(self) -> int:
        return os.getpid()


class Job:
    """A job of hosts without a real master; `close` removes everything."""

    def __init__(self, folder: str, roles: tuple[tuple[str, int], ...] = (), *, lease_s: float = 30.0) -> None:
        self.master_name = f"test{next(_numbers)}-{os.getpid()}/master"
        self.master = (
            ray.remote(num_cpus=0, max_concurrency=1000)(FakeMaster)
            .options(name=self.master_name, namespace="dljob", lifetime="detached", max_restarts=-1)
            .remote()
        )
        self.info = JobInfo(
            uid="0" * 32,
            name="testjob",
            dir=folder,
            namespace="dljob",
            master=self.master_name,
            lease_s=lease_s,
            beacon_s=0.05,
            code_dir=USER_DIR,
            roles=roles,
            attempt=3,
        )
        self.hosts: list[HostHandle] = []

    def host(self, cls: type, role: RolePlan, **options: Any) -> HostHandle:
        handle = HostHandle(self, cls, role, options)
        self.hosts.append(handle)
        return handle

    def close(self) -> None:
        for host in self.hosts:
            ray.kill(host.actor)
        ray.kill(self.master)


def eventually(check: Callable[[], Any], timeout: float = 20.0) -> Any:
    """Return the first true answer of check(); fails when there is none in time."""
    end = time.monotonic() + patience(timeout)
    while not (got := check()):
        assert time.monotonic() < end, f"not within {timeout} s: {check}"
        time.sleep(0.02)
    return got


def alive(pid: int) -> bool:
    """Return whether a process lives; a zombie does not."""
    return state_of(pid) not in {"", "Z", "X"}


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


class HostHandle:
    """A host actor and its reports."""

    def __init__(self, job: Job, cls: type, role: RolePlan, options: dict[str, Any]) -> None:
        self.job = job
        self.role = role
        self.name = f"{job.master_name}/{role.name}/{next(_numbers)}"
        made = ray.remote(concurrency_groups=dict(cls.concurrency_groups), num_cpus=0, max_restarts=0)(cls)
        self.actor = made.options(name=self.name, namespace="dljob", lifetime="detached", **options).remote(
            HostSpec(job.info, role, 1)
        )
        self.acked = 0
        self.heard: list[Report] = []

    def hello(self) -> Any:
        return ray.get(self.actor.hello.remote(), timeout=patience(30))

    def start(self, *ranks: int, **order: Any) -> None:
        """Order ranks to start; raises when the host refuses."""
        ray.get(self.order_start(*ranks, **order), timeout=patience(30))

    def order_start(self, *ranks: int, incarnation: int = 1, reason: str = "", epoch: int = 1, **order: Any) -> Any:
        devices = order.pop("devices", ())
        starts = tuple(RankStart(rank, incarnation, i, len(ranks), 0, reason, devices) for i, rank in enumerate(ranks))
        values: dict[str, Any] = {
            "epoch": epoch,
            "incarnation": 1,
            "ranks": starts,
            "world_size": self.role.replicas,
            "generation": 0,
            "store": "",
        }
        return self.actor.start.remote(StartOrder(**{**values, **order}))

    def stop(self, *ranks: int, grace_s: float = 5.0, epoch: int = 1) -> None:
        ray.get(self.actor.stop.remote(StopOrder(epoch, ranks, grace_s, "the test says so")), timeout=patience(30))

    def next_reports(self, timeout: float = 20.0, epoch: int = 1) -> tuple[Report, ...]:
        reports = ray.get(self.actor.watch.remote(epoch, self.acked), timeout=patience(timeout))
        self.acked = max([self.acked, *(r.seq for r in reports)])
        return reports

    def ends(self, count: int = 1, timeout: float = 20.0, epoch: int = 1) -> list[Report]:
        """Return the next reports of ranks that ended."""
        return self._take(lambda report: report.outcome is not None, count, timeout, epoch)

    def ready(self, count: int = 1, timeout: float = 20.0) -> list[Report]:
        """Return the next reports of ranks that became ready."""
        return self._take(lambda report: report.outcome is None and report.serves is None, count, timeout, 1)

    def _take(self, wanted: Callable[[Report], bool], count: int, timeout: float, epoch: int) -> list[Report]:
        end = time.monotonic() + patience(timeout)
        while len(found := [r for r in self.heard if wanted(r)]) < count:
            self.heard += self.next_reports(end - time.monotonic(), epoch)
        self.heard = [r for r in self.heard if r not in found]
        return found

    def sentinel(self) -> Sentinel:
        return Sentinel(self.actor.watch.remote(1, 10**6))


class Sentinel:
    """A pending watch call and the error that broke it."""

    def __init__(self, ref: Any) -> None:
        self.error: BaseException | None = None
        self.broke = threading.Event()
        threading.Thread(target=self._wait, args=(ref,), daemon=True).start()

    def _wait(self, ref: Any) -> None:
        try:
            ray.get(ref)
        except ray.exceptions.RayError as error:
            self.error = error
        self.broke.set()
