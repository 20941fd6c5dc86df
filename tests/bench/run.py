"""Run the benchmarks one after another and print the table of figures: target, value, verdict.

    python tests/bench/run.py [name ...] [--keep] [--how WORDS] [--rows FILE]

A name is that of a script in one of the folders beside this one; without a name, all of SCRIPTS run. With `--keep`,
the rows of each script replace its earlier ones in figures.json, of which docs/benchmarks.md is made. Exits 1 when a
figure is missed. Ray runs in a network namespace of its own where one can be made.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import figures  # noqa: E402 - found by the path above

from tiers import isolated  # noqa: E402

SCRIPTS = (
    "cli",
    "shown_page",
    "live_page",
    "large_folder",
    "planning",
    "transition",
    "journal",
    "replay",
    "prime",
    "page_readers",
    "samples",
    "waits",
    "submit",
    "fork",
    "restart",
    "group",
    "inprocess",
    "resize",
    "hang",
    "undisturbed",
    "soak",
    "memory",
    "torchrun",
    "precheck",
    "failover",
    "standby",
    "deaths",
    "head",
    "raylet",
    "node",
    "agents",
    "endings",
    "output",
    "page",
    "example",
    "goodput",
    "what_ifs",
    "advice",
    "spot_engines",
    "sim_scale",
    "calls",
    "streams",
    "http_streams",
    "endpoints_seen",
    "traced_calls",
    "fleet",
    "weights",
    "weights_large",
    "weight_chain",
    "checkpoint",
    "online",
    "cuts",
    "cut_seeds",
    "fleet_faults",
    "heads",
    "kube_apply",
    "kube_status",
    "kube_rest",
    "kube_failover",
    "kube_scale",
    "kube_jobs",
    "kube_process",
    "kube_replace",
)

LONG = "soak"
"""The script that takes an hour (SOAK_S), and runs only where it is named."""


def printed(text: str) -> list[dict[str, Any]]:
    """The rows in what a benchmark printed."""
    return [json.loads(line) for line in text.splitlines() if line.startswith('{"name"')]


def measure(name: str) -> list[dict[str, Any]]:
    """The rows of one benchmark; a row that says so when it failed."""
    print(f"== {name}", file=sys.stderr, flush=True)
    begin = time.monotonic()
    network = [] if name.startswith("kube_") else isolated()  # a Kubernetes makes networks of its own
    command = [*network, sys.executable, "-W", "ignore", str(figures.script(name))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment(), check=False)
    rows = printed(done.stdout)
    if done.returncode or not rows:
        what = f"{name}.py failed (exit {done.returncode})"
        rows.append({"name": name, "what": what, "target": "", "met": False, "failed": True})
    print(f"   {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    return rows


def environment() -> dict[str, str]:
    """The processes' environment: one thread each, no statistics sent anywhere."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}


def machine() -> str:
    """What it ran on, in one line."""
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    return f"{len(os.sched_getaffinity(0))} cores ({model.partition(': ')[2] or platform.machine()})"


def main() -> int:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *SCRIPTS], help="benchmarks to run")
    parser.add_argument("--keep", action="store_true", help="write the rows into figures.json and docs/benchmarks.md")
    parser.add_argument(
        "--rows", type=Path, help="keep the rows of this file, what the one named script printed earlier"
    )
    parser.add_argument("--how", default="", help="what else is to be said of the machine; default: its load")
    arguments = parser.parse_args()
    facts = {"when": datetime.now(UTC).date().isoformat(), "where": machine()}
    facts["how"] = arguments.how or f"load {os.getloadavg()[0]:.0f} before it"
    all_met = True
    for name in arguments.names or (each for each in SCRIPTS if each != LONG):
        rows = printed(arguments.rows.read_text()) if arguments.rows else measure(name)
        if arguments.keep:
            figures.keep(figures.merged(figures.known(), name, rows, facts, SCRIPTS))
        print(figures.section(name, facts | {"rows": [figures.worded(row) for row in rows]}), end="\n\n", flush=True)
        all_met = all_met and all(row["met"] for row in rows)
    return 0 if all_met else 1


if __name__ == "__main__":
    sys.exit(main())
