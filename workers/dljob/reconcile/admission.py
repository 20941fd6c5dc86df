"""Admission of a DLJob: a spec that the operator would refuse is refused when it is applied, with each problem's path.

Pure: an AdmissionReview in, the answer out. An edit outside the spec is never judged: a finalizer must come off a job
even if no rule allows its spec any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

from dljob.errors import Problem, SpecError
from dljob.raycluster.acceptance import refusals
from dljob.reconcile.state import accept
from dljob.reconcile.state.accept import LIVE_FIELDS
from dljob.reconcile.state.excess import reduced
from dljob.reconcile.state.fields import bounded, items, number, part, text
from dljob.reconcile.state.model import Object, Settings
from dljob.spec.text.words import path_of
from dljob.telemetry.wording import counted

MAX_WARNINGS, WARNING_SIZE = 10, 120
"""Kubernetes drops warnings beyond 4 KiB in all; a terminal line has about this many characters."""
MAX_PROBLEMS = 40


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to one request."""

    allowed: bool
    message: str = ""
    """Why the request is refused."""
    warnings: tuple[str, ...] = ()
    config_map: str = ""
    """A ConfigMap that the job's pods need and the shell must look for; empty: none."""


def review(request: Object, settings: Settings) -> Admission:
    """Return the answer to `request` of an AdmissionReview."""
    new, old = part(request, "object"), part(request, "oldObject")
    update = text(request, "operation") == "UPDATE"
    if not update and text(request, "operation") != "CREATE":
        return Admission(allowed=True)
    # The status is the operator's, and a DLJob in deletion must be able to lose its finalizers.
    if text(request, "subResource") or text(new, "metadata", "deletionTimestamp"):
        return Admission(allowed=True)
    if update and accept.source(new) == accept.source(old):
        return Admission(allowed=True)
    problems_found = problems(_named(request, new), settings)
    if problems_found and update and _live(old, new):
        # Old problems do not count here: a policy that became stricter must not keep a job from its suspension.
        known = set(problems(_named(request, old), settings))
        problems_found = tuple(item for item in problems_found if item not in known)
    if problems_found:
        return Admission(allowed=False, message=_listed(text(new, "metadata", "name"), problems_found))
    warnings = tuple(bounded(item, WARNING_SIZE) for item in _effects(old, new)) if update else ()
    return Admission(allowed=True, warnings=_few(warnings), config_map=_config_map(old, new))


def problems(job: Object, settings: Settings) -> tuple[Problem, ...]:
    """Return every problem for which an operator with these settings refuses a DLJob."""
    try:
        _, manifest = accept.completed(accept.source(reduced(job)), settings)
        findings = refusals(manifest, settings.pods)
    except SpecError as error:
        return error.problems
    return tuple(Problem(path_of(finding.loc), finding.message, hint=finding.hint) for finding in findings)


def unjudged(reason: str) -> Admission:
    """Return the answer when the rules could not be evaluated in time: admit the job, the operator judges it later."""
    return Admission(allowed=True, warnings=_few((f"dljob: not checked as it was applied: {reason}",)))


def answered(version: str, uid: str, answer: Admission) -> Object:
    """Return the AdmissionReview with the answer to the request `uid`, in the API version of the request."""
    body: dict[str, object] = {"uid": uid, "allowed": answer.allowed}
    if not answer.allowed:
        body["status"] = {"code": 422, "reason": "Invalid", "message": answer.message}
    if answer.warnings:
        body["warnings"] = list(answer.warnings)
    return {"apiVersion": version, "kind": "AdmissionReview", "response": body}


def waiting(answer: Admission, namespace: str) -> Admission:
    """Return the answer with a warning that the ConfigMap with the job's code does not exist yet."""
    warning = f"spec.code.configMap: no ConfigMap {answer.config_map} in {namespace} yet; the pods wait for it"
    return replace(answer, warnings=_few((bounded(warning, WARNING_SIZE), *answer.warnings)))


def _named(request: Object, job: Object) -> Object:
    """Return the job with its final name: the API server fills in `generateName` after admission."""
    meta = part(job, "metadata")
    name = text(meta, "name") or f"{text(meta, 'generateName')}xxxxx"
    namespace = text(meta, "namespace") or text(request, "namespace")
    return {**job, "metadata": {**meta, "name": name, "namespace": namespace}}


def _listed(name: str, problems_found: Sequence[Problem]) -> str:
    lines = [f"  {problem}" for problem in problems_found[:MAX_PROBLEMS]]
    more = len(problems_found) - len(lines)
    if more:
        lines.append(f"  and {counted(more, 'other')}")
    return "\n".join([f"DLJob {name} has {counted(len(problems_found), 'problem')}:", *lines])


def _config_map(old: Object, new: Object) -> str:
    named = text(new, "spec", "code", "configMap")
    return "" if named == text(old, "spec", "code", "configMap") else named


def _few(warnings: tuple[str, ...]) -> tuple[str, ...]:
    if len(warnings) <= MAX_WARNINGS:
        return warnings
    return (*warnings[: MAX_WARNINGS - 1], f"and {counted(len(warnings) - MAX_WARNINGS + 1, 'other edit')}")


# -- which effect an edit has, and when


def _effects(old: Object, new: Object) -> Iterator[str]:
    status = part(old, "status")
    changed = list(changes(part(old, "spec"), part(new, "spec")))
    ended = bool(text(status, "completionTime"))
    runs = bool(text(status, "submissionId")) and not ended
    for path in changed:
        if ended:
            if path not in ("ttlSecondsAfterFinished", "cleanupPolicy"):
                yield f"spec.{path}: the job has ended; this changes nothing"
        elif path in LIVE_FIELDS:
            yield f"spec.{path}: obeyed at once"
        elif runs and _resizes(path, new):
            yield f"spec.{path}: the running attempt follows, between its bounds"
        elif runs:
            attempt = number(status, "attempt") or 1
            yield f"spec.{path}: attempt {attempt} goes on without it; the next attempt takes it"
    if runs and any(path not in LIVE_FIELDS and not _resizes(path, new) for path in changed):
        yield f"for a new attempt now: dljob suspend {text(new, 'metadata', 'name')}, then dljob resume"


def _live(old: Object, new: Object) -> bool:
    """Whether an edit changes only fields that the operator applies at once, so that no attempt is affected."""
    return all(path in LIVE_FIELDS for path in changes(part(old, "spec"), part(new, "spec")))


def _resizes(path: str, new: Object) -> bool:
    """Whether the field is the number of a role's ranks or of a group's machines, with bounds to change it within."""
    for kind in ("roles", "nodeGroups"):
        for at, item in enumerate(items(new, "spec", kind)):
            if path == f"{kind}[{at}].replicas":
                return "minReplicas" in item or "maxReplicas" in item or item.get("type") == "Elastic"
    return False


def changes(old: object, new: object, path: str = "") -> Iterator[str]:
    """Yield the paths that differ: fields of the spec, of its parts, of each role and node group, and none deeper."""
    before, now = part(old), part(new)
    for key in dict.fromkeys((*before, *now)):
        if before.get(key) == now.get(key):
            continue
        old_value, new_value, field_path = before.get(key), now.get(key), f"{path}{key}"
        if key in ("roles", "nodeGroups") and _alike(old_value, new_value):
            for at, (old_item, is_) in enumerate(zip(items(before, key), items(now, key), strict=True)):
                yield from changes(old_item, is_, f"{field_path}[{at}].")
        elif not path and part(old_value) and part(new_value):
            yield from changes(cast("object", old_value), cast("object", new_value), f"{field_path}.")
        else:
            yield field_path


def _alike(old: object, new: object) -> bool:
    """Whether both lists have the same names in the same order, so that their items can be compared one by one."""
    names = [[text(item, "name") for item in items({"of": value}, "of")] for value in (old, new)]
    return bool(names[0]) and names[0] == names[1]
