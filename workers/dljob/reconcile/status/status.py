"""The whole status after a pass: remembered fields, observed fields, and the step's change; bounded in size.

The status is the operator's only memory. All of it can be observed again, apart from the attempt, its submission, the
head that it was made to, and the counts of commands and restarts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dljob.reconcile.policies import resources, resuming, services, suspending
from dljob.reconcile.policies.attempts import CLUSTER, clearing
from dljob.reconcile.state import exclusions, handover, names, reasons
from dljob.reconcile.state.accept import Refused, Terms
from dljob.reconcile.state.context import ReconcileContext, seconds, stamp
from dljob.reconcile.state.fields import bounded, items, number, part, text
from dljob.reconcile.state.model import Object
from dljob.reconcile.state.snapshot import MAX_FAULTS, pieces, placement_state, ready_text, roles_state
from dljob.reconcile.state.steps import Change, Halt, Intent, JobEnd, NewAttempt, Noted, ResourceChoice, SubmitOrder
from dljob.reconcile.status import conditions, phases
from dljob.spec.status import total_restarts

KEPT_FIELDS = (
    *("startTime", "completionTime", "lastCommands", "lastFault", "recentFaults", "accelerators", "carried"),
    *("chosenResources", "resourceUse"),
)
"""Fields that outlive an attempt."""
OF_ATTEMPT = (
    *("submissionId", "attemptSpecHash", "effective", "rayCluster", "master", "roles", "rolesReady", "placement"),
    *("restarts", "restartsTotal", "progress", "nodes", "endpoints", "cuts"),
)
"""Fields that begin anew with each attempt."""
UNTIL_IT_RUNS = ("startTime", "attemptSpecHash", "effective", "rayCluster")
"""Fields that a suspended job does not have: no deadline runs, and the spec may be edited."""
MAX_COMMANDS = 10
LATER_FIELDS = (
    *("message", "progress", "roles", "rolesReady", "placement", "nodes", "conditions", "endpoints", "cuts"),
    "resourceUse",
)
"""Fields that are written with the progress, or whose state is compared apart from their figures."""
CONDITION = ("type", "status", "reason", "observedGeneration")
"""The part of a condition whose change is a change of state; its message and times are not."""


def status(case: ReconcileContext, change: Change | None) -> dict[str, Any]:
    """Return the whole status after a pass."""
    if case.finished and not isinstance(change, NewAttempt):
        return _finished(case, change)
    place = phases.place(case, change)
    fields: dict[str, Any] = {
        "observedGeneration": case.generation,
        "phase": place.phase,
        "reason": place.reason,
        "message": bounded(place.message),
        "attempt": case.attempt,
        "conditions": conditions.conditions(case, change, place),
    }
    # Later lines override earlier ones: remembered fields, then observed ones, then the change of this pass.
    fields |= {key: case.old[key] for key in (*KEPT_FIELDS, *OF_ATTEMPT) if key in case.old}
    fields["progress"] = {**part(fields, "progress"), "time": stamp(case.now)}
    fields |= _beginning(case)
    fields |= _cluster(case)
    fields |= _spoken(case)
    fields |= _excluded(case, fields)
    fields |= services.written(case)
    fields |= _changed(case, change)
    is_queued = case.queued and case.suspended and not case.submitted
    if is_queued or (case.invalid is not None and not case.holds("Recovering")):
        fields.pop("startTime", None)  # deadlines run from the moment at which the job may begin
    return {key: value for key, value in fields.items() if value not in ({}, [], None)}


def write_due(case: ReconcileContext, new: Mapping[str, Any]) -> tuple[bool, float | None]:
    """Return (whether to write the status now, else the seconds until then or None for never).

    Changes of state are written at once, progress at most every `Settings.progress_seconds`: each write reaches every
    watch of the DLJob.
    """
    if _timeless(case.old) == _timeless(new):
        return False, None
    last = seconds(text(case.old, "progress", "time"))
    if last is None or _state(case.old) != _state(new):
        return True, None
    seconds_left = last + case.settings.progress_seconds - case.now
    return (True, None) if seconds_left <= 0 else (False, seconds_left)


def _timeless(status: Object) -> dict[str, Any]:
    progress = {key: value for key, value in part(status, "progress").items() if key != "time"}
    return {**status, "progress": progress}


def _state(status: Object) -> tuple[object, ...]:
    """Return the part of a status whose change is more than progress."""
    rest = {key: value for key, value in status.items() if key not in LATER_FIELDS}
    stated = [tuple(row.get(key) for key in CONDITION) for row in items(status, "conditions")]
    nodes = exclusions.state(part(status, "nodes"))
    return rest, stated, nodes, roles_state(items(status, "roles")), placement_state(part(status, "placement"))


def _finished(case: ReconcileContext, change: Change | None) -> dict[str, Any]:
    """Return the status after the end of the job: only the fields about the RayCluster and commands still change."""
    fields = {
        **case.old,
        "observedGeneration": case.generation,
        "conditions": conditions.conditions(case, None, None),
        **services.written(case),
        **_changed(case, change),
    }
    return {key: value for key, value in fields.items() if key != "services" or value}


def _beginning(case: ReconcileContext) -> dict[str, Any]:
    """Return the fields that follow from the spec: current until the attempt begins, fixed from then on."""
    if isinstance(case.terms, Refused):
        return {}
    fields: dict[str, Any] = {"accelerators": case.terms.accelerators} if case.terms.accelerators else {}
    # While the job is suspended no deadline runs, and an edit of the spec is no change of an attempt.
    if case.halt and not case.has_reported:
        return fields | _roles_without_ranks(case.terms)
    if "startTime" not in case.old and not (case.queued and (case.cluster is None or case.suspended)):
        fields["startTime"] = stamp(case.now)
    # The digest is written before anything is created from the spec, and not while the last attempt is cleared away.
    if clearing(case) is None and not (case.observed.kuberay and case.cluster is None):
        fields["attemptSpecHash"] = _running_digest(case, case.terms.hash)
        version = case.terms.ray_version or text(case.cluster, "spec", "rayVersion")
        usual = {key: word for key, word in (("image", case.terms.image), ("rayVersion", version)) if word}
        fields["effective"] = part(case.old, "effective") or usual
    if not case.has_reported:
        fields |= _roles_without_ranks(case.terms)
        fields["restartsTotal"] = total_restarts(handover.restarts(case, {}))
    return fields


def _roles_without_ranks(terms: Terms) -> dict[str, Any]:
    """Return the fields of roles with all counts 0, while no rank is known to run."""
    roles = [_blank(name, desired) for name, desired in terms.roles]
    return {"roles": roles, "rolesReady": ready_text(roles)}


def _running_digest(case: ReconcileContext, current: str) -> str:
    """Return the digest of the spec that the attempt runs. `current` is the digest of the current spec."""
    old = text(case.old, "attemptSpecHash")
    # Of its own RayCluster an attempt's spec never changes. On an existing one it travels with the submission.
    if not case.ref:
        return old or text(case.cluster, "metadata", "annotations", names.SPEC_HASH) or current
    if case.ray_job is not None and case.ray_job.spec:
        return case.ray_job.spec
    return current if case.submitted and not case.is_submitted else old or current


def _blank(name: str, desired: int) -> dict[str, Any]:
    return {"name": name, "desired": desired, "ready": 0, "running": 0, "succeeded": 0, "failed": 0, "restarts": 0}


def _cluster(case: ReconcileContext) -> dict[str, Any]:
    """Return the fields about this attempt's RayCluster.

    Once the job is submitted, head and session stay those of the submission: a loss is seen by comparing them.
    """
    if clearing(case) is not None or (case.cluster is None and isinstance(case.terms, Refused)):
        return {}
    if case.halt and (case.replaced or case.cluster is None):
        return {}  # nothing is made for the next attempt yet, and the status must still name the last one's pods
    # Nothing is taken over from the RayCluster of an earlier attempt.
    cluster: dict[str, str] = {} if case.replaced else dict(case.recorded)
    cluster["name"] = case.cluster_name
    if case.cluster is not None:
        cluster["uid"] = case.cluster["metadata"]["uid"]
    if case.head is not None and not (case.submitted and cluster.get("headPodUID")):
        cluster |= {"headPod": case.head.name, "headPodUID": case.head.uid}
    if case.ray_job is not None and case.ray_job.session:
        cluster.setdefault("sessionName", case.ray_job.session)
    if case.dashboard:
        cluster["dashboardURL"] = case.dashboard
    if case.cluster is None:
        return {"rayCluster": cluster}
    status = part(case.cluster, "status")
    nodes = {"desired": number(status, "desiredWorkerReplicas"), "ready": number(status, "readyWorkerReplicas")}
    return {"rayCluster": cluster, "nodes": {**part(case.old, "nodes"), **nodes}}


def _spoken(case: ReconcileContext) -> dict[str, Any]:
    """Return the fields that PrimeMaster reports; empty without a report, so that the last ones stay in the status."""
    if not case.snapshot:
        return {}
    epoch = number(case.snapshot, "epoch")
    state = "Unreachable" if case.silent else "Ready"
    fields = pieces(case.snapshot, clusters=case.restarted, at=stamp(case.now))
    fields["nodes"] = {**part(_cluster(case), "nodes"), **part(fields, "nodes")}
    fields["master"] = {"state": state, "epoch": epoch, "restarts": fields["restarts"]["master"]}
    fields |= handover.written(handover.restarts(case, fields["restarts"]))
    used = resources.used(case)
    carried = handover.state_to_keep(case)
    return {**fields, **_faults(case, fields), "carried": carried, **({"resourceUse": used} if used else {})}


def _excluded(case: ReconcileContext, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return `nodes` with the excluded Kubernetes nodes."""
    nodes, entries = part(fields, "nodes"), exclusions.entries(case)
    return {"nodes": {**nodes, "excluded": entries}} if entries or "excluded" in nodes else {}


def _faults(case: ReconcileContext, reported: Mapping[str, Any]) -> dict[str, Any]:
    """Return PrimeMaster's faults and the earlier attempts' faults, which are recovered once the job runs again."""
    # A job may end well between two reports.
    back = case.snapshot.get("phase") in ("Running", "Succeeded")
    before = [
        fault if "recoveredAt" in fault or not back else {**fault, "recoveredAt": stamp(case.now)}
        for fault in items(case.old, "recentFaults")
        if text(fault, "level") == CLUSTER
    ]
    every = sorted([*before, *reported["recentFaults"]], key=lambda fault: text(fault, "detectedAt"))[-MAX_FAULTS:]
    return {"recentFaults": every, "lastFault": every[-1]} if every else {}


def _changed(case: ReconcileContext, change: Change | None) -> dict[str, Any]:
    match change:
        case SubmitOrder() if case.submitted:
            again = names.submission_id(case.name, case.uid, case.attempt, case.resubmissions + 1)
            return {"submissionId": again, **_submission_head(case)}
        # From here on a report of PrimeMaster in the status means that it reported in this submission.
        case SubmitOrder():
            return {"submissionId": case.submission, "master": None, **_submission_head(case)}
        # A job that was stopped or that failed may go on; nobody serves any more.
        case JobEnd():
            carried = None if change.condition == "Complete" else handover.closed(case)
            commands = _with_commands(case, change.commands)
            return {"completionTime": stamp(change.at), "carried": carried, "endpoints": None, **commands}
        case Noted() | Intent():
            return _with_commands(case, change.commands)
        case Halt():
            begun = change.reason == reasons.SUSPENDING and suspending.has_begun(case)
            return {} if begun else dict.fromkeys(UNTIL_IT_RUNS)
        case NewAttempt():
            return _next_attempt(case, change)
        case ResourceChoice():
            return {"chosenResources": _chosen(case, change)}
        case _:
            return {}


def _with_commands(case: ReconcileContext, commands: tuple[Object, ...]) -> dict[str, Any]:
    """Return the newest commands, and the newest order to resume: its annotation stays, and is obeyed once."""
    every = [*items(case.old, "lastCommands"), *commands]
    newest = every[-MAX_COMMANDS:]
    orders = [command for command in every if text(command, "kind") == resuming.KIND]
    if orders and orders[-1] not in newest:
        newest = [orders[-1], *newest[1:]]
    return {"lastCommands": newest} if newest else {}


def _chosen(case: ReconcileContext, change: ResourceChoice) -> dict[str, Any]:
    roles: dict[str, dict[str, str]] = {}
    for choice in change.resources:
        row = roles.setdefault(choice.role, {"name": choice.role})
        row |= {choice.resource: choice.value, f"{choice.resource}Why": bounded(choice.reason)}
    return {"attempt": case.attempt, "shape": change.shape, "roles": list(roles.values())}


def _submission_head(case: ReconcileContext) -> dict[str, Any]:
    """Return the head that the submission is meant for: pod, uid and container, so that no other head gets it."""
    head = case.head
    ids = ("", "", "") if head is None else (head.name, head.uid, head.container)
    cluster = {
        **part(_cluster(case), "rayCluster"),
        **dict(zip(("headPod", "headPodUID", "headContainer"), ids, strict=True)),
    }
    return {"rayCluster": {key: value for key, value in cluster.items() if value}}


def _next_attempt(case: ReconcileContext, change: NewAttempt) -> dict[str, Any]:
    clusters = case.restarted + (1 if change.counted else 0)
    cleared = dict.fromkeys(OF_ATTEMPT)
    if change.reason == reasons.SUSPENDING:
        cleared.pop("progress")  # users still want to see how far a suspended job has come
    keys = ("name", "uid")
    if case.ref:
        # Of a RayCluster that stays only the head matters: it may run for its grace after the RayCluster was deleted.
        keys = ("headPodUID",) if change.reason == reasons.CLUSTER_GONE else ()
    # PrimeMaster's last report may have come in the same pass as the end of the attempt.
    counts: dict[str, int] = pieces(case.snapshot, clusters=clusters, at="")["restarts"]
    restarts = {level: count for level, count in counts.items() if count or level == "cluster"}
    fields = {
        **cleared,
        "attempt": case.attempt + 1,
        "rayCluster": {key: case.recorded[key] for key in keys if key in case.recorded},
        **handover.written(handover.restarts(case, restarts)),
        "carried": handover.closed(case),
        "nodes": exclusions.next_attempt(case),
    }
    if change.reason == reasons.JOB_RESUMED:
        fields |= _resumed(case, change)
    # A suspension, an edit or an upgrade is no fault: it leaves no entry.
    if not change.fault:
        return fields
    at = stamp(case.now)
    fault = {"level": CLUSTER, "reason": change.reason, "target": case.cluster_name, "detectedAt": at}
    fault["firstCause"] = bounded(change.message, 512)
    faults = [*items(case.old, "recentFaults"), fault][-MAX_FAULTS:]
    return {**fields, "lastFault": fault, "recentFaults": faults}


def _resumed(case: ReconcileContext, change: NewAttempt) -> dict[str, Any]:
    """Return what differs where an ended job goes on: who resumes it has looked at it, and it begins with new budgets.

    Its deadlines begin anew, too.
    """
    return {
        **_with_commands(case, change.commands),
        **dict.fromkeys(("startTime", "completionTime", "restarts", "restartsTotal")),
        "carried": {**part(case.old, "carried"), "newBudgets": True},
    }
