"""Online learning: from an event to the weights that serve it, at 1,000 events a second, and its events after kills.

    python tests/bench/data/online.py [SECONDS=600]

The stream runs for SECONDS undisturbed; then each process of another job is killed in turn.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "kits"))
import yaml
from bench_common import APPS, Row, cluster, folder, say, settle, until
from bench_jobs import QUICK, processes

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "online"
RATE, BATCH, AT_ONCE, KILLS_S = 1000, 200, 20, 40
WARM_S = 5.0
"""Seconds at the beginning that do not count: the first batches have what was written before the job was there."""


class EventWriter(threading.Thread):
    """Writes events at a constant rate, and notes when each was written."""

    def __init__(self, path: Path, count: int) -> None:
        super().__init__(daemon=True)
        self._path, self._lines = path, list(runpy.run_path(str(EXAMPLE / "events.py"))["clicks"](count))
        self.at: list[float] = []
        self.start_now = threading.Event()

    def run(self) -> None:
        self._path.touch()
        self.start_now.wait()
        begun = time.time()
        with self._path.open("a") as file:
            for first in range(0, len(self._lines), AT_ONCE):
                time.sleep(max(0.0, begun + first / RATE - time.time()))
                lines = self._lines[first : first + AT_ONCE]
                self.at += [time.time()] * len(lines)
                file.write("".join(lines))
                file.flush()


@contextmanager
def running(seconds: int) -> Iterator[tuple[Any, EventWriter, Path]]:
    """Run the example on a stream of so many seconds: its handle, the writer, and the folder with what it noted."""
    from dljob.api.handle import submit
    from dljob.spec.loading.load import parse

    with folder() as home:
        code, out = home / "code", home / "out"
        shutil.copytree(EXAMPLE, code)
        out.mkdir()
        for name in ("online_app.py", "online_server.py"):
            shutil.copy(APPS / name, code)
        writer = EventWriter(home / "clicks.log", seconds * RATE)
        document = yaml.safe_load((EXAMPLE / "dljob.yaml").read_text())
        spec = document["spec"]
        spec["faultTolerance"] = QUICK
        spec["config"] = {"uri": f"file:{home}/clicks.log", "batch": BATCH, "publishSeconds": 0, "out": str(out)}
        spec["config"]["events"] = seconds * RATE
        roles = {role["name"]: role for role in spec["roles"]}
        roles["trainer"]["entrypoint"] = {"class": "online_app.TimedTrainer"}
        roles["server"] |= {
            "entrypoint": {"module": "online_server.py"},
            "env": [{"name": "BENCH_OUT", "value": str(out)}],
        }
        writer.start()
        handle = submit(parse(document), address=None, code_dir=code)
        # The scorer's data set has an end: it may be through already.
        until(lambda: all(handle.connection.pids().get(rank) for rank in ("trainer/0", "server/0")), 120)
        writer.start_now.set()
        yield handle, writer, out
        assert handle.wait()["phase"] == "Succeeded", handle.status()
    settle()


def rows_of(out: Path, pattern: str) -> list[list[Any]]:
    """The rows of some files; the last line of a killed process may be torn."""
    lines = [line for path in out.glob(pattern) for line in path.read_text().splitlines(keepends=True)]
    return [json.loads(line) for line in lines if line.endswith("\n")]


def waits(writer: EventWriter, out: Path) -> tuple[list[float], list[float]]:
    """Seconds from each event to the load of the first version that knows it, and those of the loads themselves."""
    known = dict(rows_of(out, "versions-1.jsonl"))
    found, told = list[float](), int(WARM_S * RATE)
    loads = sorted(rows_of(out, "loads-*.jsonl"), key=lambda row: row[2])
    for version, _, end in loads:
        found += [end - at for at in writer.at[told : known[version]]]
        told = max(told, known[version])
    return found, [end - begin for _, begin, end in loads]


def latency(seconds: int) -> None:
    """The row of an undisturbed run."""
    with running(seconds) as (handle, writer, out):
        handle.wait()
        events, loads = waits(writer, out)
        times = json.loads((out / "trainer.json").read_text())
        told = next(role for role in handle.status()["roles"] if role["name"] == "server").get("servedLagSeconds")
    stages = {name: times[name] for name in ("fill", "step", "publish")} | {"load": loads}
    cut = quantiles(events, n=100)
    least = sum(median(each) for each in stages.values())
    Row(
        "online-lag",
        f"{RATE:,} events a second for {seconds} s, batches of at most {BATCH}: event -> in served weights, p95",
        "<= 2 x (filling a batch + step + publish + load, medians of the same run); 0 lost, 0 twice",
        cut[94],
        2 * least,
        samples={name: each[:: 1 + len(each) // 500] for name, each in stages.items()},
        facts={"0 lost": times["lost"] == 0 and times["events"] == len(writer.at), "0 twice": times["twice"] == 0},
        note=f"p50 {cut[49]:.3f} s, {len(events):,} events, {len(loads):,} versions, status {told} s; {load_now()}",
    ).emit()


def load_now() -> str:
    """Return the load of the machine."""
    return f"load {os.getloadavg()[0]:.0f}"


def kills() -> None:
    """The row of a run in which each process is killed once."""
    with running(KILLS_S) as (handle, writer, out):
        del writer
        back = {rank: after_kill(handle, out, rank) for rank in ("scorer/0", "trainer/0", "server/0", "master")}
        handle.wait()
        ends = [json.loads(path.read_text()) for path in sorted(out.glob("restored-*.json"))]
        ends.append(json.loads((out / "trainer.json").read_text()))
    wrong = {word: sum(end[word] for end in ends) for word in ("lost", "twice")}
    complete = ends[-1]["events"] == KILLS_S * RATE and len(ends) > 1
    Row(
        "online-kills",
        "events lost or used twice in the restored states, with each process killed once",
        "0 lost, 0 twice",
        float(sum(wrong.values())),
        0.0,
        unit="events",
        facts={**wrong, "restored, and all events at the end": complete},
        note=f"{'; '.join(f'{rank} {took:.1f} s' for rank, took in back.items())} until newer weights; {load_now()}",
    ).emit()


def after_kill(handle: Any, out: Path, rank: str) -> float:
    """Kill a process while events come; the seconds until the server has weights of events that come afterwards."""

    def pid() -> int:
        return processes().get("master", 0) if rank == "master" else handle.connection.pids().get(rank) or 0

    def newest() -> int:
        known: dict[int, int] = {}
        for version, count in rows_of(out, "versions-*.jsonl"):
            known[version] = min(count, known.get(version, count))
        return max((known[version] for version, *_ in rows_of(out, "loads-*.jsonl")), default=0)

    was = until(pid, 60, 0.02)
    begin = time.time()
    os.kill(was, signal.SIGKILL)
    counts = max((count for _, count in rows_of(out, "versions-*.jsonl")), default=0)
    until(lambda: pid() not in (0, was), 60, 0.02)
    until(lambda: newest() > counts, 120, 0.05)
    took = time.time() - begin
    say(f"{rank} killed: newer weights after {took:.1f} s")
    return took


def main() -> None:
    """Two rows."""
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 600
    with cluster(2):
        latency(seconds)
    with cluster(2):
        kills()


if __name__ == "__main__":
    main()
