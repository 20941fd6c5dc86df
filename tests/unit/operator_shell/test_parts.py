"""The small parts: metrics as the catalogue has them, the stages of a start, KubeRay seen from outside, lists."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import kopf
import pytest
from kubernetes.aio.client.configuration import Configuration
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from shell_kit import JOB, dljob, shell

from dljob.kube.api import DLJOBS, PODS
from dljob.kube.connection import ApiConnection
from dljob.kube.objects import Objects
from dljob.reconcile.state.model import Create, Event, ReconcileResult, Submit
from dljob.spec.crd import crd
from dljob.telemetry.catalog import CONTROLLER, OPERATOR
from dljob_operator.app import App
from dljob_operator.controller.events import MOST_SERIES, Recorder, shortened
from dljob_operator.controller.metrics import Metrics
from dljob_operator.controller.startup import Startup
from dljob_operator.watch.cache import Cache
from dljob_operator.watch.clock import OperatorClock
from dljob_operator.watch.crd import lacks
from dljob_operator.watch.handlers import configure, connection
from dljob_operator.watch.relist import Relist, ResyncSource
from dljob_operator.watch.workqueue import Key, WorkQueue


def served(metrics: Metrics) -> dict[str, Any]:
    text = generate_latest(metrics.registry).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_the_served_metrics_are_those_of_the_catalogue() -> None:
    metrics, cache, queue = Metrics("1.2"), Cache(), WorkQueue()
    metrics.observe(queue, cache, lambda: True)
    found = served(metrics)
    assert set(found) == {metric.name.removesuffix("_total") for metric in OPERATOR}
    for metric in OPERATOR:
        assert found[metric.name.removesuffix("_total")].type == metric.kind
        assert found[metric.name.removesuffix("_total")].documentation == metric.help


def test_a_counter_is_there_before_it_first_counts() -> None:
    """Or an increase of it from nothing to 1 is seen by no `rate`. Who answers which code is not known beforehand."""
    found = served(Metrics("1.2"))
    open_ended = {"rest_client_requests_total", "dljob_ray_api_requests_total"}
    for metric in OPERATOR:
        if metric.kind == "counter" and metric.name not in open_ended:
            values = [sample.value for sample in found[metric.name.removesuffix("_total")].samples]
            assert values, metric.name
            assert set(values) == {0.0}
    kinds = {sample.labels["kind"] for sample in found["dljob_missed_events"].samples}
    assert kinds == {"DLJob", "Pod", "RayCluster"}


def test_observations_land_in_their_metrics() -> None:
    metrics, cache, queue = Metrics("1.2"), Cache(), WorkQueue(OperatorClock(monotonic=lambda: 0.0))
    metrics.observe(queue, cache, lambda: True)
    metrics.reconciled("success", 0.1)
    metrics.reconciled("error", 0.2)
    metrics.called("GET", 200)
    metrics.called("POST", 0)
    metrics.count_call(503)
    metrics.missed("Pod", 3)
    metrics.stage("head", 12.0)
    queue.retry(JOB)
    queue.add(JOB)
    cache.put_job({**dljob(), "metadata": {"name": "a", "namespace": "ns", "uid": "1", "resourceVersion": "1"}})
    meta = {"name": "b", "namespace": "ns", "uid": "2", "resourceVersion": "2"}
    status = {"phase": "Running", "attempt": 3, "master": {"state": "Ready"}}
    cache.put_job({"metadata": meta, "spec": {"rayClusterRef": {"name": "shared"}}, "status": status})

    def value(series: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(series, labels)

    assert value("controller_runtime_reconcile_total", controller=CONTROLLER, result="success") == 1
    assert value("controller_runtime_reconcile_total", controller=CONTROLLER, result="requeue_after") == 0
    assert value("controller_runtime_reconcile_errors_total", controller=CONTROLLER) == 1
    assert value("controller_runtime_reconcile_time_seconds_sum", controller=CONTROLLER) == pytest.approx(0.3)
    assert value("rest_client_requests_total", code="200", method="GET") == 1
    assert value("rest_client_requests_total", code="<error>", method="POST") == 1
    assert value("dljob_ray_api_requests_total", code="503") == 1
    assert value("dljob_missed_events_total", kind="Pod") == 3
    assert value("dljob_startup_seconds_sum", stage="head") == 12
    assert value("workqueue_retries_total", name=CONTROLLER) == 1
    assert value("workqueue_depth", name=CONTROLLER) == 1
    assert value("dljob_operator_build_info", version="1.2") == 1
    assert value("dljob_jobs", namespace="ns", phase="Pending") == 1
    assert value("dljob_status_phase", namespace="ns", dljob="b", phase="Running") == 1
    assert value("dljob_status_attempt", namespace="ns", dljob="b") == 3
    assert value("dljob_status_master", namespace="ns", dljob="b", cluster="Shared") == 1
    assert value("dljob_status_master", namespace="ns", dljob="a", cluster="Own") is None, "none has reported"
    assert queue.take() == JOB
    assert value("workqueue_queue_duration_seconds_count", name=CONTROLLER) == 1


CLUSTER = {"metadata": {}, "status": {}}
READY = {"metadata": {}, "status": {"conditions": [{"type": "HeadPodReady", "status": "True"}]}}
MADE = ReconcileResult("", (Create("RayCluster", {}),))
POSTED = ReconcileResult("", (Submit("i", "c", "a", (), {}, {}),))


def test_the_stages_of_a_start_are_timed_once_each() -> None:
    now, told = [0.0], list[tuple[str, float]]()
    startup = Startup(lambda stage, seconds: told.append((stage, seconds)), lambda: now[0])
    startup.begin(JOB, {**dljob(), "status": {"observedGeneration": 0}})
    for at, cluster, outcome in (
        (1.0, None, MADE),
        (2.0, CLUSTER, ReconcileResult("")),
        (5.0, READY, ReconcileResult("")),
        (6.0, READY, POSTED),
        (7.0, READY, ReconcileResult("", status={"phase": "Scheduling"})),
        (16.0, READY, ReconcileResult("", status={"phase": "Running"})),
        (20.0, READY, ReconcileResult("", status={"phase": "Running"})),
    ):
        now[0] = at
        startup.passed(JOB, cluster, outcome)
    assert told == [("cluster", 1.0), ("head", 4.0), ("submit", 1.0), ("run", 10.0)]


def test_a_start_that_was_not_seen_whole_is_not_timed() -> None:
    told: list[tuple[str, float]] = []
    startup = Startup(lambda stage, seconds: told.append((stage, seconds)))
    startup.begin(JOB, {**dljob(), "status": {"phase": "Pending"}})
    startup.passed(JOB, None, MADE)
    assert told == []
    startup.begin(JOB, dljob())
    startup.passed(JOB, None, ReconcileResult("", status={"attempt": 2}))
    startup.passed(JOB, None, MADE)
    assert told == []


async def test_a_list_reports_changes_that_no_watch_told() -> None:
    async with shell() as it:
        missed: list[tuple[str, int]] = []
        relist = Relist(it.queue, (None,), lambda kind, count: missed.append((kind, count)))
        source = ResyncSource(Objects(it.kube, DLJOBS), "", it.cache.jobs, it.cache.put_job, it.cache.drop_job)
        it.fake.put("dljobs", dljob("a"))
        it.fake.put("dljobs", dljob("b"))
        assert await relist.once(source) == 2
        assert await relist.once(source) == 0
        it.fake.take("dljobs", "a")
        it.fake.take("dljobs", "b")
        it.fake.put("dljobs", dljob("b"))  # a namesake
        assert await relist.once(source) == 2
        assert [key.name for key in it.cache.jobs.entries] == ["b"]
        assert missed == [("DLJob", 2), ("DLJob", 2)]
        assert {it.queue.take(), it.queue.take()} == {("default", "a"), ("default", "b")}


async def test_an_object_deleted_while_a_list_is_under_way_stays_deleted() -> None:
    """A watch tells of an end before the page comes that still has the object."""
    cache, queue = Cache(), WorkQueue()

    def pod(name: str) -> dict[str, Any]:
        labels = {"dljob.io/name": "hello", "ray.io/cluster": "c"}
        return {
            "metadata": {"namespace": "default", "name": name, "uid": name, "resourceVersion": "1", "labels": labels}
        }

    class Paged(Objects):
        async def pages(
            self, namespace: str | None = None, labels: str = "", limit: int = 0
        ) -> AsyncIterator[dict[str, Any]]:
            yield {"items": [pod("a"), pod("b")]}
            for name in ("b", "c", "d"):
                cache.drop_pod(Key("default", name), name)
            yield {"items": [pod("c"), pod("d"), pod("e")]}

    async with shell() as it:
        source = ResyncSource(Paged(it.kube, PODS), "", cache.pods, cache.put_pod, cache.drop_pod)
        cache.put_pod(pod("c"))
        await Relist(queue, (None,), lambda _kind, _count: None).once(source)
    assert [each.name for each in cache.pods_of(Key("default", "c"))] == ["a", "e"]
    assert cache.pods.deleted_uids == []


async def test_a_list_that_makes_no_sense_is_not_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shell() as it:
        relist = Relist(it.queue, (None,), lambda _kind, _count: None)
        asked: list[ResyncSource] = []

        async def once(_self: Relist, source: ResyncSource) -> int:
            asked.append(source)
            if len(asked) < 3:
                raise KeyError("metadata")
            raise asyncio.CancelledError

        monkeypatch.setattr(Relist, "once", once)
        source = ResyncSource(Objects(it.kube, DLJOBS), "", it.cache.jobs, it.cache.put_job, it.cache.drop_job)
        with pytest.raises(asyncio.CancelledError):
            await relist.run(lambda: [source], every=0.0)
        assert len(asked) == 3


def served_crd(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The OpenAPI document of our CRD, after a change."""
    schema = copy.deepcopy(crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    change(schema["properties"])
    kinds = [{"group": "dljob.io", "version": "v1alpha1", "kind": "DLJob"}]
    return {"components": {"schemas": {"x.DLJob": {**schema, "x-kubernetes-group-version-kind": kinds}}}}


def _strict(properties: dict[str, Any]) -> None:
    """As it was before the status took what it does not know."""
    del properties["status"]["x-kubernetes-preserve-unknown-fields"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p: None, ""),
        (lambda p: p["status"]["properties"].pop("carried"), ""),  # the status takes what it does not know
        (lambda p: (_strict(p), p["status"]["properties"].pop("carried")), "status.carried"),
        (lambda p: p["spec"]["properties"]["roles"]["items"]["properties"].pop("replicas"), "spec.roles[].replicas"),
        (lambda p: p.pop("status"), "status"),
        (lambda p: (_strict(p), p["status"].update(properties={})), "observedGeneration, status.phase, "),
    ],
)
def test_an_older_crd_is_told_of(change: Callable[[dict[str, Any]], object], said: str) -> None:
    found = lacks(crd(), served_crd(change))
    assert (found == said) if said[-2:] != ", " else (said in found and " more" in found)


def test_a_document_without_dljobs_says_nothing() -> None:
    assert lacks(crd(), {"components": {"schemas": {}}}) == lacks(crd(), {}) == ""


def test_kopf_uses_the_connection_of_our_own_client() -> None:
    settings = Configuration()
    settings.host, settings.ssl_ca_cert = "https://api:6443", "/ca"
    settings.api_key["BearerToken"] = "bearer secret"
    found = connection(ApiConnection(settings, "team"))
    assert (found.server, found.ca_path, found.insecure) == ("https://api:6443", "/ca", False)
    assert (found.scheme, found.token, found.default_namespace) == ("Bearer", "secret", "team")
    by_certificate = Configuration()
    by_certificate.host, by_certificate.cert_file, by_certificate.key_file = "https://api", "/c", "/k"
    by_certificate.verify_ssl = False
    found = connection(ApiConnection(by_certificate, "team"))
    assert (found.certificate_path, found.private_key_path) == ("/c", "/k")
    assert (found.scheme, found.token, found.insecure) == (None, None, True)


def test_kopf_never_gives_up_and_writes_nothing() -> None:
    settings = kopf.OperatorSettings()
    configure(settings)
    pauses = list(itertools.islice(iter(settings.networking.error_backoffs), 1000))
    assert len(pauses) == 1000
    assert max(pauses) == 10
    assert not settings.posting.enabled
    assert settings.scanning.disabled


@pytest.mark.parametrize(
    ("note", "size"), [("x" * 1024, 1024), ("x" * 1025, 1024), ("ü" * 600, 1023), ("x" * 1023 + "…", 1024)]
)
def test_a_note_is_as_long_as_the_api_takes_it_in_bytes(note: str, size: int) -> None:
    short = shortened(note)
    assert len(short.encode()) == size
    assert short == note or (short.endswith("…") and note.startswith(short[:-1]))


async def test_an_event_loop_that_turns_is_not_behind() -> None:
    app = App.__new__(App)
    app._last_tick = float("-inf")
    beating = asyncio.create_task(app.record_ticks())
    await asyncio.sleep(0)
    assert app.lag < 60
    beating.cancel()


async def test_kopf_that_ends_by_itself_leaves_no_waiting_task_behind() -> None:
    """Each new start in the same process would leave one more."""
    app = App.__new__(App)
    app.over = asyncio.Event()
    await app._ended_or_hangs(asyncio.create_task(asyncio.sleep(0)))
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_of_events_that_all_differ_few_are_remembered() -> None:
    """A head chooses words of them: the operator's memory must not grow with what it says."""
    async with shell() as it:
        it.fake.put("dljobs", dljob())
        job, recorder = it.fake.one("dljobs", "hello"), Recorder(it.kube)
        first, *others = [Event("Warning", "RankFailed", f"worker/{n}", "Restart") for n in range(MOST_SERIES + 1)]
        for event in (first, *others, others[0], first):
            await recorder.tell(JOB, job, event)
        notes = [body["note"] for (plural, _, _), body in it.fake.objects.items() if plural == "events"]
        assert len(notes) == MOST_SERIES + 2, "the last but one is a repetition, and the first was forgotten"
        assert notes.count(first.message) == 2
