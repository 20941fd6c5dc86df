"""Helpers for jobs on a real node: their end, their logs, a volume."""

from __future__ import annotations

from typing import Any

from cluster.handle import Cluster
from operator_kit import children, found, until


def ended(node: Cluster, name: str, namespace: str, seconds: float) -> dict[str, Any]:
    """Wait until a job has ended and its RayCluster is deleted; returns the job."""

    last: dict[str, Any] = {}

    def look() -> dict[str, Any]:
        last.update(found(node, "dljob", name, namespace))
        over = last.get("status", {}).get("phase") in ("Succeeded", "Failed")
        left = over and [c for c in children(node, last["metadata"]["uid"], namespace) if c.startswith("RayCluster/")]
        return last if over and not left else {}

    try:
        return until(look, f"{name} is over", seconds)
    except TimeoutError as error:
        raise TimeoutError(f"{error}\n{told(last)}") from None


def told(body: dict[str, Any]) -> str:
    """Return a job's phase with its reasons, for the message of a failing test."""
    status = body.get("status", {})
    lines = [f"{c['type']}={c['status']} {c['reason']}: {c['message']}" for c in status.get("conditions", [])]
    return "\n".join([f"{status.get('phase')} {status.get('reason')}", *lines])


def logs(node: Cluster, name: str, namespace: str) -> dict[str, str]:
    """Return the saved logs of the ranks and of PrimeMaster."""
    kept = found(node, "configmap", f"{name}-logs", namespace)["data"]
    assert '"message"' in kept["master.log"]
    return {name: text for name, text in kept.items() if name not in {"master.log", "status.json"}}


def volume(node: Cluster, namespace: str) -> None:
    """Create a claim that outlives pods, backed by a folder of the node."""
    assert node.run is not None
    size, mode, name = {"storage": "1Gi"}, ["ReadWriteMany"], f"ckpt-{namespace}"
    path = node.run / "node" / name
    path.mkdir(mode=0o777)
    path.chmod(0o777)  # Writable for any user of an image.
    folder = {"path": str(path), "type": "Directory"}
    claim = {"accessModes": mode, "resources": {"requests": size}, "storageClassName": "", "volumeName": name}
    reference = {"namespace": namespace, "name": "ckpt"}
    spec = {"accessModes": mode, "capacity": size, "storageClassName": "", "claimRef": reference, "hostPath": folder}
    meta = {"name": "ckpt", "namespace": namespace}
    node.apply(
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": claim},
    )
