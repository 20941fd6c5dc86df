"""Jobs of the benchmarks: their manifests, their submission, and their processes in Ray's tables."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from bench_common import APPS, live_actors, settle, until

QUICK = {"backoff": {"initialSeconds": 0, "maxSeconds": 0}, "maxRestarts": 1000}
"""No backoff: the benchmarks measure how long a restart takes, not how long it is delayed."""


def role(name: str, entrypoint: str, replicas: int, cpu: str = "250m", **more: Any) -> dict[str, Any]:
    """Return a role; an entrypoint that ends in `.py` is a script."""
    kind = "module" if entrypoint.endswith(".py") else "class"
    policy = {"maxRestarts": 1000, **more.pop("restartPolicy", {})}
    made = {"name": name, "entrypoint": {kind: entrypoint}, "replicas": replicas, "resources": {"cpu": cpu}}
    return made | {"restartPolicy": policy} | more


def manifest(name: str, out: Path, roles: list[dict[str, Any]], **fault_tolerance: Any) -> dict[str, Any]:
    """Return the manifest of a job whose ranks write their entries into `out`."""
    spec = {"config": {"out": str(out)}, "faultTolerance": QUICK | fault_tolerance, "roles": roles}
    return {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": name}, "spec": spec}


def submit(document: dict[str, Any]) -> Any:
    """Submit a job to the Ray that this process is connected to; returns its handle."""
    from dljob.api.handle import submit as submit_to
    from dljob.spec.loading.load import parse

    return submit_to(parse(document), address=None, code_dir=APPS)


def end(handle: Any) -> None:
    """Stop a job and wait until Ray is empty."""
    handle.stop()
    handle.wait()
    settle()


def processes(handle: Any = None) -> dict[str, int]:
    """Return actor name (without the leading uid) -> pid of dljob's living actors."""
    del handle
    return {row["Name"].partition("/")[2]: row["Pid"] for row in live_actors() if "/" in row["Name"] and row["Pid"]}


def master_pid() -> int:
    """Return the pid of PrimeMaster."""
    return until(lambda: processes().get("master"))


def journaled(handle: Any) -> list[tuple[float, dict[str, Any]]]:
    """Return what PrimeMaster was told, with when."""
    from dljob.telemetry.records import scan

    segments = sorted((handle.connection.dir / "journal").glob("*.jsonl"))
    records = [record for segment in segments for record in scan(segment.read_bytes()).records]
    return [(record["at"], record["e"]) for record in records if record["k"] == "event"]


def stamp() -> float:
    """Return the present time of the clock that ranks use for their entries."""
    return time.time()
