"""The operator's metrics, made from the catalogue: counters and histograms as things happen, states when asked."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from dljob.control.fields import text
from dljob.kube.resources import DLJOBS, PODS, RAYCLUSTERS
from dljob.telemetry.catalog import CATALOG, CONTROLLER, STARTUP_STAGES
from dljob_operator.cache import Cache
from dljob_operator.workqueue import WorkQueue

NO_ANSWER = "<error>"


class Metrics:
    """All of them, in a registry of their own."""

    def __init__(self, version: str) -> None:
        disable_created_metrics()  # a series beside each counter that says when it was made, and no catalogue has
        self.registry = CollectorRegistry()
        self._reconciles = self._counter("controller_runtime_reconcile_total")
        self._errors = self._counter("controller_runtime_reconcile_errors_total").labels(CONTROLLER)
        self._seconds = self._histogram("controller_runtime_reconcile_time_seconds").labels(CONTROLLER)
        self._waited = self._histogram("workqueue_queue_duration_seconds").labels(CONTROLLER)
        self._retries = self._counter("workqueue_retries_total").labels(CONTROLLER)
        self._rest = self._counter("rest_client_requests_total")
        self._heads = self._counter("dljob_ray_api_requests_total")
        self._missed = self._counter("dljob_missed_events_total")
        self._startup = self._histogram("dljob_startup_seconds")
        self._gauge("dljob_operator_build_info").labels(version).set(1)
        for stage in STARTUP_STAGES:
            self._startup.labels(stage)
        for resource in (DLJOBS, PODS, RAYCLUSTERS):  # what is listed anew
            self._missed.labels(resource.kind)
        for result in ("success", "error", "requeue_after"):
            self._reconciles.labels(CONTROLLER, result)

    def reconciled(self, result: str, seconds: float) -> None:
        """A pass ended: `success`, `requeue_after` or `error`."""
        self._reconciles.labels(CONTROLLER, result).inc()
        self._seconds.observe(seconds)
        if result == "error":
            self._errors.inc()

    def called(self, method: str, status: int) -> None:
        """The Kubernetes API was called; 0: nothing answered."""
        self._rest.labels(str(status) if status else NO_ANSWER, method).inc()

    def asked(self, status: int) -> None:
        """A head was asked."""
        self._heads.labels(str(status) if status else NO_ANSWER).inc()

    def missed(self, kind: str, count: int) -> None:
        """A relist found what no watch had told."""
        self._missed.labels(kind).inc(count)

    def stage(self, name: str, seconds: float) -> None:
        """A job came through a stage of its start."""
        self._startup.labels(name).observe(seconds)

    def observe(self, queue: WorkQueue, cache: Cache, leads: Callable[[], bool]) -> None:
        """Serve the states of these as well: of DLJobs only by who leads, so that nothing is counted twice."""
        queue.waited = self._waited.observe
        queue.retried = self._retries.inc
        self._gauge("workqueue_depth").labels(CONTROLLER).set_function(lambda: len(queue))
        self._gauge("dljob_operator_leader").set_function(leads)
        self.registry.register(_Phases(cache, leads))

    def _counter(self, name: str) -> Counter:
        metric = CATALOG[name]
        return Counter(name, metric.help, metric.labels, registry=self.registry)

    def _gauge(self, name: str) -> Gauge:
        metric = CATALOG[name]
        return Gauge(name, metric.help, metric.labels, registry=self.registry)

    def _histogram(self, name: str) -> Histogram:
        metric = CATALOG[name]
        return Histogram(name, metric.help, metric.labels, registry=self.registry, buckets=metric.buckets)


class _Phases(Collector):
    """DLJobs by phase, read from the cache at each scrape: a deleted job has no series."""

    def __init__(self, cache: Cache, leads: Callable[[], bool]) -> None:
        self._cache = cache
        self._leads = leads

    def describe(self) -> Iterable[Family]:
        """The families, without samples."""
        return [_family("dljob_jobs"), _family("dljob_status_phase")]

    def collect(self) -> Iterator[Family]:
        """The families with a sample for each phase and each job; none where this operator does not lead."""
        counted: Counts[tuple[str, str]] = Counts()
        each = _family("dljob_status_phase")
        jobs = list(self._cache.jobs.entries.items()) if self._leads() else []
        for key, entry in jobs:
            phase = text(entry.value, "status", "phase") or "Pending"
            counted[key.namespace, phase] += 1
            each.add_metric([key.namespace, key.name, phase], 1)
        totals = _family("dljob_jobs")
        for (namespace, phase), count in sorted(counted.items()):
            totals.add_metric([namespace, phase], count)
        yield totals
        yield each


def _family(name: str) -> GaugeMetricFamily:
    metric = CATALOG[name]
    return GaugeMetricFamily(name, metric.help, labels=metric.labels)
