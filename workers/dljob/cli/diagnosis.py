"""Text of `dljob why JOB`: the first cause of a failure, what followed, what was done, what to do next. Pure.

"First cause" is what ended the job. A failure of a job that goes on is its "last failure", and says whether it is over.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from dljob.api.shown_job import Overview
from dljob.api.views import entries, nested
from dljob.cli.description import one_line, problem_line
from dljob.cli.output import lost_steps
from dljob.cli.terminal import safe
from dljob.master.state.stalls import STOOD_STILL, RootState
from dljob.spec.status import TERMINAL
from dljob.telemetry import reasons
from dljob.telemetry.remedies import (
    ENDS_WITHOUT_FAILURE,
    FAULTS,
    HEAD_MEMORY,
    POD,
    VERDICTS,
    CauseKind,
    Remedy,
    of_fault,
)
from dljob.telemetry.wording import counted, level_words, seconds

Json = Mapping[str, Any]

MOST_EVIDENCE, MOST_FOLLOWED, MOST_EARLIER = 4, 4, 3
"""Most lines of evidence, of causes that followed, and of earlier failures: the whole has at most 20."""
MOST_PROBLEMS = 3
"""Most problems that are shown."""
NOTHING_FAILED = "nothing failed"
WIDTH = 160
MOST_STALLS = 3
"""Most stalls that are told."""
STANDS_ADVICE = (
    "see what it does there in its stack and log; a restart of it ends the wait, if it would not do the same again"
)
MAY_GO_ON_ADVICE = (
    "see in its stack and log what it does there; an evaluation or another long step may go on by itself, else it is"
    " restarted after hang.idleSeconds, or hang.busySeconds where it computes"
)
NOBODY_ADVICE = "see in its stack and log what it waits for, and who was to bring that"
STALL_ADVICE = {
    RootState.CIRCLE.value: (
        "break the circle: have no call wait for one that needs its place, or give the method more places,"
        " @rpc(concurrency=N); have no setup() call a role that waits for its own;"
        " of locks, groups and queues let all take them in one order"
    ),
    RootState.STOPPED.value: (
        "let the process go on, kill -CONT with its pid on its node, or restart it; see who stopped it"
    ),
    RootState.ENDED.value: (
        "see in its log why it ended; who brings items closes the queue at its end, and all ranks of a torch group"
        " have to make as many steps"
    ),
    RootState.ELSEWHERE.value: (
        "see in its stack and log what it does instead: a filter that lets nothing through, say; it is no hang"
    ),
}
"""State of a stall's root -> what to do; of one that stands see `_advice_for`."""
MASTER = "master"
"""Target of a restart of PrimeMaster."""
WAIT = "Wait"
"""Level of a fault that restarts nothing: a part of the job is silent, and is waited for."""
_ORDERED = ("Requested", "Resized")
"""Reasons of restarts that somebody ordered: no failures."""

MORE_RESTARTS = "or allow more restarts: --max-restarts=N of dljob torchrun, restartPolicy.maxRestarts in a file"
"""Further advice where the budget of restarts is used up, for failures that a restart overcomes."""


class Diagnosis(NamedTuple):
    """Kind of the first cause, and the lines that explain it."""

    kind: CauseKind
    lines: Sequence[str]
    fault: Json | None = None
    """The failure whose cause it is; None where a verdict or nothing is."""
    advice: str = ""


def diagnose(job: Overview, name: str, flags: str) -> Diagnosis:
    """Explain why a job failed, waits, or restarted last.

    Args:
        job: status of the job.
        name: name or uid by which later commands find it, or the path of its folder, as a word of a shell.
        flags: flags of these commands, after a blank.
    """
    diagnosis = _with_problems(_explain(job, name, flags), job.status, name, flags)
    # Names, messages and log lines are users' text: none may break a line or reach the terminal with an escape.
    return diagnosis._replace(lines=[_plain(line) for line in diagnosis.lines])


def data(job: Overview, diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the same for programs."""
    known = {key: job.status.get(key) for key in ("name", "uid", "reason", "message") if key in job.status}
    kind = {"kind": diagnosis.kind.name.lower(), "exitCode": int(diagnosis.kind)}
    explained = {
        "fault": diagnosis.fault,
        "stalls": list(_stalls(job.status)),
        "restarts": nested(job.status, "restarts"),
        "advice": diagnosis.advice,
    }
    return {**known, "phase": job.phase, **kind, **explained, "lines": list(diagnosis.lines)}


def _plain(line: str) -> str:
    text = line.lstrip(" ")
    return " " * (len(line) - len(text)) + safe(one_line(text, 3 * WIDTH), colours=False)


def _both_ends(text: str) -> str:
    """Cut the middle of a long line: Kubernetes' messages begin with whom, and end with the cause of their causes."""
    line, width = one_line(text, len(text)), 2 * WIDTH
    return line if len(line) <= width else f"{line[: width * 2 // 3 - 3]}...{line[-(width // 3) :]}"


def _explain(job: Overview, name: str, flags: str) -> Diagnosis:
    status = job.status
    phase, reason, message = job.phase, str(status.get("reason") or ""), str(status.get("message") or "")
    # A job that runs, and one that has succeeded, have no reason but their phase.
    words = ": ".join(text for text in (reason if reason != phase else "", message) if text)
    title = f"{job.title}: {phase}{f': {words}' if words else ''}"
    head = [one_line(title, WIDTH)]
    if job.unseen:
        return Diagnosis(CauseKind.UNKNOWN, [*head, f"  {job.unseen}"])
    faults = [fault for fault in _faults(status) if fault.get("reason") not in _ORDERED]
    if stalls := _stalls(status):
        head = [one_line(f"{job.title}: {phase}", WIDTH)]
        advice = _advice_for(stalls[0])
        lines = [*head, *_standing(stalls, name, flags, advice), *_earlier(faults)]
        return Diagnosis(CauseKind.UNKNOWN, lines, advice=advice)
    verdict = VERDICTS.get(reason) or (POD if phase == "Provisioning" and message.startswith("pod ") else None)
    # A job that ended or waits for a reason of its own: an earlier fault, from which it recovered, did not cause that.
    # The failure that ends a job has the level Fail.
    has_open_fault = bool(faults) and _open(faults[-1])
    is_end_without_failure = reason in ENDS_WITHOUT_FAILURE and has_open_fault and faults[-1].get("level") != "Fail"
    if verdict and (is_end_without_failure or not has_open_fault):
        verdict = _for_job(verdict, status)
        # No other line has the facts of a verdict, and of the stalls in which the job was.
        title, stood_still, sentences = title.partition(STOOD_STILL)
        stalls_then = [f"  {stood_still.strip('; ')} {sentences}"] if sentences else []
        last_failure = _cause_of(faults[-1], (), (), ended_job=False) if is_end_without_failure else []
        earlier = _earlier(faults[:-1] if last_failure else faults)
        lines = [_both_ends(title), *stalls_then, *last_failure, *earlier, f"next: {verdict.advice}"]
        return Diagnosis(verdict.kind, lines, advice=verdict.advice)
    if not isinstance(status.get("recentFaults"), list | tuple | None):
        lines = [*head, "first cause: unreadable: the status is damaged, or of another version"]
        return Diagnosis(CauseKind.UNKNOWN, [*lines, f"next: dljob events {name}{flags}"])
    if not faults:
        return _without_faults(head, phase, name, flags)
    # Its failures are history: an advice to correct something would be wrong.
    if phase == "Succeeded":
        lines = [*head, "nothing failed in the end; the job went on after each failure", *_restarts(status)]
        return Diagnosis(CauseKind.NOTHING, [*lines, *_earlier(faults)])
    faults, restarts = _without_later_master_restarts(faults)
    last = faults[-1]
    remedy = _for_job(_remedy(last), status)
    pod_places = _kubernetes_nodes(status, last)
    ended_job = _open(last) and (last.get("level") == "Fail" or phase in (*TERMINAL, "Lost"))
    lines = [
        *head,
        *_cause_of(last, pod_places, restarts, ended_job=ended_job),
        *_done(status, faults),
        *_next(last, remedy, name, flags),
    ]
    if reason == reasons.BUDGET_EXHAUSTED:
        lines.append(f"      {MORE_RESTARTS}")
    return Diagnosis(remedy.kind, lines, last, remedy.advice)


def _for_job(remedy: Remedy, status: Json) -> Remedy:
    """Return a remedy with the advice for a job without a checkpoint, or without Kubernetes, where it is one."""
    if remedy.without_checkpoint and nested(status, "progress").get("lastCheckpointStep") is None:
        return remedy._replace(advice=remedy.without_checkpoint)
    if remedy.without_kubernetes and not {"conditions", "rayCluster"}.intersection(status):
        return remedy._replace(advice=remedy.without_kubernetes)
    return remedy


def _with_problems(diagnosis: Diagnosis, status: Json, name: str, flags: str) -> Diagnosis:
    """Return a diagnosis with the problems that stand now, or stood at the end of the job, before what to do next."""
    problems = entries(status, "problems")
    if not problems:
        return diagnosis
    events = f"dljob events {name}{flags}"
    lines = [problem_line(row, events, 3 * WIDTH) for row in problems[:MOST_PROBLEMS]]
    if (hidden_count := (status.get("problemCount") or len(problems)) - len(lines)) > 0:
        lines.append(f"and {counted(hidden_count, 'more problem')}: dljob status {name}{flags}")
    if diagnosis.kind is CauseKind.NOTHING:
        remedy = VERDICTS.get(str(problems[0].get("reason")), FAULTS["Unknown"])
        shown = [line for line in diagnosis.lines if line != NOTHING_FAILED]
        return Diagnosis(remedy.kind, [*shown, *lines, f"next: {remedy.advice}"], diagnosis.fault, remedy.advice)
    at = next((n for n, line in enumerate(diagnosis.lines) if line.startswith("next: ")), len(diagnosis.lines))
    return diagnosis._replace(lines=[*diagnosis.lines[:at], *lines, *diagnosis.lines[at:]])


def _faults(status: Json) -> list[Json]:
    """Return the failures; what a status of another version has in their place is left out."""
    return [cast("Json", fault) for fault in _list(status.get("recentFaults")) if isinstance(fault, Mapping)]


def _stalls(status: Json) -> Sequence[Json]:
    """Return the stalls of a job that runs: what stands now matters more than any failure from which it recovered."""
    rows = entries(status, "stalls") if status.get("phase") not in TERMINAL else []
    return [stall for stall in rows if stall.get("sentence")][:MOST_STALLS]


def _advice_for(stall: Json) -> str:
    if (advice := STALL_ADVICE.get(str(stall.get("rootState")))) is not None:
        return advice
    if stall.get("hung"):
        return STANDS_ADVICE
    return MAY_GO_ON_ADVICE if stall.get("root") else NOBODY_ADVICE


def _standing(stalls: Sequence[Json], name: str, flags: str, advice: str) -> list[str]:
    """Return who stands still because of whom, the oldest first, and what to do about it."""
    lines: list[str] = []
    for place, stall in enumerate(stalls):
        root, prefix = stall.get("root"), "also" if place else "stands still"
        of_whom = f"{root}: " if root else ""
        word = "Hang: " if stall.get("hung") else ""
        lines.append(f"{prefix}: {of_whom}{word}{stall['sentence']}")
        others = (stall.get("rankCount") or 0) - 1
        if others > 1:
            lines.append(f"  evidence: {counted(others, 'other rank')} stand still with it, since {stall.get('since')}")
    root = next((str(stall["root"]) for stall in stalls if stall.get("root")), "")
    lines.append(f"next: {advice}")
    if os.sep not in name:
        lines.append(f"      dljob stack {name}{flags}")
        # What may still go on by itself must not be killed by somebody who only follows advice.
        is_hung = any(stall.get("hung") or stall.get("rootState") == RootState.STOPPED for stall in stalls)
        lines += [f"      dljob restart {name} {root}{flags}"] if root and is_hung else []
    return lines


def _list(value: object) -> list[object]:
    """Return a value that should be a list; empty for another."""
    return cast("list[object]", value) if isinstance(value, list | tuple) else []


def _without_faults(head: Sequence[str], phase: str, name: str, flags: str) -> Diagnosis:
    if phase in ("Failed", "Lost"):
        return Diagnosis(CauseKind.UNKNOWN, [*head, "first cause: not recorded", f"next: dljob events {name}{flags}"])
    return Diagnosis(CauseKind.NOTHING, [*head, NOTHING_FAILED])


def _without_later_master_restarts(faults: Sequence[Json]) -> tuple[Sequence[Json], list[str]]:
    """Return the failures without PrimeMaster's restarts during the recovery from the last other one, and their causes.

    Such a restart is no cause of that failure, and delays its end by less than a second.
    """
    count = len(faults)
    while count > 1 and _is_master_restart(faults[count - 1]):
        count -= 1
    failure, restarts = faults[count - 1], faults[count:]
    recovered_at = str(failure.get("recoveredAt") or "")
    if not restarts or (recovered_at and recovered_at < str(restarts[-1].get("detectedAt"))):
        return faults, []
    return faults[:count], [str(restart.get("firstCause")) for restart in restarts]


def _is_master_restart(fault: Json) -> bool:
    return fault.get("target") == MASTER and fault.get("level") not in (WAIT, "Fail") and not _open(fault)


def _open(fault: Json) -> bool:
    """Whether the job has not recovered from a fault."""
    return not fault.get("recoveredAt")


def _cause(fault: Json) -> tuple[str, str]:
    """Reason and words of a fault's first cause, without its rank."""
    words = str(fault.get("firstCause") or "").removeprefix(f"{_whose(fault)}: ")
    reason = words.partition(":")[0]
    # `reason` is that of the fault, which may have followed from a first cause of another reason.
    return (reason if reason in FAULTS else str(fault.get("reason") or ""), words)


def _remedy(fault: Json) -> Remedy:
    # PrimeMaster has no rank's log, but one of its own.
    if fault.get("target") == MASTER and fault.get("level") != WAIT:
        return VERDICTS[reasons.MASTER_BUDGET]
    reason, words = _cause(fault)
    if reason == "HeadLost" and "OOMKilled" in words:
        return HEAD_MEMORY
    # What ended the whole job or attempt, such as the end of its Ray, may be no failure of a rank.
    if reason in VERDICTS and (fault.get("level") == "Fail" or reason not in FAULTS):
        return VERDICTS[reason]
    return of_fault(reason, words, str(fault.get("rule") or ""))


def _whose(fault: Json) -> str:
    """The rank of the first cause, else the restarted target."""
    return str(fault.get("rank") or fault.get("target"))


def _kubernetes_nodes(status: Json, fault: Json) -> list[str]:
    """Return on which Kubernetes nodes the excluded pods of a failure are, as far as the operator tells it."""
    words = f"{fault.get('firstCause')} {fault.get('target')}"
    places = [(str(row.get("pod")), row.get("kubernetesNode")) for row in entries(nested(status, "nodes"), "excluded")]
    # A container that started again in its pod is another node of Ray's.
    return list(
        dict.fromkeys(f"pod {pod} is on Kubernetes node {node}" for pod, node in places if node and pod in words)
    )


def _cause_of(fault: Json, pod_places: Sequence[str], restarts: Sequence[str], *, ended_job: bool) -> list[str]:
    """Return the lines of the last failure, with its evidence and what followed from it."""
    rank, (_, cause) = _whose(fault), _cause(fault)
    incarnation_text = f", incarnation {fault['incarnation']}" if fault.get("incarnation") else ""
    at = f", at {fault['detectedAt']}" if fault.get("detectedAt") else ""
    recovery = "" if _open(fault) else f", recovered at {fault['recoveredAt']}"
    title = "first cause" if ended_job else "last failure"
    return [
        one_line(f"{title}: {rank}{incarnation_text}{at}{recovery}: {cause}", 2 * WIDTH),
        *(
            f"  evidence: {one_line(str(line), WIDTH)}"
            for line in _most([*_list(fault.get("evidence")), *pod_places], MOST_EVIDENCE)
        ),
        *(
            f"  after it: {one_line(str(line), WIDTH)}"
            for line in _most([*_list(fault.get("followed")), *restarts], MOST_FOLLOWED)
        ),
    ]


def _most(lines: object, most: int) -> list[str]:
    """The first lines, and how many more there are."""
    texts = [str(line) for line in _list(lines)]
    return texts if len(texts) <= most else [*texts[: most - 1], f"... {len(texts) - most + 1} more"]


def _done(status: Json, faults: Sequence[Json]) -> list[str]:
    last = faults[-1]
    level, target = last.get("level"), last.get("target")
    if level == "Fail":
        done = "the job ended"
    elif level == WAIT:
        spent = last.get("seconds")
        answers = f"it answers again, after {seconds(spent)}" if isinstance(spent, int | float) else "no answer yet"
        done = f"{target} is waited for; {answers}; nothing restarted for it"
    else:
        spent = last.get("seconds")
        took = f"recovered in {seconds(spent)}" if isinstance(spent, int | float) else "not yet recovered"
        done = f"{target} restarted at level {level}; {took}{lost_steps(last)}"
    return [f"done: {done}", *_restarts(status), *_earlier(faults[:-1])]


def _restarts(status: Json) -> list[str]:
    """Return the line with the number of restarts of each level; none without any."""
    counts = ", ".join(f"{n} {level_words(level)}" for level, n in nested(status, "restarts").items() if n)
    return [f"restarts: {counts}"] if counts else []


def _earlier(faults: Sequence[Json]) -> list[str]:
    return [
        one_line(f"earlier: {fault.get('detectedAt') or '-'} {_whose(fault)}: {_cause(fault)[1]}", WIDTH)
        for fault in faults[-MOST_EARLIER:]
    ]


def names_store(fault: Json) -> bool:
    """Whether a role's torch store or SubMaster failed, of which PrimeMaster's log knows: no rank did."""
    role = str(fault.get("rank") or "").rpartition("/")[0]
    return bool(role) and str(fault.get("firstCause")).startswith(f"{role}/store: ")


def _next(fault: Json, remedy: Remedy, name: str, flags: str) -> list[str]:
    role, _, number = str(fault.get("rank") or "").rpartition("/")
    if role and os.sep in name:
        logs = f"the log of {fault['rank']} is in {Path(shlex.split(name)[0]) / 'logs'}"
    elif (fault.get("target") == MASTER or names_store(fault)) and os.sep not in name:
        logs = f"dljob logs {name} --master{flags}"
    elif role:
        logs = f"dljob logs {name} --role {role} --rank {number}{flags}"
    else:
        logs = f"dljob events {name}{flags}"
    return [f"next: {remedy.advice}", f"      {logs}"]
