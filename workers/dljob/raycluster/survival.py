"""What a RayCluster gets so that what its head knows outlives the head: in RocksDB on a volume, or in Redis.

KubeRay 1.6.2 knows Redis alone, so for RocksDB its head is told by Ray's own settings (2.60).
"""

from __future__ import annotations

from dljob.raycluster import pods
from dljob.raycluster.overlay import Object
from dljob.spec.cluster import GcsFaultTolerance

ANNOTATION = "dljob.io/gcs-fault-tolerance"
"""On the RayCluster: the backend."""
RECONNECT = ("RAY_gcs_rpc_server_reconnect_timeout_s", "600")
"""Without a head for so many seconds a raylet, and every process of Ray's, ends itself. KubeRay does so for Redis.
Source: Ray 2.60, ray_config_def.h."""


def keep(cluster: Object, kept: GcsFaultTolerance | None) -> None:
    """Put it into a RayCluster that is being made; nothing for a job that does not ask for it."""
    if kept is None:
        return
    spec = cluster["spec"]
    head = spec["headGroupSpec"]["template"]["spec"]
    for pod in (head, *(group["template"]["spec"] for group in spec["workerGroupSpecs"])):
        pod["containers"][0]["env"].append(_variable(*RECONNECT))
    if kept.backend == "Redis":
        spec["gcsFaultToleranceOptions"] = _redis(kept)
        return
    volume = {"name": "dljob-gcs", "persistentVolumeClaim": {"claimName": kept.claim_name}}
    # A folder of its own for each RayCluster: what another one's head kept is never found.
    mount = {"name": "dljob-gcs", "mountPath": pods.GCS, "subPath": cluster["metadata"]["name"]}
    head.setdefault("volumes", []).append(volume)
    ray = head["containers"][0]
    ray.setdefault("volumeMounts", []).append(mount)
    ray["env"] += [_variable("RAY_gcs_storage", "rocksdb"), _variable("RAY_gcs_storage_path", f"{pods.GCS}/db")]


def _redis(kept: GcsFaultTolerance) -> Object:
    """KubeRay's own; its namespace in Redis is the RayCluster's uid, and it clears that when the RayCluster goes."""
    found: Object = {"redisAddress": kept.redis_address}
    if secret := kept.redis_password_secret:
        reference = {"name": secret.name, "key": secret.key}
        found["redisPassword"] = {"valueFrom": {"secretKeyRef": reference}}
    return found


def _variable(name: str, value: str) -> Object:
    return {"name": name, "value": value}
