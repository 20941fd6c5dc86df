"""Views of a state for users and peers: the status snapshot, its short form, the placement, and the peers of a role.

A snapshot of 10,000 ranks is slow to make and slower to send, so frequent readers get `brief`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, TypeAlias
from zlib import crc32

from dljob.errors import ErrorOrigin
from dljob.master.failure.attribution import root_fault_of
from dljob.master.ledger import view
from dljob.master.placement.previous_attempt import carry
from dljob.master.start import checkpoints, weights
from dljob.master.state import memory_overrides
from dljob.master.state.causes import evidence
from dljob.master.state.cuts import Cuts
from dljob.master.state.faults import FaultRecord
from dljob.master.state.node_names import node_targets
from dljob.master.state.problems import PASSED, SLOWNESS, StandingProblem
from dljob.master.state.staleness import no_requests_reason
from dljob.master.state.stalls import Stall, describe, describe_since
from dljob.master.state.state import HostPhase, JobState, Phase, RankKey, RankPhase, UnitPhase
from dljob.master.state.views import Level, Reason
from dljob.plan.elastic import machines
from dljob.spec.quantity import show_memory
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted

Progress: TypeAlias = Mapping[tuple[str, int], tuple[int, Mapping[str, float]]]
"""(role, rank) -> (last step, its metrics), from the heartbeats."""

_Waiting: TypeAlias = tuple[str, str, UnitPhase]
"""(name, node, phase) of a unit that is not held."""

EXCLUDED = 50
"""Number of excluded nodes that a snapshot names, the newest ones: it must stay small at any size."""
SHOWN = 20
"""Number of units without a reservation that a brief snapshot names; of addresses of one role in a whole one."""
STALLS = 10
"""Number of stalls that a snapshot names, the oldest ones."""
SHOWN_BRIEFLY = 8
"""Addresses of a role in the brief form, which becomes the status of a DLJob."""

_WAITS = {
    UnitPhase.UNPLACED: "it has no node yet",
    UnitPhase.RESERVING: "its reservation is under way",
    UnitPhase.LOST: "it lost its node; it moves when another one has room",
}
_LEVELS = {
    Level.IN_PROCESS: "inProcess",
    Level.PROCESS: "process",
    Level.ROLE_GROUP: "roleGroup",
    Level.ROLE: "role",
    Level.JOB: "job",
    Level.NODE: "node",
    Level.MASTER: "master",
}


@dataclass(frozen=True, slots=True)
class PeerView:
    """A rank as its peers address it. `actor` is empty without a process; `gone_reason` says why none will follow."""

    role: str
    rank: int
    incarnation: int
    actor: str
    ready: bool
    gone_reason: str = ""


def peers(state: JobState, role: str) -> tuple[PeerView, ...]:
    """Return all ranks of a role, by rank; empty when there is no such role. Their version is the state's `version`."""
    facts = state.job.roles.get(role)
    return () if facts is None else tuple(peer(state, role, rank) for rank in facts.ranks)


def numbers(state: JobState, role: str) -> tuple[int, ...]:
    """Return the numbers of the ranks that others may call; empty where they are 0 to n-1."""
    sizing, ranks = state.sizes[role], state.job.roles[role].ranks
    has_left = bool(sizing.leaving or sizing.left_groups)
    present = tuple(rank for rank in ranks if rank not in sizing.leaving) if has_left else ()
    return present if present and present[-1] >= len(present) else ()


def sizes_of(state: JobState) -> tuple[tuple[str, int], ...]:
    """Return (role, number of ranks) for the roles whose number of ranks may change."""
    return tuple((role, sizing.staying) for role, sizing in sorted(state.sizes.items()))


def numbers_of(state: JobState) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return (role, numbers of its ranks) for these roles; empty where they are 0 to n-1."""
    return tuple((role, numbers(state, role)) for role in sorted(state.sizes))


def peer(state: JobState, role: str, rank: int) -> PeerView:
    """Return one rank of a role that exists."""
    rank_state = state.ranks[role, rank]
    serves = serves_after_end(state, role, rank)
    # Any other rank that returned was shut down, so it cannot be called even if its host lives.
    actor = state.hosts[state.job.roles[role].host_of(rank)].actor if rank_state.phase.live or serves else ""
    phase = RankPhase.READY if serves else rank_state.phase
    gone_reason = _why_ended(state, phase) or _why_gone(state, role, rank)
    return PeerView(role, rank, rank_state.incarnation, actor, phase is RankPhase.READY, gone_reason)


def serves_after_end(state: JobState, role: str, rank: int) -> bool:
    """Return whether a rank whose user code has ended well still serves calls: its process is there."""
    rank_state = state.ranks[role, rank]
    if rank_state.phase is not RankPhase.SUCCEEDED or not rank_state.serves_after_end:
        return False
    return state.hosts[state.job.roles[role].host_of(rank)].phase is HostPhase.READY


def endpoints(state: JobState) -> dict[str, list[dict[str, Any]]]:
    """Return role -> its ranks that get requests, for each role with ports, as JSON-able data."""
    ranks_by_role: dict[str, list[dict[str, Any]]] = {}
    for role, facts in state.job.roles.items():
        if facts.plan.ports:
            ranks = ((rank, state.ranks[role, rank]) for rank in facts.ranks if is_endpoint(state, (role, rank)))
            ranks_by_role[role] = [
                {"rank": rank, "incarnation": rank_state.incarnation, "addresses": dict(rank_state.addresses)}
                for rank, rank_state in ranks
            ]
    return ranks_by_role


def is_endpoint(state: JobState, key: RankKey) -> bool:
    """Return whether a rank of a role with ports gets requests: by its probe, its weights, and while the job runs."""
    rank_state = state.ranks[key]
    return (
        rank_state.phase is RankPhase.READY
        and rank_state.serving
        and state.verdict is None
        and not no_requests_reason(state, key)
    )


def service_marks(state: JobState) -> dict[str, int]:
    """Return role -> a number that changes with its endpoints, for each role with a Service."""
    if not any(facts.plan.service for facts in state.job.roles.values()):
        return {}
    endpoints_by_role = endpoints(state)
    return {
        role: crc32(json.dumps(endpoints_by_role[role], sort_keys=True).encode())
        for role, facts in state.job.roles.items()
        if facts.plan.service
    }


def _servers(state: JobState, most: int) -> list[dict[str, Any]]:
    """Return each role with ports: how many of its ranks get requests, and the addresses of the first `most`."""
    return [
        {
            "role": role,
            "ready": len(rows),
            "desired": state.job.roles[role].plan.replicas,
            "addresses": [row["addresses"] for row in rows[:most]],
        }
        for role, rows in endpoints(state).items()
    ]


def _why_ended(state: JobState, phase: RankPhase) -> str:
    """Return why a rank in this phase gets no further process; empty: it may."""
    if state.verdict is not None:
        return f"the job is ending: {state.verdict.reason}"
    if phase is RankPhase.FAILED:
        return "it failed, and a rule says to leave it so"
    if phase is RankPhase.SUCCEEDED:
        return "it ended"
    return ""


def _why_gone(state: JobState, role: str, rank: int) -> str:
    """Return why a rank number is no more, or soon: its role has fewer ranks."""
    sizing = state.sizes.get(role)
    if sizing is None or (rank not in sizing.leaving and state.ranks[role, rank].phase is not RankPhase.ABSENT):
        return ""
    return f"it is gone: {role} has {counted(sizing.staying, 'rank')} now"


def status(state: JobState, now: float, progress: Progress) -> dict[str, Any]:
    """Return the snapshot behind `dljob status`, as JSON-able data. `now` in unix seconds."""
    names, failed_ranks = _node_names(state), _failed_ranks(state)
    servers = _servers(state, SHOWN)
    return {
        **_overview(state, now, progress),
        **({"endpoints": servers} if servers else {}),
        "ranks": [
            {**_rank(state, key, progress, names), **({"phase": RankPhase.FAILED.value} if key in failed_ranks else {})}
            for key in _keys(state)
        ],
        "units": [
            {
                "name": name,
                **_node_of(state.units[name].node, names),
                "phase": state.units[name].phase.value,
                **_memory_overrides(state, name),
            }
            for name in state.job.plan.units
        ],
    }


def _node_names(state: JobState) -> dict[str, str]:
    """Return Ray's id -> the name by which users know the node, where it has another one."""
    return {node.id: name for node in state.nodes if (name := node.name) != node.id}


def _node_of(node: str, names: Mapping[str, str]) -> dict[str, str]:
    return {"node": node, **({"nodeName": names[node]} if node in names else {})}


def _memory_overrides(state: JobState, unit: str) -> dict[str, Any]:
    """Return the memory per rank, by role, of a unit that has more than the spec says."""
    overrides = memory_overrides.overrides_of_unit(state.memory_overrides, unit)
    return {"memory": {role: show_memory(amount) for role, amount in overrides}} if overrides else {}


def brief(state: JobState, now: float, progress: Progress) -> dict[str, Any]:
    """Return the snapshot with counts in place of units and without ranks: small, and quick to make at any size."""
    overview = _overview(state, now, progress)
    count = state.job.unit_count
    waiting: list[_Waiting] = []
    # Usually all units are held, and no unit needs to be looked at.
    if state.held_unit_count < count:
        units = ((name, state.units[name]) for name in state.job.plan.units)
        open_units = (pair for pair in units if pair[1].phase is not UnitPhase.HELD)
        shown = list(islice(open_units, SHOWN))
        targets = node_targets((unit.node for _, unit in shown), state.nodes, state.exclusions)
        waiting = [(name, targets[unit.node].partition("/")[2], unit.phase) for name, unit in shown]
    servers = _servers(state, SHOWN_BRIEFLY)
    server_part = {"endpoints": servers} if servers else {}
    return {**overview, **server_part, "placement": _counts(overview, count, state.held_unit_count, waiting)}


def brief_of(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """Return the brief form of a whole snapshot, as `brief` would have made it at that time."""
    short = {key: value for key, value in snapshot.items() if key not in ("ranks", "units")}
    if "endpoints" in short:
        short["endpoints"] = [{**role, "addresses": role["addresses"][:SHOWN_BRIEFLY]} for role in short["endpoints"]]
    units = snapshot["units"]
    waiting = [
        (u["name"], u.get("nodeName", u["node"]), UnitPhase(u["phase"])) for u in units if u["phase"] != UnitPhase.HELD
    ]
    return {**short, "placement": _counts(snapshot, len(units), len(units) - len(waiting), waiting[:SHOWN])}


def _counts(overview: Mapping[str, Any], count: int, held_count: int, waiting: Iterable[_Waiting]) -> dict[str, Any]:
    """Return the counts of held and pending units, and the first pending ones with the reason."""
    no_room = overview["message"] if overview["reason"] in (reasons.NO_ROOM, reasons.NEVER_FITS) else ""
    rows = [
        {"name": name, "node": node, "why": (phase is UnitPhase.UNPLACED and no_room) or _WAITS[phase]}
        for name, node, phase in waiting
    ]
    return {"units": count, "ready": held_count, "pending": count - held_count, "notReady": rows}


def placement(state: JobState) -> dict[str, Any]:
    """Return the held units by node: {"version", "nodes": [{"node", "units", "roles", "ranks"}]}.

    `ranks` is written as in "actor/0-7,critic/3".
    """
    nodes: dict[str, tuple[list[str], dict[str, list[list[int]]]]] = {}
    for series in state.job.plan.units.series:
        for k in series.numbers():
            unit = state.units[f"{series.name}/{k}"]
            if unit.phase is UnitPhase.HELD:
                names, ranks = nodes.setdefault(unit.node, ([], {}))
                names.append(f"{series.name}/{k}")
                for member in series.members:
                    if k < member.groups:
                        _extend(ranks.setdefault(member.role, []), k * member.group_size, member.group_size)
    return {"version": state.version, "nodes": [_node(node, *nodes[node]) for node in sorted(nodes)]}


def _extend(spans: list[list[int]], first: int, count: int) -> None:
    """Add `count` ranks from `first` on to ascending spans [first, end), extending the last one where they touch it."""
    if spans and spans[-1][1] == first:
        spans[-1][1] = first + count
    else:
        spans.append([first, first + count])


def _node(node: str, units: list[str], ranks: Mapping[str, list[list[int]]]) -> dict[str, Any]:
    rank_ranges = [
        f"{role}/{first}" if end == first + 1 else f"{role}/{first}-{end - 1}"
        for role in sorted(ranks)
        for first, end in ranks[role]
    ]
    return {"node": node, "units": units, "roles": sorted(ranks), "ranks": ",".join(rank_ranges)}


def _overview(state: JobState, now: float, progress: Progress) -> dict[str, Any]:
    """Return the fields that `status` and `brief` share: all but ranks and units."""
    verdict, failed_ranks = state.verdict, _failed_ranks(state)
    # A job that ended well was fast enough.
    well = verdict is not None and verdict.ok
    problems = [
        problem for problem in state.problems if not (well and problem.reason in {*SLOWNESS, reasons.STRAGGLER})
    ]
    return {
        "name": state.job.plan.name,
        "uid": state.job.uid,
        "phase": state.phase.value,
        "reason": verdict.reason if verdict else _reason(state),
        "message": verdict.message if verdict else _message(state),
        "startTime": rfc3339(state.started_at),
        "completionTime": rfc3339(state.ended_at),
        "seconds": round((now if state.ended_at is None else state.ended_at) - state.started_at, 3),
        "epoch": state.epoch,
        "version": state.version,
        "roles": [_role(state, name, failed_ranks) for name in state.job.roles],
        "restarts": {name: state.restarts.get(level.value, 0) for level, name in _LEVELS.items()},
        "nodes": nodes(state),
        "lastFault": _fault(state, state.faults[-1]) if state.faults else None,
        "recentFaults": [_fault(state, fault) for fault in state.faults],
        **_problems(problems),
        "progress": {
            **_progress(state, progress),
            "goodputPermille": view.permille(state, now),
            **_saved(state),
        },
        "ledger": view.shown(state, now),
        "carry": carry(state),
        "result": state.result,
        **({"stalls": [_stall(stall, now) for stall in state.stalls[:STALLS]]} if state.stalls else {}),
        **_cuts(state.cuts),
        **({"services": marks} if (marks := service_marks(state)) else {}),
    }


def _stall(stall: Stall, now: float) -> dict[str, Any]:
    """Return a stall for users: its sentence as of now, and the first of its ranks."""
    return {
        "name": stall.name,
        "sentence": describe(stall, now),
        "words": describe_since(stall),
        "since": rfc3339(stall.since),
        "seconds": round(max(now - stall.since, 0.0), 3),
        "root": stall.root or None,
        "rootState": stall.root_state.value,
        "hung": stall.hung,
        "ranks": [f"{role}/{rank}" for role, rank in stall.ranks[:SHOWN]],
        "rankCount": len(stall.ranks),
    }


def _keys(state: JobState) -> list[tuple[str, int]]:
    return [(name, rank) for name, facts in state.job.roles.items() for rank in facts.ranks]


def _reason(state: JobState) -> str:
    """Return the reason of the present phase, while there is no verdict."""
    if state.incidents:
        return "Restarting"
    if state.stalls:
        return reasons.STALL_FOUND
    if state.search.no_room_reason:
        return reasons.NEVER_FITS if state.search.never else reasons.NO_ROOM
    if state.groups:
        return reasons.PLACEMENT_PENDING
    problems = _standing(state) if state.phase is Phase.RUNNING else ()
    return problems[0].reason if problems else state.phase.value


def _message(state: JobState) -> str:
    """Return the sentence for the present phase: what the job waits for or restarts; empty while all is well."""
    if state.search.no_room_reason:
        return state.search.no_room_reason + _least(state)
    if state.incidents:
        first = (row for _, row in sorted(state.incidents.items())[:3])
        return "; ".join(f"{row.target}: {row.reason}, level {row.level.value}" for row in first)
    if state.stalls:
        # Without a growing number: this becomes the status of a DLJob, which is written when it changes.
        return "; ".join(describe_since(stall) for stall in state.stalls[:3])
    if state.groups:
        return "; ".join(reason for _, (_, reason) in sorted(state.groups.items())[:3])
    if state.phase is Phase.RUNNING and (problems := _standing(state)):
        others = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        return "; ".join(problem.description for problem in problems[:3]) + others
    if state.phase in (Phase.PENDING, Phase.SCHEDULING):
        ready = sum(role.ready_count + role.succeeded_count for role in state.roles.values())
        ranks = sum(role.plan.replicas for role in state.job.roles.values())
        return f"{state.held_unit_count} of {state.job.unit_count} units held, {ready} of {ranks} ranks ready"
    lacking = [(role, row) for role, row in sorted(state.sizes.items()) if row.want > row.size and not row.target]
    if state.phase is Phase.RUNNING and lacking:
        return "; ".join(f"{role} has {row.size} of {row.want} wanted ranks: no room for more" for role, row in lacking)
    return ""


def _standing(state: JobState) -> tuple[StandingProblem, ...]:
    return tuple(problem for problem in state.problems if problem.reason not in PASSED)


def _least(state: JobState) -> str:
    """Return the least number of ranks of elastic roles that wait for room, so that users see what would suffice."""
    waiting = sorted(role for role, plan in state.sizes.items() if plan.shrink_at is not None)
    plans = {role: state.job.roles[role].plan for role in waiting}
    return "".join(
        f"; {role} goes on with at least {plan.min_replicas} of {plan.replicas} ranks" for role, plan in plans.items()
    )


def _failed_ranks(state: JobState) -> set[RankKey]:
    """Return the ranks that failed and have no further process, as the job has ended; its faults name them."""
    verdict = state.verdict
    if verdict is None or verdict.ok or verdict.suspends:
        return set()
    ends = {(end.rank, end.incarnation) for fault in state.faults for end in (fault, *fault.consequences)}
    waiting = (item for item in state.ranks.items() if item[1].phase is RankPhase.WAITING)
    return {(role, rank) for (role, rank), rank_state in waiting if (f"{role}/{rank}", rank_state.incarnation) in ends}


def _role(state: JobState, name: str, failed_ranks: Set[RankKey]) -> dict[str, Any]:
    """Return a role in the snapshot: counts of its ranks by phase."""
    role_state = state.roles[name]
    well = state.verdict is not None and state.verdict.ok  # ranks that serve have no other end than the job's
    return {
        "name": name,
        "desired": state.job.roles[name].plan.replicas,
        "ready": role_state.ready_count,
        "running": role_state.starting_count + role_state.ready_count + role_state.stopping_count,
        "succeeded": role_state.succeeded_count + role_state.stopped_count * well,
        "failed": role_state.failed_count + sum(role == name for role, _ in failed_ranks),
        "restarts": role_state.restarts,
        **({"wanted": state.sizes[name].want} if name in state.sizes else {}),
        **({"servedLagSeconds": role_state.served_lag_s} if role_state.served_lag_s is not None else {}),
    }


def _rank(state: JobState, key: tuple[str, int], progress: Progress, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the entry of a rank, (role, index), in the snapshot; `names`: node id -> name for users."""
    rank_state = state.ranks[key]
    facts = state.job.roles[key[0]]
    host = state.hosts[facts.host_of(key[1])]
    # Before its host answers, the node of a rank is that of its unit.
    node = host.node or state.units[facts.unit_of(facts.host_of(key[1]))].node
    return {
        "role": key[0],
        "rank": key[1],
        "phase": rank_state.phase.value,
        "incarnation": rank_state.incarnation,
        **_node_of(node, names),
        "pid": rank_state.pid,
        "actor": host.actor,
        "step": progress[key][0] if key in progress else None,
        **({"serves": is_endpoint(state, key)} if facts.plan.ports else {}),
        **weights.status_of_weights(state, key),
    }


def nodes(state: JobState) -> dict[str, Any]:
    """Return the job's nodes: how many are wanted, ready for units, and replaced; which are excluded, and why."""
    # Nodes that are announced to go count as excluded: nothing is placed there either.
    barred = {*state.exclusions, *state.departures}
    ready = sum(not node.head and node.id not in barred for node in state.nodes)
    machines_by_group = wanted_machines(state)
    planned = sum(machines_by_group.values())
    out = [
        (exclusion.since, name, exclusion.reason, exclusion.until, exclusion.check)
        for name, exclusion in state.exclusions.items()
    ]
    reason = Reason.PREEMPTED.value
    out += [
        (departure.since, name, reason, departure.gone_at, departure.announcement)
        for name, departure in state.departures.items()
    ]
    return {
        # A RayCluster that is not the job's own has as many nodes as it has: there is nothing to want of it.
        "desired": planned if state.job.spec.ray_cluster_ref is None else ready,
        "ready": ready,
        "replaced": state.replaced,
        **({"wanted": machines_by_group} if state.sizes and state.job.spec.ray_cluster_ref is None else {}),
        "excluded": [
            {
                "name": name,
                "reason": reason,
                "since": rfc3339(since),
                "until": rfc3339(until),
                **({"why": exclusion_reason} if exclusion_reason else {}),
            }
            for since, name, reason, until, exclusion_reason in sorted(out)[-EXCLUDED:]
        ],
    }


def wanted_machines(state: JobState) -> dict[str, int]:
    """Return node group -> the number of its machines that the job wants, by the wanted sizes of elastic roles."""
    first = {role.name: role.replicas for role in state.job.spec.roles}
    return machines(state.job.plan, first, {role: _wanted_ranks(state, role) for role in state.sizes})


def _wanted_ranks(state: JobState, role: str) -> int:
    """Return the wanted number of ranks of an elastic role; a role that completed with fewer needs no more."""
    role_state, plan = state.roles[role], state.job.roles[role].plan
    sizing = state.sizes[role]
    return sizing.size if role_state.succeeded_count + role_state.failed_count == plan.replicas else sizing.want


def _problems(problems: Sequence[StandingProblem]) -> dict[str, Any]:
    """Return the first problems for users, and how many there are; nothing if there is none."""
    rows = [
        {
            "reason": problem.reason,
            "target": problem.target,
            "message": problem.description,
            "since": rfc3339(problem.since),
            "count": problem.count,
        }
        for problem in problems[:SHOWN]
    ]
    return {"problems": rows, "problemCount": len(problems)} if problems else {}


def _fault(state: JobState, fault: FaultRecord) -> dict[str, Any]:
    """Return a fault for users, under its first cause: what failed first, the evidence, and later failures."""
    recovered = fault.recovered_at
    root = root_fault_of(state.faults, fault)  # users want the first cause, not its echoes
    origin = root.outcome.origin if root.outcome else None
    return {
        "level": fault.level,
        "reason": fault.reason,
        "target": fault.target,
        "firstCause": root.cause,
        **({"rule": root.rule} if root.rule else {}),
        **_to_blame(root, origin),
        "evidence": list(evidence(root.outcome)) if root.outcome else [],
        "followed": [follower.cause for follower in root.consequences],
        "detectedAt": rfc3339(fault.detected_at),
        "recoveredAt": rfc3339(recovered),
        "seconds": None if recovered is None else round(recovered - fault.detected_at, 3),
        "lostSteps": fault.lost,
    }


def _to_blame(fault: FaultRecord, origin: ErrorOrigin | None) -> dict[str, Any]:
    """Return the rank to blame for a fault: the one that failed, or the callee whose error ended it."""
    if origin is not None:
        return {"rank": origin.rank, "incarnation": origin.incarnation, "caller": fault.rank}
    return {"rank": fault.rank, "incarnation": fault.incarnation} if fault.rank else {}


def _progress(state: JobState, progress: Progress) -> dict[str, Any]:
    """Return the highest step among the ranks of the first driver role, and the metrics reported with it."""
    driver = state.job.drivers[0]
    steps = [(progress[driver, rank], rank) for rank in state.job.roles[driver].ranks
             if (driver, rank) in progress]  # fmt: skip
    if not steps:
        return {"step": None, "metrics": {}}
    (step, metrics), _ = max(steps, key=lambda item: (item[0][0], -item[1]))
    return {"step": step, "metrics": dict(metrics)}


def _saved(state: JobState) -> dict[str, Any]:
    """Return the last checkpoint of the first driver role, or of any role where that one saves none."""
    last = checkpoints.shown_checkpoint(state)
    return {"lastCheckpointStep": last and last.mark.step, "lastCheckpointTime": rfc3339(last and last.at)}


def _cuts(cuts: Cuts) -> dict[str, Any]:
    """Return the counts of the cuts, the last one, and the one that the job went back to; empty without any."""
    if cuts == Cuts(queue_names=cuts.queue_names, folder_tokens=cuts.folder_tokens):
        return {}
    last = cuts.kept_cuts[-1] if cuts.kept_cuts else None
    return {
        "cuts": {
            "committed": cuts.committed_count,
            "givenUp": cuts.given_up_count,
            "why": cuts.refusal,
            "last": last and last.number,
            "lastTime": rfc3339(last and last.at),
            "restored": cuts.restore_count,
            "restoredCut": cuts.last_restored_number or None,
        }
    }


def rfc3339(at: float | None) -> str | None:
    """Return a time in unix seconds as RFC 3339 in UTC, to the millisecond; None stays None."""
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
