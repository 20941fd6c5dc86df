"""A job on a RayCluster that no watch tells of: looked at live, its token had where somebody lets the operator."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from fake_cluster import FakeCluster
from shell_kit import JOB, Shell, cluster_of, dljob, run_head, shell, token

from dljob_operator.controller import poller
from dljob_operator.watch.workqueue import Key

RIGHT = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "shared"}}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PAUSE", "FIRST_BACKOFF", "STARTING_BACKOFF"):
        monkeypatch.setattr(poller, name, 0.005)


def on_shared(name: str = "hello", **spec: Any) -> dict[str, Any]:
    return dljob(name, rayClusterRef={"name": "shared"}, **spec)


def others(fake: FakeCluster, *, auth: dict[str, Any] | None = None, ready: bool = True) -> None:
    """Somebody's RayCluster, with a head."""
    conditions = [{"type": "HeadPodReady", "status": "True", "reason": "x"}] if ready else []
    status = {"head": {"podIP": "10.0.0.1", "podName": "shared-head"}, "conditions": conditions}
    spec = {"rayVersion": "2.60.0", **({"authOptions": auth} if auth else {})}
    meta = {"name": "shared", "managedFields": [{"manager": "x"}]}
    fake.put("rayclusters", {"metadata": meta, "spec": spec, "status": status})
    for kind in ("head", "worker"):
        labels = {"ray.io/cluster": "shared", "ray.io/node-type": kind}
        state = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
        pod = {"metadata": {"name": f"shared-{kind}", "labels": labels}, "spec": {"containers": [{"name": "r"}]}}
        fake.put("pods", {**pod, "status": state})


def condition(it: Shell, kind: str, key: Key = JOB) -> dict[str, Any]:
    return next(one for one in it.status(key)["conditions"] if one["type"] == kind)


async def until(it: Shell, phase: str, key: Key = JOB) -> None:
    for _ in range(200):
        await it.settle()
        if it.status(key)["phase"] == phase:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{it.status(key)['phase']} and not {phase}")


async def test_a_raycluster_retained_by_another_job_has_a_token_of_ours() -> None:
    async with shell() as it:
        it.fake.put("dljobs", dljob("maker", cleanupPolicy="Retain"))
        await it.settle()
        run_head(it.fake, it.head, "maker")
        name = cluster_of(it.fake, "maker")
        it.fake.put("dljobs", dljob(rayClusterRef={"name": name}))
        await it.settle()
        assert it.head.token == token(it.fake.one("dljobs", "maker")["metadata"]["uid"], name)
        assert {body["metadata"]["dljob.io/name"] for body in it.head.posted} == {"maker", "hello"}
        assert not [path for method, path in it.fake.calls if method == "GET" and "secrets" in path]


@pytest.mark.parametrize("what", ["another uid", "another Secret", "no controller"])
async def test_nobody_gets_a_token_by_naming_a_job_that_did_not_make_the_cluster(what: str) -> None:
    async with shell() as it:
        victim = it.fake.put("dljobs", dljob("victim", managedBy="kueue.x-k8s.io/multikueue"))
        secret = "other" if what == "another Secret" else "shared-token"
        others(it.fake, auth={"mode": "token", "secretName": secret})
        body = it.fake.one("rayclusters", "shared")
        uid = "not-there" if what == "another uid" else victim["metadata"]["uid"]
        owner = {"kind": "DLJob", "name": "victim", "uid": uid, "controller": what != "no controller"}
        it.fake.put("rayclusters", {**body, "metadata": {**body["metadata"], "ownerReferences": [owner]}})
        it.fake.put("dljobs", on_shared())
        await it.settle()
        assert it.head.asked == []
        assert condition(it, "ClusterReady")["reason"] == "TokenUnknown"


async def test_a_token_that_may_not_be_read_is_told_with_the_way_to_allow_it() -> None:
    async with shell() as it:
        others(it.fake, auth={"mode": "token"})
        it.fake.put("dljobs", on_shared())
        it.fake.fail("GET", "secrets/shared", 403, times=1)
        await it.settle()
        said = condition(it, "ClusterReady")
        assert (said["status"], said["reason"]) == ("False", "TokenUnknown")
        assert "--verb=get --resource=secrets --resource-name=shared" in said["message"]
        assert "--serviceaccount=sys:operator" in said["message"]
        assert it.head.posted == []
        it.head.token = "theirs"
        it.fake.faults.clear()
        it.fake.put("secrets", {**RIGHT, "data": {"auth_token": base64.b64encode(b"theirs\n").decode()}})
        it.queue.add(JOB)
        await it.settle()
        assert len(it.head.posted) == 1
        assert condition(it, "ClusterReady")["status"] == "True"


@pytest.mark.parametrize(
    ("secret", "words"),
    [(None, "Secret mine, which is not there"), ({}, "no key auth_token"), ({"auth_token": "&"}, "no key auth_token")],
)
async def test_a_secret_without_a_token_is_told(secret: dict[str, str] | None, words: str) -> None:
    async with shell() as it:
        others(it.fake, auth={"mode": "token", "secretName": "mine"})
        if secret is not None:
            it.fake.put("secrets", {"metadata": {"name": "mine"}, "data": secret})
        it.fake.put("dljobs", on_shared())
        await it.settle()
        assert words in condition(it, "ClusterReady")["message"]


async def test_a_job_waits_for_a_missing_raycluster_and_goes_on_once_it_is_there() -> None:
    async with shell() as it:
        it.head.token = ""
        it.fake.put("dljobs", on_shared())
        await it.settle()
        assert condition(it, "ClusterReady")["reason"] == "RayClusterNotFound"
        assert it.fake.writes[-1][1].endswith("status")
        others(it.fake, ready=False)
        it.queue.add(JOB)
        await it.settle()
        assert condition(it, "ClusterReady")["reason"] == "HeadPending"
        others(it.fake)
        it.queue.add(JOB)
        await it.settle()
        assert len(it.head.posted) == 1


async def test_an_api_server_that_does_not_answer_is_no_lost_cluster() -> None:
    async with shell() as it:
        others(it.fake)
        it.head.token = ""
        it.fake.put("dljobs", on_shared())
        await it.settle()
        it.fake.fail("GET", "rayclusters/shared", 500, times=1)
        with pytest.raises(Exception, match="no"):
            await it.controller.step(JOB)
        await it.settle()
        assert it.status()["attempt"] == 1


async def test_a_file_that_ray_keeps_already_is_not_sent_again() -> None:
    async with shell() as it:
        it.head.token = ""
        ray = it.heads.ray("default", "u", "c", "10.0.0.1")
        for content in (b"one", b"two"):
            await ray.keep("a.json", content)
        assert it.head.kept == {"a.json": b"one"}
