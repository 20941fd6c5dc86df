"""The crash sweep: one job's life, with the operator killed before and after each of its calls.

    PYTHONPATH=tests/kube python -m sweep [--lives 3] [--play NAME] [--only WORDS] [--resume] [--table FILE]

The result of every life is kept in `.kube/sweep.jsonl`; with --resume, lives that ended well are not repeated. The
sweep takes some 20 minutes on two cores, and hours beside other busy programs.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(1, str(Path(__file__).resolve().parents[1]))
sys.path.insert(2, str(Path(__file__).resolve().parents[1] / "kits"))
sys.path.append(str(Path(__file__).resolve().parents[2]))

from cluster import cache, kwok, up
from director import TRIES, Director, Results, Shape
from life import NODES
from plays import PLAYS
from table import counts, judged, table

from tiers import isolated


async def sweep(args: argparse.Namespace, run: Path, results: Results) -> None:
    """Run all lives."""
    cluster = up.plane(run)
    kwok.add(cluster, run, len(NODES))
    async with Director.on(cluster.kubeconfig, run, isolated()) as director:
        for play in args.play or PLAYS:
            if play not in results.calm:
                results.begin(await director.calm(play, args.lives))
        points = [*results.points(), *results.chance()]
        wanted = [point for point in points if args.only in f"{point.play} {point.call} {point.when}"]
        print(f"{len(points)} points, {len(wanted)} of them wanted", flush=True)
        end = time.monotonic() + args.seconds if args.seconds else None
        for _ in range(TRIES):
            await director.all(wanted, Shape(args.lives, args.deaths), results, end)


def main() -> int:
    """Run the sweep; returns 0 when a life met each point and ended as the calm ones."""
    parser = argparse.ArgumentParser(prog="python -m sweep", description="the crash sweep")
    parser.add_argument("--lives", type=int, default=3, help="how many at once (%(default)s)")
    parser.add_argument("--deaths", type=int, default=1, help="points that each life dies at (%(default)s)")
    parser.add_argument("--play", action="append", choices=PLAYS, help="this play alone; may be given again")
    parser.add_argument("--only", default="", help="the points with these words alone")
    parser.add_argument("--resume", action="store_true", help="go on where the last sweep ended")
    parser.add_argument("--seconds", type=float, default=0, help="begin no life after so many seconds; 0: no limit")
    parser.add_argument("--kept", type=Path, help="the file for results (.kube/sweep.jsonl)")
    parser.add_argument("--table", type=Path, help="write the table of all points there")
    args = parser.parse_args()
    kept = args.kept or cache.ROOT / ".kube" / "sweep.jsonl"
    results = Results(kept, resume=args.resume)
    run = up.owned(kept.stem)
    signal.signal(signal.SIGTERM, lambda _number, _frame: signal.raise_signal(signal.SIGINT))
    try:
        asyncio.run(sweep(args, run, results))
    finally:
        up.end(run)
    if args.table:
        args.table.parent.mkdir(parents=True, exist_ok=True)
        args.table.write_text(table(results))
    wrong = judged(results)
    print("\n".join([*wrong, counts(results)]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
