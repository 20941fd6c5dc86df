"""Helpers of the benchmarks: rows of the table, a Ray of several raylets, alternating runs, and files that ranks write.

A benchmark is a script that prints one line of JSON per row (`Row`) on stdout, and everything else on stderr.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

KITS = Path(__file__).resolve().parent
HERE = KITS.parent
APPS = HERE / "apps"
"""The folder of the user code that benchmarked jobs run."""
RAY_ENV = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray gives up a dead raylet after 0.8 s instead of 14: no measurement waits for that, but the clean-up does.
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "250",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "4",
}


@dataclasses.dataclass
class Row:
    """A row of the table. `value` is compared with `limit`, both in `unit`; medians are taken of `samples`.

    Without a limit a figure is only told.
    """

    name: str
    what: str
    target: str
    value: float
    limit: float | None
    unit: str = "s"
    at_least: bool = False
    samples: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Further conditions: name -> value; the row is missed if one is False."""
    note: str = ""

    @property
    def met(self) -> bool:
        """Return whether the figure is within its limit and no condition is False."""
        figure = self.limit is None or (self.value >= self.limit if self.at_least else self.value <= self.limit)
        return figure and all(fact is not False for fact in self.facts.values())

    def emit(self) -> None:
        """Print the row as a line of JSON."""
        rounded = {name: [round(v, 4) for v in values] for name, values in self.samples.items()}
        spread = {name: [round(f(v), 4) for f in (min, statistics.median, max)] for name, v in rounded.items() if v}
        row = dataclasses.asdict(self) | {"samples": rounded, "spread": spread, "met": self.met}
        limit = None if self.limit is None else round(self.limit, 4)
        print(json.dumps(row | {"value": round(self.value, 4), "limit": limit}), flush=True)


def say(*words: object) -> None:
    """Print a progress line on stderr."""
    print(*words, file=sys.stderr, flush=True)


def runs(default: int = 7) -> int:
    """Return how many times each half is run: BENCH_RUNS, else the default."""
    return int(os.environ.get("BENCH_RUNS", default))


def in_turn(a: Callable[[], float], b: Callable[[], float], count: int) -> tuple[list[float], list[float]]:
    """Run A, B, A, B, ..., so that other load on the machine disturbs both equally; returns the samples of each."""
    pairs: list[tuple[float, float]] = []
    for number in range(count):
        pairs.append((a(), b()))
        say(f"  run {number + 1} of {count}: {pairs[-1][0]:.3f} {pairs[-1][1]:.3f} s")
    return [a for a, _ in pairs], [b for _, b in pairs]


def until(check: Callable[[], Any], timeout_s: float = 60.0, step_s: float = 0.003) -> Any:
    """Return the first true answer of `check`; TimeoutError without one."""
    end = time.monotonic() + timeout_s
    while not (got := check()):
        if time.monotonic() > end:
            raise TimeoutError(f"{getattr(check, '__name__', check)} was not true within {timeout_s} s")
        time.sleep(step_s)
    return got


def alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in {"Z", "X"}
    except (FileNotFoundError, ProcessLookupError):
        return False


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Yield a temporary folder with a short path, which leaves room for socket paths."""
    made = Path(tempfile.mkdtemp(prefix="dlb", dir="/tmp"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextlib.contextmanager
def forking(home: Path) -> Iterator[None]:
    """Start raylets in this block as `dljob run` does: their workers are forked."""
    from ray._private import services

    from dljob.runtime.forked_workers.first_template import start_raylet

    start, forks = services.start_ray_process, home / "forks"
    forks.mkdir()

    def ours(command: list[str], process_type: str, *args: Any, **more: Any) -> Any:
        if process_type != "raylet":
            return start(command, process_type, *args, **more)
        return start_raylet(lambda forking: start(forking, process_type, *args, **more), command, forks)

    services.start_ray_process = ours
    try:
        yield
    finally:
        services.start_ray_process = start


@contextlib.contextmanager
def cluster(*cpus: int, quick: bool = True, store: int = 100 << 20, forked: bool = False) -> Iterator[Any]:
    """Run a Ray with a head without CPUs and a raylet for each number of CPUs; this process is connected to it.

    `quick`: with RAY_ENV; otherwise Ray's defaults. `store`: bytes of a raylet's object store. `forked`: all
    workers are forked, those of baselines too, as on the Ray of `dljob run`.
    """
    with folder() as home:
        os.environ.update(DLJOB_HOME=str(home / "state"), RAY_TMPDIR=str(home), **(RAY_ENV if quick else {}))
        os.environ["PYTHONPATH"] = os.pathsep.join([str(KITS), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        import ray
        from ray.cluster_utils import Cluster

        made = Cluster()
        with forking(home) if forked else contextlib.nullcontext():
            made.add_node(num_cpus=0, include_dashboard=False, object_store_memory=100 << 20)
            made.raylets = [made.add_node(num_cpus=n, object_store_memory=store) for n in cpus]
        from dljob.runtime.backend.connect import connect

        connect(made.address)
        made.wait_for_nodes()
        try:
            yield made
        finally:
            with contextlib.suppress(Exception):
                ray.shutdown()
            with contextlib.suppress(Exception):
                made.shutdown()


@contextlib.contextmanager
def other_ray(*cpus: int) -> Iterator[str]:
    """Run a second Ray in a `cluster` block, with workers as Ray starts them; nobody connects. Yields its address."""
    from ray.cluster_utils import Cluster
    from ray.experimental import internal_kv

    mine = internal_kv.internal_kv_get_gcs_client()
    made = Cluster()
    made.add_node(num_cpus=0, include_dashboard=False, object_store_memory=100 << 20)
    for n in cpus:
        made.add_node(num_cpus=n, object_store_memory=100 << 20)
    # A head that is started becomes the key-value store of its process (Ray 2.60, `Node.start_head_processes`).
    internal_kv._initialize_internal_kv(mine)
    try:
        yield made.address
    finally:
        with contextlib.suppress(Exception):
            made.shutdown()


def live_actors() -> list[dict[str, Any]]:
    """Return the GCS's rows of all actors that are not dead."""
    from ray._private.state import actors

    return [row for row in actors().values() if row["State"] != "DEAD"]


def live_groups() -> list[Any]:
    """Return the placement groups that are not removed."""
    from ray.util import placement_group_table

    return [row for row in placement_group_table().values() if row["state"] != "REMOVED"]


def free_cpus() -> bool:
    """Return whether all CPUs are free."""
    import ray

    return ray.available_resources().get("CPU") == ray.cluster_resources().get("CPU")


def settle() -> None:
    """Wait until Ray is empty again, its worker processes included."""
    until(lambda: not live_actors() and not live_groups() and free_cpus(), 60, 0.02)
    time.sleep(1.0)


class Entries:
    """The lines that ranks append when they enter user code: `role`, `rank`, `t`, `pid`."""

    def __init__(self, where: Path) -> None:
        self.where = where
        where.mkdir(parents=True, exist_ok=True)

    def read(self) -> list[dict[str, Any]]:
        """Return all entries so far, oldest first."""
        found = [json.loads(line) for file in self.where.glob("*.jsonl") for line in file.read_text().splitlines()]
        return sorted(found, key=lambda entry: entry["t"])

    def await_count(self, count: int, timeout_s: float = 120) -> list[dict[str, Any]]:
        """Wait for this many entries; returns them."""
        return until(lambda: (got := self.read())[count - 1 :] and got, timeout_s, 0.01)

    def last_of(self, role: str, rank: int) -> dict[str, Any]:
        """Return the newest entry of a rank."""
        return [e for e in self.read() if (e["role"], e["rank"]) == (role, rank)][-1]

    def next_of(self, role: str, rank: int, after: float, timeout_s: float = 60) -> dict[str, Any]:
        """Wait for a rank's first entry later than a time; returns it."""
        name = f"{role}-{rank}.jsonl"

        def newer() -> dict[str, Any] | None:
            lines = (self.where / name).read_text().splitlines()
            return next((e for e in map(json.loads, lines) if e["t"] > after), None)

        return until(newer, timeout_s)
