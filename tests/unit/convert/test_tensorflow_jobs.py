"""TFJob, and ElasticJob with parameter servers: a role for each task, which gets TF_CONFIG."""

from __future__ import annotations

from typing import Any

from tests.unit.convert.test_torch_kinds import manifest, pod, spec_of

from dljob.convert.manifest import ConvertedJob, RefusedManifest, convert
from dljob.spec.loading.load import load


def replicas(count: int = 1, **fields: Any) -> dict[str, Any]:
    return {"replicas": count, "template": pod("python", "/work/server.py", name="tensorflow"), **fields}


def tf_job(spec: dict[str, Any] | None = None, **parts: dict[str, Any]) -> str:
    return manifest("kubeflow.org/v1", "TFJob", {"tfReplicaSpecs": parts, **(spec or {})})


def test_each_kind_of_replicas_becomes_the_role_of_its_task() -> None:
    text = tf_job(
        {"runPolicy": {"backoffLimit": 4}, "successPolicy": "AllWorkers", "enableDynamicWorker": True},
        Chief=replicas(restartPolicy="Never"),
        PS=replicas(2),
        Worker=replicas(3, restartPolicy="OnFailure"),
        Eval=replicas(0),
    )
    (piece,) = convert(text, "job.yaml")
    assert isinstance(piece, ConvertedJob)
    assert [row.fate.kind for row in piece.rows if "enableDynamicWorker" in row.loc] == ["dropped"]
    roles = {role.name: role for role in load(piece.text).spec.roles}
    assert {name: role.tf.task if role.tf else "" for name, role in roles.items()} == {
        name: name for name in ("chief", "ps", "worker")
    }
    assert [(role.replicas, role.driver, role.restart_policy.max_restarts) for role in roles.values()] == [
        (1, True, 0),
        (2, False, 0),
        (3, False, 4),
    ]


def test_an_elastic_job_with_servers_keeps_its_restarts_and_variables() -> None:
    main = {"template": pod("python", "/work/server.py", name="main")}
    specs = {
        "master": {"replicas": 1, **main},
        "chief": {"replicas": 1, **main},
        "ps": {"replicas": 2, "restartCount": 3, **main},
        "worker": {"replicas": 2, **main},
    }
    spec = {
        "distributionStrategy": "ParameterServerStrategy",
        "envs": {"MODE": {"value": "fast"}},
        "replicaSpecs": specs,
    }
    roles = spec_of(manifest("elastic.iml.github.io/v1alpha1", "ElasticJob", spec)).roles
    assert [role.name for role in roles] == ["chief", "ps", "worker"]
    assert [role.restart_policy.max_restarts for role in roles] == [10, 3, 10]
    assert {one.name: one.value for one in roles[1].env}["MODE"] == "fast"


def test_a_single_process_needs_no_cluster_and_two_do() -> None:
    (role,) = spec_of(tf_job(Worker=replicas())).roles
    assert (role.tf, role.driver) == (None, True)
    (piece,) = convert(tf_job(Worker=replicas(2)), "job.yaml")
    assert isinstance(piece, RefusedManifest)
    assert "has no chief and no ps" in piece.message


def test_replicas_of_an_unknown_name_are_told_as_not_carried() -> None:
    (piece,) = convert(tf_job(Chief=replicas(), PS=replicas(), Worker=replicas(), Tail=replicas()), "job.yaml")
    assert isinstance(piece, ConvertedJob)
    assert [row for row in piece.rows if "Tail" in row.loc and row.fate.kind == "dropped"]
