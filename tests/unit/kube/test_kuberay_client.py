"""RayClusters as the operator and the command use them, by the method names of KubeRay's own client."""

from __future__ import annotations

from typing import Any

import pytest
from fake_cluster import FakeCluster

from dljob.kube.api import ApiError, Kube
from dljob.kube.kuberay_client import RayClusters, token_secret


async def test_a_call_raises_with_the_servers_words_and_is_repeated_where_that_is_safe(
    fake: FakeCluster, kube: Kube
) -> None:
    clusters, calls = RayClusters(kube), list[tuple[str, int]]()
    kube.transport.on_call = lambda method, status: calls.append((method, status))
    cluster = await clusters.create_ray_cluster({"metadata": {"name": "c1"}, "spec": {}}, "default")
    assert (cluster["apiVersion"], cluster["kind"]) == ("ray.io/v1", "RayCluster")
    with pytest.raises(ApiError, match="already exists") as error:
        await clusters.create_ray_cluster({"metadata": {"name": "c1"}, "spec": {}}, "default")
    assert (error.value.status, error.value.reason) == (409, "AlreadyExists")
    with pytest.raises(ApiError, match="precondition"):
        await clusters.delete_ray_cluster("c1", "default", uid="another")
    fake.fail("PATCH", "rayclusters", 429)
    merge_patch = {"spec": {"suspend": True}}
    assert (await clusters.patch_ray_cluster("c1", merge_patch, "default"))["spec"] == {"suspend": True}
    json_patch = [{"op": "remove", "path": "/spec/suspend"}]
    assert (await clusters.patch_ray_cluster("c1", json_patch, "default"))["spec"] == {}
    assert [body["metadata"]["name"] for body in await clusters.list_ray_clusters("default")] == ["c1"]
    assert calls[:5] == [("POST", 201), ("POST", 409), ("DELETE", 409), ("PATCH", 429), ("PATCH", 200)]


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
