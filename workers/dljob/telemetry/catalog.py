"""Catalogue of all metrics of dljob, as data for the operator, the gateway, dashboards, rules and the reference.

Names and labels are an interface. No label is called `job`, which Prometheus keeps for itself, and none names a rank, a
pod or a node: a job of 10,000 ranks has as many series as one of 10.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CONTROLLER = "dljob"
"""The operator's value of the labels `controller` and `name` in metrics that any operator has."""
STARTUP_STAGES = ("cluster", "head", "submit", "run")
"""Stages of a start, each from one to the next of: DLJob created, RayCluster created, head ready, launcher accepted,
running."""

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_SLOW = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0, 600.0, 1800.0)

_UNITS = ("seconds", "bytes", "ratio", "info")
_JOB = ("namespace", "dljob")


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric family."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    by: Literal["operator", "gateway"]
    """The process that serves the metric."""
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram, in its unit, without +Inf."""

    @property
    def unit(self) -> str:
        """The base unit, from the end of the name: seconds, bytes, ratio, info (always 1), or empty for a count."""
        last = self.name.removesuffix("_total").rpartition("_")[2]
        return last if last in _UNITS else ""

    @property
    def series(self) -> tuple[str, ...]:
        """Names of the series that a query may use."""
        if self.kind == "histogram":
            return tuple(self.name + end for end in ("_bucket", "_sum", "_count"))
        return (self.name,)


OPERATOR = (
    Metric(
        "controller_runtime_reconcile_total",
        "counter",
        "operator",
        "Passes of the reconciler, by result: success, error, or requeue_after (looks again by itself).",
        ("controller", "result"),
    ),
    Metric(
        "controller_runtime_reconcile_errors_total",
        "counter",
        "operator",
        "Passes of the reconciler that ended in an error.",
        ("controller",),
    ),
    Metric(
        "controller_runtime_reconcile_time_seconds",
        "histogram",
        "operator",
        "Time of one pass of the reconciler, its API calls included.",
        ("controller",),
        _FAST,
    ),
    Metric("workqueue_depth", "gauge", "operator", "Keys that wait for a pass.", ("name",)),
    Metric(
        "workqueue_queue_duration_seconds",
        "histogram",
        "operator",
        "How long a key waited for its pass.",
        ("name",),
        _FAST,
    ),
    Metric("workqueue_retries_total", "counter", "operator", "Keys put back after an error.", ("name",)),
    Metric(
        "rest_client_requests_total",
        "counter",
        "operator",
        'Requests to the Kubernetes API, by HTTP status and method; the code is "<error>" when nothing answered.',
        ("code", "method"),
    ),
    Metric(
        "dljob_ray_api_requests_total",
        "counter",
        "operator",
        'Requests to Ray\'s Job API and to gateways, by HTTP status; the code is "<error>" when nothing answered.',
        ("code",),
    ),
    Metric(
        "dljob_operator_leader",
        "gauge",
        "operator",
        "1 while this operator acts, 0 while it stands by; one of all replicas has 1.",
    ),
    Metric(
        "dljob_operator_other_release",
        "gauge",
        "operator",
        "1 for another release that serves the same namespaces: this one stands by (StandsBy), or both act (BothAct).",
        ("other", "effect"),
    ),
    Metric("dljob_operator_build_info", "gauge", "operator", "Always 1; the operator's version.", ("version",)),
    Metric(
        "dljob_webhook_requests_total",
        "counter",
        "operator",
        "DLJobs that the admission webhook answered for: allowed, refused, or unjudged for want of time.",
        ("result",),
    ),
    Metric(
        "dljob_webhook_certificate_remaining_seconds",
        "gauge",
        "operator",
        "Seconds until the webhook's certificate expires; below 0, the API server admits DLJobs without asking.",
    ),
    Metric(
        "dljob_missed_events_total",
        "counter",
        "operator",
        "Changes that a relist found and no watch had told, by kind of object.",
        ("kind",),
    ),
    Metric("dljob_jobs", "gauge", "operator", "DLJobs, by namespace and phase.", ("namespace", "phase")),
    Metric(
        "dljob_status_phase",
        "gauge",
        "operator",
        "1 for the phase in a DLJob's status; other phases have no series.",
        (*_JOB, "phase"),
    ),
    Metric("dljob_status_attempt", "gauge", "operator", "RayClusters that a DLJob has had, the present one too.", _JOB),
    Metric(
        "dljob_status_master",
        "gauge",
        "operator",
        "1 once PrimeMaster of the present attempt has reported; cluster: Own, or Shared (spec.rayClusterRef).",
        (*_JOB, "cluster"),
    ),
    Metric(
        "dljob_startup_seconds",
        "histogram",
        "operator",
        "Time of each stage of a DLJob's way from kubectl apply to running.",
        ("stage",),
        _SLOW,
    ),
)
"""Metrics that the operator serves."""

GATEWAY = (
    Metric("dljob_info", "gauge", "gateway", "Always 1; what a job is and runs on.", (*_JOB, "uid", "ray_version")),
    Metric(
        "dljob_phase",
        "gauge",
        "gateway",
        "1 for the phase that PrimeMaster is in, 0 for its others.",
        (*_JOB, "phase"),
    ),
    Metric(
        "dljob_workers",
        "gauge",
        "gateway",
        "Ranks of a role, by state: waiting (no process), changing (starting or stopping), ready, succeeded, failed.",
        (*_JOB, "role", "state"),
    ),
    Metric(
        "dljob_restarts_total",
        "counter",
        "gateway",
        "Restarts in all attempts, by level: InProcess, Process, RoleGroup, Role, Job and Node; Master, its own.",
        (*_JOB, "level"),
    ),
    Metric(
        "dljob_last_recovery_seconds",
        "gauge",
        "gateway",
        "From detection to all ranks ready again, of the last failure that was recovered, by the level that did it.",
        (*_JOB, "level"),
    ),
    Metric(
        "dljob_role_seconds_total",
        "counter",
        "gateway",
        "Time of a role's ranks, by the account that it went to: queue, schedule, init, productive, detect, decide,"
        " replace, rendezvous, recompute, stalled, stale, wait, idle; and spare, its process spares' time, on top.",
        (*_JOB, "role", "account"),
    ),
    Metric("dljob_step", "gauge", "gateway", "The last step that the first driver role reported.", _JOB),
    Metric(
        "dljob_progress",
        "gauge",
        "gateway",
        "The last value of a metric that spec.progressMetrics declares: at most 16 of a job.",
        (*_JOB, "metric"),
    ),
    Metric(
        "dljob_served_lag_seconds",
        "gauge",
        "gateway",
        "Age of the earliest event of a source that a version of a role's weights had learned from, when the first"
        " rank of the role had loaded that version; the last one, of roles that load weights.",
        (*_JOB, "role"),
    ),
    Metric(
        "dljob_units",
        "gauge",
        "gateway",
        "Units (gangs) of a job's placement, by state: ready, pending.",
        (*_JOB, "state"),
    ),
    Metric(
        "dljob_stalls",
        "gauge",
        "gateway",
        "Stalls that stand now: ranks that wait for one that does not go on, or for each other; 10 at most.",
        _JOB,
    ),
    Metric("dljob_master_epoch", "gauge", "gateway", "Starts of PrimeMaster, the first one included.", _JOB),
    Metric(
        "dljob_running_seconds", "gauge", "gateway", "Since the start of the attempt, to its end if it ended.", _JOB
    ),
)
"""Metrics that the gateway on the head of a RayCluster serves."""

CATALOG = {metric.name: metric for metric in (*OPERATOR, *GATEWAY)}
"""By name."""


def served() -> frozenset[str]:
    """Return every series name that a query may use."""
    return frozenset(name for metric in CATALOG.values() for name in metric.series)
