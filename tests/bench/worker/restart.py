"""SIGKILL of one worker: until its rank is back in user code, with a spare and without one."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
import bare
from bench_common import Entries, Row, cluster, folder, in_turn, runs, say, until
from bench_jobs import end, manifest, processes, role, stamp, submit

VICTIM = 1


def kill_one(entries: Entries) -> float:
    """Seconds from the SIGKILL of a rank to its next entry."""
    pid = entries.last_of("worker", VICTIM)["pid"]
    killed = stamp()
    os.kill(pid, signal.SIGKILL)
    return entries.next_of("worker", VICTIM, killed)["t"] - killed


def start(out: Any, entries: Entries, spares: int, entrypoint: str = "bench_app.stay") -> Any:
    """A job of two ranks, with all its spares ready."""
    document = manifest("restart", out, [role("worker", entrypoint, 2)], spares={"processesPerNode": spares})
    handle = submit(document)
    entries.await_count(2)
    return handle


def spare_ready(nodes: int = 1) -> None:
    """Wait until each node that has the role has a spare, warmed up."""
    until(lambda: len([name for name in processes() if "/spare-" in name]) >= nodes)
    time.sleep(1.5)


def with_spare() -> Row:
    """Kills one after another, each when the spare is there again."""
    took: list[float] = []
    counts: list[int] = []
    with folder() as out:
        entries = Entries(out)
        handle = start(out, entries, 1)
        for _ in range(runs(15)):
            spare_ready()
            before = handle.connection.pids()
            took.append(kill_one(entries))
            after = handle.connection.pids()
            counts.append(sum(after.get(name) != pid for name, pid in before.items()))
        restarts = handle.status()["restarts"]
        end(handle)
    return Row(
        "restart-spare",
        "SIGKILL one worker, spare available -> its rank back in user code",
        "<= 0.2 s; 1 process restarted",
        median(took),
        0.2,
        samples={"dljob": took},
        facts={
            "1 process restarted": set(counts) == {1} and restarts["process"] == len(took) == sum(restarts.values())
        },
    )


def without_spare() -> Row:
    """Kills and new bare actors in turn, in the same Ray."""
    with folder() as out:
        entries = Entries(out)
        handle = start(out, entries, 0)

        def ours() -> float:
            time.sleep(1.0)
            return kill_one(entries)

        def theirs() -> float:
            time.sleep(1.0)
            return bare.one()

        bare_s, dljob_s = in_turn(theirs, ours, runs(11))
        end(handle)
    return Row(
        "restart-cold",
        "SIGKILL one worker, no spare, no torch",
        "<= 0.5 s",
        median(dljob_s),
        0.5,
        samples={"dljob": dljob_s, "bare": bare_s},
        note=f"{median(dljob_s) / median(bare_s):.2f} x one new bare actor, which is forked too",
    )


def with_torch() -> Row:
    """Kills of a rank whose code imports torch."""
    with folder() as out:
        entries = Entries(out)
        handle = start(out, entries, 0, "torch_app.stay")
        took: list[float] = []
        for _ in range(runs(11)):
            time.sleep(1.0)
            took.append(kill_one(entries))
        end(handle)
    return Row(
        "restart-torch",
        "SIGKILL one worker, no spare, torch imported",
        "<= 0.6 s",
        median(took),
        0.6,
        samples={"dljob": took},
    )


def first_use() -> list[Row]:
    """What the first use of Ray costs a rank in each of its lives, and a new bare actor, in turn."""
    with folder() as out:
        entries = Entries(out)
        handle = start(out, entries, 0, "bench_app.use_ray")
        written = out / "uses.txt"
        ours: list[list[float]] = []
        theirs: list[tuple[float, float]] = []
        for _ in range(runs(11)):
            time.sleep(1.0)
            theirs.append(bare.uses())
            kill_one(entries)
            ours.append(json.loads(written.read_text().splitlines()[-1]))
        end(handle)
    rows: list[Row] = []
    for at, what in enumerate(("`ray.put` and `ray.get`", "task")):
        took, bare_s = [use[at] for use in ours], [use[at] for use in theirs]
        rows.append(
            Row(
                f"restart-use-{at}",
                f"first {what} of a rank that is forked",
                "no limit: what its start leaves",
                median(took),
                None,
                samples={"dljob": took, "bare": bare_s},
                note=f"a new bare actor: {1000 * median(bare_s):.1f} ms",
            )
        )
    return rows


def main() -> None:
    """Five rows."""
    with cluster(2, forked=True):
        say("restart with a spare")
        with_spare().emit()
        say("restart without a spare: bare, dljob")
        without_spare().emit()
        say("the same, with torch")
        with_torch().emit()
        say("the first use of Ray: bare, dljob")
        for row in first_use():
            row.emit()


if __name__ == "__main__":
    main()
