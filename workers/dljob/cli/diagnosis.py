"""Text of `dljob why JOB`: the first cause of a failure, what followed, what was done, what to do next. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dljob.api.shown_job import Overview
from dljob.api.views import items, nested
from dljob.cli.description import one_line
from dljob.cli.output import lost_steps
from dljob.telemetry.remedies import FAULTS, VERDICTS, CauseKind, Remedy, of_fault
from dljob.telemetry.wording import seconds

Json = Mapping[str, Any]

EVIDENCE, FOLLOWED, EARLIER = 4, 4, 3
"""Most lines of evidence, of causes that followed, and of earlier failures: the whole has at most 20."""
WIDTH = 160
_ORDERED = ("Requested", "Resized")
"""Reasons of restarts that somebody ordered: no failures."""


class Diagnosis(NamedTuple):
    """Kind of the first cause, and the lines that explain it."""

    kind: CauseKind
    lines: Sequence[str]


def diagnose(job: Overview, name: str, flags: str) -> Diagnosis:
    """Explain why a job failed, waits, or restarted last.

    Args:
        job: status of the job.
        name: name or uid by which later commands find it.
        flags: flags of these commands, after a blank.
    """
    status = job.status
    phase, reason, message = job.phase, str(status.get("reason") or ""), str(status.get("message") or "")
    said = ": ".join(text for text in (reason, message) if text)
    head = [one_line(f"{job.title}: {phase}{f': {said}' if said else ''}", WIDTH)]
    if job.unseen:
        return Diagnosis(CauseKind.UNKNOWN, [*head, f"  {job.unseen}"])
    faults = [fault for fault in items(status, "recentFaults") if fault.get("reason") not in _ORDERED]
    verdict = VERDICTS.get(reason)
    # A job that ended or waits for a reason of its own: an earlier fault, from which it recovered, did not cause that.
    if verdict and not (faults and _open(faults[-1])):
        return Diagnosis(verdict.kind, [*head, *_earlier(faults), f"next: {verdict.advice}"])
    if not faults:
        return _without_faults(head, phase, name, flags)
    remedy = of_fault(*_cause(faults[-1]))
    return Diagnosis(
        remedy.kind, [*head, *_first(faults[-1]), *_done(status, faults), *_next(faults[-1], remedy, name, flags)]
    )


def _without_faults(head: Sequence[str], phase: str, name: str, flags: str) -> Diagnosis:
    if phase in ("Failed", "Lost"):
        return Diagnosis(CauseKind.UNKNOWN, [*head, "first cause: not recorded", f"next: dljob events {name}{flags}"])
    return Diagnosis(CauseKind.NOTHING, [*head, "nothing failed"])


def _open(fault: Json) -> bool:
    """Whether the job has not recovered from a fault."""
    return not fault.get("recoveredAt")


def _cause(fault: Json) -> tuple[str, str]:
    """Reason and words of a fault's first cause, without its rank."""
    words = str(fault.get("firstCause") or "").removeprefix(f"{_whose(fault)}: ")
    reason = words.partition(":")[0]
    # `reason` is that of the fault, which may have followed from a first cause of another reason.
    return (reason if reason in FAULTS else str(fault.get("reason") or ""), words)


def _whose(fault: Json) -> str:
    """The rank of the first cause, else the restarted target."""
    return str(fault.get("rank") or fault.get("target"))


def _first(fault: Json) -> list[str]:
    rank, (_, cause) = _whose(fault), _cause(fault)
    life = f", incarnation {fault['incarnation']}" if fault.get("incarnation") else ""
    at = f", at {fault['detectedAt']}" if fault.get("detectedAt") else ""
    return [
        one_line(f"first cause: {rank}{life}{at}: {cause}", 2 * WIDTH),
        *(f"  evidence: {one_line(str(line), WIDTH)}" for line in _most(fault.get("evidence"), EVIDENCE)),
        *(f"  after it: {one_line(str(line), WIDTH)}" for line in _most(fault.get("followed"), FOLLOWED)),
    ]


def _most(lines: Sequence[str] | None, most: int) -> list[str]:
    """The first lines, and how many more there are."""
    kept = list(lines or ())
    return kept if len(kept) <= most else [*kept[: most - 1], f"... {len(kept) - most + 1} more"]


def _done(status: Json, faults: Sequence[Json]) -> list[str]:
    last = faults[-1]
    level, target = last.get("level"), last.get("target")
    if level == "Fail":
        done = "the job ended"
    else:
        took = "not yet recovered" if last.get("seconds") is None else f"recovered in {seconds(last['seconds'])}"
        done = f"{target} restarted at level {level}; {took}{lost_steps(last)}"
    counts = ", ".join(f"{n} {level.replace('_', ' ')}" for level, n in nested(status, "restarts").items() if n)
    return [f"done: {done}", *([f"restarts: {counts}"] if counts else []), *_earlier(faults[:-1])]


def _earlier(faults: Sequence[Json]) -> list[str]:
    return [
        one_line(f"earlier: {fault.get('detectedAt') or '-'} {_whose(fault)}: {_cause(fault)[1]}", WIDTH)
        for fault in faults[-EARLIER:]
    ]


def _next(fault: Json, remedy: Remedy, name: str, flags: str) -> list[str]:
    role, _, number = str(fault.get("rank") or "").rpartition("/")
    logs = f"dljob logs {name} --role {role} --rank {number}{flags}" if role else f"dljob events {name}{flags}"
    return [f"next: {remedy.advice}", f"      {logs}"]
