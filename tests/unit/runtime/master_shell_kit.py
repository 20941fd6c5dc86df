"""A job's folder and an in-memory backend, on which masters start and die."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from memory_backend import MemoryBackend, MemoryHost

from dljob.master.state import events as ev
from dljob.master.state.state import Phase
from dljob.master.state.views import Outcome
from dljob.plan.plan import plan
from dljob.runtime.controller.master_loop import MasterLoop
from dljob.runtime.journal.job_record import REGISTRY
from dljob.runtime.journal.setup import Setup
from dljob.runtime.journal.stores import FileStore, KeyValueStore
from dljob.runtime.process.messages import JobInfo
from dljob.spec.model import DLJobManifest

UID = "0123456789abcdef" * 2
FIRST = "01234567/worker/0/1"
HANG_S = 60
"""Time limit of waits; a busy disk may take seconds for a sync."""


class World:
    """A job's folder and backend, on which masters start and die."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.backend = MemoryBackend()
        self.backend.kv.values[REGISTRY + UID] = b"{}"  # of the job's creator
        self.carried: ev.Carried | None = None
        self.core = "0.1.0 a"
        self.masters: list[tuple[MasterLoop, asyncio.Task[None]]] = []
        self.paired: list[Any] = []

    def setup(self, **spec: Any) -> Setup:
        roles = [{"name": "worker", "entrypoint": {"class": "m.C"}, "replicas": 2}]
        document = {"metadata": {"name": "j"}, "spec": {"roles": roles, **spec}}
        manifest = DLJobManifest.model_validate(document)
        made = plan(manifest)
        info = JobInfo(UID, "j", str(self.folder), "dljob", "01234567/master", 30, 0.2, "/code", (("worker", 2),))
        return Setup(info, manifest.spec, made, carried=self.carried, core=self.core)

    def master(self, *, kv: bool = False, **spec: Any) -> MasterLoop:
        store = KeyValueStore(self.backend.kv, f"dljob/{UID}/journal/") if kv else FileStore(self.folder / "journal")
        made = MasterLoop(self.setup(**spec), self.backend, store)
        self.masters.append((made, asyncio.create_task(made.run())))
        return made

    async def die(self) -> None:
        """Kill the present master without any cleanup."""
        made, task = self.masters[-1]
        for doomed in (task, *made.executor._tasks, made.executor._pump):
            doomed.cancel()
        made.executor.hosts.close()
        with suppress(asyncio.CancelledError):
            await task

    def host(self, name: str = FIRST) -> MemoryHost:
        return self.backend.hosts[name]

    def close(self) -> None:
        for made, task in self.masters:
            task.cancel()
            made.executor.close()
        for master in self.paired:
            master.close()


async def until(check: Callable[[], Any]) -> Any:
    async with asyncio.timeout(HANG_S):
        while not (got := check()):  # noqa: ASYNC110 - the condition is somebody else's
            await asyncio.sleep(0.005)
        return got


def running(shell: MasterLoop) -> Callable[[], bool]:
    return lambda: shell.state.phase is Phase.RUNNING


def end_all(world: World, outcome: Outcome | None = None) -> None:
    ranks = [(name, host) for name, host in world.backend.hosts.items() if "/agent/" not in name]
    for name, host in ranks:
        host.report(int(name.split("/")[2]), int(name.split("/")[3]), outcome or Outcome(ok=True, result="7"))


async def ended(world: World) -> dict[str, Any]:
    shell, task = world.masters[-1]
    async with asyncio.timeout(HANG_S):
        await task
    assert shell.final is not None
    assert world.backend.groups == {}
    assert world.backend.hosts == {}
    left = [key for key in world.backend.kv.values if UID in key]
    assert left == []
    return shell.final
