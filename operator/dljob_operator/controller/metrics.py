"""Metrics of the operator, made from the catalogue: counters and histograms on events, gauges at the scrape."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from dljob.kube.resources import DLJOBS, PODS, RAYCLUSTERS
from dljob.reconcile.leadership.releases import Installation
from dljob.reconcile.state.fields import number, part, text
from dljob.telemetry.catalog import CATALOG, CONTROLLER, STARTUP_STAGES
from dljob_operator.watch.cache import Cache
from dljob_operator.watch.workqueue import WorkQueue

NO_ANSWER = "<error>"
MASTER = "dljob_status_master"


class Metrics:
    """All metrics of the operator, in a registry of their own."""

    def __init__(self, version: str) -> None:
        disable_created_metrics()  # else each counter gets a `_created` series, which the catalogue does not have
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
        self._admitted = self._counter("dljob_webhook_requests_total")
        # Series that exist from the start with 0: `rate` and alerts miss the first increment of a new series.
        for result in ("allowed", "refused", "unjudged"):
            self._admitted.labels(result)
        self._certificate = self._gauge("dljob_webhook_certificate_remaining_seconds")
        self._certificate.set(float("nan"))  # without the webhook no alert compares it
        self._other = self._gauge("dljob_operator_other_release")
        self._gauge("dljob_operator_build_info").labels(version).set(1)
        for stage in STARTUP_STAGES:
            self._startup.labels(stage)
        for resource in (DLJOBS, PODS, RAYCLUSTERS):  # the kinds of the periodic lists
            self._missed.labels(resource.kind)
        for result in ("success", "error", "requeue_after"):
            self._reconciles.labels(CONTROLLER, result)

    def reconciled(self, result: str, seconds: float) -> None:
        """Count a pass by result: `success`, `requeue_after` or `error`."""
        self._reconciles.labels(CONTROLLER, result).inc()
        self._seconds.observe(seconds)
        if result == "error":
            self._errors.inc()

    def called(self, method: str, status: int) -> None:
        """Count a call of the Kubernetes API by status; 0: no answer."""
        self._rest.labels(str(status) if status else NO_ANSWER, method).inc()

    def count_call(self, status: int) -> None:
        """Count a call of a head by status; 0: no answer."""
        self._heads.labels(str(status) if status else NO_ANSWER).inc()

    def missed(self, kind: str, count: int) -> None:
        """Count changes that a list found and the watch had missed."""
        self._missed.labels(kind).inc(count)

    def admitted(self, result: str) -> None:
        """Count an answer of the webhook: `allowed`, `refused` or `unjudged`."""
        self._admitted.labels(result).inc()

    def certified(self, seconds: Callable[[], float]) -> None:
        """Serve the remaining seconds of the webhook's certificate."""
        self._certificate.set_function(seconds)

    def other_release(self, other_installation: Installation | None, effect: str) -> None:
        """Show another release that serves the same namespaces; `effect` is `StandsBy` or `BothAct`; None: none."""
        # The labels name the other release: without this the series of an earlier one would stay.
        self._other.clear()
        if other_installation:
            self._other.labels(f"{other_installation.namespace}/{other_installation.name}", effect).set(1)

    def stage(self, name: str, seconds: float) -> None:
        """Record the duration of a stage of a job's start."""
        self._startup.labels(name).observe(seconds)

    def observe(self, queue: WorkQueue, cache: Cache, leads: Callable[[], bool]) -> None:
        """Add gauges of queue, leadership and, only in the leader, DLJobs by phase, so that no job counts twice."""
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
    """DLJobs by phase, read from the cache at each scrape, so that a deleted job leaves no series."""

    def __init__(self, cache: Cache, leads: Callable[[], bool]) -> None:
        self._cache = cache
        self._leads = leads

    def describe(self) -> Iterable[Family]:
        """Return the families without samples."""
        return [_family(name) for name in ("dljob_jobs", "dljob_status_phase", "dljob_status_attempt", MASTER)]

    def collect(self) -> Iterator[Family]:
        """Yield the families with a sample per phase and per job; without samples in a standby."""
        counted: Counts[tuple[str, str]] = Counts()
        phases, attempts, masters = (_family(name) for name in ("dljob_status_phase", "dljob_status_attempt", MASTER))
        jobs = list(self._cache.jobs.entries.items()) if self._leads() else []
        for key, entry in jobs:
            # No status: the first pass has not written one yet.
            phase = text(entry.value, "status", "phase") or "Pending"
            counted[key.namespace, phase] += 1
            phases.add_metric([key.namespace, key.name, phase], 1)
            attempts.add_metric([key.namespace, key.name], number(entry.value, "status", "attempt") or 1)
            # The field is cleared when an attempt begins.
            if part(entry.value, "status", "master"):
                shared = bool(part(entry.value, "spec", "rayClusterRef"))
                masters.add_metric([key.namespace, key.name, "Shared" if shared else "Own"], 1)
        totals = _family("dljob_jobs")
        for (namespace, phase), count in sorted(counted.items()):
            totals.add_metric([namespace, phase], count)
        yield from (totals, phases, attempts, masters)


def _family(name: str) -> GaugeMetricFamily:
    metric = CATALOG[name]
    return GaugeMetricFamily(name, metric.help, labels=metric.labels)
