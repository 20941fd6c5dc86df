"""A cluster without KubeRay, with one that is too old, and with one that does not run: a job says so, and waits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import cache, kuberay, up
from cluster.handle import Cluster
from operator_kit import condition, found, job, running, said, until, warned

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def bare() -> Iterator[Cluster]:
    """A control plane with our CRD alone."""
    run = up.owned("bare-plane")
    try:
        made = up.plane(run, operator=False)
    except cache.MissingError as error:
        pytest.skip(str(error))
    yield made
    up.down(run)


def older(cluster: Cluster) -> dict[str, Any]:
    """The CRD of RayClusters without what KubeRay 1.6 added to it."""
    file = cache.kube() / "kuberay" / "crd" / "bases" / "ray.io_rayclusters.yaml"
    crd = json.loads(cluster.kubectl("create", "--dry-run=client", "-o", "json", "-f", str(file)))
    for version in crd["spec"]["versions"]:
        spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
        for name in ("authOptions", "upgradeStrategy"):
            spec.pop(name, None)
    return crd


def test_a_job_waits_until_kuberay_is_installed_recent_and_active(bare: Cluster, tmp_path: Path) -> None:
    assert bare.run is not None
    with running(bare, tmp_path) as operator:
        bare.apply(job("early"))
        words = said(bare, "default", "early", "KubeRayMissing")
        assert words.endswith("install the KubeRay operator, 1.6 or newer; the job goes on by itself")
        assert warned(bare, "default", "early", "KubeRayMissing") == words
        assert operator.health()["kuberay"] == "missing"
        bare.apply(older(bare))
        words = said(bare, "default", "early", "KubeRayTooOld")
        assert words.endswith("upgrade KubeRay and its CRDs to 1.6 or newer; the job goes on by itself")
        assert not bare.get("rayclusters")["items"]
        kuberay.crds(bare)  # as `helm uninstall` leaves them, too
        words = said(bare, "default", "early", "KubeRaySilent", seconds=60)
        name = bare.get("rayclusters")["items"][0]["metadata"]["name"]
        assert words.startswith(
            f"KubeRay has done nothing about RayCluster {name}: see that its operator runs (kubectl"
        )
        assert warned(bare, "default", "early", "KubeRaySilent") == words
        assert operator.health()["kuberay"] == "served"
        kuberay.start(bare, bare.run)
        until(lambda: bare.get("pods", "-l", "ray.io/node-type=head")["items"], "KubeRay makes the head")
        body = found(bare, "dljob", "early")
        assert (body["status"]["attempt"], body["status"]["restartsTotal"]) == (1, 0)

        def told() -> str:
            return condition(found(bare, "dljob", "early"), "ClusterReady")["reason"]

        until(lambda: told() == "Unschedulable", "the job tells of the next obstacle: there is no node")
