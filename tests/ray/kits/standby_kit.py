"""A job with a standby of PrimeMaster on a real Ray: its two processes, and which of them commands."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from prime_help import Job, eventually
from ray.exceptions import RayError, RayTaskError

from dljob.runtime.backend.masters import FIRST, SECOND, actor_name

LONG_S = 120.0
RANKS = ("worker/0", "worker/1")


class PairScene:
    """A job of two ranks that has a standby, and its two PrimeMasters by number."""

    def __init__(self, job: Job, *, apart: bool = False, **spec: Any) -> None:
        self.job = job
        worker = job.role("worker", "prime_user.until_told", replicas=2)
        # Of a machine that is so busy that a takeover takes longer than a lease, no rank is to end with its own.
        policy = {"leaseSeconds": 300, **spec.pop("faultTolerance", {})}
        master = {"standby": "Always", **spec.pop("master", {})}
        manifest = job.manifest(worker, master=master, faultTolerance=policy, **spec)
        job.begin(manifest, apart=apart)
        self.ranks = job.running(*RANKS, within=LONG_S)
        self.follows(SECOND)

    def actor(self, number: int) -> Any:
        return ray.get_actor(actor_name(self.job.uid, number), "dljob")

    def pid(self, number: int) -> int:
        """Return the pid of one of the two; 0 while it has none."""
        return self._alive(number).get("Pid", 0)

    def node(self, number: int) -> str:
        """Return the node of one of the two; empty while it is on none."""
        return self._alive(number).get("Address", {}).get("NodeID", "")

    def _alive(self, number: int) -> dict[str, Any]:
        from ray._private.state import state

        rows = [row for row in state.actor_table(None).values() if row["Name"] == actor_name(self.job.uid, number)]
        return next((row for row in rows if row["State"] == "ALIVE"), {})

    def living(self, number: int) -> int:
        """Wait until one of the two has a pid; returns it. A signal to pid 0 would meet the tests themselves."""
        return eventually(lambda: self.pid(number), LONG_S, lambda: f"PrimeMaster {number} does not live")

    def follows(self, number: int) -> None:
        """Wait until one of the two answers that the other one commands."""

        def refused() -> bool:
            try:
                ray.get(self.actor(number).hello.remote(), timeout=5)
            except RayTaskError as error:
                return "the other one commands" in str(error)
            except (RayError, ValueError):
                return False
            return False

        eventually(refused, LONG_S, lambda: f"PrimeMaster {number} does not follow: {self.log()}")

    def commands(self, number: int, epoch: int) -> None:
        """Wait until one of the two commands, in an epoch: by the client's own calls."""

        def answers() -> bool:
            restarts = self.job.connection.status()["restarts"]["master"]
            return restarts == epoch - 1 and self.job.connection.pids()["master"] == self.pid(number)

        eventually(answers, LONG_S, lambda: f"PrimeMaster {number} does not command: {self.job.seen()} {self.log()}")

    def commander(self, epoch: int) -> int:
        """Wait until one of the two commands in an epoch; return its number."""

        def found() -> int:
            if self.job.connection.status()["restarts"]["master"] != epoch - 1:
                return 0
            pid = self.job.connection.pids()["master"]
            return next((number for number in (FIRST, SECOND) if self.pid(number) == pid), 0)

        return eventually(found, LONG_S, lambda: f"nobody commands: {self.job.seen()} {self.log()}")

    def kill(self, *numbers: int) -> None:
        for pid in [self.living(number) for number in numbers]:
            os.kill(pid, signal.SIGKILL)

    def untouched(self) -> None:
        """No rank has restarted."""
        pids = self.job.connection.pids()
        assert {rank: pids.get(rank) for rank in RANKS} == {rank: self.ranks[rank] for rank in RANKS}, (
            f"{self.job.seen()} {self.log()}"
        )

    def restart(self, rank: str, incarnation: int) -> None:
        """Order the restart of a rank; wait until it runs again."""
        self.job.connection.command("restart", rank)
        self.ranks |= self.job.running(rank, incarnation={rank: incarnation}, within=LONG_S)

    def ends(self) -> None:
        """End the job; nothing of it is left, the standby neither."""
        self.job.go()
        assert self.job.connection.wait(LONG_S)["phase"] == "Succeeded", self.log()
        events = (self.job.folder / "events.jsonl").read_text().splitlines()
        numbers = [json.loads(event)["seq"] for event in events]
        assert numbers == list(range(1, len(numbers) + 1)), "each master writes on where the one before has ended"
        self.job.nothing_left(LONG_S)

    def log(self) -> str:
        with suppress(OSError):
            return Path(self.job.folder / "logs" / "master.log").read_text()[-4000:]
        return "(no log)"


__all__ = ["FIRST", "LONG_S", "RANKS", "SECOND", "PairScene"]
