"""SIGKILL of PrimeMaster over 16 workers that call each other all the time."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import ray

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bare import elsewhere, reborn
from bench_common import Entries, Row, cluster, folder, other_ray, runs, say, settle
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
    forked: list[float] = []
    bare: list[float] = []
    with cluster(5, forked=True), other_ray(1) as plain, folder() as out:
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
            time.sleep(2.0)
            forked.append(reborn(out / "births"))
            bare.append(elsewhere(plain, "reborn", out / "births-elsewhere"))
            took = ", ".join(f"{kept[-1]:.2f} s" for kept in (bare, forked, again, taken, back))
            say(f"  run {number + 1}: bare, bare and forked, commanding, order taken, effect: {took}")
        ray.kill(ray.get_actor("reborn", "dljob"))
        same = before.items() <= processes().items()
        (out / "stop").touch()
        result = handle.result
        settle()
    ratios = f"{median(again) / median(bare):.2f} x bare, {median(again) / median(forked):.2f} x bare and forked"
    calls = f"{result.get('calls')} calls to {WORKERS - 2} ranks each, the longest {result.get('longest', 0):.2f} s"
    Row(
        "failover",
        f"SIGKILL PrimeMaster, {WORKERS} workers",
        "0 workers restarted, 0 calls lost, acting again <= 1.1 x a bare actor's `__init__` again",
        median(again),
        1.1 * median(bare),
        samples={
            "acting again": again,
            "bare actor's __init__ again": bare,
            "the same, forked": forked,
            "a client's order taken": taken,
            "rank restarted by it in user code": back,
        },
        facts={"0 workers restarted": same, "0 calls lost": result.get("lost") == 0},
        note=f"{ratios}; {calls}",
    ).emit()


if __name__ == "__main__":
    main()
