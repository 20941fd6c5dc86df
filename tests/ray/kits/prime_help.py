"""A job on the tests' Ray, and observations of it from outside."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from patience import patience

from dljob.runtime.job.launch import JobConnection, begin, launch, new_uid
from dljob.runtime.job.outline import outline
from dljob.spec.model import DLJobManifest

USERS = Path(__file__).parents[1] / "users"
QUICK = {"backoff": {"initialSeconds": 0}}
"""Fault tolerance settings that restart without backoff."""


class Job:
    """A job in a folder of its own; `close` ends what a failed test left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "job"
        self.uid = new_uid()
        self.connection: JobConnection = None  # type: ignore[assignment]

    def role(self, name: str, entry: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "entrypoint": {"class": entry}, "resources": {"cpu": "0.5"}, **more}

    def start(self, *roles: Mapping[str, Any], name: str = "t", code: Path = USERS, **spec: Any) -> JobConnection:
        return self.begin(self.manifest(*roles, name=name, **spec), code=code)

    def manifest(self, *roles: Mapping[str, Any], name: str = "t", **spec: Any) -> DLJobManifest:
        document = {
            "apiVersion": "dljob.io/v1alpha1",
            "kind": "DLJob",
            "metadata": {"name": name},
            "spec": {"roles": list(roles), **spec},
        }
        return DLJobManifest.model_validate(document)

    def begin(
        self, manifest: DLJobManifest, *, code: Path = USERS, attempt: int = 1, apart: bool = False
    ) -> JobConnection:
        """Start the job, or a later attempt of it on what is a new head to it; `apart`: as where the head is a pod."""
        where: Any = {"job_dir": self.folder, "code_dir": code, "uid": self.uid}
        if attempt == 1 and not apart:
            self.connection = launch(manifest, **where)
        else:
            job = outline(manifest.model_dump_json(by_alias=True, exclude_none=True))
            self.connection = begin(job, attempt=attempt, apart=apart, **where)
        wait = self.connection.wait
        self.connection.wait = lambda timeout=None: wait(None if timeout is None else patience(timeout))
        return self.connection

    def running(self, *ranks: str, incarnation: Mapping[str, int] | None = None, within: float = 60) -> dict[str, int]:
        """Wait until these ranks run user code in at least these incarnations; returns the pids."""
        wanted = {rank: (incarnation or {}).get(rank, 1) for rank in ranks}

        def marks() -> bool:
            return all(self.mark(rank, n).exists() for rank, n in wanted.items())

        eventually(marks, within, lambda: f"{wanted} not running: {self.seen()}")

        def known() -> dict[str, int]:
            pids = self.connection.pids()
            return pids if all(self.pid(rank, n) == pids.get(rank) for rank, n in wanted.items()) else {}

        return eventually(known, within, lambda: f"{wanted} not known: {self.seen()}")

    def master_pid(self) -> int:
        """Return the master's pid from Ray's actor table; 0 when there is none."""
        from ray._private.state import state

        name = f"{self.uid[:8]}/master"
        rows = state.actor_table(None).values()
        return next((row["Pid"] for row in rows if row["Name"] == name and row["State"] != "DEAD"), 0)

    def host_pid(self, rank: str) -> int:
        """Return the pid of the actor that is a rank's host."""
        from ray._private.state import state

        mine = f"{self.uid[:8]}/{rank}/"
        rows = state.actor_table(None).values()
        return next(row["Pid"] for row in rows if row["Name"].startswith(mine) and row["State"] == "ALIVE")

    def kill_master(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def segments(self) -> list[Path]:
        """Return the journal's files, oldest first."""
        return sorted((self.folder / "journal").glob("*.jsonl"))

    def mark(self, rank: str, incarnation: int) -> Path:
        return self.folder / f"{rank.replace('/', '-')}-{incarnation}"

    def pid(self, rank: str, incarnation: int) -> int:
        text = self.mark(rank, incarnation).read_text()
        return int(text or 0)

    def go(self) -> None:
        """Let the user code end."""
        (self.folder / "go").touch()

    def seen(self) -> str:
        """Return the job's status and notes, for a failure's message."""
        with suppress(Exception):
            return json.dumps([self.connection.status(), self.connection.notes()], indent=1)
        return "(no answer)"

    def nothing_left(self, within: float = 5) -> None:
        """Wait until no actor, placement group or key of the job is left and all CPUs are free."""
        import ray

        eventually(lambda: not self.left(), within, lambda: f"left: {self.left()}")
        total = ray.cluster_resources()["CPU"]
        eventually(lambda: ray.available_resources().get("CPU") == total, within, lambda: "CPUs are not free")

    def left(self) -> dict[str, Any]:
        import ray
        from ray.experimental import internal_kv
        from ray.util import list_named_actors, placement_group_table

        mine = f"{self.uid[:8]}/"
        actors = [row["name"] for row in list_named_actors(all_namespaces=True) if row["name"].startswith(mine)]
        groups = [
            row["name"]
            for row in placement_group_table().values()
            if row["name"].startswith(mine) and row["state"] != "REMOVED"
        ]
        uid = self.uid
        keys = [
            key.decode()
            for prefix in (f"dljob/{uid}", f"dljob/jobs/{uid}")
            for key in internal_kv._internal_kv_list(prefix, namespace="dljob")
        ]
        assert ray.is_initialized()
        return {k: v for k, v in {"actors": actors, "groups": groups, "keys": keys}.items() if v}

    def close(self) -> None:
        import ray
        from ray.util import list_named_actors, placement_group_table, remove_placement_group
        from ray.util.placement_group import get_placement_group

        mine = f"{self.uid[:8]}/"
        for row in list_named_actors(all_namespaces=True):
            if row["name"].startswith(mine):
                with suppress(Exception):
                    ray.kill(ray.get_actor(row["name"], row["namespace"]))
        for row in placement_group_table().values():
            if row["name"].startswith(mine) and row["state"] != "REMOVED":
                with suppress(Exception):
                    remove_placement_group(get_placement_group(row["name"]))


def said(job: Job, name: str, rank: str, incarnation: int = 1, within: float = 150) -> dict[str, Any]:
    """Return what a rank wrote into its file of that name, as soon as it is there."""
    path = job.folder / f"{name}-{rank.replace('/', '-')}-{incarnation}"
    return json.loads(eventually(lambda: path.exists() and path.read_text(), within, lambda: f"{path}: {job.seen()}"))


def eventually(check: Any, within: float, what: Any) -> Any:
    """Return the first true answer of check(), polled ever more rarely; fails with what() after the time limit."""
    end, pause = time.monotonic() + patience(within), 0.02
    while time.monotonic() < end:
        with suppress(OSError):
            if got := check():
                return got
        time.sleep(pause)
        pause = min(0.1, 1.1 * pause)
    raise AssertionError(what())
