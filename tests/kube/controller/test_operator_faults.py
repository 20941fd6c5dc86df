"""The operator killed at any moment, and names that are taken."""

from __future__ import annotations

from pathlib import Path

from cluster.handle import Cluster
from operator_kit import Operator, condition, found, job, running, until


def test_an_operator_that_is_killed_again_and_again_makes_each_child_once(
    plane: Cluster, namespace: str, tmp_path: Path
) -> None:
    names = [f"j{number}" for number in range(20)]
    operator = Operator(plane, tmp_path, (f"--namespace={namespace}",))
    operator.start()
    try:
        plane.apply(*({**job(name), "metadata": {"name": name, "namespace": namespace}} for name in names[:1]))
        bodies = [{**job(name), "metadata": {"name": name, "namespace": namespace}} for name in names]
        plane.apply({"apiVersion": "v1", "kind": "List", "items": bodies})
        for _ in range(3):
            operator.kill()
            operator.start()

        def all_made() -> bool:
            jobs = plane.get("dljobs", "-n", namespace)["items"]
            return all(one.get("status", {}).get("rayCluster", {}).get("uid") for one in jobs)

        until(all_made, "each job has its RayCluster", 90)
        clusters = plane.get("rayclusters", "-n", namespace)["items"]
        assert len(clusters) == len(names)
        owners = {cluster["metadata"]["ownerReferences"][0]["name"] for cluster in clusters}
        assert owners == set(names)
        assert len(plane.get("secrets", "-n", namespace, "-l", "dljob.io/uid")["items"]) == len(names)
        attempts = {one["status"]["attempt"] for one in plane.get("dljobs", "-n", namespace)["items"]}
        assert attempts == {1}
        assert operator.stop() == 0
    finally:
        operator.stop()


def test_a_foreign_raycluster_of_that_name_is_left_alone(plane: Cluster, namespace: str, tmp_path: Path) -> None:
    with running(plane, tmp_path, f"--namespace={namespace}") as operator:
        operator.kill()
        plane.apply({**job("mine"), "metadata": {"name": "mine", "namespace": namespace}})
        uid = found(plane, "dljob", "mine", namespace)["metadata"]["uid"]
        from dljob.reconcile.state.names import cluster_name

        name = cluster_name("mine", uid, 1)
        container = {"name": "ray-head", "image": "x"}
        head = {"rayStartParams": {}, "template": {"spec": {"containers": [container]}}}
        foreign = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": name, "namespace": namespace}}
        plane.apply({**foreign, "spec": {"headGroupSpec": head}})
        operator.start()

        def taken() -> str:
            said = condition(found(plane, "dljob", "mine", namespace), "ClusterReady")
            return said.get("message", "") if said.get("reason") == "NameTaken" else ""

        assert f"RayCluster {name} exists already and belongs to nobody" in until(taken, "the condition says so")
        plane.kubectl("delete", "raycluster", name, "-n", namespace)
        until(
            lambda: found(plane, "dljob", "mine", namespace)["status"].get("rayCluster", {}).get("uid"),
            "the job goes on when the name is free",
            90,
        )
