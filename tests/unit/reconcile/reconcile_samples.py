"""A small DLJob and PrimeMaster's snapshot of it, for the tests of `reconcile`."""

from __future__ import annotations

from typing import Any

from dljob.raycluster.pod_security import PodPolicy
from dljob.reconcile.state import names
from dljob.reconcile.state.model import Settings
from dljob.spec.status import TERMINAL

NOW = 1_800_000_000.0
"""2027-01-15T08:00:00Z."""
UID = "0f8fad5b-d9cb-469f-a165-70867728950e"
SETTINGS = Settings(
    version="0.1.0",
    image="example.org/ray:{rayVersion}",
    ray_version="2.60.0",
    init_image="example.org/dljob:0.1.0",
    pods=PodPolicy(operator="dljob-system/dljob-operator"),
)


def spec(**more: Any) -> dict[str, Any]:
    """Return the spec of a job of two ranks on one machine."""
    role = {"name": "worker", "replicas": 2, "entrypoint": {"class": "hello.main"}, "resources": {"cpu": "500m"}}
    return {"roles": [role], **more}


def dljob(
    labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None, name: str = "hello", **fields: Any
) -> dict[str, Any]:
    """Return a DLJob as the API server returns it, with these fields of the spec."""
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": UID,
            "generation": 1,
            "creationTimestamp": "2027-01-15T07:59:59Z",
            "labels": labels or {},
            "annotations": annotations or {},
        },
        "spec": spec(**fields),
    }


REASONS = {"Succeeded": "Completed", "Failed": "UserErrorRepeats", "Stopped": "StoppedByUser"}
"""Final phase of PrimeMaster -> reason."""


def snapshot(phase: str = "Running", ready: int = 2, **more: Any) -> dict[str, Any]:
    """Return PrimeMaster's snapshot of the job of `spec`."""
    over = phase in TERMINAL
    role = {
        "name": "worker",
        "desired": 2,
        "ready": 0 if over else ready,
        "running": 0 if over else 2,
        "succeeded": 2 if phase == "Succeeded" else 0,
        "failed": 0,
        "restarts": 0,
    }
    return {
        "name": "hello",
        "uid": names.job_uid(UID),
        "phase": phase,
        "reason": REASONS.get(phase, phase),
        "message": "",
        "startTime": "2027-01-15T08:00:05.000Z",
        "completionTime": None,
        "attempt": 1,
        "epoch": 1,
        "version": 7,
        "roles": [role],
        "restarts": {"process": 0, "roleGroup": 0, "role": 0, "job": 0, "master": 0},
        "lastFault": None,
        "recentFaults": [],
        "progress": {"step": None, "metrics": {}},
        "placement": {"units": 2, "ready": 2, "pending": 0, "notReady": []},
        **more,
    }


def merged(old: Any, new: Any) -> dict[str, str]:
    return {key: value for key, value in {**old, **new}.items() if value is not None}
