"""Settings by which Ray's tables outlive the head: in RocksDB on a volume, or in Redis.

KubeRay 1.6.2 supports only Redis, so for RocksDB the head gets Ray's own settings (2.60).
"""

from __future__ import annotations

from dljob.raycluster import pods
from dljob.raycluster.overlay import Object
from dljob.spec.cluster import GcsFaultTolerance

ANNOTATION = "dljob.io/gcs-fault-tolerance"
"""Annotation of the RayCluster with the backend."""
RECONNECT = ("RAY_gcs_rpc_server_reconnect_timeout_s", "600")
"""Seconds without a head after which a raylet, and every other process of Ray, ends itself.

KubeRay sets the same for Redis. Source: Ray 2.60, ray_config_def.h.
"""


def keep(cluster: Object, tolerance: GcsFaultTolerance | None) -> None:
    """Add the settings to a RayCluster under construction; nothing for a job that does not ask for them."""
    if tolerance is None:
        return
    spec = cluster["spec"]
    head = spec["headGroupSpec"]["template"]["spec"]
    # Workers too: each raylet decides by its own setting when to give the head up.
    for pod in (head, *(group["template"]["spec"] for group in spec["workerGroupSpecs"])):
        pod["containers"][0]["env"].append(_variable(*RECONNECT))
    if tolerance.backend == "Redis":
        spec["gcsFaultToleranceOptions"] = _redis(tolerance)
        return
    volume = {"name": "dljob-gcs", "persistentVolumeClaim": {"claimName": tolerance.claim_name}}
    # Each RayCluster has a folder of its own: a head must never load the tables of another attempt.
    mount = {"name": "dljob-gcs", "mountPath": pods.GCS, "subPath": cluster["metadata"]["name"]}
    head.setdefault("volumes", []).append(volume)
    ray = head["containers"][0]
    ray.setdefault("volumeMounts", []).append(mount)
    ray["env"] += [_variable("RAY_gcs_storage", "rocksdb"), _variable("RAY_gcs_storage_path", f"{pods.GCS}/db")]


def _redis(tolerance: GcsFaultTolerance) -> Object:
    """Return KubeRay's own options.

    KubeRay uses the RayCluster's uid as its namespace in Redis, and clears that when the RayCluster is deleted.
    """
    options: Object = {"redisAddress": tolerance.redis_address}
    if secret := tolerance.redis_password_secret:
        reference = {"name": secret.name, "key": secret.key}
        options["redisPassword"] = {"valueFrom": {"secretKeyRef": reference}}
    return options


def _variable(name: str, value: str) -> Object:
    return {"name": name, "value": value}
