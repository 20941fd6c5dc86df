"""Plant causes one after another, ask dljob for them, and print how often it was right.

    python tests/exam/run.py [--only NAME ...] [--group GROUP] [--jobs N] [--again] [--peers] [--kube] [--keep]

Each cause runs in a DLJOB_HOME, a network and mounts of its own. Its row is appended to the file of results as soon as
it is graded, so that a run that was ended goes on: what was graded at the same commit is not run again without
`--again`. With `--keep` the newest rows replace those of grades.json, of which docs/benchmarks.md is made. Exits 1
where an innocent was blamed, or less than 95 % are right in kind and whom.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent)]

import page  # noqa: E402 - found by the path above
from cause import GROUPS, Cause  # noqa: E402
from grading import BROKEN, answer_of, grade  # noqa: E402
from peers import PEERS, run_peer  # noqa: E402
from rows import CAUSES  # noqa: E402
from running_job import RunningJob  # noqa: E402

import dljob  # noqa: E402
from tiers import isolated  # noqa: E402

RESULTS = ROOT / ".exam" / "results.jsonl"
PRODUCT = ("workers", "operator")
TRIES = 2
"""A cause that was not planted, as on a busy machine, is planted once more."""
LONGER_S = 600.0
"""What a cause may take beside its own time limit: start, questions, end, a second try."""


RUNNING: set[subprocess.Popen[str]] = set()
"""The runs of causes; where this one is to end, they end their jobs."""


def leave(_number: int, _frame: object) -> None:
    """End with all runs of causes, each of which ends its job."""
    # Ctrl-C and `timeout` signal the whole group: a run would be told twice, the second time while it cleans up.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    for ran in tuple(RUNNING):
        ran.terminate()
    if RUNNING:
        os._exit(143)  # the threads that wait for them would go on to the next causes
    sys.exit(143)


def version() -> str:
    """Return the newest commit of the product that is examined, with a mark where its files differ from it."""
    root = Path(dljob.__file__).parents[2]
    newest = ["git", "log", "-1", "--format=%h", "--abbrev=8", "HEAD", "--", *PRODUCT]
    commit = subprocess.run(newest, cwd=root, capture_output=True, text=True, check=True)
    differs = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", *PRODUCT], cwd=root, check=False).returncode
    return commit.stdout.strip() + ("+" if differs else "")


def graded(cause: Cause) -> dict[str, Any]:
    """Run a cause in this process's namespaces, and return its row."""
    row: dict[str, Any] = {"name": cause.name, "group": cause.group, "peer": ""}
    if missing := cause.missing():
        return {**row, "grade": "skipped", "missing": missing}
    for _attempt in range(TRIES):
        job = RunningJob(cause)
        try:
            result = job.run()
        finally:
            job.end()
            job.remove()
        if not result["broken"]:
            break
    row |= grade(cause, job.marked_line(), result)
    answer = answer_of(result)
    expected = {"kind": cause.kind, "whom": cause.whom, "line": job.marked_line(), "code": list(cause.code)}
    told = {"first": answer.first, "blamed": answer.blamed, "code": answer.code, "advice": answer.advice}
    phase = {"phase": result["status"].get("phase"), "exit_code": result["exit_code"], "seconds": result["seconds"]}
    return {**row, "expected": expected, **told, **phase, "broken": result["broken"], "said": result}


def graded_peer(cause: Cause, peer: str) -> dict[str, Any]:
    """Run a cause under a peer in this process's namespaces, and return its row."""
    return {"name": cause.name, "group": cause.group, "peer": peer, **run_peer(cause, peer)}


def in_namespaces(cause: Cause, peer: str = "") -> dict[str, Any]:
    """Run a cause in namespaces of its own, and return its row.

    Args:
        cause: What is planted.
        peer: Under which peer; empty: under dljob.
    """
    with tempfile.TemporaryDirectory(prefix="exam-row-", dir="/tmp") as folder:
        file = Path(folder) / "row.json"
        # The API server and the pods are in the machine's own network.
        prefix = [] if cause.group == "Kubernetes" else isolated()
        command = [*prefix, sys.executable, str(HERE / "run.py"), "--inside", cause.name, "--row", str(file)]
        command += ["--peer", peer]
        row: dict[str, Any] = {"name": cause.name, "group": cause.group, "grade": BROKEN, "peer": peer}
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ran:
            RUNNING.add(ran)
            try:
                printed, _ = ran.communicate(timeout=cause.limit_s + LONGER_S)
            except subprocess.TimeoutExpired:
                ran.terminate()
                return {**row, "broken": "the run of this cause itself did not end"}
            finally:
                RUNNING.discard(ran)
        if not file.exists():
            return {**row, "broken": printed[-2000:]}
        return json.loads(file.read_text())


def known(file: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the newest row of each cause and peer; under dljob the peer is empty."""
    if not file.exists():
        return {}
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return {(row["name"], row.get("peer", "")): row for row in rows}


def chosen(only: Sequence[str], group: str, kube: bool) -> list[Cause]:
    """Return the causes to run."""
    wanted = [cause for cause in CAUSES if (not only or cause.name in only) and group in ("", cause.group)]
    return [cause for cause in wanted if kube or cause.group != "Kubernetes" or only]


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--group", default="", choices=("", *GROUPS))
    parser.add_argument("--jobs", type=int, default=2, help="causes that run at once")
    parser.add_argument("--again", action="store_true", help="also what was graded at this commit")
    parser.add_argument(
        "--peers", action="store_true", help="the same programs under torchrun, Ray Train and plain Ray"
    )
    parser.add_argument("--kube", action="store_true", help="also those that need a Kubernetes")
    parser.add_argument("--keep", action="store_true", help="write grades.json and docs/benchmarks.md")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--inside", default="", help=argparse.SUPPRESS)
    parser.add_argument("--row", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--peer", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    by_name = {cause.name: cause for cause in CAUSES}
    if asked.inside:
        cause = by_name[asked.inside]
        asked.row.write_text(json.dumps(graded_peer(cause, asked.peer) if asked.peer else graded(cause)))
        return 0
    if unknown := [name for name in asked.only if name not in by_name]:
        parser.error(f"no such cause: {', '.join(unknown)}")
    causes = chosen(asked.only, asked.group, asked.kube)
    if asked.list:
        print("\n".join(f"{cause.group:14} {cause.name}" for cause in causes))
        return 0
    runs = [(cause, "") for cause in causes]
    if asked.peers:
        runs = [(cause, peer) for cause in causes if cause.peers for peer in PEERS]
    return run_all(runs, asked.jobs, asked.results, again=asked.again, keep=asked.keep)


def run_all(runs: Sequence[tuple[Cause, str]], jobs: int, file: Path, *, again: bool, keep: bool) -> int:
    """Run causes side by side, print each row as it comes, and the table."""
    at = version()
    file.parent.mkdir(exist_ok=True)
    # What a peer says does not change with the product.
    rows = {key for key, row in known(file).items() if (row.get("commit") == at or row["peer"]) and not again}
    todo = [(cause, peer) for cause, peer in runs if (cause.name, peer) not in rows]
    with ThreadPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(in_namespaces, cause, peer) for cause, peer in todo]):
            row = future.result() | {"commit": at, "when": datetime.now(UTC).isoformat(timespec="seconds")}
            with file.open("a") as out:
                out.write(json.dumps(row) + "\n")
            print(page.line(row), flush=True)
    newest = known(file)
    names = dict.fromkeys(cause.name for cause, _peer in runs)
    shown = {name: newest[name, ""] for name in names if (name, "") in newest}
    beside = {name: {peer: newest[name, peer] for peer in PEERS if (name, peer) in newest} for name in names}
    # Causes that ran under peers alone are held against what is kept of dljob.
    print("\n".join(["", *page.table(shown), "", *page.peers_table(page.known() | shown, beside)]))
    if keep:
        page.keep(shown, beside)
    return 0 if page.passes(shown) else 1


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    sys.exit(main())
