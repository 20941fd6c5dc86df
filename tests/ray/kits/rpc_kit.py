"""Calls from a test, as if it were a rank, to hosts that the fake master knows."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import ray
from host_kit import HostHandle, Job
from patience import patience
from role_kit import role_plan

from dljob.runtime.process.context import install
from dljob.runtime.process.messages import Peer
from dljob.runtime.process.worker_context import Stopping, WorkerContext
from dljob.runtime.rpc.client import RpcClient
from dljob.runtime.worker.thread_host import ThreadHost


class World:
    """A role of callees, and this process as the calling rank."""

    def __init__(self, folder: Path, ranks: int = 1, *, cls: str = "callees.Callee", **changes: Any) -> None:
        self.job = Job(str(folder), (("callee", ranks), ("caller", 1)))
        self.role = role_plan("callee", ("class", cls), replicas=ranks, **changes)
        self.hosts: dict[int, HostHandle] = {}
        self.options: dict[str, Any] = {}  # actor options of the hosts
        install(self._me())

    def _me(self) -> WorkerContext:
        info = self.job.info
        return WorkerContext(
            job_name=info.name,
            job_uid=info.uid,
            job_dir=info.dir,
            role="caller",
            rank=0,
            local_rank=0,
            world_size=1,
            group=0,
            incarnation=1,
            restart_reason="",
            config={},
            peers=dict(info.roles),
            devices={},
            device_index=0,
            stopping=Stopping(),
            log=logging.getLogger("caller"),
            calls=RpcClient(info, "caller/0"),
            report=lambda _step, _metrics: None,
        )

    def up(self, rank: int = 0, incarnation: int = 1, *, wait: bool = True, size: int = 0) -> HostHandle:
        """Start an incarnation of a rank and register it with the fake master."""
        host = self.hosts[rank] = self.job.host(ThreadHost, self.role, **self.options)
        host.start(rank, incarnation=incarnation)
        if wait:
            host.ready()
        self.tell(rank, incarnation, host.name, size=size)
        return host

    def tell(
        self, rank: int, incarnation: int, actor: str, *, ready: bool = True, gone: str = "", size: int = 0
    ) -> None:
        peer = Peer("callee", rank, incarnation, actor, ready, gone, size)
        ray.get(self.job.master.set_peer.remote(peer), timeout=patience(20))

    def close(self) -> None:
        install(None)
        self.job.close()
