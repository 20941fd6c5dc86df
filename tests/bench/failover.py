"""SIGKILL of PrimeMaster over 16 workers that call each other all the time."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from statistics import median
from typing import Any

from bench_common import Entries, Row, cluster, folder, runs, say, settle
from bench_jobs import manifest, master_pid, processes, role, stamp, submit

WORKERS = 16


def commanding(handle: Any, entries: Entries) -> tuple[float, float, float]:
    """Seconds from the kill to the new master in command, to an order of ours taken, and to its effect in user code."""
    killed = stamp()
    os.kill(master_pid(), signal.SIGKILL)
    while True:
        with contextlib.suppress(Exception):
            handle.restart("idle/0")
            break
    taken = stamp()
    back = entries.next_of("idle", 0, killed)["t"]
    again = [note["time"] for note in handle.events() if note["reason"] == "MasterRestarted"][-1]
    return again - killed, taken - killed, back - killed


def main() -> None:
    """One row."""
    again: list[float] = []
    taken: list[float] = []
    back: list[float] = []
    with cluster(5), folder() as out:
        entries = Entries(out)
        roles = [
            role("caller", "bench_app.Caller", 1),
            role("echo", "bench_app.Echo", WORKERS - 2, driver=False),
            role("idle", "bench_app.stay", 1, driver=False),
        ]
        handle = submit(manifest("failover", out, roles))
        entries.await_count(WORKERS)
        before = {name: pid for name, pid in processes().items() if not name.startswith(("idle", "master"))}
        for number in range(runs()):
            time.sleep(2.0)
            for kept, value in zip((again, taken, back), commanding(handle, entries), strict=True):
                kept.append(value)
            say(f"  run {number + 1}: back {again[-1]:.2f} s, order taken {taken[-1]:.2f} s, effect {back[-1]:.2f} s")
        same = before.items() <= processes().items()
        (out / "stop").touch()
        result = handle.result
        settle()
    Row(
        "failover",
        f"SIGKILL PrimeMaster, {WORKERS} workers",
        "0 workers restarted, 0 calls lost, commanding again <= 1 s after the kill",
        median(again),
        1.0,
        samples={"commanding again": again, "a client's order taken": taken, "rank restarted by it in user code": back},
        facts={"0 workers restarted": same, "0 calls lost": result.get("lost") == 0},
        note=f"{result.get('calls')} calls to {WORKERS - 2} ranks each, the longest {result.get('longest', 0):.2f} s",
    ).emit()


if __name__ == "__main__":
    main()
