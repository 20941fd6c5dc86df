"""Resources that the spec leaves open (`resources.auto`): chosen before an attempt is made, and kept for later jobs.

What the ranks of an attempt use is in its status (`resourceUse`), for the next attempt. At the end of the job it goes
into one ConfigMap of the namespace, which outlives the DLJob and has the last jobs of each name (ADR 134).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dljob.reconcile.state import accept
from dljob.reconcile.state.accept import Refused
from dljob.reconcile.state.context import ReconcileContext
from dljob.reconcile.state.fields import items, number, part, text
from dljob.reconcile.state.model import Event, KeepResourceUse, Object
from dljob.reconcile.state.snapshot import resource_use
from dljob.reconcile.state.steps import PolicyDecision, ResourceChoice
from dljob.spec.chosen_resources import EARLIER_JOBS, EarlierJob, ResourceUse, describe_choice, shape_of
from dljob.spec.chosen_resources import choose as choose_from
from dljob.telemetry.reasons import RESOURCES_CHOSEN

MOST_BYTES = 512 * 1024
"""Most bytes of all entries together: a ConfigMap holds 1 MiB."""
KEEP_TRIES = 5
"""Refusals after which a job's use is not kept: the end of the job must not wait for it."""


def open_roles(job: Object) -> bool:
    """Return whether a role of a DLJob leaves resources open."""
    return any(part(role, "resources").get("auto") is not None for role in items(job, "spec", "roles"))


def reads_history(job: Object) -> bool:
    """Return whether a pass needs what is known of earlier jobs of the name: before a choice, and at the end."""
    status = part(job, "status")
    chosen = number(status, "chosenResources", "attempt") == (number(status, "attempt") or 1)
    return open_roles(job) and (bool(text(status, "completionTime")) or not chosen)


def choose(case: ReconcileContext) -> PolicyDecision | None:
    """Choose what the spec leaves open, once for an attempt: from earlier jobs of the name, and earlier attempts."""
    is_fixed = (case.cluster is not None and not case.ref) or case.submitted
    if is_fixed or case.chosen or not open_roles(case.observed.job) or isinstance(case.terms, Refused):
        return None
    spec = accept.blueprint(case.source, case.settings).manifest.spec
    shape = shape_of(spec)
    rows = choose_from(spec, *_earlier(case, shape))
    events = tuple(
        Event("Normal", RESOURCES_CHOSEN, f"roles.{row.role}.{describe_choice(row)}", "ChooseResources") for row in rows
    )
    reason = f"attempt {case.attempt} leaves resources open: they are chosen"
    return PolicyDecision(reason, change=ResourceChoice(rows, shape), events=events)


def used(case: ReconcileContext) -> dict[str, Any]:
    """Return what the ranks used so far, with the figures of earlier attempts of this shape; empty: not reported."""
    rows = resource_use(case.snapshot)
    if not rows or not case.chosen:
        return {}
    shape, before = text(case.old, "chosenResources", "shape"), part(case.old, "resourceUse")
    known = _uses(before) if text(before, "shape") == shape else {}
    roles = [
        ResourceUse.of_row(row).with_earlier(known.get(row["name"], ResourceUse(0.0))).row(row["name"]) for row in rows
    ]
    return {"shape": shape, "roles": roles}


def keep(case: ReconcileContext) -> PolicyDecision | None:
    """Keep what the ranks of an ended job used, for later jobs of the name."""
    entry, trouble = _entry(case), case.trouble("KeepResourceUse")
    if not entry or case.observed.resource_history is None or (trouble and trouble.count >= KEEP_TRIES):
        return None
    rows = _history(case)
    if any(text(row, "uid") == case.uid for row in rows):
        return None
    value = json.dumps([*rows, {**entry, "ended": text(case.old, "completionTime")}][-EARLIER_JOBS:])
    action = KeepResourceUse(case.name, value)
    return PolicyDecision("what the ranks used is kept for later jobs of the name", (action,))


def without_oldest(data: Mapping[str, str], newest: str) -> tuple[str, ...]:
    """Return the names whose entries must go so that the ConfigMap stays small, those of the oldest jobs first.

    Args:
        data: Name of a job -> its entry.
        newest: The name whose entry was just written, which stays.
    """
    size = sum(map(len, data.values()))
    dropped: list[str] = []
    for name in sorted(data.keys() - {newest}, key=lambda job: _last_end(data[job])):
        if size <= MOST_BYTES:
            break
        dropped.append(name)
        size -= len(data[name])
    return tuple(dropped)


def _last_end(entry: str) -> str:
    return max((text(row, "ended") for row in _rows(entry)), default="")


def _earlier(case: ReconcileContext, shape: str) -> tuple[list[EarlierJob], str]:
    """Return the jobs and attempts that count, the newest last, and why another does not count; empty: all do."""
    jobs: list[EarlierJob] = []
    left_out = ""
    others = [row for row in _history(case) if text(row, "uid") != case.uid]
    entry = _entry(case)
    for row in [*others, entry] if entry else others:
        if text(row, "shape") == shape:
            jobs.append(EarlierJob(text(row, "job"), _uses(row)))
        else:
            left_out = f"{text(row, 'job')}: another shape of job: its roles, their types, entrypoints or sizes differ"
    return jobs, left_out


def _uses(row: Object) -> dict[str, ResourceUse]:
    return {text(role, "name"): ResourceUse.of_row(role) for role in items(row, "roles")}


def _history(case: ReconcileContext) -> list[Object]:
    return _rows(case.observed.resource_history or "")


def _rows(entry: str) -> list[Object]:
    """Return the jobs in an entry; of a damaged text nothing."""
    try:
        return list(items({"jobs": json.loads(entry or "[]")}, "jobs"))
    except ValueError:
        return []


def _entry(case: ReconcileContext) -> dict[str, Any]:
    """Return what is kept of this job and its attempts; empty: nothing is known."""
    known = part(case.old, "resourceUse")
    if not items(known, "roles"):
        return {}
    return {"uid": case.uid, "job": f"{case.name} ({case.uid[:8]})", **known}
