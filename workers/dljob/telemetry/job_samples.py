"""Prometheus samples of a job, which the gateway computes from PrimeMaster's snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dljob.telemetry.exposition import Sample, sample

ACCOUNTS = (
    *("queue", "schedule", "init", "productive", "detect", "decide", "replace", "rendezvous", "recompute"),
    *("stalled", "stale", "wait", "idle", "spare"),
)
"""Accounts of the ledger, in its order."""
MASTER_PHASES = (
    *("Pending", "Scheduling", "Running", "Recovering", "Stopping"),
    *("Succeeded", "Failed", "Stopped", "Suspended"),
)
"""Phases of PrimeMaster, in their order."""


def samples(snapshot: Mapping[str, Any], namespace: str, ray_version: str = "") -> Iterator[Sample]:
    """Yield a job's samples from PrimeMaster's snapshot (`master.status.status`, or the gateway's brief form of it)."""
    of = (namespace, str(snapshot["name"]))
    yield sample("dljob_info", (*of, str(snapshot["uid"]), ray_version), 1)
    for phase in MASTER_PHASES:
        yield sample("dljob_phase", (*of, phase), snapshot["phase"] == phase)
    for role in snapshot["roles"]:
        yield from _role(of, role)
    for level, count in snapshot["restarts"].items():
        yield sample("dljob_restarts_total", (*of, _level(level)), count)
    for level, seconds in _recoveries(snapshot["recentFaults"]).items():
        yield sample("dljob_last_recovery_seconds", (*of, level), seconds)
    for role in snapshot["ledger"]["roles"]:
        yield from _accounts(of, role)
    if (step := snapshot["progress"]["step"]) is not None:
        yield sample("dljob_step", of, step)
    for name in snapshot["progress"].get("declared", ()):
        if (value := snapshot["progress"]["metrics"].get(name)) is not None:
            yield sample("dljob_progress", (*of, str(name)), value)
    for state, count in _units(snapshot).items():
        yield sample("dljob_units", (*of, state), count)
    yield sample("dljob_stalls", of, len(snapshot.get("stalls", ())))
    yield sample("dljob_master_epoch", of, snapshot["epoch"])
    yield sample("dljob_running_seconds", of, snapshot["seconds"])


def _role(of: tuple[str, str], role: Mapping[str, Any]) -> Iterator[Sample]:
    """Yield the numbers of a role's ranks by state, and the age of the events that its weights have learned from."""
    ended = role["succeeded"] + role["failed"]
    states = {
        "waiting": role["desired"] - role["running"] - ended,
        "changing": role["running"] - role["ready"],
        "ready": role["ready"],
        "succeeded": role["succeeded"],
        "failed": role["failed"],
    }
    for state, count in states.items():
        yield sample("dljob_workers", (*of, str(role["name"]), state), count)
    if (lag := role.get("servedLagSeconds")) is not None:
        yield sample("dljob_served_lag_seconds", (*of, str(role["name"])), lag)


def _accounts(of: tuple[str, str], role: Mapping[str, Any]) -> Iterator[Sample]:
    """Yield all accounts of a role, empty ones too."""
    # With `owed`: time that is re-booked to another account would make this counter fall.
    holds, owed = role["accounts"], role.get("owed", {})
    for account in ACCOUNTS:
        value = round(holds.get(account, 0.0) + owed.get(account, 0.0), 6)
        yield sample("dljob_role_seconds_total", (*of, str(role["name"]), account), value)


def _recoveries(faults: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return level -> seconds of its last recovered fault; faults come oldest first."""
    return {_level(fault["level"]): fault["seconds"] for fault in faults if fault["seconds"] is not None}


def _level(word: str) -> str:
    """Convert a level of the snapshot's counts (role_group) to the spelling of the spec (RoleGroup)."""
    return "".join(part[:1].upper() + part[1:] for part in word.split("_"))


def _units(snapshot: Mapping[str, Any]) -> dict[str, int]:
    """Return the numbers of ready and pending units: the brief snapshot counts them, the full one lists them."""
    if "placement" in snapshot:
        return {state: snapshot["placement"][state] for state in ("ready", "pending")}
    held_count = sum(unit["phase"] == "Held" for unit in snapshot["units"])
    return {"ready": held_count, "pending": len(snapshot["units"]) - held_count}
