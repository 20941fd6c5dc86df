"""The manifests of docs/howto/queues.md: each is taken, and its RayCluster carries what its queue reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from plan_kit import ray_cluster

from dljob.spec.loading.load import parse

PAGE = (Path(__file__).parents[3] / "docs" / "howto" / "queues.md").read_text()
MANIFESTS = {
    body["metadata"]["name"]: body
    for body in (yaml.safe_load(block.split("```")[0]) for block in PAGE.split("```yaml\n")[1:])
}
# Source: KubeRay 1.6.2, controllers/ray/batchscheduler/*; Kueue 0.19, pkg/controller/constants/constants.go.
READ = {
    "in-kueue": {"kueue.x-k8s.io/queue-name": "research", "kueue.x-k8s.io/priority-class": "high"},
    "in-volcano": {
        "volcano.sh/queue-name": "research",
        "ray.io/priority-class-name": "high",
        "volcano.sh/network-topology-mode": "hard",
        "volcano.sh/network-topology-highest-tier-allowed": "2",
    },
    "in-yunikorn": {
        "yunikorn.apache.org/app-id": "in-yunikorn",
        "yunikorn.apache.org/queue": "root.research",
        "ray.io/gang-scheduling-enabled": "true",
    },
    "in-kai": {"kai.scheduler/queue": "research"},
}


def cluster(body: dict[str, Any]) -> dict[str, Any]:
    return ray_cluster(parse(body))


def test_the_how_to_has_one_manifest_for_each_queue_system() -> None:
    assert set(MANIFESTS) == set(READ)


@pytest.mark.parametrize("name", READ)
def test_the_raycluster_carries_what_its_queue_reads(name: str) -> None:
    made = cluster(MANIFESTS[name])
    assert READ[name].items() <= made["metadata"]["labels"].items()
    assert "suspend" not in made["spec"]
    for group in made["spec"]["workerGroupSpecs"]:
        assert group["minReplicas"] == group["replicas"] == group["maxReplicas"] == 2


@pytest.mark.parametrize("name", READ)
def test_queue_labels_may_stand_on_the_job_instead(name: str) -> None:
    body = MANIFESTS[name]
    own = {**body, "metadata": {**body["metadata"], "labels": READ[name]}, "spec": {**body["spec"], "scheduling": {}}}
    assert READ[name].items() <= cluster(own)["metadata"]["labels"].items()


def test_a_topology_annotation_reaches_the_pods() -> None:
    (group,) = cluster(MANIFESTS["in-kueue"])["spec"]["workerGroupSpecs"]
    wanted = "cloud.provider.com/topology-block"
    assert group["template"]["metadata"]["annotations"]["kueue.x-k8s.io/podset-required-topology"] == wanted
