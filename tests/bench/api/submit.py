"""From submit() to the last of n user entries, against n + 2 actors of bare Ray, made in one placement group."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
import bare
from bench_common import Entries, Row, cluster, folder, other_ray, runs, say
from bench_jobs import end, journaled, manifest, role, stamp, submit

NODES = (6, 6)
"""CPUs of each."""
LAST = "dljob"
PHASES = {
    "of it until PrimeMaster commands": ("MasterStarted", min),
    "all placed": ("UnitReserved", max),
    "the first host ready": ("HostReady", min),
    "all hosts ready": ("HostReady", max),
}
"""What a start consists of: the events of the journal, and whether the first or the last one counts."""


def job(n: int) -> dict[str, float]:
    """Seconds from submit() to the last entry of a role of n ranks, and to what comes before it."""
    with folder() as out:
        entries = Entries(out)
        begin = stamp()
        handle = submit(manifest(f"submit-{n}", out, [role("worker", "bench_app.stay", n)]))
        took = {LAST: entries.await_count(n)[-1]["t"] - begin}
        told = journaled(handle)
        for name, (kind, which) in PHASES.items():
            took[name] = which(at for at, event in told if event["t"] == kind) - begin
        end(handle)
        return took


def main() -> None:
    """One row for each n. A job has a PrimeMaster and node agents beside its ranks: bare Ray makes two actors more."""
    with cluster(*NODES, forked=True), other_ray(*NODES) as plain:
        for n in (4, 16, 32):
            theirs: list[float] = []
            forked: list[float] = []
            phases: dict[str, list[float]] = {name: [] for name in (LAST, *PHASES)}
            ours = phases[LAST]
            for number in range(runs()):
                theirs.append(bare.elsewhere(plain, "many", n + 2))
                forked.append(bare.many(n + 2))
                for name, seconds in job(n).items():
                    phases[name].append(seconds)
                took = f"bare {theirs[-1]:.2f}, bare and forked {forked[-1]:.2f}, dljob {ours[-1]:.2f} s"
                say(f"submit -> {n} entries, run {number + 1}: {took}")
            ratios = (median(ours) / median(floor) for floor in (theirs, forked))
            Row(
                f"submit-{n}",
                f"`submit()` on a running Ray -> last of {n} user entries, no torch",
                f"<= 1.15 x {n + 2} actors of bare Ray",
                median(ours),
                1.15 * median(theirs),
                samples={**phases, "bare": theirs, "bare, forked": forked},
                note="{:.2f} x bare; {:.2f} x bare actors that are forked as ours are".format(*ratios),
            ).emit()


if __name__ == "__main__":
    main()
