"""The dashboard of the operator."""

from __future__ import annotations

from panels import ORANGE, RED, Query, Row, choice, lines, number, page, share

UID = "dljob-operator"
_US = 'job=~"$operator"'
_PASS = f'{_US},controller="dljob"'
_QUEUE = f'{_US},name="dljob"'
_RATE = "$__rate_interval"


def operator() -> str:
    """The dashboard's JSON."""
    return page(
        UID,
        "DLJob / Operator",
        "The operator: is it up, does it keep up, and do the APIs answer it.",
        (choice("operator", "Operator", "label_values(dljob_operator_build_info, job)", many=True),),
        (_now(), _passes(), _queue(), _calls()),
    )


def _now() -> Row:
    errors = f"sum(increase(controller_runtime_reconcile_errors_total{{{_PASS}}}[15m]))"
    missed = f"sum(increase(dljob_missed_events_total{{{_US}}}[1h])) or vector(0)"
    version = Query(f"dljob_operator_build_info{{{_US}}}", "{{version}}")
    depth = Query(f"sum(workqueue_depth{{{_QUEUE}}})")
    return Row(
        "Now",
        (
            number("Version", version, "Of the operator.", name=True, width=4),
            number(
                "Acting", Query(f"sum(dljob_operator_leader{{{_US}}})"), "One of all replicas.", unit="none", width=4
            ),
            number("DLJobs", Query(f"sum(dljob_jobs{{{_US}}})"), "That exist, in any phase.", unit="none", width=4),
            number(
                "Keys waiting",
                depth,
                "DLJobs whose turn it is.",
                unit="none",
                width=4,
                steps=((50, ORANGE), (200, RED)),
            ),
            number("Errors in 15 min", Query(errors), "Failed passes.", width=4, steps=((1, ORANGE), (20, RED))),
            number("Missed in 1 h", Query(missed), "Changes that only a relist found.", steps=((20, ORANGE),)),
        ),
    )


def _passes() -> Row:
    results = f"sum by (result) (rate(controller_runtime_reconcile_total{{{_PASS}}}[{_RATE}]))"
    times = tuple(
        Query(share(part, "controller_runtime_reconcile_time_seconds", _PASS, "controller", _RATE), name)
        for part, name in ((0.5, "median"), (0.99, "99th percentile"))
    )
    return Row(
        "Passes",
        (
            lines("Passes of the reconciler", (Query(results, "{{result}}"),), "By result.", unit="ops", stacked=True),
            lines("Time of a pass", times, "API calls included. The line is the alert's limit.", unit="s", limit=5),
        ),
    )


def _queue() -> Row:
    waits = tuple(
        Query(share(part, "workqueue_queue_duration_seconds", _QUEUE, "name", _RATE), name)
        for part, name in ((0.5, "median"), (0.99, "99th percentile"))
    )
    depth = (
        Query(f"sum(workqueue_depth{{{_QUEUE}}})", "waiting"),
        Query(f"60 * sum(rate(workqueue_retries_total{{{_QUEUE}}}[{_RATE}]))", "retries per minute"),
    )
    # A kind has no series until something of it was missed.
    missed = Query(f"round(sum by (kind) (increase(dljob_missed_events_total{{{_US}}}[1h])))", "{{kind}}")
    return Row(
        "Queue",
        (
            lines(
                "Keys",
                depth,
                "Waiting for a pass, and put back after an error.",
                unit="none",
                width=8,
                whole_numbers=True,
            ),
            lines("Wait in the queue", waits, "From an event to its pass.", unit="s", width=8),
            lines(
                "Missed events within an hour",
                (missed,),
                "Found by a relist, told by no watch.",
                width=8,
                whole_numbers=True,
                empty="nothing was missed",
            ),
        ),
    )


def _calls() -> Row:
    codes = f"sum by (code) (rate(rest_client_requests_total{{{_US}}}[{_RATE}]))"
    methods = f"sum by (method) (rate(rest_client_requests_total{{{_US}}}[{_RATE}]))"
    ray = f"sum by (code) (rate(dljob_ray_api_requests_total{{{_US}}}[{_RATE}]))"
    codes_help = "409: somebody else wrote first; 429: throttled."
    return Row(
        "Calls",
        (
            lines("Kubernetes API, by status", (Query(codes, "{{code}}"),), codes_help, unit="reqps", width=8),
            lines(
                "Kubernetes API, by method",
                (Query(methods, "{{method}}"),),
                "Writes at rest are a fault.",
                unit="reqps",
                width=8,
            ),
            lines(
                "Ray and gateways, by status", (Query(ray, "{{code}}"),), "Long polls included.", unit="reqps", width=8
            ),
        ),
    )
