"""DLJobs that an API server stores and that would fill, or stop, an operator: refused, while other jobs are served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cluster.handle import Cluster
from operator_kit import Operator, found, job, until

LARGE, VALUES = 6, 250_000
"""Jobs of 750 kB of JSON, each 18 MiB as Python objects. An operator without jobs takes 120 MiB."""
MOST = 180 * 2**20
SECONDS = 200
"""Time for a status, which costs the API server much CPU beside so large a spec."""


def written(namespace: str, name: str, config: str) -> str:
    body: dict[str, Any] = job(name)
    body |= {"metadata": {"name": name, "namespace": namespace}, "spec": {**body["spec"], "config": {"a": "HERE"}}}
    return json.dumps(body).replace('"HERE"', config)


def test_large_and_deep_jobs_are_invalid_and_others_are_served(plane: Cluster, namespace: str, tmp_path: Path) -> None:
    names = [f"large{number}" for number in range(LARGE)]
    for name in names:
        plane.kubectl("create", "-f", "-", stdin=written(namespace, name, "[" + "{}," * VALUES + "{}]"))
    plane.kubectl("create", "-f", "-", stdin=written(namespace, "deep", '{"a":' * 3000 + "0" + "}" * 3000))
    operator = Operator(plane, tmp_path / "operator", [f"--namespace={namespace}"])
    try:
        operator.start()
        for name, words in (*((name, "20000 values") for name in names), ("deep", "100 levels")):
            why = until(lambda name=name: _refusal(plane, namespace, name), f"{name} has a status", SECONDS)
            assert f"the spec has more than {words}" in why
        plane.apply({**job("fine"), "metadata": {"name": "fine", "namespace": namespace}})
        until(lambda: found(plane, "dljob", "fine", namespace).get("status", {}).get("rayCluster"), "fine is served")
        assert _peak(operator) < MOST
    finally:
        operator.stop()


def _refusal(plane: Cluster, namespace: str, name: str) -> str:
    """The message of a job's condition, by kubectl: Python's parser does not read a deep job."""
    path = 'jsonpath={.status.conditions[?(@.type=="Accepted")].message}'
    return plane.kubectl("get", "dljob", name, "-n", namespace, "-o", path)


def _peak(operator: Operator) -> int:
    """The most memory that the operator's process had, in bytes."""
    assert operator.process is not None
    lines = Path(f"/proc/{operator.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
