"""What a RayCluster gets so that what its head knows outlives the head."""

from __future__ import annotations

from typing import Any

import pytest
from kuberay_fields import unknown
from plan_kit import job, machines, role

from dljob.plan.plan import plan
from dljob.raycluster import pods
from dljob.raycluster.render import RenderOptions, effective, render_raycluster
from dljob.raycluster.survival import ANNOTATION, RECONNECT

ROCKS = {"backend": "RocksDB", "claimName": "gcs"}
REDIS = {"backend": "Redis", "redisAddress": "redis:6379"}


def made(kept: dict[str, Any] | None, name: str = "job-1a2b3") -> dict[str, Any]:
    more = {"gcsFaultTolerance": kept} if kept else {}
    manifest = effective(job(role("a", nodeGroup="g"), nodeGroups=[machines("g", 2)], **more), "example/x", "2.60.0")
    return render_raycluster(plan(manifest), manifest, RenderOptions(name, annotations={"a": "b"}))


def containers(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of Ray: the head's, then each worker group's."""
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    return [group["template"]["spec"]["containers"][0] for group in groups]


def env(container: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in container["env"]}


def test_without_gcs_fault_tolerance_nothing_is_kept():
    cluster = made(None)
    assert cluster["metadata"]["annotations"] == {"a": "b"}
    assert not any(name.startswith("RAY_gcs") for container in containers(cluster) for name in env(container))
    assert "gcsFaultToleranceOptions" not in cluster["spec"]


@pytest.mark.parametrize("kept", [ROCKS, REDIS])
def test_all_containers_wait_for_a_replaced_head(kept: dict[str, Any]):
    cluster = made(kept)
    assert cluster["metadata"]["annotations"] == {"a": "b", ANNOTATION: kept["backend"]}
    assert [env(container)[RECONNECT[0]] for container in containers(cluster)] == ["600", "600"]
    assert list(unknown(cluster)) == []


def test_rocksdb_is_on_a_claim_in_a_folder_of_each_raycluster():
    cluster = made(ROCKS)
    head, worker = containers(cluster)
    told = {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": "/dljob/gcs/db"}
    assert {name: value for name, value in env(head).items() if name in told} == told
    assert not told.keys() & env(worker).keys()
    volumes = cluster["spec"]["headGroupSpec"]["template"]["spec"]["volumes"]
    assert {"name": "dljob-gcs", "persistentVolumeClaim": {"claimName": "gcs"}} in volumes
    assert {"name": "dljob-gcs", "mountPath": pods.GCS, "subPath": "job-1a2b3"} in head["volumeMounts"]
    assert "dljob-gcs" not in str(worker)
    assert "subPath': 'job-2'" in str(made(ROCKS, "job-2"))


def test_redis_is_kuberays_own_and_its_password_stays_in_its_secret():
    assert made(REDIS)["spec"]["gcsFaultToleranceOptions"] == {"redisAddress": "redis:6379"}
    cluster = made({**REDIS, "redisPasswordSecret": {"name": "redis", "key": "password"}})
    assert cluster["spec"]["gcsFaultToleranceOptions"] == {
        "redisAddress": "redis:6379",
        "redisPassword": {"valueFrom": {"secretKeyRef": {"name": "redis", "key": "password"}}},
    }
