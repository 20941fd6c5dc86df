"""The gateway's side of Ray: finds the master of a job and asks it, for as long as the caller waits and no longer.

A live job is known by the registry in Ray's key-value store. One that has ended is known by its folder, which lies on
the head, as the gateway does.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dljob.errors import NotFoundError, UnreachableError, UsageError
from dljob.master.state.views import ENDS, Clue
from dljob.runtime import ray_private
from dljob.runtime.backend.interface import ActorCallError, ActorLostError, ActorRef, Backend
from dljob.runtime.job import versions
from dljob.runtime.job.gateway_app import CommandRequest, LogPart
from dljob.runtime.journal.job_record import FINAL, REGISTRY, JobRecord, bring, master_name, read_notes, read_status
from dljob.runtime.journal.timeline import STATUS
from dljob.runtime.node import log_tails as tails
from dljob.runtime.node.readers import Readers
from dljob.telemetry.evidence import Source
from dljob.telemetry.exposition import exposition
from dljob.telemetry.job_samples import samples

RETRY_S = 0.05
GRACE_S = 3.0
"""Beyond what the caller waits: for a master's comeback, and for an answer of one that is busy."""
SCRAPE_S = 2.0
STACKS_S = 15.0
"""How long all nodes together may take to look at their ranks."""
ENDED_SHOWN = 100
EVENTS_AT_ONCE = 2000


class RayJobs:
    """The jobs of the Ray that this process is connected to; `home` is the folder of their folders on the head."""

    def __init__(self, backend: Backend, home: str) -> None:
        self._backend = backend
        self._home = Path(home) / "jobs"
        self._masters: dict[str, ActorRef] = {}
        self._pods: dict[str, str] = {}
        self._nodes_of_masters: dict[str, str] = {}
        """As a snapshot last told: a master that is away cannot be asked, and then its log is wanted most."""
        self._namespace = os.environ.get("RAY_CLUSTER_NAMESPACE", "")
        self._readers = Readers()

    # -- questions

    async def jobs(self) -> list[dict[str, Any]]:
        """uid, name and phase of each, those that live first."""
        live = await self._entries()
        phases = await asyncio.gather(*(self._quick(entry) for entry in live))
        found = [_row(entry.uid, entry.name, seen) for entry, seen in zip(live, phases, strict=True)]
        known = {entry.uid for entry in live}
        ended = await asyncio.to_thread(self._ended)
        return found + [_row(s["uid"], s["name"], s) for s in ended if s["uid"] not in known]

    async def brief(self, uid: str, after: int, timeout_s: float) -> dict[str, Any]:
        """The brief snapshot, as soon as its version is greater."""
        answer = await self._ask(uid, timeout_s, lambda left: ("brief", after, left))
        if answer:
            self._nodes_of_masters[uid] = str(answer.get("masterNode") or "")
            return answer
        self._nodes_of_masters.pop(uid, None)
        return await self._brief_final(uid)

    async def status(self, uid: str, after: int, timeout_s: float) -> dict[str, Any]:
        """The whole snapshot, as soon as its version is greater."""
        answer = await self._ask(uid, timeout_s, lambda left: ("status", after, left))
        return answer or await self._final(uid)

    async def events(self, uid: str, after: int, timeout_s: float) -> list[dict[str, Any]]:
        """The notes with a greater number, as soon as there are some; at most EVENTS_AT_ONCE."""
        answer = await self._ask(uid, timeout_s, lambda left: ("notes", after, left))
        if answer is None:
            answer = await asyncio.to_thread(read_notes, await self._folder(uid), after)
        return answer[:EVENTS_AT_ONCE]

    async def placement(self, uid: str) -> dict[str, Any]:
        """Which node holds what, with the pod of each node; nothing when the job is over."""
        answer = await self._ask(uid, 0.0, lambda _: ("placement",))
        if answer is None:
            return {"version": (await self._final(uid))["version"], "nodes": []}
        await self._learn_pods({row["node"] for row in answer["nodes"]})
        rows = [{**row, "pod": self._pods.get(row["node"], "")} for row in answer["nodes"]]
        return {**answer, "nodes": rows}

    async def command(self, uid: str, order: CommandRequest) -> None:
        """Hand an order to PrimeMaster. A job that is over takes none, and says nothing of it."""
        why = wrong(order, await self.brief(uid, 0, 0.0))
        if why:
            raise UsageError(why)
        if order.kind == "cause":
            await self._ask(uid, 0.0, lambda _: ("learned", order.target, 0, Clue(Source.POD, order.by)))
        else:
            await self._ask(uid, 0.0, lambda _: ("command", order.id, order.kind, order.target, order.by))

    async def tails(self, uid: str, budget: int) -> dict[str, Any]:
        """The ends of all ranks' logs and of PrimeMaster's within a budget of bytes, wherever they lie."""
        return await tails.gather(await self._folder(uid), await self.status(uid, 0, 0.0), budget)

    async def log(
        self, uid: str, rank: tuple[str, int], offset: int | None, limit: int, since: float | None = None
    ) -> LogPart:
        """A rank's log from an offset, since a moment (unix seconds), or its end."""
        seen = await self.status(uid, 0, 0.0)
        row = next((row for row in seen["ranks"] if (row["role"], row["rank"]) == rank), None)
        if row is None:
            raise NotFoundError(f"the job has no rank {rank[0]}/{rank[1]}")
        log = tails.of_rank(await self._folder(uid), row)
        part = await tails.read(self._readers.ask, log, offset, limit, since=since)
        end = seen["phase"] in FINAL and part.offset >= part.size
        return LogPart(part.text, part.offset, end, part.timed)

    async def master_log(
        self, uid: str, offset: int | None, limit: int, since: float | None = None, *, older: bool = False
    ) -> LogPart:
        """PrimeMaster's own log from an offset, since a moment (unix seconds), or its end; `older`: the file before."""
        node, over = await self._master_node(uid)
        log = tails.of_master(await self._folder(uid), node, older=older)
        part = await tails.read(self._readers.ask, log, offset, limit, since=since)
        return LogPart(part.text, part.offset, (over or older) and part.offset >= part.size, part.timed)

    async def _master_node(self, uid: str) -> tuple[str, bool]:
        """The node of a job's PrimeMaster, and whether the job is over; of one that is away, the last that is known."""
        try:
            seen = await self.brief(uid, 0, 0.0)
        except UnreachableError:
            known = self._nodes_of_masters.get(uid)
            if known is None:
                raise
            return known, False
        return str(seen.get("masterNode") or ""), seen["phase"] in FINAL

    async def stacks(self, uid: str, target: str) -> dict[str, str]:
        """Rank -> the stacks of its process as text. Raises NotFoundError for a job that is over, or no such target."""
        why = wrong(CommandRequest("", "restart", target, ""), await self.brief(uid, 0, 0.0))
        if why:
            raise NotFoundError(why)
        answer = await self._ask(uid, STACKS_S, lambda _: ("stacks", target))
        if answer is None:
            raise NotFoundError(f"job {uid} is over: it has no processes")
        return answer

    async def metrics(self) -> str:
        """The jobs that live, as Prometheus scrapes them; the series of a job go when it does."""
        seen = await asyncio.gather(*(self._quick(entry) for entry in await self._entries()))
        ray = versions.found().ray or ""
        return exposition(one for snapshot in seen if snapshot for one in samples(snapshot, self._namespace, ray))

    # -- finding answers

    async def _ask(self, uid: str, timeout_s: float, call: Callable[[float], tuple[Any, ...]]) -> Any:
        """What the master answers, whatever becomes of it meanwhile; None when the job has ended.

        Args:
            uid: Of the job.
            timeout_s: How long the caller waits.
            call: Makes method and arguments from the seconds that are left.

        Raises:
            NotFoundError: there is no such job.
            UnreachableError: there is no master now, or it does not answer.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        while True:
            with suppress(ActorLostError):
                return await self._call(uid, end, call)
            if await self._ended_in(uid) is not None:
                return None
            if not await self._registered(uid):
                raise NotFoundError(f"no job {uid}")
            if loop.time() > end + GRACE_S:
                raise UnreachableError("PrimeMaster is not there now", hint="ask again")
            await asyncio.sleep(RETRY_S)

    async def _call(self, uid: str, end: float, call: Callable[[float], tuple[Any, ...]]) -> Any:
        """One try. Raises ActorLostError when there is no master to answer."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(max(end, loop.time()) + GRACE_S):
                ref = self._masters.get(uid) or await self._backend.lookup(master_name(uid))
                if ref is None:
                    raise ActorLostError("no such actor")
                self._masters[uid] = ref
                method, *args = call(max(0.0, end - loop.time()))
                return await self._backend.call(ref, method, *args)
        except ActorLostError:
            self._masters.pop(uid, None)
            raise
        except TimeoutError:
            raise UnreachableError("PrimeMaster does not answer now", hint="ask again") from None
        except ActorCallError as error:
            raise UnreachableError(f"PrimeMaster: {error.message}") from error

    async def _quick(self, entry: JobRecord) -> dict[str, Any] | None:
        """A brief snapshot soon, or none."""
        with suppress(Exception):  # "none" is an answer: metrics leave the job out this time
            async with asyncio.timeout(SCRAPE_S):
                return await self.brief(entry.uid, 0, 0.0)
        return None

    async def _entry(self, uid: str) -> JobRecord | None:
        try:
            async with asyncio.timeout(GRACE_S):
                text = await self._backend.kv.get(REGISTRY + uid)
        except TimeoutError:
            raise UnreachableError("Ray's head does not answer now", hint="ask again") from None
        return JobRecord(**json.loads(text)) if text else None

    async def _registered(self, uid: str) -> bool:
        return await self._entry(uid) is not None

    async def _entries(self) -> list[JobRecord]:
        found = [await self._entry(key.removeprefix(REGISTRY)) for key in await self._backend.kv.keys(REGISTRY)]
        return sorted((entry for entry in found if entry), key=lambda entry: entry.started)

    # -- jobs that are over

    async def _folder(self, uid: str) -> Path:
        """A job's folder."""
        entry = await self._entry(uid)
        if entry is not None:
            return Path(entry.dir)
        left = await self._ended_in(uid)
        if left is None:
            raise NotFoundError(f"no job {uid}")
        return left

    async def _ended_in(self, uid: str) -> Path | None:
        """The folder of a job that has ended; of a master that lived elsewhere it is made here."""
        found = await asyncio.to_thread(self._look, uid)
        if found is not None or await self._registered(uid):
            return found
        return await bring(self._backend.kv, uid)

    def _look(self, uid: str) -> Path | None:
        for folder in self._home.glob(f"*-{uid[:8]}"):
            seen = read_status(folder)
            if seen.get("uid") == uid and seen.get("phase") in FINAL:
                return folder
        return None

    async def _final(self, uid: str) -> dict[str, Any]:
        return await asyncio.to_thread(read_status, await self._folder(uid))

    async def _brief_final(self, uid: str) -> dict[str, Any]:
        from dljob.master.status import brief_of  # half a second of imports, which a gateway need not wait for

        return brief_of(await self._final(uid))

    def _ended(self) -> list[dict[str, Any]]:
        """The final statuses of the last jobs, the latest first."""
        with suppress(OSError):
            files = sorted(self._home.glob(f"*/{STATUS}"), key=lambda path: -path.stat().st_mtime)[:ENDED_SHOWN]
            return [seen for seen in (read_status(file.parent) for file in files) if seen.get("phase") in FINAL]
        return []

    # -- pods

    async def _learn_pods(self, nodes: set[str]) -> None:
        """Remember the pod of each of these nodes, and of no other."""
        if not nodes <= self._pods.keys():
            seen = await asyncio.to_thread(pods_of_nodes)
            self._pods = {node: seen.get(node, "") for node in seen.keys() | nodes}


def pods_of_nodes() -> dict[str, str]:
    """Ray node -> pod: KubeRay gives the pod's name to Ray as RAY_CLOUD_INSTANCE_ID; else the host's name stands in."""
    rows = ray_private.node_infos(GRACE_S)
    return {node: info.instance_id or info.node_manager_hostname for node, info in rows.items()}


def wrong(order: CommandRequest, seen: Mapping[str, Any]) -> str:
    """Why an order cannot be meant for the job of this snapshot; empty when it can."""
    if order.kind == "cause":
        node = order.target.partition("node/")[2]
        return "" if node and order.by else "a cause is about node/<Ray's node id>, and by says what is known"
    if order.kind not in ("restart", "scale", *ENDS):
        return f"there is no command {order.kind[:64]!r}; there are restart, scale, stop, suspend and cause"
    if order.kind == "scale":
        return _unscalable(order.target, seen)
    if order.target == "job":
        return ""
    if order.kind in ENDS:
        return f"only the job can be {ENDS[order.kind]}, not {order.target}"
    roles = {role["name"]: role["desired"] for role in seen["roles"]}
    role, slash, number = order.target.partition("/")
    if role in roles and (not slash or (number.isascii() and number.isdigit() and int(number) < roles[role])):
        return ""
    return f"the job has no {order.target!r}; targets are job, a role ({', '.join(roles)}), or a rank as {role}/0"


def _unscalable(target: str, seen: Mapping[str, Any]) -> str:
    role, _, count = target.partition("=")
    able = [row["name"] for row in seen["roles"] if "wanted" in row]
    if role in able and count.isascii() and count.isdecimal() and len(count) <= 6:
        return ""
    return f"{target!r} cannot be scaled: it is written role=ranks, of {', '.join(able) or 'no role of this job'}"


def about() -> dict[str, str]:
    """What GET /v1/version answers."""
    import ray

    here = versions.found()
    return {
        "dljob": here.dljob or "",
        "ray": here.ray or "",
        "python": platform.python_version(),
        "session": ray.get_runtime_context().get_session_name(),
    }


def _row(uid: str, name: str, seen: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"uid": uid, "name": name, "phase": seen["phase"] if seen else "Unknown"}
