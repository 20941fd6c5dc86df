"""KubeRay's client as its users know it: names, arguments, and what comes back when something goes wrong."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from fake_cluster import FakeCluster, client_of

from dljob.kube import kuberay_client
from dljob.kube.api import ApiError, Kube
from dljob.kube.kuberay_client import (
    ClusterBuilder,
    ClusterUtils,
    Director,
    DLJobApi,
    RayClusterApi,
    RayClusters,
    RayjobApi,
    token_secret,
)
from dljob.kube.kuberay_client.sync import wait


@pytest.fixture
def served(fake: FakeCluster) -> Iterator[Kube]:
    """The cluster in memory, in the loop of the synchronous client."""
    server = wait(fake.serve())

    async def connect() -> Kube:
        return client_of(server)

    kube = wait(connect())

    async def end() -> None:
        fake.cut()
        await kube.close()
        await server.close()

    yield kube
    wait(end())


def cluster(name: str = "c1") -> dict[str, Any]:
    made = Director().build_small_cluster(name, labels={"team": "a"})
    assert made is not None
    return made


def test_rayclusters_are_created_listed_and_deleted(fake: FakeCluster, served: Kube) -> None:
    api = RayClusterApi(kube=served)
    made = api.create_ray_cluster(cluster())
    assert made is not None
    assert made["metadata"]["uid"]
    got = api.get_ray_cluster("c1")
    assert got is not None
    assert got["spec"]["workerGroupSpecs"][0]["replicas"] == 1
    listed = api.list_ray_clusters(label_selector="team=a")
    assert listed is not None
    assert [item["metadata"]["name"] for item in listed["items"]] == ["c1"]
    assert api.patch_ray_cluster("c1", {"spec": {"suspend": True}}) is True
    assert fake.one("rayclusters", "c1")["spec"]["suspend"] is True
    assert api.delete_ray_cluster("c1") is True
    assert fake.names("rayclusters") == []


def test_a_failed_call_returns_none_or_false_and_logs_the_error(
    fake: FakeCluster, served: Kube, caplog: pytest.LogCaptureFixture
) -> None:
    api, jobs = RayClusterApi(kube=served), RayjobApi(kube=served)
    with caplog.at_level(logging.ERROR):
        assert api.get_ray_cluster("no") is None
        assert api.delete_ray_cluster("no") is False
        assert api.patch_ray_cluster("no", {}) is False
        assert api.get_ray_cluster_status("no", timeout=0) is None
        assert jobs.submit_job() is None
        fake.fail("GET", "rayclusters", 403)
        assert api.list_ray_clusters() is None
    assert 'cannot get RayCluster no: rayclusters "no" not found' in caplog.text
    assert "cannot create a RayJob: there is no body" in caplog.text


def test_waiting_for_a_cluster_ends_when_it_is_ready_or_times_out(fake: FakeCluster, served: Kube) -> None:
    api = RayClusterApi(kube=served)
    api.create_ray_cluster(cluster())
    assert api.wait_until_ray_cluster_running("c1", timeout=0, delay_between_attempts=0.01) is False  # type: ignore[arg-type]
    assert api.get_ray_cluster_status("c1", timeout=0, delay_between_attempts=1) is None
    body = fake.one("rayclusters", "c1")

    async def ready() -> None:
        fake.put("rayclusters", {**body, "status": {"state": "ready"}})

    wait(ready())
    assert api.wait_until_ray_cluster_running("c1") is True
    assert api.get_ray_cluster_status("c1") == {"state": "ready"}


@pytest.mark.parametrize(
    ("status", "running", "finished"),
    [
        ({"jobStatus": "PENDING"}, False, False),
        ({"jobStatus": "RUNNING"}, True, False),
        ({"jobStatus": "SUCCEEDED"}, True, True),
        ({"jobDeploymentStatus": "Failed"}, False, True),
    ],
)
def test_rayjobs_are_submitted_watched_and_deleted(
    fake: FakeCluster, served: Kube, status: dict[str, str], running: bool, finished: bool
) -> None:
    api = RayjobApi(kube=served)
    assert api.submit_job(job={"metadata": {"name": "j"}, "spec": {}}) is not None
    body = fake.one("rayjobs", "j")

    async def say() -> None:
        fake.put("rayjobs", {**body, "status": status})

    wait(say())
    assert api.get_job_status("j") == status
    assert api.wait_until_job_running("j", timeout=0) is running
    assert api.wait_until_job_finished("j", timeout=0) is finished
    assert api.suspend_job("j") is True
    assert fake.one("rayjobs", "j")["spec"]["suspend"] is True
    assert api.resubmit_job("j") is True
    assert fake.one("rayjobs", "j")["spec"]["suspend"] is False
    assert api.list_jobs()["items"][0]["metadata"]["name"] == "j"  # type: ignore[index]
    assert api.get_job("j") is not None
    assert api.delete_job("j") is True


def test_dljobs_are_submitted_watched_and_deleted_as_rayjobs(fake: FakeCluster, served: Kube) -> None:
    api = DLJobApi(kube=served)
    assert api.submit_job(job={"metadata": {"name": "j"}, "spec": {}}) is not None
    assert api.wait_until_job_finished("j", timeout=0) is False
    body = fake.one("dljobs", "j")

    async def say() -> None:
        fake.put("dljobs", {**body, "status": {"phase": "Succeeded"}})

    wait(say())
    assert api.wait_until_job_finished("j") is True
    assert api.get_job("j") is not None
    assert len(api.list_jobs()["items"]) == 1  # type: ignore[index]
    assert api.delete_job("j") is True


async def test_the_asynchronous_calls_raise_and_keep_the_words(fake: FakeCluster, kube: Kube) -> None:
    clusters, told = RayClusters(kube), list[tuple[str, int]]()
    kube.transport.on_call = lambda method, status: told.append((method, status))
    made = await clusters.create({"metadata": {"name": "c1"}, "spec": {}}, "default")
    assert (made["apiVersion"], made["kind"]) == ("ray.io/v1", "RayCluster")
    with pytest.raises(ApiError, match="already exists") as refused:
        await clusters.create({"metadata": {"name": "c1"}, "spec": {}}, "default")
    assert (refused.value.status, refused.value.reason) == (409, "AlreadyExists")
    with pytest.raises(ApiError, match="precondition"):
        await clusters.delete("c1", "default", uid="another")
    fake.fail("PATCH", "rayclusters", 429)
    assert (await clusters.patch("c1", {"spec": {"suspend": True}}, "default"))["spec"] == {"suspend": True}
    assert told == [("POST", 201), ("POST", 409), ("DELETE", 409), ("PATCH", 429), ("PATCH", 200)]


async def test_the_kind_is_missing_old_or_right(fake: FakeCluster, kube: Kube) -> None:
    clusters = RayClusters(kube)
    assert await clusters.trouble() == ""
    fake.fields = ("authOptions",)
    assert await clusters.trouble() == "old"
    fake.missing.add("rayclusters")
    assert await clusters.trouble() == "missing"
    fake.missing.clear()
    fake.fail("GET", "openapi", 500)
    with pytest.raises(ApiError):
        await clusters.trouble()


@pytest.mark.parametrize(
    ("auth", "secret"),
    [
        ({"mode": "token", "secretName": "s"}, "s"),
        ({"mode": "token"}, "c1"),
        ({"mode": "disabled", "secretName": "s"}, ""),
        (None, ""),
    ],
)
def test_the_token_secret_is_found_from_the_auth_options(auth: Any, secret: str) -> None:
    assert token_secret({"metadata": {"name": "c1"}, "spec": {"authOptions": auth} if auth else {}}) == secret


async def test_the_synchronous_client_works_inside_a_running_loop(tmp_path: Any) -> None:
    api = RayClusterApi(kubeconfig=str(tmp_path / "none"))
    assert api.get_ray_cluster("c1") is None
    api.close()


def test_a_cluster_is_built_step_by_step() -> None:
    made = (
        ClusterBuilder()
        .build_meta("mine", "ns", labels={"a": "b"}, ray_version="2.60.0")
        .build_head(ray_image="img", devices={"nvidia.com/gpu": 1})
        .build_worker("npu", "img", ray_command=["x"], init_image="i", replicas=2, devices={"huawei.com/Ascend910": 8})
        .get_cluster()
    )
    assert made is not None
    assert (made["apiVersion"], made["kind"]) == ("ray.io/v1", "RayCluster")
    assert made["metadata"] == {"name": "mine", "namespace": "ns", "labels": {"a": "b"}}
    head = made["spec"]["headGroupSpec"]
    assert head["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    (group,) = made["spec"]["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (2, 2, 2)
    pod = group["template"]["spec"]
    assert pod["containers"][0]["resources"]["requests"]["huawei.com/Ascend910"] == "8"
    assert (pod["containers"][0]["command"], pod["initContainers"][0]["image"]) == (["x"], "i")


@pytest.mark.parametrize(
    "build",
    [
        lambda b: b.build_meta("Upper"),
        lambda b: b.build_meta("x" * 54),
        lambda b: b.build_meta("a", labels={"k": "not a label"}),
        lambda b: b.build_meta("a").build_worker("g", replicas=1, max_replicas=0),
        lambda b: b.build_meta("a").build_worker("g").build_worker("g"),
    ],
)
def test_a_wrong_step_gives_no_cluster(build: Any) -> None:
    builder = build(ClusterBuilder())
    assert builder.succeeded is False
    assert builder.get_cluster() is None


def test_the_director_builds_clusters_of_each_size() -> None:
    director = Director()
    builds = (director.build_basic_cluster, director.build_small_cluster, director.build_medium_cluster)
    clusters = [build("c", "ns") for build in (*builds, director.build_large_cluster)]
    workers = [sum(g["replicas"] for g in c["spec"].get("workerGroupSpecs", [])) for c in clusters if c]
    assert workers == [0, 1, 3, 10]


def test_groups_are_changed_in_a_copy() -> None:
    utils, base = ClusterUtils(), cluster()
    (name,) = [group["groupName"] for group in base["spec"]["workerGroupSpecs"]]
    more, done = utils.update_worker_group_replicas(base, name, 5, 2, 3)
    assert done
    group = more["spec"]["workerGroupSpecs"][0]
    assert (group["minReplicas"], group["replicas"], group["maxReplicas"]) == (2, 3, 5)
    assert base["spec"]["workerGroupSpecs"][0]["replicas"] == 1
    bigger, done = utils.update_worker_group_resources(base, name, "4", "4G", "8", "8G", devices={"google.com/tpu": 4})
    assert done
    container = bigger["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"cpu": "8", "memory": "8G", "google.com/tpu": "4"}
    twice, done = utils.duplicate_worker_group(base, name, "other")
    assert done
    assert [g["groupName"] for g in twice["spec"]["workerGroupSpecs"]] == [name, "other"]
    once, done = utils.delete_worker_group(twice, name)
    assert done
    assert [g["groupName"] for g in once["spec"]["workerGroupSpecs"]] == ["other"]


def test_changes_that_cannot_be_made_leave_the_cluster() -> None:
    utils, base = ClusterUtils(), cluster()
    name = base["spec"]["workerGroupSpecs"][0]["groupName"]
    for got, done in (
        utils.update_worker_group_replicas(base, "no", 1, 1, 1),
        utils.update_worker_group_replicas(base, name, 1, 2, 1),
        utils.update_worker_group_resources(base, "no", "1", "1G", "1", "1G"),
        utils.update_worker_group_resources(base, name, "1", "1G", "1", "1G", container_name="no"),
        utils.duplicate_worker_group(base, "no", "x"),
        utils.duplicate_worker_group(base, name, name),
        utils.delete_worker_group(base, "no"),
    ):
        assert not done
        assert got is base
    both, done = utils.update_worker_group_resources(base, name, "1", "1G", "1", "1G", container_name="all_containers")
    assert done
    assert both is not base


@pytest.mark.parametrize(
    ("named", "changed"),
    [("unspecified", ["ray-worker"]), ("sidecar", ["sidecar"]), ("all_containers", ["ray-worker", "sidecar"])],
)
def test_resources_are_set_in_the_first_a_named_or_all_containers(named: str, changed: list[str]) -> None:
    base = cluster()
    (group,) = base["spec"]["workerGroupSpecs"]
    group["template"]["spec"]["containers"] = [{"name": "ray-worker"}, {"name": "sidecar"}]
    made, done = ClusterUtils().update_worker_group_resources(
        base, group["groupName"], "1", "1G", "1", "1G", container_name=named
    )
    assert done
    containers = made["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"]
    assert [one["name"] for one in containers if "resources" in one] == changed


def test_public_names_and_arguments_are_upstreams() -> None:
    """Source: clients/python-client/python_client of the KubeRay repository, v1.7.0."""
    waits = ["name", "k8s_namespace", "timeout", "delay_between_attempts"]
    known: dict[Any, dict[str, list[str]]] = {
        RayClusterApi: {
            "list_ray_clusters": ["k8s_namespace", "label_selector"],
            "get_ray_cluster": ["name", "k8s_namespace"],
            "get_ray_cluster_status": waits,
            "wait_until_ray_cluster_running": waits,
            "create_ray_cluster": ["body", "k8s_namespace"],
            "delete_ray_cluster": ["name", "k8s_namespace"],
            "patch_ray_cluster": ["name", "ray_patch", "k8s_namespace"],
        },
        RayjobApi: {
            "submit_job": ["k8s_namespace", "job"],
            "get_job": ["name", "k8s_namespace"],
            "list_jobs": ["k8s_namespace", "label_selector"],
            "get_job_status": waits,
            "wait_until_job_finished": waits,
            "wait_until_job_running": waits,
            "suspend_job": ["name", "k8s_namespace"],
            "resubmit_job": ["name", "k8s_namespace"],
            "delete_job": ["name", "k8s_namespace"],
        },
    }
    for kind, methods in known.items():
        for method, arguments in methods.items():
            assert list(inspect.signature(getattr(kind, method)).parameters)[1:] == arguments, method
    assert (kuberay_client.GROUP, kuberay_client.CLUSTER_VERSION, kuberay_client.CLUSTER_PLURAL) == (
        "ray.io",
        "v1",
        "rayclusters",
    )
    assert (kuberay_client.JOB_VERSION, kuberay_client.JOB_PLURAL, kuberay_client.JOB_KIND) == (
        "v1",
        "rayjobs",
        "RayJob",
    )
