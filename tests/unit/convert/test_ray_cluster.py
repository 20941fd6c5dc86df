"""The spec of a RayCluster: numbers of machines, parameters of `ray start`, the store of the head, names."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.convert.test_ray_job import job

from dljob.convert.manifest import ConvertedJob, ConvertOptions, convert
from dljob.spec.loading.load import load
from dljob.spec.model import DLJobSpec
from dljob.spec.text.emit import to_yaml

GIVEN = ConvertOptions(command=("python", "train.py"), workdir="/work")
HEAD: dict[str, Any] = {"template": {"spec": {"containers": [{"name": "ray-head", "image": "example/ray:1"}]}}}


def cluster(**spec: Any) -> str:
    """Return a RayCluster with a plain head."""
    whole = {"headGroupSpec": HEAD, **spec}
    return to_yaml({"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "c"}, "spec": whole})


def workers(**group: Any) -> dict[str, Any]:
    """Return a worker group."""
    pod = {"spec": {"containers": [{"name": "ray-worker", "image": "example/ray:1"}]}}
    return {"groupName": "w", "template": pod, **group}


def spec_of(text: str) -> DLJobSpec:
    """Return the spec of a converted RayCluster."""
    return load(job(text, GIVEN).text).spec


def dropped(text: str) -> list[str]:
    """Return what is lost, with the reasons."""
    (piece,) = convert(text, "job.yaml", GIVEN)
    assert isinstance(piece, ConvertedJob)
    return [f"{row.path}: {row.fate.reason}" for row in piece.rows if row.fate.kind == "dropped"]


@pytest.mark.parametrize(
    ("group", "scaled", "count"),
    [
        ({"replicas": 2, "minReplicas": 1, "maxReplicas": 5}, False, 2),
        ({"replicas": 2, "minReplicas": 1, "maxReplicas": 5}, True, 5),
        ({"replicas": 0, "minReplicas": 3}, False, 3),
        ({"replicas": 2, "numOfHosts": 4}, False, 8),
        ({"maxReplicas": 2147483647, "replicas": 2}, True, 2),
        ({}, False, 1),
    ],
)
def test_a_group_has_all_machines_from_the_start(group: dict[str, Any], scaled: bool, count: int) -> None:
    """As many as KubeRay makes, or as its autoscaler could add."""
    text = cluster(enableInTreeAutoscaling=scaled, workerGroupSpecs=[workers(**group)])
    assert spec_of(text).node_groups[1].replicas == count
    # Machines that the manifest has not at its start cost: they are named.
    assert bool(dropped(text)) == (scaled and count > group.get("replicas", count))
    enlarged = [one for one in job(text, GIVEN).remarks if "machines from the start, and not" in one]
    assert bool(enlarged) is (count == 5)


def test_an_empty_group_is_named() -> None:
    """A node group has at least one machine."""
    (lost,) = dropped(cluster(workerGroupSpecs=[workers(replicas=0)]))
    assert "at least one machine" in lost


def test_names_of_groups_fit_and_differ() -> None:
    """At most 20 characters, none twice, none reserved."""
    names = ["head", "a-group-whose-name-is-long-1", "a-group-whose-name-is-long-2"]
    groups = spec_of(cluster(workerGroupSpecs=[workers(groupName=name) for name in names])).node_groups
    assert [one.name for one in groups] == ["driver", "head-group", "a-group-whose-name-i", "a-group-whose-nam-2"]


def test_parameters_of_ray_start_are_carried_or_named() -> None:
    """What dljob sets is harmless, amounts that contradict the pods are lost."""
    params = {"dashboard-host": "0.0.0.0", "object-store-memory": "100", "num-gpus": "2", "resources": '{"a": 1}'}  # noqa: S104
    text = cluster(workerGroupSpecs=[workers(rayStartParams=params, labels={"zone": "a"})])
    template = spec_of(text).ray_cluster_template["spec"]["workerGroupSpecs"]
    assert template == [{"groupName": "w", "rayStartParams": {"object-store-memory": "100"}}]
    assert spec_of(text).node_groups[1].labels == {"zone": "a"}
    assert [lost.partition(":")[0].rpartition(".")[2] for lost in dropped(text)] == ["num-gpus", "resources"]


def test_the_store_of_the_head_is_redis_or_a_claim() -> None:
    """Another one cannot be had."""
    secret = {"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    redis = {"redisAddress": "redis:6379", "redisPassword": secret, "externalStorageNamespace": "x"}
    made = spec_of(cluster(gcsFaultToleranceOptions=redis)).gcs_fault_tolerance
    assert made is not None
    assert (made.backend, made.redis_address) == ("Redis", "redis:6379")
    claim = {"backend": "rocksdb", "storage": {"claimName": "data"}}
    made = spec_of(cluster(gcsFaultToleranceOptions=claim)).gcs_fault_tolerance
    assert made is not None
    assert (made.backend, made.claim_name) == ("RocksDB", "data")
    (lost,) = dropped(cluster(gcsFaultToleranceOptions={"backend": "rocksdb"}))
    assert "an existing Redis, or a claim" in lost


def test_a_version_of_ray_that_dljob_does_not_run_is_named() -> None:
    """The job would be refused with it."""
    assert spec_of(cluster(rayVersion="2.60.1")).ray_version == "2.60.1"
    (lost,) = dropped(cluster(rayVersion="2.9.0"))
    assert lost.endswith("this dljob runs on Ray 2.60: take an image with it")


def test_connections_are_not_encrypted() -> None:
    """TLS is named, and so is a policy of the network carried."""
    (lost,) = dropped(cluster(tlsOptions={"enabled": True}))
    assert "not encrypted" in lost
    assert spec_of(cluster(networkPolicy={"mode": "DenyAll"})).network_policy.enabled
    assert not dropped(cluster(tlsOptions={"enabled": False}, suspend=False, autoscalerOptions={"a": 1}))
