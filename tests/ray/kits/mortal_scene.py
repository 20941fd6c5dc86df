"""A small job with all kinds of roles, events that happen to it, and invariants under any number of master deaths."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from prime_help import USERS, Job, eventually

from dljob.runtime.journal.stores import CLOSED
from dljob.telemetry.records import scan

RANKS = ("trainer/0", "counter/0", "worker/0", "worker/1", "script/0", "script/1")
LONG_S = 120.0
"""Seconds; longer than all master deaths during one step take, also on a busy machine."""


class Scene:
    """A job under masters that die. Each method causes one event and returns when the job has recovered from it."""

    def __init__(
        self, job: Job, at: Sequence[str], how: str = "SIGKILL", *, upgraded: bool = False, standby: bool = False
    ) -> None:
        self.job = job
        self._standby = "Always" if standby else "Never"
        self.options = {"where": str(job.folder), "at": list(at), "how": how, "upgraded": upgraded}
        self._spares = 0

    def start(self) -> None:
        """Start the job: a driver, a callee, two ranks with a host each, two ranks that share a host, and spares."""
        job = self.job
        script = {"name": "script", "entrypoint": {"module": "mortal_user.py"}, "resources": {"cpu": "0.5"}}
        job.start(
            job.role("trainer", "mortal_user.trains"),
            job.role("counter", "mortal_user.Counts", driver=False),
            job.role("worker", "mortal_user.works", replicas=2, driver=False),
            {**script, "replicas": 2, "replicasPerGroup": 2, "driver": False},
            backend={"name": "ray-mortal", "options": self.options},
            master={"maxRestarts": 1000, "standby": self._standby},
            faultTolerance={
                "leaseSeconds": 300,
                "backoff": {"initialSeconds": 0},
                "spares": {"processesPerNode": 1},
            },
        )

    def running(self, **incarnations: int) -> None:
        """Wait until all ranks are in user code, in the first incarnation or in these: `worker_1=2`."""
        wanted = {name.replace("_", "/"): number for name, number in incarnations.items()}
        self.job.running(*RANKS, incarnation=wanted, within=LONG_S)

    def kill(self, rank: str, incarnation: int = 1) -> None:
        """Send SIGKILL to a rank."""
        os.kill(self.job.pid(rank, incarnation), signal.SIGKILL)

    def raise_error(self, rank: str) -> None:
        """Let a worker raise an error."""
        flag = self.job.folder / f"raise-{rank.replace('/', '-')}"
        flag.touch()
        eventually(lambda: not flag.exists(), LONG_S, self.job.seen)

    def kill_spare(self) -> None:
        """Send SIGKILL to a waiting spare as soon as there is one."""
        pid = self.waiting_spare("script")
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: "SpareLost" in self.kinds(), LONG_S, self.job.seen)

    def waiting_spare(self, role: str) -> int:
        """Return the pid of the newest spare of a role, as soon as there is one on each node of the role."""
        return eventually(lambda: self._ready_spares(role), LONG_S, self.job.seen)[-1]

    def _ready_spares(self, role: str) -> list[int]:
        events = self.events()
        homes = {event["node"] for event in events if event["t"] == "UnitReserved" and event["unit"].startswith(role)}
        ready = [event for event in events if event["t"] == "SpareReady" and event["role"] == role]
        return [event["pid"] for event in ready] if homes == {event["node"] for event in ready} else []

    def end(self) -> dict[str, Any]:
        """Let the drivers end; returns the final status."""
        self.job.go()
        return self.job.connection.wait(LONG_S)

    def events(self) -> list[dict[str, Any]]:
        """Return the journal's events in order, including those that a fenced master wrote too late."""
        journal = self.job.folder / "journal"
        # Superseded segments are compressed beside the journal, in the middle of a test: those that leave while the
        # open ones are read are found among the compressed ones.
        parts = {path.name: path.read_bytes() for path in journal.glob("*.jsonl")}
        closed = {path.stem: path for path in (journal / CLOSED).glob("*.gz")}
        parts |= {name: gzip.decompress(path.read_bytes()) for name, path in closed.items()}
        records = [record for name in sorted(parts) for record in scan(parts[name]).records]
        return [record["e"] for record in records if record["k"] == "event"]

    def kinds(self) -> set[str]:
        """Return the kinds of the journal's events."""
        return {event["t"] for event in self.events()}

    def points(self) -> set[str]:
        """Return the points of death that a master reached."""
        return {path.name for path in Path(self.options["where"], "points").iterdir()}

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Return the lines that user code wrote under a name."""
        return [json.loads(line) for line in (self.job.folder / f"{name}.jsonl").read_text().splitlines()]

    def story(self) -> dict[str, Any]:
        """Run the job with a rank killed, an error, a spare killed and a role restarted; returns the final status."""
        self.start()
        self.running()
        self.waiting_spare("worker")  # The spare takes the place of the killed rank.
        self.kill("worker/1")
        self.running(worker_1=2)
        self.raise_error("worker/0")
        self.running(worker_0=2, worker_1=2)
        self.kill_spare()
        self.job.connection.command("restart", "script")
        self.running(worker_0=2, worker_1=2, script_0=2, script_1=2)
        status = self.end()
        self.check(status, worker_0=1, worker_1=1, script_0=1, script_1=1)
        return status

    def check(self, status: dict[str, Any], **restarted: int) -> None:
        """Assert that each rank ran as often as it had to, each step counted once, and nothing of the job is left."""
        due = dict.fromkeys(RANKS, 1) | {name.replace("_", "/"): 1 + times for name, times in restarted.items()}
        lives = sorted((line["rank"], line["incarnation"]) for line in self.lines("lives"))
        expected = sorted((rank, n + 1) for rank, times in due.items() for n in range(times))
        assert lives == expected, f"too many: {_minus(lives, expected)}, too few: {_minus(expected, lives)}; {status}"
        assert status["phase"] == "Succeeded", status
        steps = [line["step"] for line in self.lines("steps")]
        assert steps == list(range(1, len(steps) + 1))
        assert [line["step"] for line in self.lines("counted")] == steps
        assert json.loads(status["result"]) == {"steps": len(steps), "counted": len(steps)}
        notes = [note["seq"] for note in self.job.connection.notes()]
        assert notes == list(range(1, len(notes) + 1))
        self.job.nothing_left(30)


def state_of(pid: int) -> str:
    """Return a process's state from /proc: T when it is stopped, empty when it does not exist."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def second_master(scene: Scene) -> int:
    """Start another master of a job whose master is stopped, as Ray does for a node taken for dead; returns its pid."""
    import ray

    from dljob.runtime.backend.interface import ActorSpec
    from dljob.runtime.backend.ray_backend import RayBackend
    from dljob.runtime.job.launch import NAMESPACE
    from dljob.runtime.journal.job_record import MASTER_CALLS, MASTER_CLASS, MasterOrder

    job = scene.job
    order = MasterOrder(job.uid, str(job.folder), str(USERS), NAMESPACE, "ray-mortal", scene.options)
    # It has another actor name than the job's master, so its last sweep does not end itself.
    spec = ActorSpec(f"second-{job.uid[:8]}/master", MASTER_CLASS, (order,), max_concurrency=MASTER_CALLS)
    made = asyncio.run(RayBackend().spawn(spec))
    return ray.get(made.native.hello.remote(), timeout=60)


def _minus(some: list[tuple[str, int]], others: list[tuple[str, int]]) -> list[tuple[str, int]]:
    return list((Counter(some) - Counter(others)).elements())
