"""Memory of a rank and of PrimeMaster with 16 ranks, against bare actors of the same Ray: PSS, since all are forked."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

import ray

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bare import Bare
from bench_common import Entries, Row, cluster, folder, runs, say, settle
from bench_jobs import end, manifest, processes, role, submit

RANKS = 16
MIB = 1 << 20


def pss(pid: int) -> float:
    """MiB of a process: its own pages, and its share of those that it has in common with others."""
    words = Path(f"/proc/{pid}/smaps_rollup").read_text().split()
    return int(words[words.index("Pss:") + 1]) * 1024 / MIB


def bare() -> float:
    """MiB of each of as many bare actors as a job has processes, the median."""
    actors = [Bare.options(num_cpus=0).remote() for _ in range(RANKS + 2)]
    pids = ray.get([actor.__ray_call__.remote(lambda _: __import__("os").getpid()) for actor in actors])
    value = median(map(pss, pids))
    for actor in actors:
        ray.kill(actor)
    settle()
    return value


def job() -> tuple[float, float]:
    """MiB of a rank, the median of all, and of PrimeMaster."""
    with folder() as out:
        entries = Entries(out)
        handle = submit(manifest("memory", out, [role("worker", "bench_app.stay", RANKS)]))
        ranks = [entry["pid"] for entry in entries.await_count(RANKS)]
        value = median(map(pss, ranks)), pss(processes()["master"])
        end(handle)
        return value


def main() -> None:
    """Two rows."""
    theirs: list[float] = []
    ranks: list[float] = []
    masters: list[float] = []
    with cluster(6, 6, forked=True):
        for number in range(runs(3)):
            theirs.append(bare())
            rank, master = job()
            ranks.append(rank)
            masters.append(master)
            say(f"  run {number + 1}: bare {theirs[-1]:.1f}, rank {rank:.1f}, PrimeMaster {master:.1f} MiB")
    for name, what, ours, most in (
        ("rank", f"PSS of a CPU rank, {RANKS} of them", ranks, 1.03),
        ("master", f"PSS of PrimeMaster with {RANKS} ranks", masters, 1.08),
    ):
        Row(
            f"memory-{name}",
            what,
            f"<= {most} x a bare actor",
            median(ours),
            most * median(theirs),
            unit="MiB",
            samples={"dljob": ours, "bare": theirs},
            note=f"{median(ours) / median(theirs):.2f} x bare",
        ).emit()


if __name__ == "__main__":
    main()
