"""Goodput of grpo-tiny, without its stop condition, under the five minutes of examples/grpo-tiny/trace.yaml.

By the ledger, from the job's start to its stop; and, since the ledger counts a wait for another role's answer as work,
the steps that were made beside those of the quiet seconds before the first fault. GOODPUT_S shortens the run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import HERE, Row, folder, runs, say, until

EXAMPLE = HERE.parents[1] / "examples" / "grpo-tiny"
SECONDS = float(os.environ.get("GOODPUT_S", "300"))
QUIET = (5.0, 19.0)
"""Seconds after the job began to run between which nothing goes wrong."""
TARGET = 0.85


CHANGES = (
    ("iterations: 60", "iterations: 1000000"),
    ("name: local\n    replicas: 2", "name: local\n    replicas: 4"),
    ("spec:\n  env:", "spec:\n  faultTolerance: {spares: {processesPerNode: 2}}\n  env:"),
)
"""It never ends; two of four nodes are free at first; two spare processes of each role wait where it runs: trainers
restart in pairs."""


def prepare(where: Path) -> tuple[Path, Path]:
    """The job, changed, and the trace."""
    made = where / "grpo-tiny"
    shutil.copytree(EXAMPLE, made, ignore=shutil.ignore_patterns("__pycache__"))
    job = made / "dljob.yaml"
    text = job.read_text()
    for old, new in CHANGES:
        if text.count(old) != 1:
            raise SystemExit(f"{old!r} is not in {job} once")
        text = text.replace(old, new)
    job.write_text(text)
    return job, made / "trace.yaml"


def status_of(home: Path) -> dict[str, Any]:
    """The job's status as its folder has it."""
    return json.loads(next(home.glob("jobs/*/status.json")).read_text())


def notes_of(home: Path) -> list[dict[str, Any]]:
    """The job's timeline."""
    return [json.loads(line) for line in next(home.glob("jobs/*/events.jsonl")).read_text().splitlines()]


def began(home: Path) -> float | None:
    """When the job began to run."""
    try:
        return next((note["time"] for note in notes_of(home) if note["reason"] == "JobRunning"), None)
    except (StopIteration, OSError, ValueError):
        return None


def step_at(home: Path, when: float) -> tuple[float, int]:
    """(time, step) at a moment, as soon as it has come."""
    time.sleep(max(0.0, when - time.time()))
    return time.time(), status_of(home)["progress"]["step"] or 0


def one(where: Path) -> tuple[dict[str, Any], dict[str, Any], float]:
    """One run: its final status, its report of faults, and the share of steps."""
    job, trace = prepare(where)
    home = where / "home"
    env = {**os.environ, "DLJOB_HOME": str(home)}
    command = [sys.executable, "-m", "dljob.cli"]
    with (where / "out").open("w") as out, (where / "err").open("w") as err:
        process = subprocess.Popen([*command, "run", str(job), "--faults", str(trace)], env=env, stdout=out, stderr=err)
        try:
            begin = until(lambda: began(home), 120, 0.2)
            (t0, s0), (t1, s1) = (step_at(home, begin + at) for at in QUIET)
            until(lambda: process.poll() is not None or time.time() > begin + SECONDS, SECONDS + 60, 0.2)
            subprocess.run([*command, "stop", "grpo-tiny"], env=env, check=True, stdout=err, stderr=err)
            process.wait(60)
        finally:
            process.kill()
            process.wait()
    status = status_of(home)
    rate = (s1 - s0) / (t1 - t0)
    share = (status["progress"]["step"] or 0) / (rate * SECONDS)
    return status, json.loads((where / "out").read_text().splitlines()[-1]), share


def profile(status: Mapping[str, Any], told: Mapping[str, Any]) -> None:
    """Where the time went, on stderr: accounts, and what each fault took."""
    ledger = status["ledger"]
    whole = ledger["seconds"] * ledger["processes"]
    for name, seconds in sorted(ledger["accounts"].items(), key=lambda item: -item[1]):
        say(f"  {name:<12} {seconds:8.1f} s  {seconds / whole:6.1%}")
    for role in ledger["roles"]:
        say(f"  {role['name']:<12} {', '.join(f'{k} {v:.1f}' for k, v in role['accounts'].items() if v > 0.1)}")
    for row in told["faults"]:
        after = "; ".join(f"{i['cause']} {i['target']} {i['seconds']} s" for i in row["incidents"])
        say(f"  {row['at']} s {row['fault']} {row['target']}: {after or row['problem'] or 'nothing'}")
    for incident in told["unasked"]:
        say(f"  of itself: {incident}")


def main() -> None:
    """One row."""
    found: list[float] = []
    steps: list[float] = []
    came = True
    for number in range(runs(1)):
        with folder() as where:
            status, told, share = one(where)
        found.append(status["ledger"]["goodput"])
        steps.append(share)
        came = came and all(row["at"] is not None for row in told["faults"])
        say(f"run {number + 1}: goodput {found[-1]:.3f}, steps {share:.3f} of the quiet rate, {status['restarts']}")
        profile(status, told)
    Row(
        "goodput",
        f"grpo-tiny without stop condition, {SECONDS:.0f} s: a crash every 20 s, a master, a frozen, a lost node",
        ">= 85 %",
        sorted(found)[len(found) // 2],
        TARGET,
        unit="of all rank-seconds",
        at_least=True,
        samples={"by the ledger": found, "steps, of the quiet rate": steps},
        facts={"every fault came": came},
    ).emit()


if __name__ == "__main__":
    main()
