"""The same three workloads under dljob and its peers, in turn: start, events, memory and goodput (`make bench-peers`).

    .venv/bin/python tests/bench/peers/bench_peers.py                  # all samples that are not there yet
    .venv/bin/python tests/bench/peers/bench_peers.py S one [DLRover]  # those of one row, of all peers or one
    .venv/bin/python tests/bench/peers/bench_peers.py --table          # write the tables in docs/benchmarks.md

For a quiet machine: a run waits until it is, at most QUIET_S. Each sample is written to figures.jsonl at once, so that
the command goes on where it was ended. Every run has a folder of its own, and a Ray where the peer needs one; what a
peer leaves behind is counted and ended. BENCH_RUNS=n: n samples.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import psutil

HERE, TESTS = Path(__file__).parent, Path(__file__).parents[2]
sys.path[:0] = [str(HERE), str(HERE / "workloads"), str(HERE.parent), str(TESTS / "frameworks"), str(TESTS)]

import figures  # noqa: E402 - found by the path above
import peer_goodput as goodput  # noqa: E402 - found by the path above
import peer_samples  # noqa: E402 - found by the path above
from environment import NotToBeHadError, make  # noqa: E402
from peer_run import NoFigureError, Peer, measure  # noqa: E402
from peer_samples import INSTALL, Cell, Sample, known, next_cell, note, spoken  # noqa: E402

from tiers import isolated  # noqa: E402

PAGE = TESTS.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- peers -->", "<!-- end of peers -->"
SHORT = ("<!-- headlines -->", "<!-- end of headlines -->")
WIDE, EIGHTHS = 16, " ▏▎▍▌▋▊▉"
"""Characters of the longest bar, and those of its last."""
WORKLOADS = {
    "S": "S: a script of n gloo ranks (in user code: behind the first all-reduce)",
    "A": "A: n actors of a class",
    "G": "G: a script of 4 gloo ranks that saves every 10 steps of 0.1 s",
}
ROWS = {
    "start-4": "command -> last of 4 in user code",
    "start-16": "command -> last of 16 in user code",
    "start-32": "command -> last of 32 in user code",
    "one": "one of 4 killed -> it is back",
    "two": "two of 4 killed -> both are back",
    "all": "all 4 killed -> all are back",
    "master": "the master and a rank killed -> the rank is back",
    "node": "a raylet and its ranks killed -> these are back",
    "head": "the GCS killed, 75 s later a rank -> it is back",
    "hang": "one of 4 stopped (SIGSTOP) -> its rank is back",
    "jobs": "8 jobs of one rank at once: commands -> last of 8 in user code",
    "goodput": "ten faults in ten minutes: steps kept x 0.1 s / wall time",
}
"""Row -> how the tables name it."""
ROWS_OF = {"S": frozenset(ROWS) - {"goodput"}, "A": frozenset(ROWS) - {"goodput"}, "G": frozenset({"goodput"})}
"""Workload -> its rows."""
BESIDE = {
    "pss": "memory of a rank (PSS, n = 16)",
    "pss-rest": "memory of all else of the job, without Ray's own processes (PSS, n = 16)",
    "fit": "jobs of one rank that would fit in 80 % of this machine's memory, by 8 (PSS)",
}
"""Rows that are measured beside others: `start-16`, and the last one `jobs`."""
UNITS = {"pss": "MiB", "pss-rest": "MiB", "fit": "", "goodput": ""}
"""Row -> its unit, where it is not seconds."""
MORE = ("goodput", "fit")
"""Rows in which more is better."""
NO_MASTER = {"master": "the driver is its only master"}
QUIET_S, BUSY = 30.0, 10.0
"""Most seconds to wait for a quiet machine; percent of its CPUs at which it is not."""
ONE_AGENT = {
    "master": "its agent is all it has",
    "node": "--standalone has one agent",
    "head": "its agent is all it has",
}
PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "dljob",
            "dljob_peer.py",
            "no backoff, 100 restarts, RAY_START_HOOK in the Ray that is there",
            start_hook="dljob.runtime.forked_workers.start_hook.install",
            master="ray::PrimeMaster",
        ),
        Peer(
            "DLRover",
            "dlrover_peer.py",
            "0.6.1, the unified API: roles and masters of 1 CPU, no node check, 100 restarts, comm_timeout_s=10",
            environment="dlrover",
            master=("ray::PrimeMaster", "ray::wait"),  # the title of the task under way
        ),
        Peer(
            "Ray Train",
            "ray_train.py",
            "v2, TorchTrainer with gloo, max_failures=-1, timeout_s=10, looks each 0.5 s, 10 s for a silent rank",
            workloads="S",
            why_not="nobody can call the ranks of its function",
            environment="ray_train",
            master="ray::TrainController",
        ),
        Peer(
            "torchrun",
            "torchrun.py",
            "--standalone, 100 restarts, a store for each incarnation, looks each 0.1 s, SIGKILL after 5 s",
            workloads="S",
            why_not="nobody can call the ranks of its script",
            ray=False,
            absent=ONE_AGENT,
        ),
        Peer(
            "elastic_launch",
            "elastic_launch.py",
            "torchrun's agent in a program, start_method=fork, else as torchrun",
            workloads="S",
            why_not="nobody can call the ranks of its function",
            ray=False,
            absent=ONE_AGENT,
        ),
        Peer(
            "bare Ray",
            "bare_ray.py",
            "max_restarts=-1 and max_task_retries=-1",
            workloads="A",
            why_not="it restarts no group of ranks",
            absent=NO_MASTER,
        ),
    )
}
"""Name -> peer, in the order in which they take turns."""


def why_not(cell: Cell) -> str:
    """Return why a cell cannot be measured; empty where it can."""
    workload, row, name = cell
    peer = PEERS[name]
    if ("S" if workload == "G" else workload) not in peer.workloads:
        return peer.why_not
    return peer.absent.get(row, "")


def possible(words: Iterable[str], samples: Sequence[Sample]) -> list[Cell]:
    """Return the cells that can be measured and have these words, without the peers that cannot be installed."""
    asked = set(words)
    missing = {sample.peer for sample in samples if sample.row == INSTALL}
    cells = [(work, row, name) for work in WORKLOADS for row in ROWS if row in ROWS_OF[work] for name in PEERS]
    kinds = [asked & set(kind) or kind for kind in (WORKLOADS, ROWS, PEERS)]
    chosen = [cell for cell in cells if all(word in kind for word, kind in zip(cell, kinds, strict=True))]
    return [cell for cell in chosen if cell[2] not in missing and not why_not(cell)]


def wait_until_quiet() -> None:
    """Wait until nothing else runs on this machine, at most QUIET_S."""
    end = time.monotonic() + QUIET_S
    while psutil.cpu_percent(1.0) >= BUSY and time.monotonic() < end:
        pass


def commit() -> str:
    """Return the commit of this checkout; a plus after it: with changes."""
    git = ["git", "-C", str(HERE), "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()


def today() -> str:
    """Return the day that a sample names."""
    return datetime.now(UTC).date().isoformat()


def sampled(cell: Cell, python: Path, limit_s: float | None = None) -> list[Sample]:
    """Run a peer once; returns what is to be noted, a failure too."""
    workload, row, name = cell
    facts = {"load": round(os.getloadavg()[0], 1), "cpus": os.cpu_count() or 0, "when": today(), "commit": commit()}
    try:
        more = {} if limit_s is None else {"limit_s": limit_s}
        if workload == goodput.WORKLOAD:
            got = goodput.measure(PEERS[name], python, goodput.trace(), **more)
        else:
            got = measure(PEERS[name], workload, row, python, **more)
    except NoFigureError as error:
        return [Sample(workload, row, name, why=str(error), **facts)]
    except (OSError, ValueError, psutil.Error, subprocess.SubprocessError) as error:
        return [Sample(workload, row, name, why=f"failed: {type(error).__name__}: {error}", **facts)]
    return [
        Sample(
            workload, of, name, value=round(value, 4), restarted=got.restarted, left=got.left, again=got.again, **facts
        )
        for of, value in got.values.items()
    ]


def python_of(peer: Peer) -> Path:
    """Return the Python of a peer's environment, once it is there."""
    return make(peer.environment, HERE) if peer.environment else Path(sys.executable)


def cell_text(cell: Cell, samples: Sequence[Sample]) -> str:
    """Return what the table says of a cell."""
    if why := why_not(cell):
        return f"n/a, because {why}"
    lost = next((one.why for one in samples if (one.row, one.peer) == (INSTALL, cell[2])), "")
    own = [one for one in samples if one.cell == cell]
    return f"n/a, because {lost}" if lost and not own else spoken(own, UNITS.get(cell[1], "s"))


def rows_of(workload: str) -> dict[str, str]:
    """Return the rows of a workload's table, and how it names them."""
    own = {row: what for row, what in ROWS.items() if row in ROWS_OF[workload]}
    return own if workload == goodput.WORKLOAD else own | BESIDE


def tables(samples: Sequence[Sample]) -> str:
    """Return the section of the page: the settings, then a table for each workload."""
    parts = ["; ".join(f"{name}: {peer.settings}" for name, peer in PEERS.items()) + "."]
    for workload, title in WORKLOADS.items():
        lines = [f"| {title} | {' | '.join(PEERS)} |", "| --- |" + " --- |" * len(PEERS)]
        for row, what in rows_of(workload).items():
            cells = [cell_text((workload, row, name), samples) for name in PEERS]
            lines.append(f"| {what} | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    if allowed := allowed_goodput(samples, goodput.trace()):
        why = "each fault costs its row and half of what lies between two saves"
        parts.append(f"By its own rows of S dljob can reach {allowed:.3f} in G: {why}.")
    if samples:
        loads, days = [one.load for one in samples], sorted({one.when for one in samples})
        period = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
        cpus = " or ".join(sorted({str(one.cpus) for one in samples}))
        commits = ", ".join(sorted({one.commit for one in samples if one.commit}))
        counts = sorted({len([one for one in samples if one.cell == cell]) for cell in {one.cell for one in samples}})
        parts.append(
            f"{period}, {cpus} processors, {counts[0]} to {counts[-1]} samples in a cell. A run waits "
            f"for idle processors, {QUIET_S:g} s at most; the load average then, {min(loads)} to {max(loads)}, is "
            f"mostly what the run before has left in that average. Commits: {commits or 'not noted'}."
        )
    return "\n\n".join(parts)


def allowed_goodput(samples: Sequence[Sample], faults: goodput.Trace) -> float | None:
    """Return the goodput that dljob's own recoveries allow; None before each kind of the trace has its row."""
    rows = {what: [one for one in samples if (one.workload, one.row) == ("S", what)] for _, what in faults.faults}
    found = {what: medians(own).get("dljob") for what, own in rows.items()}
    known_s = {what: seconds for what, seconds in found.items() if seconds is not None}
    return goodput.allowed(faults, known_s) if len(known_s) == len(found) else None


def bar(value: float, largest: float) -> str:
    """Return a bar of at most WIDE characters; its end is exact to an eighth of one."""
    whole, eighths = divmod(round(8 * WIDE * value / largest), 8)
    return ("█" * whole + (EIGHTHS[eighths] if eighths else "")) or EIGHTHS[1]


def headlines(samples: Sequence[Sample]) -> str:
    """Return a table of the rows that dljob and a peer have: dljob's share of the best of the others, and bars."""
    lines = ["| what | dljob | best of the others | ratio | |", "| --- | --- | --- | --- | --- |"]
    for workload in WORKLOADS:
        for row, what in rows_of(workload).items():
            own = [one for one in samples if (one.workload, one.row) == (workload, row) and not why_not(one.cell)]
            lines += headline(f"{workload}: {what}", medians(own), UNITS.get(row, "s"), own, more=row in MORE)
    lines += headline("on Kubernetes: apply -> first line of a job of one rank", on_kubernetes(figures.known()), "s")
    return "\n".join(lines) if len(lines) > 2 else "Nothing is measured yet."


def on_kubernetes(kept: figures.Kept) -> dict[str, float]:
    """Return the medians of `kube_jobs.py`, in which the others are a RayJob and a Job of Kubernetes; seconds."""
    rows = kept.get("kube_jobs", {}).get("rows", [])
    found = next((row["samples"] for row in rows if "plain Job" in row.get("samples", {})), {})
    names = {"DLJob": "dljob", "RayJob": "RayJob", "plain Job": "plain Job"}
    return {name: median(found[sample]) for sample, name in names.items() if sample in found}


def differs(samples: Sequence[Sample], other: str) -> bool:
    """Return whether all samples of dljob lie on one side of those of another peer."""
    mine, theirs = (
        [one.value for one in samples if one.peer == name and one.value is not None] for name in ("dljob", other)
    )
    return not (mine and theirs) or min(mine) > max(theirs) or min(theirs) > max(mine)


def headline(
    what: str, values: Mapping[str, float], unit: str, samples: Sequence[Sample] = (), *, more: bool = False
) -> list[str]:
    """Return a line of that table; none where dljob or all others have no figure.

    Args:
        what: The row.
        values: The median of each peer.
        unit: Of these.
        samples: Behind them, where they are known.
        more: Whether more is better.
    """
    own = values.get("dljob")
    others = {name: value for name, value in values.items() if name != "dljob"}
    if own is None or not others:
        return []
    best = (max if more else min)(others, key=others.__getitem__)
    bars = "<br>".join(f"`{bar(value, max(values.values()))}` {name}" for name, value in values.items())
    mine, theirs = (f"{value:.3g} {unit}".rstrip() for value in (own, others[best]))
    note = "" if differs(samples, best) else ", within the spread"
    return [f"| {what} | {mine} | {theirs} ({best}) | {own / others[best]:.2f} x{note} | {bars} |"]


def medians(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the median of each peer that has a figure, in the order of PEERS."""
    found = {name: [one.value for one in samples if one.peer == name and one.value is not None] for name in PEERS}
    return {name: median(values) for name, values in found.items() if values}


def put(page: str, begin: str, end: str, text: str) -> str:
    """Return a page with what is between two marks replaced."""
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n\n{text}\n\n{end}{rest.partition(end)[2]}"


def rendered(page: str, samples: Sequence[Sample]) -> str:
    """Return the page with the tables as the samples have them."""
    return put(put(page, *SHORT, headlines(samples)), BEGIN, END, tables(samples))


def measure_all(words: Sequence[str], many: int) -> None:
    """Measure what lacks, in turn, and note each sample at once."""
    pythons: dict[str, Path] = {}
    while cell := next_cell(possible(words, known(peer_samples.FIGURES)), known(peer_samples.FIGURES), many):
        peer = PEERS[cell[2]]
        try:
            pythons[peer.name] = pythons.get(peer.name) or python_of(peer)
        except NotToBeHadError as error:
            made = [Sample("", INSTALL, peer.name, why=f"it cannot be installed: {error}", when=today())]
        else:
            wait_until_quiet()
            made = sampled(cell, pythons[peer.name])
        note(peer_samples.FIGURES, made)
        for one in made:
            print(*one.cell, one.why or f"{one.value} (left {one.left})", file=sys.stderr, flush=True)


def main(words: Sequence[str]) -> int:
    """Measure what was asked for, and write the tables. Return the exit code."""
    there = {"--table", *WORKLOADS, *ROWS, *PEERS}
    if unknown := set(words) - there:
        print(f"unknown: {', '.join(sorted(unknown))}; there are: {', '.join(sorted(there))}", file=sys.stderr)
        return 2
    if "--table" not in words:
        measure_all(words, int(os.environ.get("BENCH_RUNS", peer_samples.MANY)))
    PAGE.write_text(rendered(PAGE.read_text(), known(peer_samples.FIGURES)))
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["inside"]:
        sys.exit(main(sys.argv[2:]))
    else:
        for each in [] if "--table" in sys.argv else PEERS.values():
            try:
                python_of(each)  # Ray runs in a network namespace of its own, where nothing can be fetched.
            except NotToBeHadError as error:
                print(each.name, error, file=sys.stderr)  # its rows say so
        command = [*isolated(), sys.executable, __file__, "inside", *sys.argv[1:]]
        sys.exit(subprocess.run(command, check=False).returncode)
