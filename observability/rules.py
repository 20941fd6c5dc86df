"""Recording and alert rules, as data, and the rule file that Prometheus reads.

A rule asks only metrics of the catalogue. Each alert has a page in docs/runbooks, under its own name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RUNBOOKS = "docs/runbooks"
"""In the repository; the chart puts its value `metrics.prometheusRule.runbookUrl` in its place."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A series that Prometheus computes: `<level>:<metric>:<operation>`."""

    record: str
    expr: str


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert. `wait` is how long it must hold; texts may use Prometheus' templates."""

    name: str
    expr: str
    wait: str
    severity: Literal["warning", "critical"]
    summary: str
    description: str

    @property
    def runbook(self) -> str:
        """What to do about it."""
        return f"{RUNBOOKS}/{self.name}.md"


RELEASE = '{job="dljob-metrics"}'
"""Selects the replicas of an operator by the name of its Service; the chart puts namespace and name of its release in
this place."""
CERTIFICATE_DAYS = 30
"""So many days before the webhook's certificate expires somebody is told, as `dljob doctor --kubernetes` does."""
_JOB = "{{ $labels.namespace }}/{{ $labels.dljob }}"

RECORDINGS = (
    Recording(
        # By pod: a job of the same name that comes later is another one.
        "namespace_dljob_pod:dljob_restarts:increase1h",
        "sum by (namespace, dljob, pod) (increase(dljob_restarts_total[1h]))",
    ),
    Recording(
        "namespace_dljob:dljob_goodput:ratio_rate1h",
        'sum by (namespace, dljob) (rate(dljob_role_seconds_total{account="productive"}[1h]))'
        ' / sum by (namespace, dljob) (rate(dljob_role_seconds_total{account!="spare"}[1h]))',
    ),
    Recording(
        "controller:controller_runtime_reconcile_errors:ratio_rate5m",
        'sum by (controller) (rate(controller_runtime_reconcile_errors_total{controller="dljob"}[5m]))'
        ' / sum by (controller) (rate(controller_runtime_reconcile_total{controller="dljob"}[5m]))',
    ),
    Recording(
        "controller:controller_runtime_reconcile_time_seconds:p99_rate5m",
        "histogram_quantile(0.99, sum by (controller, le)"
        ' (rate(controller_runtime_reconcile_time_seconds_bucket{controller="dljob"}[5m])))',
    ),
)


def _phase(*phases: str, offset: str = "") -> str:
    return f'max by (namespace, dljob) (dljob_status_phase{{phase=~"{"|".join(phases)}"}}{offset}) == 1'


_ACTIVE = _phase("Running", "Recovering")
_GOES_ON = 'dljob_phase{phase=~"Running|Recovering"} == 1'


ALERTS = (
    Alert(
        "DLJobFailed",
        # For an hour; a job of that name that failed earlier, and was begun again since, does not count.
        f"({_phase('Failed')}) unless on (namespace, dljob)"
        ' (max_over_time(dljob_status_phase{phase="Failed"}[1h] offset 1h)'
        ' unless on (namespace, dljob) max_over_time(dljob_status_phase{phase!="Failed"}[1h]))',
        "1m",
        "warning",
        f"DLJob {_JOB} failed.",
        "Its status says why, and its logs outlive its pods. The alert ends by itself an hour after the failure.",
    ),
    Alert(
        "DLJobRestartLooping",
        "max by (namespace, dljob) (namespace_dljob_pod:dljob_restarts:increase1h > 5"
        f" and on (namespace, dljob, pod) {_GOES_ON})"
        f" or (max by (namespace, dljob) (changes(dljob_status_attempt[1h])) > 2 and on (namespace, dljob) {_ACTIVE})",
        "5m",
        "warning",
        f"DLJob {_JOB} restarts again and again.",
        '{{ $value | printf "%.0f" }} restarts within an hour, at all levels below the RayCluster; or as many'
        " RayClusters that were lost.",
    ),
    Alert(
        "DLJobGoodputLow",
        "namespace_dljob:dljob_goodput:ratio_rate1h < 0.5"
        # Two hours ago as well, in this attempt or an earlier one.
        f" and on (namespace, dljob) ({_phase('Running', 'Recovering', offset=' offset 2h')})"
        f" and on (namespace, dljob) {_GOES_ON}",
        "15m",
        "warning",
        f"DLJob {_JOB} loses more time than it uses.",
        "Over the last hour {{ $value | humanizePercentage }} of the time of its ranks was productive.",
    ),
    Alert(
        "DLJobStalled",
        "max by (namespace, dljob) (dljob_stalls) > 0"
        # A wait that PrimeMaster cannot see through: no step at all. Of a new attempt and the one before together.
        ' or max by (namespace, dljob) (dljob_phase{phase="Running"}) == 1'
        " and on (namespace, dljob) max by (namespace, dljob) (changes(dljob_step[30m])) == 0"
        " and on (namespace, dljob) dljob_step offset 30m",
        "5m",
        "warning",
        f"DLJob {_JOB} runs, and stands still.",
        "Ranks wait for one that does not go on (dljob why says for whom), or no step was reported for 30 minutes.",
    ),
    Alert(
        "DLJobPendingTooLong",
        f"({_phase('Invalid', 'Pending', 'Provisioning', 'Scheduling')})"
        f" or ({_phase('Recovering')} unless on (namespace, dljob) dljob_status_master)",
        "15m",
        "warning",
        f"DLJob {_JOB} has been waiting for its pods or its placement for 15 minutes.",
        "A job that waits for quota (phase Queued) does not count.",
    ),
    Alert(
        "DLJobMasterUnreachable",
        # Nothing is expected before PrimeMaster of an attempt has reported, nor from a head that is no job's own.
        f'({_ACTIVE}) and on (namespace, dljob) dljob_status_master{{cluster="Own"}}'
        " unless on (namespace, dljob) dljob_info",
        "3m",
        "critical",
        f"Nothing is heard from PrimeMaster of DLJob {_JOB}.",
        "Its phase is Running or Recovering, and no gateway serves its metrics. Ranks may go on; nothing is repaired.",
    ),
    Alert(
        "DLJobOperatorDown",
        f"absent(dljob_operator_leader{RELEASE} == 1)",
        "5m",
        "critical",
        "No dljob operator acts.",
        "Running jobs go on and repair themselves; no DLJob is started, ended or cleaned up.",
    ),
    Alert(
        "DLJobOperatorTwice",
        "max by (other, effect) (dljob_operator_other_release) == 1",
        "10m",
        "warning",
        "Two releases of the dljob operator serve the same namespaces; the other is {{ $labels.other }}.",
        "StandsBy: the one that tells it acts on nothing. BothAct: they undo each other's work. "
        "Here: {{ $labels.effect }}.",
    ),
    Alert(
        "DLJobReconcileErrors",
        "controller:controller_runtime_reconcile_errors:ratio_rate5m > 0.1",
        "10m",
        "warning",
        "{{ $value | humanizePercentage }} of the dljob operator's passes fail.",
        "DLJobs whose passes fail are not brought on; the operator tries again, less and less often.",
    ),
    Alert(
        "DLJobReconcileSlow",
        "controller:controller_runtime_reconcile_time_seconds:p99_rate5m > 5",
        "10m",
        "warning",
        "One in a hundred passes of the dljob operator takes {{ $value | humanizeDuration }} or more.",
        "Starts, ends and commands are late.",
    ),
    Alert(
        "DLJobWebhookCertificateExpires",
        f"min(dljob_webhook_certificate_remaining_seconds) < {CERTIFICATE_DAYS} * 86400",
        "60m",
        "warning",
        "The certificate of dljob's webhook holds for {{ $value | humanizeDuration }}; below 0 it has expired.",
        "When it has expired, DLJobs that cannot be run are admitted, and become Invalid.",
    ),
)


def rule_file() -> str:
    """The rule file, as YAML."""
    lines = ["# Made by observability/generate.py; edit observability/rules.py.", "groups:"]
    lines += ["- name: dljob.recordings", "  rules:"]
    for rule in RECORDINGS:
        lines += [f"  - record: {rule.record}", f"    expr: {_quoted(rule.expr)}"]
    lines += ["- name: dljob.alerts", "  rules:"]
    for alert in ALERTS:
        lines += [
            f"  - alert: {alert.name}",
            f"    expr: {_quoted(alert.expr)}",
            f"    for: {alert.wait}",
            f"    labels: {{severity: {alert.severity}}}",
            "    annotations:",
            f"      summary: {_quoted(alert.summary)}",
            f"      description: {_quoted(alert.description)}",
            f"      runbook_url: {_quoted(alert.runbook)}",
        ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A YAML scalar in single quotes."""
    return "'" + text.replace("'", "''") + "'"
