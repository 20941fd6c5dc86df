"""Caches never go back, hold digests, and say whom news concerns."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

from dljob.reconcile.children import patches
from dljob_operator.watch.cache import Cache, keys
from dljob_operator.watch.workqueue import Key

JOB = Key("ns", "hello")


def meta(name: str, version: int, uid: str = "u1", **more: Any) -> dict[str, Any]:
    return {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": str(version), **more}


def cluster(version: int, *, generation: int = 1, **status: Any) -> dict[str, Any]:
    owner = {"kind": "DLJob", "name": "hello", "uid": "j", "controller": True}
    notes = {"dljob.io/placement-plan": "x" * 1000, "dljob.io/placement-plan-hash": "h"}
    data = meta(
        "hello-1", version, generation=generation, ownerReferences=[owner], annotations=notes, managedFields=[1]
    )
    return {"metadata": data, "spec": {"suspend": True, "headGroupSpec": {}}, "status": status}


def pod(name: str, version: int, uid: str = "p1", **labels: str) -> dict[str, Any]:
    own = {"dljob.io/name": "hello", "dljob.io/uid": "j", "ray.io/cluster": "hello-1", **labels}
    return {"metadata": meta(name, version, uid, labels=own), "spec": {}, "status": {"phase": "Running"}}


def test_an_older_version_of_an_object_is_no_news() -> None:
    cache = Cache()
    assert cache.put_job({"metadata": meta("hello", 5), "status": {"phase": "Running"}}) == JOB
    assert cache.put_job({"metadata": meta("hello", 5)}) is None
    assert cache.put_job({"metadata": meta("hello", 4)}) is None
    assert cache.jobs.get(JOB)["status"] == {"phase": "Running"}  # type: ignore[index]
    assert cache.put_job({"metadata": meta("hello", 10)}) == JOB


def test_a_namesake_replaces_whatever_its_version() -> None:
    cache = Cache()
    cache.put_job({"metadata": meta("hello", 9)})
    assert cache.put_job({"metadata": meta("hello", 3, uid="u2")}) == JOB
    assert cache.drop_job(JOB, "u1") is None
    assert cache.drop_job(JOB, "u2") == JOB
    assert cache.drop_job(JOB) is None


def test_jobs_are_kept_whole_but_for_managed_fields() -> None:
    cache = Cache()
    seen: list[Any] = []
    cache.first_seen = lambda key, body: seen.append(key)
    body = {"metadata": meta("hello", 1, managedFields=[1], labels={"a": "b"}), "spec": {"roles": [1]}}
    cache.put_job(body)
    cache.put_job({**body, "metadata": meta("hello", 2)})
    kept = cache.jobs.get(JOB)
    assert kept is not None
    assert "managedFields" not in kept["metadata"]
    assert kept["spec"] == {"roles": [1]}
    assert seen == [JOB]


def test_a_job_of_many_values_takes_little_memory() -> None:
    """1 MiB of JSON in `config` is 25 MiB of objects; a second replica has as much."""
    cache = Cache()
    text = '{"ttlSecondsAfterFinished": 5, "config": {"a": [' + "{}," * 340_000 + "{}]}}"
    tracemalloc.start()
    try:
        for number in range(5):
            cache.put_job({"metadata": meta(f"j{number}", 1), "spec": json.loads(text)})
        kept, highest = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 100_000
    assert highest < 2 * 30 * 2**20, "one after another, and never all at once"
    job = cache.jobs.get(Key("ns", "j0"))
    assert job is not None
    assert (job["spec"]["ttlSecondsAfterFinished"], "config" in job["spec"]) == (5, False)


def test_a_cluster_is_digested_and_concerns_its_owner() -> None:
    cache = Cache()
    assert cache.put_cluster(cluster(1, state="ready")) == JOB
    kept = cache.clusters.get(Key("ns", "hello-1"))
    assert kept is not None
    assert kept["spec"] == {"suspend": True}
    assert kept["status"] == {"state": "ready"}
    assert kept["metadata"]["annotations"] == {"dljob.io/placement-plan-hash": "h"}
    assert "managedFields" not in kept["metadata"]
    assert cache.drop_cluster(Key("ns", "hello-1")) == JOB


def test_of_a_cluster_that_nobody_edited_the_numbers_of_pods_are_kept() -> None:
    cache, body = Cache(), cluster(1)
    numbers = {"groupName": "cpu", "replicas": 2, "minReplicas": 1, "maxReplicas": 3}
    body["spec"]["workerGroupSpecs"] = [{**numbers, "rayStartParams": {}, "template": {"spec": {}}}]
    cache.put_cluster(body)
    kept = cache.clusters.get(Key("ns", "hello-1"))
    assert kept is not None
    assert kept["spec"] == {"suspend": True, "workerGroupSpecs": [numbers]}
    assert patches.avoided_nodes(kept) is None, "nobody knows which nodes its pods keep away from"


def test_an_edited_cluster_keeps_its_spec() -> None:
    cache = Cache()
    cache.put_cluster(cluster(2, generation=2))
    assert cache.clusters.get(Key("ns", "hello-1"))["spec"] == {"suspend": True, "headGroupSpec": {}}  # type: ignore[index]


def test_a_raycluster_without_a_dljob_as_owner_concerns_no_job() -> None:
    cache = Cache()
    body = cluster(1)
    body["metadata"]["ownerReferences"] = [{"kind": "Other", "name": "o", "controller": True}]
    assert cache.put_cluster(body) is None
    assert cache.drop_cluster(Key("ns", "hello-1")) is None


def test_pods_come_with_the_head_first() -> None:
    cache = Cache()
    assert cache.put_pod(pod("a", 1)) == JOB
    cache.put_pod(pod("z", 2, "p2", **{"ray.io/node-type": "head"}))
    cache.put_pod(pod("b", 3, "p3", **{"ray.io/cluster": "other"}))
    where = Key("ns", "hello-1")
    assert [p.name for p in cache.pods_of(where)] == ["z", "a"]
    assert cache.put_pod(pod("a", 1)) is None
    assert cache.drop_pod(Key("ns", "a"), "p1") == JOB
    assert cache.drop_pod(Key("ns", "a"), "p1") is None
    assert cache.drop_pod(Key("ns", "z"), "wrong") is None
    assert [p.name for p in cache.pods_of(where)] == ["z"]
    assert cache.drop_pod(Key("ns", "z")) == JOB
    assert cache.pods_of(where) == ()
    assert list(keys(cache.pods)) == [(Key("ns", "b"), "p3")]


def test_a_pod_without_our_labels_concerns_no_job() -> None:
    cache = Cache()
    body = pod("a", 1)
    body["metadata"]["labels"] = {}
    assert cache.put_pod(body) is None
