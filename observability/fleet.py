"""The dashboard of all jobs."""

from __future__ import annotations

from grafana_foundation_sdk.builders import table
from grafana_foundation_sdk.builders import text as words
from panels import ORANGE, RED, Column, Query, Row, choice, commands, lines, listing, number, page, share

UID = "dljob-fleet"
_IN = 'namespace=~"$namespace"'
_TO_JOB = "/d/dljob-job?var-datasource=${datasource}&var-namespace=${__data.fields.Namespace}&var-dljob=${__value.raw}"
_WAITING = ("Invalid", "Pending", "Queued", "Provisioning", "Scheduling")


def fleet() -> str:
    """The dashboard's JSON."""
    return page(
        UID,
        "DLJob / Fleet",
        "All DLJobs: how many are where, what fails, how long a start takes.",
        (choice("namespace", "Namespace", "label_values(dljob_jobs, namespace)", many=True),),
        (_now(), _time(), _start(), _list_row()),
    )


def _jobs(*phases: str) -> Query:
    return Query(f'sum(dljob_jobs{{{_IN},phase=~"{"|".join(phases)}"}}) or vector(0)')


def _now() -> Row:
    failed = "Failed DLJobs that nobody deleted yet."
    return Row(
        "Now",
        (
            number("Running", _jobs("Running"), "DLJobs that make progress."),
            number("On the way", _jobs(*_WAITING), "They wait for a mended spec, quota, pods or their placement."),
            number("Recovering", _jobs("Recovering"), "Ranks are being restarted.", steps=((1, ORANGE),)),
            number("Failed", _jobs("Failed"), failed, steps=((1, RED),)),
            number("Succeeded", _jobs("Succeeded"), "Succeeded DLJobs that still exist."),
            number("Stopped", _jobs("Stopped"), "DLJobs that somebody stopped and nobody deleted yet."),
        ),
    )


def _time() -> Row:
    return Row(
        "Over time",
        (
            lines(
                "DLJobs by phase",
                (Query(f"sum by (phase) (dljob_jobs{{{_IN}}})", "{{phase}}"),),
                "From the statuses of all DLJobs, as the operator knows them.",
                whole_numbers=True,
                stacked=True,
            ),
            lines(
                "Restarts within an hour, by level",
                (Query(f"round(sum by (level) (increase(dljob_restarts_total{{{_IN}}}[1h])))", "{{level}}"),),
                "How large they were: one process, a group of a role, a role, the whole job, or PrimeMaster.",
                whole_numbers=True,
                stacked=True,
            ),
        ),
    )


def _start() -> Row:
    stages = (
        "DLJob to RayCluster (cluster), to its head being ready (head), to the launcher accepted by Ray (submit), "
        "to Running (run). Starts of the last hour, in all namespaces."
    )
    half, most = (share(part, "dljob_startup_seconds", "", "stage", "1h") for part in (0.5, 0.95))
    return Row(
        "Start",
        (
            lines("Stages of a start, median", (Query(half, "{{stage}}"),), stages, unit="s"),
            lines("Stages of a start, 95th percentile", (Query(most, "{{stage}}"),), stages, unit="s"),
        ),
    )


def _list_row() -> Row:
    return Row("DLJobs and alerts", (_list(), _alerts(), _ask()))


def _list() -> table.Panel:
    by = "by (namespace, dljob)"
    ready = f'sum {by} (dljob_workers{{{_IN},state=~"ready|succeeded"}}) / sum {by} (dljob_workers{{{_IN}}})'
    useful, all_time = (f"dljob_role_seconds_total{{{_IN},account{which}}}" for which in ('="productive"', '!="spare"'))
    return listing(
        "DLJobs",
        (
            Query(f"max by (namespace, dljob, phase) (dljob_status_phase{{{_IN}}} == 1)"),
            Query(f"max {by} (dljob_step{{{_IN}}})"),
            Query(f"sum {by} (dljob_restarts_total{{{_IN}}})"),
            Query(ready),
            Query(f"max {by} (dljob_running_seconds{{{_IN}}})"),
            Query(f"sum {by} (rate({useful}[1h])) / sum {by} (rate({all_time}[1h])) >= 0"),
        ),
        (
            Column("namespace", "Namespace"),
            Column("dljob", "DLJob", link=_TO_JOB),
            Column("phase", "Phase"),
            Column("Value #B", "Step", "none"),
            Column("Value #C", "Restarts", "none"),
            Column("Value #D", "Ranks ready", "percentunit"),
            Column("Value #E", "Running for", "dtdurations"),
            Column("Value #F", "Goodput, 1 h", "percentunit"),
        ),
        "One line a DLJob; one whose PrimeMaster is not reached has only its phase.",
        width=15,
        height=9,
    )


def _alerts() -> table.Panel:
    return listing(
        "Alerts that fire",
        (Query('ALERTS{alertname=~"DLJob.+",alertstate="firing",namespace=~"$namespace|"}'),),
        (
            Column("alertname", "Alert"),
            Column("severity", "Severity"),
            Column("namespace", "Namespace"),
            Column("dljob", "DLJob", link=_TO_JOB),
        ),
        "Each has a page in docs/runbooks.",
        width=9,
        height=9,
        empty="no alert fires",
    )


def _ask() -> words.Panel:
    of = "JOB -n NAMESPACE"
    return commands(
        "Ask the command",
        (
            (f"dljob why {of}", "names the first cause of a failure, its evidence, and what to do next"),
            (f"dljob open {of}", "opens a job's page: who was doing what when, each incident with its log lines"),
            (
                "dljob status -n NAMESPACE",
                "lists the jobs of a namespace with phase, step, restarts and the last fault",
            ),
        ),
        "JOB and NAMESPACE are those of the list above.",
    )
