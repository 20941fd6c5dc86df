"""The jobs that benchmarks submit, as manifests, and how they are submitted and found again in Ray's tables."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from bench_common import APPS, live_actors, settle, until

QUICK = {"backoff": {"initialSeconds": 0, "maxSeconds": 0}, "maxRestarts": 1000}
"""No waiting before a restart: what is measured is how long a restart takes, not how long it is put off."""


def role(name: str, entrypoint: str, replicas: int, cpu: str = "250m", **more: Any) -> dict[str, Any]:
    """A role; an entrypoint that ends in `.py` is a script."""
    kind = "module" if entrypoint.endswith(".py") else "class"
    policy = {"maxRestarts": 1000, **more.pop("restartPolicy", {})}
    made = {"name": name, "entrypoint": {kind: entrypoint}, "replicas": replicas, "resources": {"cpu": cpu}}
    return made | {"restartPolicy": policy} | more


def manifest(name: str, out: Path, roles: list[dict[str, Any]], **fault_tolerance: Any) -> dict[str, Any]:
    """A document whose ranks write their entries into `out`."""
    spec = {"config": {"out": str(out)}, "faultTolerance": QUICK | fault_tolerance, "roles": roles}
    return {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": name}, "spec": spec}


def submit(document: dict[str, Any]) -> Any:
    """A handle of the job, submitted to the Ray that this process is connected to."""
    from dljob.api.handle import submit as submit_to
    from dljob.spec.loading.load import parse

    return submit_to(parse(document), address=None, code_dir=APPS)


def end(handle: Any) -> None:
    """Stop a job and wait until Ray is empty."""
    handle.stop()
    handle.wait()
    settle()


def processes(handle: Any = None) -> dict[str, int]:
    """Actor name -> pid of everything of dljob's that lives; the leading uid is cut off."""
    del handle
    return {row["Name"].partition("/")[2]: row["Pid"] for row in live_actors() if "/" in row["Name"] and row["Pid"]}


def master_pid() -> int:
    """The process of PrimeMaster."""
    return until(lambda: processes().get("master"))


def stamp() -> float:
    """Now, on the clock that ranks write."""
    return time.time()
