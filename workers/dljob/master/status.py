"""What a state looks like from outside: the status snapshot, and who is who for peers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

from dljob.master.state import Fault, HostPhase, JobState, Phase, RankPhase
from dljob.master.views import Level

Progress: TypeAlias = Mapping[tuple[str, int], tuple[int, Mapping[str, float]]]
"""(role, rank) -> (last step, its metrics), as the beacons told."""

_LEVELS = {
    Level.PROCESS: "process",
    Level.ROLE_GROUP: "role_group",
    Level.ROLE: "role",
    Level.JOB: "job",
    Level.MASTER: "master",
}


@dataclass(frozen=True, slots=True)
class PeerView:
    """A rank as its peers address it. `actor` is empty while it has no process; `gone` says why it will not be back."""

    role: str
    rank: int
    incarnation: int
    actor: str
    ready: bool
    gone: str = ""


def peers(state: JobState, role: str) -> tuple[PeerView, ...]:
    """All ranks of a role, by rank; empty when there is no such role. The state's `version` is the table's."""
    facts = state.job.roles.get(role)
    return () if facts is None else tuple(peer(state, role, rank) for rank in range(facts.plan.replicas))


def peer(state: JobState, role: str, rank: int) -> PeerView:
    """One rank of a role that exists."""
    own = state.ranks[role, rank]
    host = state.hosts[state.job.roles[role].host_of(rank)]
    ready = own.phase is RankPhase.READY
    # A rank that returned can still be called as long as its host lives: a class that only serves has no run().
    served = own.phase is RankPhase.SUCCEEDED and host.phase is HostPhase.READY
    actor = host.actor if own.phase.live or served else ""
    return PeerView(role, rank, own.incarnation, actor, ready or served, _gone(state, own.phase, served=served))


def _gone(state: JobState, phase: RankPhase, *, served: bool) -> str:
    if state.verdict is not None:
        return f"the job is ending: {state.verdict.reason}"
    if phase is RankPhase.FAILED:
        return "it failed, and a rule says to leave it so"
    if phase is RankPhase.SUCCEEDED and not served:
        return "it ended"
    return ""


def status(state: JobState, now: float, progress: Progress) -> dict[str, Any]:
    """The snapshot that `dljob status` shows, JSON-able. `now` in unix seconds."""
    verdict = state.verdict
    return {
        "name": state.job.plan.name,
        "uid": state.job.uid,
        "phase": state.phase.value,
        "reason": verdict.reason if verdict else _reason(state),
        "message": verdict.message if verdict else _message(state),
        "startTime": _time(state.started_at),
        "completionTime": _time(state.ended_at),
        "seconds": round((now if state.ended_at is None else state.ended_at) - state.started_at, 3),
        "epoch": state.epoch,
        "version": state.version,
        "roles": [_role(state, name) for name in state.job.roles],
        "ranks": [_rank(state, key, progress) for key in _keys(state)],
        "restarts": {name: state.restarts.get(level.value, 0) for level, name in _LEVELS.items()},
        "lastFault": _fault(state.faults[-1]) if state.faults else None,
        "recentFaults": [_fault(fault) for fault in state.faults],
        "progress": _progress(state, progress),
        "units": [
            {"name": name, "node": state.units[name].node, "phase": state.units[name].phase.value}
            for name in state.job.plan.units
        ],
        "result": state.result,
    }


def _keys(state: JobState) -> list[tuple[str, int]]:
    return [(name, rank) for name, facts in state.job.roles.items() for rank in range(facts.plan.replicas)]


def _reason(state: JobState) -> str:
    """Why the job is where it is, while it goes on."""
    if state.incidents:
        return "Restarting"
    return "NoRoom" if state.search.why else state.phase.value


def _message(state: JobState) -> str:
    if state.search.why:
        return state.search.why
    if state.incidents:
        return "; ".join(
            f"{i.target}: {i.reason}, level {i.level.value}" for _, i in sorted(state.incidents.items())[:3]
        )
    if state.phase in (Phase.PENDING, Phase.SCHEDULING):
        ready = sum(role.ready + role.succeeded for role in state.roles.values())
        return f"{state.held} of {state.job.unit_count} units held, {ready} of {len(state.ranks)} ranks ready"
    return ""


def _role(state: JobState, name: str) -> dict[str, Any]:
    own = state.roles[name]
    return {
        "name": name,
        "desired": state.job.roles[name].plan.replicas,
        "ready": own.ready,
        "running": own.starting + own.ready + own.stopping,
        "succeeded": own.succeeded,
        "failed": own.failed,
        "restarts": own.restarts,
    }


def _rank(state: JobState, key: tuple[str, int], progress: Progress) -> dict[str, Any]:
    own = state.ranks[key]
    facts = state.job.roles[key[0]]
    host = state.hosts[facts.host_of(key[1])]
    return {
        "role": key[0],
        "rank": key[1],
        "phase": own.phase.value,
        "incarnation": own.incarnation,
        "node": host.node or state.units[facts.unit_of(facts.host_of(key[1]))].node,
        "pid": own.pid,
        "actor": host.actor,
        "step": progress[key][0] if key in progress else None,
        "log": host.log,
    }


def _fault(fault: Fault) -> dict[str, Any]:
    recovered = fault.recovered
    return {
        "level": fault.level,
        "reason": fault.reason,
        "target": fault.target,
        "firstCause": fault.cause,
        "detectedAt": _time(fault.detected),
        "recoveredAt": _time(recovered),
        "seconds": None if recovered is None else round(recovered - fault.detected, 3),
    }


def _progress(state: JobState, progress: Progress) -> dict[str, Any]:
    """The first driver role's last step, and the metrics that came with it."""
    driver = state.job.drivers[0]
    steps = [(progress[driver, rank], rank) for rank in range(state.job.roles[driver].plan.replicas)
             if (driver, rank) in progress]  # fmt: skip
    if not steps:
        return {"step": None, "metrics": {}}
    (step, metrics), _ = max(steps, key=lambda item: (item[0][0], -item[1]))
    return {"step": step, "metrics": dict(metrics)}


def _time(at: float | None) -> str | None:
    """RFC 3339, in UTC, to the millisecond."""
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
