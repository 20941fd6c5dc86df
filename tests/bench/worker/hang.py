"""SIGSTOP of one rank of a four-rank gloo group: until it is named, and until all four step again.

As a torchrun script, whose ranks are forked from a process that has torch; as a class with spare processes; and
as a class without, whose four processes import torch anew.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Entries, Row, cluster, folder, runs, say, until
from bench_jobs import end, manifest, processes, role, submit

RANKS = 4
STEPPED_S = 4.0
"""So long the group steps before the next rank is stopped: some twenty steps."""
KINDS = (
    ("script", "hang_script.py", 0),
    ("class, spares available", "hang_app.Trainer", RANKS),
    ("class", "hang_app.Trainer", 0),
)
AGAIN_S = 4.0
WHAT = f"SIGSTOP of one rank of a {RANKS}-rank gloo group"


def found(handle: Any, count: int) -> list[dict[str, Any]]:
    """The hangs that were told, as soon as there are so many."""
    return until(
        lambda: (got := [n for n in handle.events() if n["reason"] == "HangFound"])[count - 1 :] and got, 60, 0.02
    )


def met(out: Path, since: float) -> float:
    """When the last of all ranks did its first step after a time and a restart; 0 while one has not."""
    times = [(out / f"last-{rank}").stat().st_mtime for rank in range(RANKS)]
    return max(times) if min(times) > since + 1.0 else 0.0


def warm(count: int) -> bool:
    """Whether so many spares wait, each of which has imported torch."""
    pids = [pid for name, pid in processes().items() if "/spare-" in name]
    return len(pids) >= count and all("libtorch_python" in Path(f"/proc/{pid}/maps").read_text() for pid in pids)


def one_kind(kind: str, entrypoint: str, spares: int, count: int) -> dict[str, list[Any]]:
    """All runs of one kind of job."""
    seen: dict[str, list[Any]] = {"named": [], "going on": [], "step": [], "right": []}
    with folder() as out:
        entries = Entries(out)
        trainer = role("trainer", entrypoint, RANKS, type="Elastic", replicasPerGroup=RANKS, comm={"backend": "gloo"})
        handle = submit(
            manifest("hang", out, [trainer], **({"spares": {"processesPerNode": spares}} if spares else {}))
        )
        entries.await_count(RANKS)
        for number in range(count):
            if spares:
                until(lambda: warm(spares), 120, 0.2)
            time.sleep(STEPPED_S)
            victim = number % RANKS
            os.kill(entries.last_of("trainer", victim)["pid"], signal.SIGSTOP)
            last = (out / f"last-{victim}").stat().st_mtime
            note = found(handle, number + 1)[-1]
            seen["named"].append(note["time"] - last)
            seen["right"].append(note["target"] == f"trainer/{victim}")
            seen["step"].append(float(re.findall(r"median step ([0-9.]+) s", note["message"])[0]))
            seen["going on"].append(until(lambda last=last: met(out, last), 120, 0.02) - last)
            named, again, each = (seen[name][-1] for name in ("named", "going on", "step"))
            say(f"  {kind}, run {number + 1}: named {named:.2f} s, going on {again:.2f} s, step {each:.3f} s")
        end(handle)
    return seen


def main() -> None:
    """A row of all runs, and one of each kind."""
    with cluster(2 * RANKS, forked=True):
        all_of_it = {kind: one_kind(kind, entrypoint, spares, runs(9)) for kind, entrypoint, spares in KINDS}
    step = median(s for seen in all_of_it.values() for s in seen["step"])
    Row(
        "hang-named",
        f"{WHAT} -> culprit named",
        "<= 3 x median step + 2 s after the last step",
        median(s for seen in all_of_it.values() for s in seen["named"]),
        3 * step + 2,
        samples={kind: seen["named"] for kind, seen in all_of_it.items()},
        facts={"the stopped rank was named, each time": all(all(seen["right"]) for seen in all_of_it.values())},
        note=f"median step {step:.2f} s",
    ).emit()
    for kind, seen in all_of_it.items():
        again = seen["going on"]
        Row(
            f"hang-going-on, {kind}",
            f"{WHAT} ({kind}) -> all four step again",
            f"<= {AGAIN_S:g} s",
            median(again),
            AGAIN_S,
            samples={"dljob": again},
        ).emit()


if __name__ == "__main__":
    main()
