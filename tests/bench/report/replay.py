"""Time of `dljob replay` to a moment in a journal of 100,000 events, with all imports, and of all states."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
sys.path.insert(1, str(Path(__file__).resolve().parents[2] / "kits"))
from bench_common import Row, folder, runs, say
from past_kit import written

from dljob.master.state.events import Event, HostLost, HostReady, RankReady
from dljob.master.state.views import HostId, Outcome, Reason
from dljob.report.replay import Past
from dljob.testing.simulate.drive import Case, Driver, Durations
from dljob.testing.world.state import EPOCH_S

EVENTS, LIMIT_S = 100_000, 3.0
RANKS = 16
SNAPSHOT_EVERY = 2000
"""As PrimeMaster: so many records a part."""
WORKER = {"name": "w", "replicas": RANKS, "driver": True, "entrypoint": {"class": "pkg.Class"}}
MANIFEST = {
    "apiVersion": "dljob.io/v1alpha1",
    "kind": "DLJob",
    "metadata": {"name": "past"},
    "spec": {
        "roles": [{**WORKER, "restartPolicy": {"level": "Process", "maxRestarts": 100_000}}],
        "faultTolerance": {"maxRestarts": 100_000, "windowSeconds": 60},
    },
}
KILLED = Outcome(ok=False, reason=Reason.UNKNOWN, code=137)


def journal(driver: Driver) -> Iterator[tuple[float, Event]]:
    """Yield the events of its start, and then of one death after the other: lost, up again, ready again."""
    yield from driver.world.journal
    at = driver.world.now
    for number in range((EVENTS - len(driver.world.journal)) // 3 + 1):
        rank, life = number % RANKS, number // RANKS + 1
        host = HostId("w", rank)
        node = driver.world.known.hosts[host].node
        yield at + 20.0 * number + 10.0, HostLost(host, life, KILLED)
        yield at + 20.0 * number + 14.0, HostReady(host, life + 1, node, 7, f"{host}/{life + 1}")
        yield at + 20.0 * number + 15.0, RankReady("w", rank, life + 1, 8)


def cpu() -> float:
    """Seconds of processor that ended commands took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Make the folder once, and replay to moments at its beginning, middle and end."""
    with folder() as where:
        driver = Driver(Case(1, MANIFEST, ()), pace=Durations(work=(1e9, 1e9)))
        driver._schedule()
        driver._until(EPOCH_S + 60.0)
        made = written(
            where / "job",
            driver.case,
            driver.world.begin,
            journal(driver),
            every=SNAPSHOT_EVERY // 2,
            closed=10**6,
            light=True,
        )
        say(f"{len(made.times) - 1} events, {len(Past(made.folder).parts)} parts")
        times: dict[str, list[float]] = {}
        for _ in range(runs(3)):
            for name, share in (("beginning", 0.02), ("middle", 0.5), ("end", 0.99)):
                at = made.times[int(share * (len(made.times) - 1))] - made.times[0]
                begin, spent = time.monotonic(), cpu()
                command = [
                    sys.executable,
                    "-m",
                    "dljob.cli",
                    "replay",
                    str(made.folder),
                    "--at",
                    f"+{at}",
                    "-o",
                    "json",
                ]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                times.setdefault(name, []).append(time.monotonic() - begin)
                times.setdefault("CPU", []).append(cpu() - spent)
                if abs(json.loads(done.stdout)["seconds"] - at) > 1e-3:
                    raise SystemExit(f"{name}: another moment than {at}")
        begin = time.monotonic()
        count = sum(1 for _ in Past(made.folder).states()) - 1
        whole = time.monotonic() - begin
        Row(
            "replay",
            f"`dljob replay` of {EVENTS:,} events to a moment",
            f"<= {LIMIT_S:g} s",
            max(sorted(values)[len(values) // 2] for name, values in times.items() if name != "CPU"),
            LIMIT_S,
            samples=times,
            facts={
                "events": count,
                "enough": count >= EVENTS,
                "all states, s": round(whole, 1),
                "most CPU, s": round(max(times["CPU"]), 2),
            },
        ).emit()


if __name__ == "__main__":
    main()
