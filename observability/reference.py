"""Reference pages made of the catalogue and the rules."""

from __future__ import annotations

from rules import ALERTS, RECORDINGS

from dljob.telemetry.catalog import GATEWAY, OPERATOR, Metric

_MADE = "<!-- Made by observability/generate.py; do not edit. -->"


def metrics_page() -> str:
    """docs/reference/metrics.md."""
    lines = [
        "# Metrics",
        "",
        _MADE,
        "",
        "Names, types and labels are an interface: they are added, not renamed. No label names a rank, a pod or a",
        "node, so a job of 10,000 ranks has as many series as one of 10; `dljob status` shows single ranks. No label",
        "is called `job`, which Prometheus keeps for itself. Scrape as the chart's monitors do: the operator with",
        "`honorLabels: true`, so that `namespace` is the DLJob's; heads without it, since user code runs there and may",
        "serve anything: `namespace` is the pod's then, which is the DLJob's too. A series goes with its DLJob.",
        "",
        *_section("Operator", "Served on the port `metrics` of the operator's pod, for all DLJobs.", OPERATOR),
        *_section(
            "Jobs", "Served by the gateway on the port `dljob` of a RayCluster's head pod, while it lives.", GATEWAY
        ),
    ]
    return "\n".join(lines)


def _section(title: str, text: str, metrics: tuple[Metric, ...]) -> list[str]:
    rows = [f"| `{m.name}` | {m.kind} | {_labels(m)} | {m.unit or '-'} | {_help(m)} |" for m in metrics]
    head = ["| metric | type | labels | unit | meaning |", "| --- | --- | --- | --- | --- |"]
    return [f"## {title}", "", text, "", *head, *rows, ""]


def _labels(metric: Metric) -> str:
    return ", ".join(f"`{label}`" for label in metric.labels) or "-"


def _help(metric: Metric) -> str:
    text = metric.help.replace("<", "&lt;").replace("|", "\\|")
    return text if not metric.buckets else f"{text} Buckets from {metric.buckets[0]:g} to {metric.buckets[-1]:g}."


def alerts_page() -> str:
    """docs/reference/alerts.md."""
    alerts = [
        f"| [{a.name}](../runbooks/{a.name}.md) | {a.severity} | {a.wait} | `{a.expr.replace('|', chr(92) + '|')}` |"
        for a in ALERTS
    ]
    recordings = [f"| `{r.record}` | `{r.expr.replace('|', chr(92) + '|')}` |" for r in RECORDINGS]
    return "\n".join(
        [
            "# Alerts",
            "",
            _MADE,
            "",
            "The chart installs them as a PrometheusRule (`metrics.prometheusRule.enabled`). Without the Prometheus",
            "operator, name `charts/dljob/observability/rules/dljob.yaml` in Prometheus' `rule_files`.",
            "",
            "| alert | severity | after | condition |",
            "| --- | --- | --- | --- |",
            *alerts,
            "",
            "## Recorded series",
            "",
            "| series | expression |",
            "| --- | --- |",
            *recordings,
            "",
        ]
    )
