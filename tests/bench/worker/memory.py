"""Memory of a rank and of PrimeMaster with 16 ranks, against bare actors of the same Ray: PSS, since all are forked."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from typing import Any

import ray

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bare import Bare
from bench_common import Entries, Row, cluster, folder, runs, say, settle
from bench_jobs import end, manifest, processes, role, submit
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dljob.runtime.worker.host import Host

RANKS = 16
MIB = 1 << 20


def pss(pid: int) -> float:
    """MiB of a process: its own pages, and its share of those that it has in common with others."""
    words = Path(f"/proc/{pid}/smaps_rollup").read_text().split()
    return int(words[words.index("Pss:") + 1]) * 1024 / MIB


@ray.remote(max_restarts=0, concurrency_groups=Host.concurrency_groups)
class Threaded:
    """A bare actor with the threads that Ray gives a rank for its calls: the floor of what serves calls at once."""


def bare(many: int, node: str, kind: Any = Bare) -> float:
    """MiB of each of so many bare actors on a node, the median: workers of a node share the pages of their server."""
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    actors = [kind.options(num_cpus=0, scheduling_strategy=there).remote() for _ in range(many)]
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
    actors: list[float] = []
    threaded: list[float] = []
    alone: list[float] = []
    ranks: list[float] = []
    masters: list[float] = []
    # PrimeMaster is alone with its server on the head, all ranks and an agent are on the other node.
    with cluster(12, forked=True) as made:
        for number in range(runs(3)):
            actors.append(bare(RANKS + 1, made.raylets[0].node_id))
            threaded.append(bare(RANKS + 1, made.raylets[0].node_id, Threaded))
            alone.append(bare(1, made.head_node.node_id))
            rank, master = job()
            ranks.append(rank)
            masters.append(master)
            say(f"  run {number + 1}, MiB: bare {actors[-1]:.1f}, with threads {threaded[-1]:.1f}, rank {rank:.1f};")
            say(f"     alone: bare {alone[-1]:.1f}, PrimeMaster {master:.1f}")
    floor = {"bare, with a rank's threads": threaded}
    for name, what, ours, theirs, most, more in (
        ("rank", f"PSS of a CPU rank, {RANKS} of them on a node", ranks, actors, 1.03, floor),
        ("master", f"PSS of PrimeMaster with {RANKS} ranks, on the head", masters, alone, 1.08, {}),
    ):
        beside = "".join(f"; {of} {median(mib):.1f} MiB" for of, mib in more.items())
        Row(
            f"memory-{name}",
            what,
            f"<= {most} x a bare actor",
            median(ours),
            most * median(theirs),
            unit="MiB",
            samples={"dljob": ours, "bare": theirs, **more},
            note=f"{median(ours) / median(theirs):.2f} x bare{beside}",
        ).emit()


if __name__ == "__main__":
    main()
