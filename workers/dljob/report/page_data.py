"""Data of a job's page, as JSON: computed from the job's record. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from dljob.api.views import entries, nested
from dljob.errors import DLJobError
from dljob.plan.model import JobPlan
from dljob.plan.plan import plan as resolve
from dljob.report import incidents, lanes, series
from dljob.report.history import JobHistory
from dljob.report.job_folder import RecordedJob
from dljob.report.placement import UNIT, placement
from dljob.spec.loading.load import parse
from dljob.spec.redaction import without_values
from dljob.telemetry.job_samples import ACCOUNTS
from dljob.telemetry.wording import unix

FORMAT = 1
"""Version of the data's format; the page of another version refuses it."""
EVENTS = 10_000
"""Events in a page, the newest ones: the others are paged from the folder by a live page, or by `dljob events`."""
FIRST_EVENTS = 500
"""Of them, so many are the job's first ones: they tell how it began."""

Json = Mapping[str, Any]
T = TypeVar("T")


def page_data(
    record: RecordedJob,
    now: float,
    *,
    version: str = "",
    cause: Sequence[str] = (),
    live: bool = False,
    with_values: bool = False,
) -> dict[str, Any]:
    """Compute what the page shows; docs/adr/0075-report-page.md has the format.

    Args:
        record: what is left of the job.
        now: unix seconds.
        version: version of dljob that makes the page.
        cause: the lines of `dljob why`.
        live: whether the job may change.
        with_values: show values of `command`, `args` and `config`, for a local file only.
    """
    status, history = record.status, record.history
    unrecorded = list(record.unrecorded)
    until = end_of(status, now)
    events, left_out = capped(record.events)
    if left_out:
        unrecorded.append(
            f"events: {left_out} of {len(record.events)} are left out here; dljob events tells all of them"
        )
    plan = plan_of(record.manifest, unrecorded)
    sampled = record.samples.data()
    rows = lanes.lanes(history, unrecorded) if history else series.lanes(sampled, until)
    parts = _ReadableParts(unrecorded)
    if history:
        incident_rows = incidents.of_history(history, until)
    else:
        incident_rows = parts.read("incidents", lambda: incidents.of_status(entries(status, "recentFaults")), [])
    return {
        "format": FORMAT,
        "made": {"at": round(now, 3), "by": version},
        "live": live,
        "job": job_part(status, until, plan, cause),
        "roles": parts.read("roles", lambda: roles_part(record.spec, status, plan), []),
        "accounts": list(ACCOUNTS),
        "lanes": rows,
        "incidents": incidents.with_texts(incident_rows, record.texts),
        "ledger": nested(status, "ledger") or None,
        "samples": series.samples_part(sampled),
        "placement": parts.read("placement", lambda: placement_part(plan, status, history), None),
        "events": events,
        "eventsLeftOut": left_out,
        "spec": without_values(record.spec, with_values=with_values) if record.spec else None,
        "whatifs": None,
        "unrecorded": unrecorded,
    }


class _ReadableParts:
    """Parts of a page by a status or spec that may be damaged, or of another version."""

    def __init__(self, unrecorded: list[str]) -> None:
        self._unrecorded = unrecorded

    def read(self, name: str, make: Callable[[], T], without: T) -> T:
        """Return what `make` makes; `without` if it cannot, which `unrecorded` then says."""
        try:
            return make()
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            self._unrecorded.append(f"{name}: status or spec is damaged, or of another version: {error!r}")
            return without


def capped(events: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Return the events that a page carries, the first and the newest ones, and the number of those left out."""
    left_out = max(0, len(events) - EVENTS)
    return (events[:FIRST_EVENTS] + events[FIRST_EVENTS + left_out :] if left_out else events), left_out


def job_part(status: Json, until: float, plan: JobPlan | None, cause: Sequence[str]) -> dict[str, Any]:
    """Return the header: phase, times, goodput, restarts, and the lines of `dljob why`."""
    ledger = nested(status, "ledger")
    start = unix(status.get("startTime"))
    return {
        **{key: status.get(key) for key in ("name", "uid", "phase", "reason", "message", "restarts", "seconds")},
        "restarts": nested(status, "restarts") if "restarts" in status else None,
        "start": start,
        "end": unix(status.get("completionTime")) or (until if start else None),
        "goodput": ledger.get("goodput"),
        "processes": ledger.get("processes"),
        "step": nested(status, "progress").get("step"),
        "deviceSeconds": _device_seconds(status, plan),
        "cause": list(cause),
        "stalls": entries(status, "stalls"),
    }


def end_of(status: Json, now: float) -> float:
    """Return the job's end, else the time of its last status (unix seconds)."""
    start = unix(status.get("startTime"))
    seconds = status.get("seconds")
    spent = float(seconds) if isinstance(seconds, int | float) else 0.0
    return unix(status.get("completionTime")) or (now if start is None else start + spent)


def plan_of(manifest: dict[str, Any], unrecorded: list[str]) -> JobPlan | None:
    """Return the plan of a manifest; None without one that this version can plan."""
    if not manifest:
        return None
    try:
        return resolve(parse(manifest))
    except (DLJobError, ValueError, TypeError, KeyError) as error:
        # A job of another version, whose spec this one does not accept.
        unrecorded.append(f"placement: this dljob cannot plan the job's spec: {error}")
        return None


def roles_part(spec: Json, status: Json, plan: JobPlan | None) -> list[dict[str, Any]]:
    """Return the roles: as they were submitted, with the present number of ranks."""
    together = {
        role: str(shared.get("name", ""))
        for shared in entries(spec, "collocations")
        for role in shared.get("roles") or ()
    }
    counts: dict[str, Json] = {role["name"]: role for role in entries(status, "roles")}
    declared: dict[str, Json] = {role["name"]: role for role in entries(spec, "roles")}
    return [
        {
            "name": name,
            "type": declared.get(name, {}).get("type"),
            "driver": plan.roles[name].driver if plan and name in plan.roles else None,
            "replicas": counts.get(name, declared.get(name, {})).get("desired" if name in counts else "replicas"),
            "devices": _devices(plan, name),
            "collocation": together.get(name),
        }
        for name in dict.fromkeys([*declared, *counts])
    ]


def _devices(plan: JobPlan | None, role: str) -> float | None:
    """Return the devices of each rank of a role; None: unknown."""
    if plan is None or role not in plan.roles:
        return None
    accelerator = plan.roles[role].accelerator
    return accelerator[1] / UNIT if accelerator else 0.0


def _device_seconds(status: Json, plan: JobPlan | None) -> float | None:
    """Return the seconds of the job's ranks, multiplied by the devices of each; None: unknown."""
    rows = entries(nested(status, "ledger"), "roles")
    if plan is None or not rows:
        return None
    by_role = [(_devices(plan, str(row.get("name"))) or 0.0, nested(row, "accounts").values()) for row in rows]
    known = [(count, [span for span in accounts if isinstance(span, int | float)]) for count, accounts in by_role]
    return round(sum(count * sum(accounts) for count, accounts in known), 3)


def placement_part(plan: JobPlan | None, status: Json, history: JobHistory | None) -> dict[str, Any] | None:
    """Return the placement, by the journal or else by the status; None without a plan."""
    if plan is None:
        return None
    if history:
        return placement(plan, history.units, history.nodes)
    return placement(plan, {unit["name"]: unit["node"] for unit in entries(status, "units") if unit["node"]}, {})
