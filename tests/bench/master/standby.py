"""A standby takes over from a PrimeMaster that is killed, and from one that is stopped, over 16 workers that call."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import ray
from ray.exceptions import RayTaskError

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Entries, Row, cluster, folder, runs, say, settle, until
from bench_jobs import manifest, processes, role, stamp, submit

WORKERS = 16
NAMES = ("master", "master/2")


def follows(name: str) -> bool:
    """Whether a PrimeMaster answers that the other one commands."""
    from ray._private.state import actors

    whole = next((row["Name"] for row in actors().values() if row["Name"].endswith(f"/{name}")), "")
    with contextlib.suppress(Exception):
        try:
            ray.get(ray.get_actor(whole, "dljob").hello.remote(), timeout=5)
        except RayTaskError as error:
            return "the other one commands" in str(error)
    return False


def again_at(handle: Any, after: float) -> float:
    """Return when the next PrimeMaster commanded, by its own event."""

    def found() -> float:
        times = [note["time"] for note in handle.events() if note["reason"] == "MasterRestarted"]
        return next((time for time in times if time > after), 0.0)

    return until(found)


def claimed_at(handle: Any, after: float) -> float:
    """Return when the next epoch was claimed, by PrimeMaster's log."""
    with (handle.connection.dir / "logs" / "master.log").open() as log:
        lines = [json.loads(line) for line in log if " is claimed: " in line]
    return next(at for line in lines if (at := datetime.fromisoformat(line["time"]).timestamp()) > after)


def struck(handle: Any, commander: str, fault: signal.Signals) -> tuple[float, float, float]:
    """Seconds from the fault to the standby in command, to an order of ours taken, and to the claim before both."""
    pid, began = processes()[commander], stamp()
    os.kill(pid, fault)
    while True:
        with contextlib.suppress(Exception):
            handle.restart("idle/0")
            break
    taken = stamp()
    again = again_at(handle, began)
    if fault is signal.SIGSTOP:
        with contextlib.suppress(ProcessLookupError):  # its successor has ended it
            os.kill(pid, signal.SIGCONT)
    return again - began, taken - began, claimed_at(handle, began) - began


def main() -> None:
    """Three rows."""
    killed: list[tuple[float, float, float]] = []
    stopped: list[tuple[float, float, float]] = []
    with cluster(5, forked=True), folder() as out:
        entries = Entries(out)
        roles = [
            role("caller", "bench_app.Caller", 1),
            role("echo", "bench_app.Echo", WORKERS - 2, driver=False),
            role("idle", "bench_app.stay", 1, driver=False),
        ]
        document = manifest("standby", out, roles)
        document["spec"]["master"] = {"standby": "Always", "maxRestarts": 1000}
        handle = submit(document)
        entries.await_count(WORKERS)
        before = {name: pid for name, pid in processes().items() if not name.startswith(("idle", "master"))}
        commander, other = NAMES
        for number in range(runs()):
            for fault, kept in ((signal.SIGKILL, killed), (signal.SIGSTOP, stopped)):
                until(lambda: follows(other), 120.0, 0.2)  # noqa: B023 - called at once
                kept.append(struck(handle, commander, fault))
                commander, other = other, commander
            say(f"  run {number + 1}: killed {killed[-1]}, stopped {stopped[-1]}")
        same = before.items() <= processes().items()
        (out / "stop").touch()
        result = handle.result
        settle()
    facts = {"0 workers restarted": same, "0 calls lost": result.get("lost") == 0}
    rows = (
        ("standby-kill", "SIGKILL PrimeMaster -> its standby commands", killed, 0, 0.2),
        ("standby-order", "SIGKILL PrimeMaster -> a client's order is taken", killed, 1, 0.4),
        ("standby-stop", "SIGSTOP PrimeMaster -> its standby commands", stopped, 0, 2.5),
    )
    for name, what, found, at, limit in rows:
        target, seconds = f"<= {limit:g} s, {WORKERS} workers", [one[at] for one in found]
        samples = {"seconds": seconds, "of it until the epoch is claimed": [one[2] for one in found]}
        Row(name, what, target, median(seconds), limit, samples=samples, facts=facts).emit()


if __name__ == "__main__":
    main()
