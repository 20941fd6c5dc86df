"""Calls of one rank, of all ranks of a role, and of 8 callers by the batch, against calls of plain Ray actors."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median, quantiles

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
from bench_common import Row, cluster, folder, runs
from bench_jobs import manifest, role, submit

RANKS, MORE_RANKS, CALLERS = 16, 64, 8
SLACK_S = 50e-6
CALLED = ("callee", "collector", "store")


def one_and_all() -> None:
    """Three rows: a round trip, and `all` over 16 ranks, and over 64."""
    found = to_ranks(RANKS, 2)
    one = found["one"]
    plain, high = median(one["plain"]), p99(one["dljob"]) / p99(one["plain"])
    Row(
        "call",
        "round trip of a call between roles",
        "<= 1.05 x a plain Ray actor call + 50 us",
        median(one["dljob"]),
        1.05 * plain + SLACK_S,
        samples=one,
        note=f"{median(one['dljob']) / plain:.2f} x plain; 99th percentile {high:.2f} x",
    ).emit()
    of_all(RANKS, found["all"])
    # Forked, as on the Ray of `dljob run`: it takes 64 ranks, and 64 plain actors.
    of_all(MORE_RANKS, to_ranks(MORE_RANKS, 4, forked=True)["all"])


def of_all(ranks: int, found: dict[str, list[float]]) -> None:
    """A row: `all` over so many ranks."""
    plain = median(found["plain"])
    Row(
        f"call-all-{ranks}",
        f"a call of all {ranks} ranks of a role",
        f"<= 1.05 x {ranks} plain Ray actor calls",
        median(found["dljob"]),
        1.05 * plain,
        samples=found,
        note=f"{median(found['dljob']) / plain:.2f} x plain",
    ).emit()


def to_ranks(ranks: int, cpus: int, *, forked: bool = False) -> dict[str, dict[str, list[float]]]:
    """Seconds of calls of one rank and of all of so many on two nodes, ours and those of plain actors."""
    with cluster(cpus, cpus, forked=forked) as _, folder() as out:
        roles = [
            role("caller", "calls_app.Caller", 1, dependsOn=[{"role": "callee"}]),
            role("callee", "calls_app.Callee", ranks, cpu="100m", driver=False),
        ]
        run(out, roles, blocks=runs(20))
        return json.loads((out / "calls.json").read_text())


def many() -> None:
    """One row: calls a second of 8 callers to one callee."""
    with cluster(10, 2) as _, folder() as out:
        roles = [
            role("caller", "many_calls_app.Caller", CALLERS, dependsOn=[{"role": "callee"}]),
            role("callee", "many_calls_app.Callee", 1, cpu="100m", driver=False),
        ]
        run(out, roles, blocks=runs(7))
        each = [json.loads(file.read_text()) for file in out.glob("many-*.json")]
    assert len(each) == CALLERS
    total = {name: [sum(block) for block in zip(*(one[name] for one in each), strict=True)] for name in each[0]}
    plain = median(total["plain"])
    Row(
        "call-many",
        f"calls a second from {CALLERS} callers to one, in batches of 64 (`Rank.map`)",
        ">= 10 x plain Ray actor calls from the same",
        median(total["dljob"]),
        10 * plain,
        unit="calls/s",
        at_least=True,
        samples=total,
        note=f"{median(total['dljob']) / plain:.0f} x plain",
    ).emit()


def beside() -> None:
    """Three rows: the 99th percentile of a call while another role restarts, and while a rank collects many objects."""
    with cluster(4, 2) as _, folder() as out:
        roles = [
            role("caller", "many_calls_app.Steady", 1, dependsOn=[{"role": name} for name in CALLED]),
            role("callee", "many_calls_app.Callee", 1, cpu="100m", driver=False),
            role("collector", "many_calls_app.Collector", 1, driver=False, dependsOn=[{"role": "store"}]),
            role("store", "many_calls_app.Store", 1, driver=False),
        ]
        run(out, roles, blocks=runs(7))
        measured = json.loads((out / "steady.json").read_text())
    found, plain = measured["dljob"], measured["plain"]
    quiet = p99(found["quiet"])
    whats = {
        "restart": "while another role restarts",
        "collect": "while a rank collects 100,000 objects",
        "itself": "while the caller itself collects 100,000 objects, in a thread",
    }
    for name, what in whats.items():
        Row(
            f"call-beside-{name}",
            f"99th percentile of a call {what}",
            "<= 2 x its value when nothing else goes on",
            p99(found[name]),
            2 * quiet,
            samples={kind: sorted(found[kind])[:: max(1, len(found[kind]) // 200)] for kind in ("quiet", name)},
            note=f"{p99(found[name]) / quiet:.2f} x; median {median(found[name]) / median(found['quiet']):.2f} x; "
            f"a plain actor's 99th: {1000 * p99(plain[name]):.1f} ms, {p99(plain[name]) / p99(plain['quiet']):.2f} x",
        ).emit()


def run(out: Path, roles: list[dict[str, object]], *, blocks: int) -> None:
    """Run a job to its end."""
    document = manifest("calls", out, roles)
    document["spec"]["config"]["blocks"] = blocks
    status = submit(document).wait(600)
    assert status["phase"] == "Succeeded", status


def p99(seconds: list[float]) -> float:
    """Return the 99th percentile."""
    return quantiles(seconds, n=100)[98]


def main() -> None:
    """Seven rows."""
    one_and_all()
    many()
    beside()


if __name__ == "__main__":
    main()
