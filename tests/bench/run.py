"""Run the benchmarks one after another and print the table of figures: target, value, verdict.

    python tests/bench/run.py [name ...] [--json FILE] [--markdown FILE] [--from FILE]

A name is that of a script in one of the folders beside this one; without a name, all of SCRIPTS run. `--from` takes
the rows of an earlier `--json`, runs only the named scripts, and replaces their rows. Exits 1 when a figure is missed.
Ray runs in a network namespace of its own where one can be made.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from tiers import isolated  # noqa: E402 - the folder above has no package

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
    "submit",
    "fork",
    "restart",
    "group",
    "inprocess",
    "resize",
    "hang",
    "undisturbed",
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


def script(name: str) -> Path:
    """Return the path of a benchmark; its folder is named after the part of the product that it measures."""
    return next(HERE.glob(f"*/{name}.py"))


def measure(name: str) -> list[dict[str, Any]]:
    """The rows of one benchmark; a row that says so when it failed."""
    print(f"== {name}", file=sys.stderr, flush=True)
    begin = time.monotonic()
    network = [] if name.startswith("kube_") else isolated()  # a Kubernetes makes networks of its own
    command = [*network, sys.executable, "-W", "ignore", str(script(name))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment(), check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"name"')]
    if done.returncode or not rows:
        what = f"{name}.py failed (exit {done.returncode})"
        rows.append({"name": name, "what": what, "target": "", "met": False, "failed": True})
    print(f"   {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    return [row | {"script": name} for row in rows]


def environment() -> dict[str, str]:
    """The processes' environment: one thread each, no statistics sent anywhere."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}


def number(row: dict[str, Any], key: str) -> str:
    """A figure with its unit."""
    if row.get("failed"):
        return "-"
    value, unit = row[key], row["unit"]
    digits = 0 if value >= 1000 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f} {unit}"


def spread(row: dict[str, Any]) -> str:
    """Each sample's smallest, median, largest, and how many."""
    parts = [
        f"{name} {low:.3g} / {mid:.3g} / {high:.3g} (n={len(row['samples'][name])})"
        for name, (low, mid, high) in row.get("spread", {}).items()
    ]
    return "; ".join(parts)


def remarks(row: dict[str, Any]) -> str:
    """The facts that must be true, and the note."""
    facts = [
        f"{name}: {'yes' if fact is True else 'NO' if fact is False else fact}" for name, fact in row["facts"].items()
    ]
    return "; ".join([*facts, *([row["note"]] if row["note"] else [])])


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table, readable on a terminal too."""
    lines = ["| what | figure | measured | limit | met | script |", "| --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        more = "" if row.get("failed") else remarks(row)
        measured = number(row, "value") + (f" ({more})" if more else "")
        link = f"[{row['script']}.py](../tests/bench/{script(row['script']).relative_to(HERE)})"
        verdict = "yes" if row["met"] else "**no**"
        cells = (row["what"], row["target"], measured, number(row, "limit"), verdict, link)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def machine() -> str:
    """What it ran on, in one line."""
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), "")
    packages = ", ".join(f"{name} {version(name)}" for name in ("ray", "torch"))
    cores = f"{len(os.sched_getaffinity(0))} cores ({model.partition(': ')[2] or platform.machine()})"
    return f"{cores}, Python {platform.python_version()}, {packages}"


def document(kept: dict[str, Any]) -> str:
    """docs/benchmarks.md."""
    rows = kept["rows"]
    spreads = [f"- `{row['script']}.py`, {row['name']}: {spread(row)}" for row in rows if row.get("spread")]
    return "\n".join(
        [
            "# Benchmarks",
            "",
            "For those who decide about dljob or change it: its measured costs and recovery times, with targets.",
            "`python tests/bench/run.py` writes the rows, the newest of each script; `make bench` measures all again.",
            "Each figure is a median; comparisons with Ray alone ran in turn with it, in one Ray.",
            "",
            f"Measured {kept['day']} on {kept['machine']}. {kept['conditions']}".rstrip(),
            "",
            table(rows),
            "",
            "## Spread",
            "",
            "Smallest / median / largest, in the unit of the row.",
            "",
            *spreads,
            "",
        ]
    )


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *SCRIPTS], help="benchmarks to run")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--markdown", type=Path, help="write the document here")
    parser.add_argument("--conditions", default="", help="what else is to be said of the machine, for the document")
    parser.add_argument(
        "--from", dest="earlier", type=Path, help="rows of an earlier --json; only what is named is run"
    )
    arguments = parser.parse_args()
    if arguments.earlier:
        kept = json.loads(arguments.earlier.read_text())
        rows = [row for row in kept["rows"] if row["script"] not in arguments.names]
        rows += [row for name in arguments.names for row in measure(name)]
        kept["rows"] = sorted(rows, key=lambda row: SCRIPTS.index(row["script"]))
    else:
        rows = [row for name in arguments.names or SCRIPTS for row in measure(name)]
        kept = {"machine": machine(), "day": date.today().isoformat(), "conditions": "", "rows": rows}  # noqa: DTZ011 - a local day
    kept["conditions"] = arguments.conditions or kept["conditions"]
    if arguments.json:
        arguments.json.write_text(json.dumps(kept, indent=1) + "\n")
    if arguments.markdown:
        arguments.markdown.write_text(document(kept))
    print(table(kept["rows"]))
    return 0 if all(row["met"] for row in kept["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
