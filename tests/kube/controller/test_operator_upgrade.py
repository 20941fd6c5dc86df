"""Upgrades under a job that runs: of the chart with the operator in it, and of the operator before its CRD."""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster import cache
from cluster.handle import Cluster
from helm_kit import CHART, Release
from job_life import Life
from operator_kit import Operator, condition, found, running, until

NEXT = "import sys, dljob_operator.main as m; m.version_of = lambda _: '0.2.0'; m.main(sys.argv[1:])"
"""The operator of the next minor version, as far as anybody can tell."""
CRD = cache.ROOT / "crds/dljob.io_dljobs.yaml"


@pytest.fixture
def release(plane: Cluster) -> Iterator[Release]:
    cache.program("helm")
    made = Release(plane, f"upgraded-{uuid.uuid4().hex[:6]}")
    plane.kubectl("create", "namespace", made.namespace)
    yield made
    made.helm("uninstall", made.name, "--ignore-not-found")
    plane.kubectl("delete", "namespace", made.namespace, "--wait=false")


def state(plane: Cluster, namespace: str) -> dict[str, Any]:
    """What an upgrade must leave alone: the RayCluster as we wrote it, and the pods."""
    (cluster,) = plane.get("rayclusters", "-n", namespace, "--show-managed-fields")["items"]
    ours = [one for one in cluster["metadata"]["managedFields"] if one["manager"] == "dljob-operator"]
    pods = plane.get("pods", "-n", namespace, "-l", "dljob.io/uid")["items"]
    return {
        "cluster": cluster["metadata"]["uid"],
        "spec": cluster["spec"],
        "written": ours,
        "pods": {pod["metadata"]["name"]: (pod["metadata"]["uid"], pod["metadata"].get("annotations")) for pod in pods},
    }


def test_a_running_job_outlives_a_chart_upgrade(
    plane: Cluster, namespace: str, release: Release, tmp_path: Path
) -> None:
    """The release's pods have no node here: processes stand for them, with the Lease that the chart names."""
    release.install()
    elect = [one for one in release.arguments() if one.startswith("--leader-elect")]
    flags = [f"--namespace={namespace}", *elect]
    old = Operator(plane, tmp_path / "old", flags)
    new = Operator(plane, tmp_path / "new", flags, program=("-c", NEXT))
    try:
        old.start()
        with Life(plane, namespace) as life:
            life.run()
            until(lambda: old.metrics()['workqueue_depth{name="dljob"}'] == 0, "the old one is at rest")
            before = state(plane, namespace)
            release.helm("upgrade", "dljob", str(CHART), image={"tag": "0.2.0"}, workers=7)
            assert release.get("deployment", "dljob")["metadata"]["generation"] == 2
            new.start()  # the surge: it reads everything, and waits
            assert new.ready() == {"role": "standby"}
            assert old.stop() == 0
            until(lambda: new.health().get("role") == "leader", "the new one acts")

            def said() -> dict[str, Any]:
                one = condition(found(plane, "dljob", "hello", namespace), "Accepted")
                return one if one["reason"] == "PlanSkew" else {}

            assert "attempt 1 goes on with dljob 0.1.0" in until(said, "the skew is told")["message"]
            assert state(plane, namespace) == before, "neither the RayCluster nor a pod was touched"
            assert life.status["phase"] == "Running"
            life.succeed()
    finally:
        old.stop()
        new.stop()


def test_the_operator_names_what_an_older_crd_lacks(plane: Cluster, namespace: str, tmp_path: Path) -> None:
    """What it lacks is named by the probe and the log; jobs that do not use it run; a newer CRD ends the complaint."""
    ours = yaml.safe_load(CRD.read_text(encoding="utf-8"))
    older = copy.deepcopy(ours)
    schema = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    del schema["spec"]["properties"]["code"]
    rules = schema["spec"].get("x-kubernetes-validations", [])
    schema["spec"]["x-kubernetes-validations"] = [one for one in rules if "code" not in one["rule"]]
    try:
        replace(plane, older)
        until(lambda: "code" not in served(plane), "the older CRD is served", 60)
        with running(plane, tmp_path, f"--namespace={namespace}") as operator:
            until(lambda: operator.health().get("crd") == "lacks spec.code", "the probe says so")
            with Life(plane, namespace) as life:
                life.run()
                replace(plane, ours)
                until(lambda: operator.health().get("crd") == "served", "the newer one is seen", 90)
                life.succeed()
            assert (
                "lacks spec.code: values written there are lost; apply this version's CRD" in operator.log.read_text()
            )
    finally:
        replace(plane, ours)
        until(lambda: "code" in served(plane), "our CRD is served again", 60)


def replace(plane: Cluster, crd: dict[str, Any]) -> None:
    """As a whole: others may hold fields of it too."""
    plane.kubectl("replace", "-f", "-", stdin=json.dumps(crd))


def served(plane: Cluster) -> dict[str, Any]:
    """The fields of a spec in the document that is served."""
    text = plane.kubectl("get", "--raw", "/openapi/v3/apis/dljob.io/v1alpha1")
    schemas = json.loads(text)["components"]["schemas"]
    return next(one["properties"]["spec"]["properties"] for name, one in schemas.items() if name.endswith(".DLJob"))
