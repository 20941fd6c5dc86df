"""The gateway's access to Ray: it finds the master of a job and asks it, no longer than the caller waits.

A live job is found in the registry in Ray's key-value store. A job that has ended is found by its folder, which is on
the head, as the gateway is.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dljob import ray_private
from dljob.errors import NotFoundError, UnreachableError, UsageError
from dljob.master.state.views import ENDS, Clue
from dljob.runtime.backend.interface import ActorCallError, ActorLostError, ActorRef, Backend
from dljob.runtime.backend.masters import call_commander, find_commander
from dljob.runtime.job import versions
from dljob.runtime.job.gateway_app import CommandRequest, LogPart
from dljob.runtime.journal.job_record import FINAL, REGISTRY, JobRecord, bring, read_notes, read_status
from dljob.runtime.journal.record_files import RecordNews, record_news
from dljob.runtime.journal.timeline import STATUS
from dljob.runtime.node import log_tails as tails
from dljob.runtime.node.readers import Readers
from dljob.telemetry.evidence import Source
from dljob.telemetry.exposition import exposition
from dljob.telemetry.job_samples import samples

_PROCESS = re.compile(r"[a-z][-a-z0-9]*/\d{1,6}\.\d{1,9}")
"""A rank's process: role/rank.incarnation."""
RETRY_S = 0.05
"""Seconds between attempts to reach a master that Ray restarts."""
GRACE_S = 3.0
"""Seconds beyond the caller's timeout, for a master that restarts and for the answer of a busy one."""
SCRAPE_S = 2.0
"""Seconds that a master has to answer for metrics and for the list of jobs: one slow job must not hide others."""
RECORD_S = 15.0
"""Seconds that the node of PrimeMaster has to read files of a job's record; its first question starts a process."""
STACKS_S = 15.0
"""Seconds for all nodes together to take stacks of their ranks."""
ENDED_SHOWN = 100
"""Ended jobs in the list."""
EVENTS_AT_ONCE = 2000
"""Most events in one answer; the caller asks for the next ones."""


class RayJobs:
    """The jobs of the Ray that this process is connected to; `home` is the folder of their folders on the head."""

    def __init__(self, backend: Backend, home: str) -> None:
        self._backend = backend
        self._home = Path(home) / "jobs"
        self._masters: dict[str, ActorRef] = {}
        self._pods: dict[str, str] = {}
        self._nodes_of_masters: dict[str, str] = {}
        """Job uid -> its master's node by the last snapshot: a master that is away cannot tell, and then its log is
        wanted most."""
        self._namespace = os.environ.get("RAY_CLUSTER_NAMESPACE", "")
        self._readers = Readers()

    # -- questions

    async def jobs(self) -> list[dict[str, Any]]:
        """Return uid, name and phase of each job, live ones first."""
        live = await self._entries()
        phases = await asyncio.gather(*(self._quick(entry) for entry in live))
        rows = [_row(entry.uid, entry.name, snapshot) for entry, snapshot in zip(live, phases, strict=True)]
        # A job that ends just now may be in both lists: the registry wins.
        known = {entry.uid for entry in live}
        ended = await asyncio.to_thread(self._ended)
        return rows + [_row(s["uid"], s["name"], s) for s in ended if s["uid"] not in known]

    async def brief(self, uid: str, after: int, timeout_s: float) -> dict[str, Any]:
        """Return the brief snapshot once its version is greater than `after`, or after `timeout_s`."""
        answer = await self._ask(uid, timeout_s, lambda seconds_left: ("brief", after, seconds_left))
        # Remembered for `_master_node`, which is asked when the master is away.
        if answer:
            self._nodes_of_masters[uid] = str(answer.get("masterNode") or "")
            return answer
        self._nodes_of_masters.pop(uid, None)
        return await self._brief_final(uid)

    async def status(self, uid: str, after: int, timeout_s: float) -> dict[str, Any]:
        """Return the whole snapshot once its version is greater than `after`, or after `timeout_s`."""
        answer = await self._ask(uid, timeout_s, lambda seconds_left: ("status", after, seconds_left))
        return answer or await self._final(uid)

    async def events(self, uid: str, after: int, timeout_s: float) -> list[dict[str, Any]]:
        """Return the events with a number greater than `after`, once there are some; at most EVENTS_AT_ONCE."""
        answer = await self._ask(uid, timeout_s, lambda seconds_left: ("notes", after, seconds_left))
        # The job has ended: its notes are in its folder.
        if answer is None:
            answer = await asyncio.to_thread(read_notes, await self._folder(uid), after)
        return answer[:EVENTS_AT_ONCE]

    async def placement(self, uid: str) -> dict[str, Any]:
        """Return the units and ranks of each node with its pod, and PrimeMaster's; no nodes once the job has ended."""
        answer = await self._ask(uid, 0.0, lambda _: ("placement",))
        if answer is None:
            return {"version": (await self._final(uid))["version"], "nodes": []}
        rows, master = answer["nodes"], answer["master"]
        await self._learn_pods({row["node"] for row in (*rows, master)})
        at = [{**row, "pod": self._pods.get(row["node"], "")} for row in (master, *rows)]
        return {**answer, "master": at[0], "nodes": at[1:]}

    async def endpoints(self, uid: str) -> dict[str, Any]:
        """Return role -> its ranks that get requests, for each role with ports; {} for a job that has ended."""
        return await self._ask(uid, 0.0, lambda _: ("endpoints", None)) or {}

    async def command(self, uid: str, order: CommandRequest) -> None:
        """Pass a command to PrimeMaster. For a job that has ended it does nothing, and raises nothing."""
        # Checked here, so that the caller learns of a mistake: a command is answered before it is carried out.
        problem = wrong(order, await self.brief(uid, 0, 0.0))
        if problem:
            raise UsageError(problem)
        if order.kind == "cause":
            rank, dot, incarnation = order.target.partition(".")
            # A node's by its id; a rank's process as `rollout/1.5`, which only a faults file speaks of.
            clue = Clue(Source.KERNEL if dot else Source.POD, order.by)
            await self._ask(uid, 0.0, lambda _: ("learned", rank, int(incarnation or 0), clue))
        else:
            await self._ask(uid, 0.0, lambda _: ("command", order.id, order.kind, order.target, order.by))

    async def tails(self, uid: str, budget: int) -> dict[str, Any]:
        """Return the ends of all logs within a budget of bytes, from whichever nodes hold them."""
        return await tails.gather(await self._folder(uid), await self.status(uid, 0, 0.0), budget)

    async def log(
        self, uid: str, rank: tuple[str, int], offset: int | None, limit: int, since: float | None = None
    ) -> LogPart:
        """Return a rank's log from an offset, since a moment (unix seconds), or its end."""
        snapshot = await self.status(uid, 0, 0.0)
        row = next((row for row in snapshot["ranks"] if (row["role"], row["rank"]) == rank), None)
        if row is None:
            raise NotFoundError(f"the job has no rank {rank[0]}/{rank[1]}")
        log = tails.of_rank(await self._folder(uid), row)
        part = await tails.read(self._readers.ask, log, offset, limit, since=since)
        # Complete only if both hold: a rank of a live job may write on.
        end = snapshot["phase"] in FINAL and part.offset >= part.size
        return LogPart(part.text, part.offset, end, part.size, part.timed)

    async def master_log(
        self, uid: str, offset: int | None, limit: int, since: float | None = None, *, older: bool = False
    ) -> LogPart:
        """Return PrimeMaster's log in the same way; with `older` the file before the last rotation."""
        node, over = await self._master_node(uid)
        log = tails.of_master(await self._folder(uid), node, older=older)
        part = await tails.read(self._readers.ask, log, offset, limit, since=since)
        return LogPart(part.text, part.offset, (over or older) and part.offset >= part.size, part.size, part.timed)

    async def _master_node(self, uid: str) -> tuple[str, bool]:
        """Return the node of a job's PrimeMaster (while it is away, the last known one), and if the job has ended."""
        try:
            snapshot = await self.brief(uid, 0, 0.0)
        except UnreachableError:
            known = self._nodes_of_masters.get(uid)
            if known is None:
                raise
            return known, False
        return str(snapshot.get("masterNode") or ""), snapshot["phase"] in FINAL

    async def record(self, uid: str, have: Mapping[str, int]) -> RecordNews:
        """Return the files of the job's record, and what is new in those that the caller has in part.

        Raises:
            UnreachableError: the node of its PrimeMaster does not answer.
        """
        folder = str(await self._folder(uid))
        # Of the last snapshot where there is one: the operator asks for these all the time.
        node, over = self._nodes_of_masters.get(uid, ""), False
        if not node:
            node, over = await self._master_node(uid)
        if over or not node:
            return await asyncio.to_thread(record_news, folder, have)
        try:
            async with asyncio.timeout(RECORD_S):
                return await self._readers.ask(node, record_news, folder, have)
        except Exception as error:
            problem = str(error).strip() or f"nothing within {RECORD_S:g} s"
            raise UnreachableError(f"the record on node {node[:8]} cannot be read: {problem[:200]}") from error

    async def stacks(self, uid: str, target: str) -> dict[str, str]:
        """Return rank -> stacks as text. Raises NotFoundError for an ended job and for an unknown target."""
        # The targets of stacks are those of a restart: job, role or rank.
        problem = wrong(CommandRequest("", "restart", target, ""), await self.brief(uid, 0, 0.0))
        if problem:
            raise NotFoundError(problem)
        answer = await self._ask(uid, STACKS_S, lambda _: ("stacks", target))
        if answer is None:
            raise NotFoundError(f"job {uid} is over: it has no processes")
        return answer

    async def metrics(self) -> str:
        """Return the metrics of all live jobs as text; the series of a job end with it."""
        snapshots = await asyncio.gather(*(self._quick(entry) for entry in await self._entries()))
        ray = versions.installed_versions().ray or ""
        return exposition(
            sample for snapshot in snapshots if snapshot for sample in samples(snapshot, self._namespace, ray)
        )

    # -- calls of masters

    async def _ask(self, uid: str, timeout_s: float, call: Callable[[float], tuple[Any, ...]]) -> Any:
        """Return the master's answer, asked again while the master restarts; None when the job has ended.

        Args:
            uid: The job's uid.
            timeout_s: How long the caller waits.
            call: Makes (method, *arguments) from the seconds that are left.

        Raises:
            NotFoundError: There is no such job.
            UnreachableError: The master is away, or does not answer.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        while True:
            with suppress(ActorLostError):  # it has ended, or Ray restarts it: the lines below tell which
                return await self._call(uid, end, call)
            # The folder before the registry: a job that ends is in both for a moment.
            if await self._ended_in(uid) is not None:
                return None
            if not await self._registered(uid):
                raise NotFoundError(f"no job {uid}")
            if loop.time() > end + GRACE_S:
                raise UnreachableError("PrimeMaster is not running now", hint="ask again")
            await asyncio.sleep(RETRY_S)

    async def _call(self, uid: str, end: float, call: Callable[[float], tuple[Any, ...]]) -> Any:
        """Ask once. Raises ActorLostError when no master is there to answer."""
        loop = asyncio.get_running_loop()
        try:
            # The grace counts from now on if the caller's time is over: a call without a timeout needs it, too.
            async with asyncio.timeout_at(max(end, loop.time()) + GRACE_S):
                ref = self._masters.get(uid) or await find_commander(self._backend, uid)
                if ref is None:
                    raise ActorLostError("no such actor")
                self._masters[uid] = ref
                # By the time left: a call that is repeated must not wait its whole time again.
                method, *args = call(max(0.0, end - loop.time()))
                return await call_commander(self._backend, ref, uid, method, *args)
        except ActorLostError:  # the next try looks the actor up anew
            self._masters.pop(uid, None)
            raise
        except TimeoutError:
            raise UnreachableError("PrimeMaster does not answer now", hint="ask again") from None
        except ActorCallError as error:
            raise UnreachableError(f"PrimeMaster: {error.message}") from error

    async def _quick(self, entry: JobRecord) -> dict[str, Any] | None:
        """Return a brief snapshot within SCRAPE_S; None when none comes."""
        with suppress(Exception):  # None is an answer: the metrics leave the job out this time
            async with asyncio.timeout(SCRAPE_S):
                return await self.brief(entry.uid, 0, 0.0)
        return None

    async def _entry(self, uid: str) -> JobRecord | None:
        try:
            # Ray's own calls wait for a minute for a head that does not answer.
            async with asyncio.timeout(GRACE_S):
                text = await self._backend.kv.get(REGISTRY + uid)
        except TimeoutError:
            raise UnreachableError("Ray's head does not answer now", hint="ask again") from None
        return JobRecord(**json.loads(text)) if text else None

    async def _registered(self, uid: str) -> bool:
        return await self._entry(uid) is not None

    async def _entries(self) -> list[JobRecord]:
        entries = [await self._entry(key.removeprefix(REGISTRY)) for key in await self._backend.kv.keys(REGISTRY)]
        return sorted((entry for entry in entries if entry), key=lambda entry: entry.started)

    # -- jobs that have ended

    async def _folder(self, uid: str) -> Path:
        """Return a job's folder, of a live or an ended job. Raises NotFoundError without one."""
        entry = await self._entry(uid)
        if entry is not None:
            return Path(entry.dir)
        ended_folder = await self._ended_in(uid)
        if ended_folder is None:
            raise NotFoundError(f"no job {uid}")
        return ended_folder

    async def _ended_in(self, uid: str) -> Path | None:
        """Return the folder of a job that has ended; None while it lives, and for an unknown job.

        A master on another node left its final status in Ray's store: its folder is created here from that.
        """
        folder = await asyncio.to_thread(self._find_folder, uid)
        if folder is not None or await self._registered(uid):
            return folder
        return await bring(self._backend.kv, uid)

    def _find_folder(self, uid: str) -> Path | None:
        for folder in self._home.glob(f"*-{uid[:8]}"):
            status = read_status(folder)
            if status.get("uid") == uid and status.get("phase") in FINAL:
                return folder
        return None

    async def _final(self, uid: str) -> dict[str, Any]:
        return await asyncio.to_thread(read_status, await self._folder(uid))

    async def _brief_final(self, uid: str) -> dict[str, Any]:
        from dljob.master.status import brief_of  # half a second of imports, which a gateway need not wait for

        return brief_of(await self._final(uid))

    def _ended(self) -> list[dict[str, Any]]:
        """Return the final statuses of the last ENDED_SHOWN jobs, latest first."""
        with suppress(OSError):
            files = sorted(self._home.glob(f"*/{STATUS}"), key=lambda path: -path.stat().st_mtime)[:ENDED_SHOWN]
            return [status for status in (read_status(file.parent) for file in files) if status.get("phase") in FINAL]
        return []

    # -- pods

    async def _learn_pods(self, nodes: set[str]) -> None:
        """Learn the pods of these nodes, and forget those of nodes that are gone."""
        # Only for nodes that are new: the pods of the others do not change.
        if not nodes <= self._pods.keys():
            pods_by_node = await asyncio.to_thread(pods_of_nodes)
            self._pods = {node: pods_by_node.get(node, "") for node in pods_by_node.keys() | nodes}


def pods_of_nodes() -> dict[str, str]:
    """Return Ray node -> pod.

    KubeRay passes the pod's name to Ray as RAY_CLOUD_INSTANCE_ID; without it the host's name stands in.
    """
    rows = ray_private.node_infos(GRACE_S)
    return {node: info.instance_id or info.node_manager_hostname for node, info in rows.items()}


def wrong(order: CommandRequest, snapshot: Mapping[str, Any]) -> str:
    """Return why a command does not fit the job of this snapshot; empty when it does."""
    if order.kind == "cause":
        needs = "a cause needs the target node/<Ray's node id> or role/rank.incarnation, and in `by` the evidence"
        known = {role["name"] for role in snapshot["roles"]}
        role = order.target.partition("/")[0]
        fits = _PROCESS.fullmatch(order.target) and role in known
        return "" if order.by and (fits or (role == "node" and order.target[5:] and "." not in order.target)) else needs
    if order.kind not in ("restart", "scale", "checkpoint", *ENDS):
        return f"there is no command {order.kind[:64]!r}; there are restart, scale, checkpoint, stop, suspend and cause"
    if order.kind == "scale":
        return _unscalable(order.target, snapshot)
    if order.target == "job":
        return ""
    if order.kind in ENDS:
        return f"only the job can be {ENDS[order.kind]}, not {order.target}"
    roles = {role["name"]: role["desired"] for role in snapshot["roles"]}
    role, slash, number = order.target.partition("/")
    # isascii, too: `isdigit` alone takes digits of other scripts.
    if role in roles and (not slash or (number.isascii() and number.isdigit() and int(number) < roles[role])):
        return ""
    return f"the job has no {order.target!r}; targets are job, a role ({', '.join(roles)}), or a rank as {role}/0"


def _unscalable(target: str, snapshot: Mapping[str, Any]) -> str:
    role, _, count = target.partition("=")
    # Only roles whose number of ranks may change have this field.
    able = [row["name"] for row in snapshot["roles"] if "wanted" in row]
    if role in able and count.isascii() and count.isdecimal() and len(count) <= 6:
        return ""
    return f"{target!r} cannot be scaled: it is written role=ranks, of {', '.join(able) or 'no role of this job'}"


def about() -> dict[str, str]:
    """Return the answer of GET /v1/version."""
    import ray

    own_versions = versions.installed_versions()
    return {
        "dljob": own_versions.dljob or "",
        "ray": own_versions.ray or "",
        "python": platform.python_version(),
        "session": ray.get_runtime_context().get_session_name(),
    }


def _row(uid: str, name: str, snapshot: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"uid": uid, "name": name, "phase": snapshot["phase"] if snapshot else "Unknown"}
