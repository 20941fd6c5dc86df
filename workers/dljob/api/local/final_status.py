"""The final status of a job that ended with its Ray or with its runner, before PrimeMaster could write one."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dljob.api.registry import RegistryEntry
from dljob.runtime.backend.ray_processes import keep_logs
from dljob.runtime.journal.event_file import last_events
from dljob.runtime.journal.timeline import EVENTS, STATUS, last_seq, write_atomically
from dljob.runtime.process import evidence
from dljob.spec.status import TERMINAL
from dljob.telemetry import reasons
from dljob.telemetry.process_ends import ProcessEnd, describe_end
from dljob.telemetry.wording import moment, unix

EVENTS_AT_END = 16
"""Events among which that of a job's end is: only few follow it, as of a problem that is over."""
_PHASES = {reasons.COMPLETED: "Succeeded", reasons.STOPPED: "Stopped"}
_ENDED = ("Succeeded", "Failed", "Stopped")
"""Phases of a rank whose process has ended."""


@dataclass(frozen=True, slots=True)
class AbruptEnd:
    """How a job ended that PrimeMaster could not end."""

    phase: str
    reason: str
    message: str
    evidence: Sequence[str] = ()
    at: float | None = None
    """Unix seconds; None: nobody saw it."""
    is_failure: bool = True
    """Whether it is the first cause of a failure, and no order of a user."""


def ray_end(end: ProcessEnd, ray_folder: Path, job_folder: Path, now: float) -> AbruptEnd:
    """Return the end of a job whose Ray has ended, and keep the logs of that Ray."""
    logs = keep_logs(ray_folder, job_folder)
    clues = [clue.text for clue in evidence.of_the_dead(end.pid)]
    reason = "OOMKilled" if clues else reasons.RAY_LOST
    log_clues = [f"the ends of the logs of its Ray are in {logs}"] if logs else []
    return AbruptEnd("Failed", reason, describe_end(end), (*clues, *log_clues), now)


def lost_end(record: RegistryEntry) -> AbruptEnd:
    """Return the end of a job whose runner is gone without a final status: that of its events, where they have one."""
    if end := recorded_end(record):
        return end
    reason, message = record.why_lost()
    return AbruptEnd("Lost", reason, f"{message}{_damage_remark(record)}")


def _damage_remark(record: RegistryEntry) -> str:
    damage = record.status_damage
    return f"; its {STATUS} cannot be read: {damage}" if damage else ""


def recorded_end(record: RegistryEntry) -> AbruptEnd | None:
    """Return the end of a job by its events; None where they have none."""
    events = [event for event in last_events(record.folder / EVENTS, EVENTS_AT_END) if event.get("target") == "job"]
    verdicts = [event for event in events if event.get("reason") not in (reasons.RELEASED, reasons.PROBLEM_OVER)]
    if verdicts:
        reason, message, at = (verdicts[-1].get(key) for key in ("reason", "message", "time"))
        has_failed = reason in (reasons.RAY_LOST, reasons.RUNNER_FAILED) or events[-1].get("reason") == reasons.RELEASED
        if phase := _PHASES.get(str(reason), "Failed" if has_failed else ""):
            time_of_end = at if isinstance(at, float) else None
            message = f"{message}{_damage_remark(record)}"
            return AbruptEnd(phase, str(reason), message, (), time_of_end, phase == "Failed")
    return None


def with_end(status: Mapping[str, Any], end: AbruptEnd) -> dict[str, Any]:
    """Return the last written status as it is after the job's end. Pure."""
    began, time_of_end = unix(status.get("startTime")), None if end.at is None else moment(end.at)
    faults: list[Any] = list(status.get("recentFaults") or ())
    if end.is_failure:
        fault = {"level": "Fail", "reason": end.reason, "target": "job", "evidence": list(end.evidence), "followed": []}
        faults.append({**fault, "firstCause": f"{end.reason}: {end.message}", "detectedAt": time_of_end})
    ranks = [
        rank if rank["phase"] in _ENDED else {**rank, "phase": "Stopped", "pid": 0} for rank in _rows(status, "ranks")
    ]
    return {
        **status,
        "phase": end.phase,
        "reason": end.reason,
        "message": end.message,
        "completionTime": time_of_end,
        "seconds": status.get("seconds") if began is None or end.at is None else round(end.at - began, 3),
        "version": int(status.get("version") or 0) + 1,
        "roles": [{**role, "ready": 0, "running": 0} for role in _rows(status, "roles")],
        "ranks": ranks,
        **({"recentFaults": faults, "lastFault": faults[-1]} if faults else {}),
    }


def _rows(status: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    return list(status.get(key) or ())


def write_end(record: RegistryEntry, end: AbruptEnd, last_status: Mapping[str, Any] | None = None) -> None:
    """Write the final status and its event to the folder of a job of which no process is left.

    A job that has ended already keeps its own end. A folder that takes no files does not stop the runner.

    `last_status`: what PrimeMaster answered last; it may have ended the job, and found no room for its status.
    """
    if record.over:
        return
    if last_status and last_status.get("phase") in TERMINAL:
        with suppress(OSError):
            write_atomically(record.folder / STATUS, json.dumps(last_status, ensure_ascii=False, indent=1))
        return
    status = with_end({"name": record.name, "uid": record.uid, **record.status()}, end)
    at = time.time() if end.at is None else end.at
    with suppress(OSError):
        write_atomically(record.folder / STATUS, json.dumps(status, ensure_ascii=False, indent=1))
        seq = last_seq(record.folder / EVENTS) + 1
        event = {"seq": seq, "time": round(at, 3), "reason": end.reason, "target": "job", "message": end.message}
        with (record.folder / EVENTS).open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(event, ensure_ascii=False)}\n")
