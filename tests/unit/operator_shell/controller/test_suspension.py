"""A job that is suspended and resumed, through the whole shell: wherever the operator dies, the same end."""

from __future__ import annotations

import asyncio
import json
from itertools import count
from typing import Any

import pytest
from fake_cluster import FakeCluster
from shell_kit import JOB, UID, Shell, cluster_of, dljob, run_head, shell
from stub_head import StubHead
from test_controller import Crash, digest, heard

from dljob.reconcile.state.names import LABEL_NAME, LABEL_UID, job_uid

JOB_UID = job_uid(UID)


def patch(fake: FakeCluster, *, suspend: bool) -> None:
    """Somebody suspends or resumes the job, once."""
    body = fake.one("dljobs", "hello")
    if bool(body["spec"].get("suspend")) != suspend:
        generation = body["metadata"].get("generation", 1) + 1
        meta = {**body["metadata"], "generation": generation}
        fake.put("dljobs", {**body, "metadata": meta, "spec": {**body["spec"], "suspend": suspend}})


def clean(fake: FakeCluster) -> None:
    """KubeRay and the kubelet take away the pods of RayClusters that are gone."""
    there = set(fake.names("rayclusters"))
    for name in fake.names("pods"):
        if fake.one("pods", name)["metadata"]["labels"]["ray.io/cluster"] not in there:
            fake.take("pods", name)


def attempt(fake: FakeCluster, head: StubHead, number: int) -> None:
    """An attempt's head is another one than the last one's, and knows nothing of it."""
    if head.session != f"session_{number}":
        head.session = f"session_{number}"
        head.jobs.clear()
        head.snapshots.clear()
    if cluster_of(fake, "hello", number) in fake.names("rayclusters") and not fake.names("pods"):
        run_head(fake, head, attempt=number, container=f"containerd://{number}")


async def runs(it: Shell, number: int) -> None:
    """The attempt's PrimeMaster speaks."""
    await it.settle()
    attempt(it.fake, it.head, number)
    await it.settle()
    if JOB_UID not in it.head.snapshots:
        it.head.tails = {"worker/0": f"of attempt {number}\n"}
        it.head.say(JOB_UID, phase="Running", epoch=1, carry={"v": 1, "restarts": {"Process": 1}})
    await heard(it, "Running", "Suspending", "Suspended", "Succeeded")


async def gone(it: Shell) -> None:
    """PrimeMaster stops, and the job is suspended."""
    async with asyncio.timeout(20):
        while it.status().get("phase") != "Suspended":
            await it.settle()
            clean(it.fake)
            if it.head.commands and it.head.snapshots[JOB_UID]["phase"] == "Running":
                it.head.say(JOB_UID, phase="Suspended", reason="JobSuspended")
            await asyncio.sleep(0.01)
    assert it.fake.names("rayclusters") == []


async def life(it: Shell) -> None:
    """From apply through a suspension to the end; what has happened already does not happen again."""
    fake, head = it.fake, it.head
    if not fake.names("dljobs"):
        fake.put("dljobs", {**dljob(), "metadata": {"name": "hello", "uid": UID, "generation": 1}})
    await it.settle()
    if fake.one("dljobs", "hello")["metadata"]["generation"] == 1:
        await runs(it, 1)
        patch(fake, suspend=True)
    if fake.one("dljobs", "hello")["metadata"]["generation"] == 2:
        await gone(it)
        patch(fake, suspend=False)
    await runs(it, 2)
    head.say(JOB_UID, phase="Succeeded", reason="Completed", message="all drivers ended well")
    await heard(it, "Succeeded")
    await it.settle()


def end(fake: FakeCluster, head: StubHead) -> dict[str, Any]:
    """What must be the same whatever happened on the way."""
    status = fake.one("dljobs", "hello")["status"]
    logs = fake.one("configmaps", "hello-logs")
    counts = {level: count for level, count in status["restarts"].items() if count}
    suspensions = {one["id"] for one in head.commands}
    kept = dict(logs["data"])
    # How often PrimeMaster's status changed is another matter: only that the last one is kept is the same.
    last = json.loads(kept.pop("status.json"))
    return {
        **digest(fake, head),
        "last": (last["phase"], last["reason"]),
        "logs": (kept, logs["metadata"]["labels"]["dljob.io/attempt"]),
        "restarts": counts,
        "asked": suspensions,
    }


async def test_a_resumed_job_keeps_the_logs_of_its_last_attempt() -> None:
    async with shell() as it:
        await life(it)
        found = end(it.fake, it.head)
    assert (found["phase"], found["attempt"], found["rayclusters"]) == ("Succeeded", 2, [])
    assert [id_.rpartition("-")[2] for id_ in found["posted"]] == ["1", "2"]
    assert found["last"] == ("Succeeded", "Completed")
    assert found["logs"] == ({"worker-0.log": "of attempt 2\n"}, "2")
    assert (found["restarts"], found["asked"]) == ({}, {"suspend/1"})


async def test_pods_that_outlive_an_earlier_attempt_are_observed() -> None:
    async with shell() as it:
        await life(it)
        labels = {LABEL_UID: UID, LABEL_NAME: "hello", "ray.io/cluster": cluster_of(it.fake, "hello", 1)}
        it.fake.put("pods", {"metadata": {"name": "lost", "labels": labels}, "spec": {}, "status": {}})
        it.sync()
        seen, _ = await it.observer.observe(JOB) or pytest.fail("the job is gone")
        assert [pod.name for pod in seen.earlier] == ["lost"]
        assert "lost" not in [pod.name for pod in seen.pods]
        assert seen.strays == ()
        # A RayCluster of that name came late, or is somebody else's: its pods go with it.
        it.fake.put("rayclusters", {"metadata": {"name": cluster_of(it.fake, "hello", 1)}, "spec": {}})
        it.sync()
        seen, _ = await it.observer.observe(JOB) or pytest.fail("the job is gone")
        assert seen.earlier == ()
        assert [each["metadata"]["name"] for each in seen.strays] == [cluster_of(it.fake, "hello", 1)]


@pytest.mark.slow
@pytest.mark.live
async def test_a_crash_at_any_api_call_of_a_suspension_leads_to_the_same_end() -> None:
    async with shell() as it:
        await life(it)
        expected = end(it.fake, it.head)
    for number in count():  # right before the next one is the same for who comes after
        fake, head = FakeCluster(), StubHead()
        try:
            await cut_short(fake, head, number)
        except Crash:
            pass
        else:  # it has made fewer writes than that: how many of one status there are is up to the clock
            assert number >= 16
            return
        async with shell(fake, head) as second:
            await life(second)
        assert end(fake, head) == expected, number


async def cut_short(fake: FakeCluster, head: StubHead, number: int) -> None:
    """A life of the operator that ends right after a write."""
    async with shell(fake, head) as it:
        call, made = it.kube.call, 0

        async def fatal(method: str, path: str, *arguments: Any, **options: Any) -> Any:
            nonlocal made
            made += method != "GET"
            answer = await call(method, path, *arguments, **options)
            if method != "GET" and made == number + 1:
                raise Crash
            return answer

        it.kube.call = fatal  # type: ignore[method-assign]
        await life(it)
