"""Display of a DLJob: its status as rows and lines. Pure; `now` is in unix seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from dljob.api.kubernetes.jobs import items, part, phase_of, role_sizes, status_of, why
from dljob.api.kubernetes.timeline import unix
from dljob.cli.output import aligned, lost, saved, seconds, standing
from dljob.spec.status import TERMINAL

Json = dict[str, Any]
Row = tuple[str, ...]

HEAD: Row = ("NAME", "UID", "PHASE", "ROLES", "RESTARTS", "STEP", "STARTED")
_MESSAGE = 100
STILL = (*TERMINAL, "Suspended")
"""Phases without expected steps."""


def row(job: Mapping[str, Any], *, namespaced: bool) -> Row:
    """Return a job's row in the list, with the namespace first if asked for."""
    meta, status = job["metadata"], status_of(job)
    step = part(status, "progress").get("step")
    cells = (
        str(meta["name"]),
        str(meta["uid"])[:8],
        "Deleting" if meta.get("deletionTimestamp") else phase_of(job),
        str(status.get("rolesReady") or f"0/{sum(role_sizes(job).values())}"),
        str(restarts_total(status)),
        "-" if step is None else str(step),
        str(meta.get("creationTimestamp") or "-"),
    )
    return (str(meta["namespace"]), *cells) if namespaced else cells


def rows(found: Sequence[Mapping[str, Any]], *, namespaced: bool) -> list[Row]:
    """Return the list, with its heading."""
    return [("NAMESPACE", *HEAD) if namespaced else HEAD, *(row(job, namespaced=namespaced) for job in found)]


def data(job: Mapping[str, Any]) -> Json:
    """Return a job for scripts: name, namespace, uid, then the status; the phase is always present."""
    meta = job["metadata"]
    # First, so that the status may replace the phase, which is absent until the operator has seen the job.
    known = {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"], "phase": phase_of(job)}
    return {**known, **status_of(job)}


def restarts_total(status: Mapping[str, Any]) -> int:
    """Return the number of restarts at all levels."""
    total = status.get("restartsTotal")
    return int(total) if total is not None else sum(int(v) for v in part(status, "restarts").values())


def words(name: str) -> str:
    """Write a restart level in words: roleGroup is "role group"."""
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name)


def restarts(status: Mapping[str, Any]) -> str:
    """Describe the restarts by level, without levels that had none."""
    counted = {words(level): count for level, count in part(status, "restarts").items() if count}
    return ", ".join(f"{count} {level}" for level, count in counted.items()) or "none"


def detail(job: Mapping[str, Any], now: float) -> list[str]:
    """Describe one job in detail."""
    meta, status = job["metadata"], status_of(job)
    deleting = ", being deleted" if meta.get("deletionTimestamp") else ""
    lines = [f"{meta['name']} ({str(meta['uid'])[:8]}) in namespace {meta['namespace']}: {phase_of(job)}{deleting}"]
    if not status:
        return [*lines, "  no operator has seen it yet; see dljob doctor"]
    reason, message = why(job)
    if message:
        lines.append(f"  {reason}: {message}" if reason else f"  {message}")
    lines += _cluster(status)
    lines += _progress(status, now)
    lines.append(f"  restarts: {restarts(status)}")
    lines += [_fault(fault) for fault in items(status, "recentFaults")]
    lines += _waiting(part(status, "placement"))
    lines += _table(_roles(status))
    lines += _table(_conditions(status, now))
    return lines


def _cluster(status: Mapping[str, Any]) -> list[str]:
    cluster = part(status, "rayCluster")
    effective = part(status, "effective")
    parts = [f"attempt {status['attempt']}"] if status.get("attempt") else []
    parts += [f"RayCluster {cluster['name']}"] if cluster.get("name") else []
    parts += [f"head {cluster['headPod']}"] if cluster.get("headPod") else []
    parts += [f"image {effective['image']}"] if effective.get("image") else []
    return [f"  {', '.join(parts)}"] if parts else []


def _progress(status: Mapping[str, Any], now: float) -> list[str]:
    progress = part(status, "progress")
    if progress.get("step") is None:
        return []
    stands = "" if status.get("phase") in STILL else standing(progress, now)
    metrics = "  ".join(f"{m['name']} {m['value']}" for m in items(progress, "metrics"))
    return [f"  step {progress['step']}{stands}{saved(progress)}  {metrics}".rstrip()]


def _fault(fault: Mapping[str, Any]) -> str:
    begun, over = unix(fault.get("detectedAt")), unix(fault.get("recoveredAt"))
    took = "not yet recovered" if begun is None or over is None else f"recovered in {seconds(over - begun)}"
    return f"  fault: {fault.get('target')} [{fault.get('level')}] {fault.get('firstCause')}; {took}{lost(fault)}"


def _waiting(placement: Mapping[str, Any]) -> list[str]:
    return [_unit(unit) for unit in items(placement, "notReady")]


def _unit(unit: Mapping[str, Any]) -> str:
    on = f" on {unit['node']}" if unit.get("node") else ""
    why = f": {unit['why']}" if unit.get("why") else ""
    return f"  waits: {unit.get('name')}{on}{why}"


def _roles(status: Mapping[str, Any]) -> list[Row]:
    found = [
        (
            str(role["name"]),
            f"{role.get('ready', 0) + role.get('succeeded', 0)}/{role.get('desired', 0)}",
            str(role.get("failed", 0) or "-"),
            str(role.get("restarts", 0) or "-"),
        )
        for role in items(status, "roles")
    ]
    return [("ROLE", "READY", "FAILED", "RESTARTS"), *found] if found else []


def _conditions(status: Mapping[str, Any], now: float) -> list[Row]:
    found: list[Row] = []
    for one in items(status, "conditions"):
        since = unix(one.get("lastTransitionTime"))
        age = "-" if since is None else seconds(max(0.0, now - since))
        said = one_line(str(one.get("message") or ""), _MESSAGE)
        found.append((str(one["type"]), str(one["status"]), str(one.get("reason") or "-"), age, said))
    return [("CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE"), *found] if found else []


def one_line(text: str, width: int) -> str:
    """Remove line breaks from a text, and shorten it to a width."""
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: width - 3] + "..."


def _table(found: Sequence[Row]) -> list[str]:
    """Align rows below an empty line; return nothing for no rows."""
    return ["", *aligned(found)] if found else []


# -- the shape of local jobs


def as_local(job: Mapping[str, Any]) -> Json:
    """Convert the status to a local job's shape, so that one code draws both."""
    status, meta = status_of(job), job["metadata"]
    begun, over = (
        unix(status.get("startTime")) or unix(meta.get("creationTimestamp")),
        unix(status.get("completionTime")),
    )
    progress = part(status, "progress")
    reason, message = why(job)
    metrics = {
        str(m["name"]): value for m in items(progress, "metrics") if (value := _number(m.get("value"))) is not None
    }
    # `time` tells `standing` that this status may be some seconds old.
    times = {key: progress[key] for key in ("time", "stepTime", "secondsPerStep") if key in progress}
    return {
        "phase": phase_of(job),
        "reason": reason,
        "message": message,
        "roles": items(status, "roles"),
        "restarts": {words(level): count for level, count in part(status, "restarts").items()},
        "progress": {"step": progress.get("step"), "metrics": metrics, **times},
        "seconds": round(over - begun, 3) if over is not None and begun is not None else None,
    }


def _number(text: object) -> float | None:
    with suppress(ValueError):
        return float(str(text))
    return None
