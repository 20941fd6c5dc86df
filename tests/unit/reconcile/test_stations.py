"""The whole status, and what is told, at each station of a job's life.

Regenerate with `UPDATE_GOLDEN=1 python -m pytest tests/unit/reconcile/test_stations.py`, and read the difference.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from reconcile_kit import World, dljob
from ruamel.yaml import YAML

from dljob.reconcile.state import names
from dljob.reconcile.state.model import Pod, Trouble
from dljob.spec.status import status_schema

GOLDEN = Path(__file__).parent / "golden"
FAULT = {
    "level": "Process",
    "reason": "UserError",
    "target": "worker/1",
    "firstCause": "RuntimeError: CUDA error",
    "detectedAt": "2027-01-15T08:00:30.000Z",
    "recoveredAt": None,
    "seconds": None,
}
NOWHERE = "0/3 nodes are available: 3 Insufficient huawei.com/Ascend910."
IMAGE = 'Back-off pulling image "example.org/ray:2.60.0"'
NPUS = {
    "nodeGroups": [{"name": "npu8", "replicas": 2, "cpu": "16", "accelerator": {"type": "NPU", "count": 8}}],
    "roles": [
        {
            "name": "worker",
            "type": "Elastic",
            "replicas": 16,
            "replicasPerGroup": 8,
            "entrypoint": {"module": "train.py"},
            "accelerator": {"type": "NPU", "count": 1},
        }
    ],
}


def queued(**labels: str) -> World:
    return World(dljob(labels={"kueue.x-k8s.io/queue-name": "research", **labels}))


def in_queue() -> World:
    world = queued().settle()
    world.cluster["spec"]["suspend"] = True
    return world.condition("RayClusterSuspended").settle()


def stuck(reason: str, words: str, *, head: bool = True) -> World:
    world = World(dljob(**NPUS)).settle()
    if not head:
        world.head_ready().workers_ready(0, 2).settle()
    pods = world.pods[world.name]
    pod = Pod(f"{world.name}-x", "pod-9", head, "headgroup" if head else "npu8", "Pending", False)
    pod = Pod(pod.name, pod.uid, pod.head, pod.group, pod.phase, ready=False, trouble=words, trouble_reason=reason)
    world.pods[world.name] = [*pods[:1], pod] if pods else [pod]
    return world.settle()


def head_lost() -> World:
    world = World().running().later(60).new_session()
    world.head_ready("pod-2")
    world.step()
    return world


def over(end: str = "Succeeded", **more: Any) -> World:
    world = World(dljob(**more)).running().later(60)
    return world.master(end, completionTime="2027-01-15T08:01:00.000Z", message="all drivers ended well")


def stopping() -> World:
    world = World().running().later(60)
    world.job["metadata"]["annotations"][names.STOP] = "2027-01-15T08:01:00.000000Z"
    return world.settle()


def progress() -> World:
    world = World().running().later(20)
    return world.master("Running", progress={"step": 120, "metrics": {"loss": 0.25, "lr": 1e-6}}).settle()


ENDPOINTS = [
    {
        "role": "worker",
        "ready": 2,
        "desired": 2,
        "addresses": [{"http": "10.0.0.1:24107", "grpc": "10.0.0.1:24108"}, {"http": "10.0.0.2:24107"}],
    }
]
STATIONS: dict[str, Callable[[], World]] = {
    "applied": World,
    "refused": lambda: World(dljob(roles=[])).settle(),
    "kuberay-missing": lambda: World(kuberay="missing").settle(),
    "quota": lambda: World(
        troubles=(Trouble("CreateRayCluster", 403, 'rayclusters.ray.io "x" is forbidden: exceeded quota: gpus', 3),)
    ),
    "in-queue": in_queue,
    "provisioning": lambda: World().settle(),
    "image-missing": lambda: stuck("ImagePullBackOff", IMAGE),
    "npus-missing": lambda: stuck("Unschedulable", NOWHERE, head=False),
    "submitted": lambda: World().settle().head_ready().settle(),
    "scheduling": lambda: (
        World()
        .settle()
        .head_ready()
        .settle()
        .master(
            "Scheduling",
            ready=0,
            message="1 of 2 units held, 0 of 2 ranks ready",
            placement={
                "units": 2,
                "ready": 1,
                "pending": 1,
                "notReady": [{"name": "worker/1", "node": "", "why": "is to be placed"}],
            },
        )
        .settle()
    ),
    "running": lambda: World().running(),
    "serving": lambda: World().running().later(30).master(endpoints=ENDPOINTS).settle(),
    "progress": progress,
    "recovering": lambda: (
        World()
        .running()
        .later(30)
        .master(
            "Recovering",
            ready=1,
            reason="Restarting",
            message="worker/1: UserError, level Process",
            lastFault=FAULT,
            recentFaults=[FAULT],
            restarts={"process": 1, "roleGroup": 0, "role": 0, "job": 0, "master": 0},
        )
        .settle()
    ),
    "head-lost": head_lost,
    "second-attempt": lambda: head_lost().settle().head_ready("pod-3").settle().workers_ready().master().settle(),
    "silent": lambda: World().running().later(30).silent(12.0).settle(),
    "stopping": stopping,
    "stopped": lambda: stopping().master("Stopped", reason="StoppedByUser").settle(),
    "just-over": lambda: (world := over(), world.step())[0],
    "succeeded": lambda: over().settle(),
    "failed": lambda: over("Failed", cleanupPolicy="Retain").settle(),
    "refused-by-the-launcher": lambda: (
        World()
        .settle()
        .head_ready()
        .settle()
        .launcher(
            "FAILED",
            exit_code=2,
            refusal={"reason": "RayVersionMismatch", "message": "Ray is 2.59.0, not 2.60.0", "hint": "set rayVersion"},
        )
        .settle()
    ),
}


@pytest.mark.parametrize("station", STATIONS)
def test_the_status_at_each_station_is_as_recorded(station: str):
    world = STATIONS[station]()
    if "status" not in world.job:
        world.step()
    text = written(
        {
            "why": world.outcome.reason,
            "status": world.status,
            "events": [asdict(event) for event in world.events],
            "calls": world.log,
        }
    )
    golden = GOLDEN / f"{station}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("station", STATIONS)
def test_the_api_server_takes_the_status(station: str):
    """Held against the CRD's schema; jsonschema comes with Ray."""
    jsonschema = pytest.importorskip("jsonschema")
    world = STATIONS[station]()
    if "status" not in world.job:
        world.step()
    jsonschema.validate(world.status, closed(status_schema()))
    for path, value in times(world.status):
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", value), path


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without its tolerance: what the operator writes is named there."""
    made = {key: value for key, value in schema.items() if key != "format"}
    if "properties" in made:
        made["properties"] = {name: closed(field) for name, field in made["properties"].items()}
        made["additionalProperties"] = made["description"] == "One command."
    if "items" in made:
        made["items"] = closed(made["items"])
    return made


def times(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every field that is a time."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        if isinstance(inner, str) and re.search(r"(Time|At|time)$", str(key)):
            yield f"{path}.{key}", inner
        yield from times(inner, f"{path}.{key}")


def test_every_golden_has_its_station():
    assert {golden.stem for golden in GOLDEN.glob("*.yaml")} == set(STATIONS)


def written(value: Any) -> str:
    yaml, stream = YAML(), io.StringIO()
    yaml.width = 120
    yaml.dump(value, stream)
    return stream.getvalue()
