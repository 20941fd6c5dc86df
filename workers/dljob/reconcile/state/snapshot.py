"""The parts of PrimeMaster's snapshot that become the DLJob's status, bounded in size.

Users run code on the head, so a head may send anything: everything that the operator keeps of it has a bound.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Any, TypeAlias, TypeGuard

from dljob.reconcile.state.context import seconds
from dljob.reconcile.state.fields import bounded, is_whole, items, number, part, text, texts
from dljob.reconcile.state.model import Object
from dljob.spec.chosen_resources import ResourceUse
from dljob.spec.status import LEVELS as ALL_LEVELS
from dljob.spec.status import total_restarts

Pieces: TypeAlias = dict[str, Any]

LEVELS = tuple(level for level in ALL_LEVELS if level != "cluster")
"""The restart levels that PrimeMaster counts; the operator counts those of clusters."""
TIMES = ("stepTime", "lastCheckpointTime")
STEPS = ("step", "lastCheckpointStep", "goodputPermille")
MAX_ROLES, MAX_FAULTS, MAX_METRICS, MAX_NOT_READY, MAX_EXCLUDED, MAX_STALLS = 32, 10, 16, 20, 50, 10
FAULT = ("level", "reason", "target", "firstCause", "rule", "rank", "caller")
FAULT_TIMES = ("detectedAt", "recoveredAt")
FAULT_COUNTS = ("incarnation", "lostSteps")
EXCLUSION, EXCLUSION_TIMES = ("name", "reason"), ("since", "until")
CUT_COUNTS = ("committed", "givenUp", "last", "restored", "restoredCut")
TEXTS = {"phase": 64, "reason": 128, "message": 4096}
"""Texts of a job, with the characters that are kept of each; Kubernetes takes 128 of an Event's reason."""
MOST_ROLES, MAX_TEXT, MAX_CARRY = 256, 4096, 16384
"""Bounds of a stored snapshot: roles or node groups, characters of a text, bytes of `carry` as JSON."""
MAX_SERVERS, MAX_PORTS = 5000, 16
"""Most endpoints of a role that are kept, and ports of one."""
SHOWN_SERVERS, SHOWN_PORTS, MAX_ADDRESS = 8, 4, 64
"""Addresses of a role in the status, ports of one, and characters of one."""
MAX_SECONDS = 1e9
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z", re.ASCII)
"""Times as PrimeMaster writes them."""
COUNTS = ("desired", "ready", "running", "succeeded", "failed", "restarts")
LAG = "servedLagSeconds"


def digest(snapshot: Object) -> Object:
    """Return the bounded part of a snapshot that the operator keeps: a head may send anything."""
    if not snapshot:
        return {}
    last = part(snapshot, "lastFault")
    bounded_parts: Pieces = {
        **{key: bounded(text(snapshot, key), size) for key, size in TEXTS.items() if text(snapshot, key)},
        **_times(snapshot, "completionTime"),
        **{key: number(snapshot, key) for key in ("attempt", "epoch", "version") if key in snapshot},
        "roles": [_bounded_role(role) for role in items(snapshot, "roles")[:MOST_ROLES]],
        "restarts": {level: number(snapshot, "restarts", level) for level in LEVELS},
        "recentFaults": [_fault(fault) for fault in items(snapshot, "recentFaults")[-MAX_FAULTS:]],
        "lastFault": _fault(last) if last else None,
        "carry": _carry(snapshot),
    }
    if "progress" in snapshot:
        bounded_parts["progress"] = _bounded_progress(part(snapshot, "progress"))
    if part(snapshot, "nodes"):
        bounded_parts["nodes"] = _bounded_nodes(part(snapshot, "nodes"))
    if part(snapshot, "placement"):
        bounded_parts["placement"] = _placement(part(snapshot, "placement"))
    if part(snapshot, "services"):
        marks = list(part(snapshot, "services").items())[:MAX_ROLES]
        bounded_parts["services"] = {bounded(role, 63): mark for role, mark in marks if is_whole(mark)}
    if items(snapshot, "endpoints"):
        bounded_parts["endpoints"] = endpoints(snapshot)
    if part(snapshot, "cuts"):
        bounded_parts["cuts"] = _cuts(part(snapshot, "cuts"))
    if items(snapshot, "stalls"):
        bounded_parts["stalls"] = [_stall(stall) for stall in items(snapshot, "stalls")[:MAX_STALLS]]
    if items(snapshot, "resourceUse"):
        bounded_parts["resourceUse"] = resource_use(snapshot)
    return bounded_parts


def _stall(stall: Object) -> Pieces:
    """Return the part of a stall that conditions tell."""
    return {"name": bounded(text(stall, "name"), 128), "words": bounded(text(stall, "words"), 512),
            "hung": stall.get("hung") is True}  # fmt: skip


def _carry(snapshot: Object) -> Object:
    """Return the state for a next attempt; empty where it is too large, or holds numbers that no status can have."""
    carry = part(snapshot, "carry")
    try:
        # NaN and infinity are no JSON, and the API server reads a huge number as infinity.
        encoded = json.dumps(carry, allow_nan=False)
        json.loads(encoded, parse_int=_parse_whole)
    except ValueError:
        return {}
    return carry if len(encoded) <= MAX_CARRY else {}


def _parse_whole(digits: str) -> int:
    if not is_whole(value := int(digits)):
        raise ValueError(f"{digits} is too large")
    return value


def _times(values: Object, *keys: str) -> Pieces:
    """Return those of some times that the API server accepts: one that it refuses would void the whole status."""
    times = {key: text(values, key) for key in keys}
    return {key: time for key, time in times.items() if TIME.fullmatch(time) and (seconds(time) or -1) >= 0}


def resource_use(snapshot: Object) -> list[Pieces]:
    """Return what the ranks of roles used whose resources were chosen."""
    rows = [row for row in items(snapshot, "resourceUse")[:MAX_ROLES] if text(row, "name")]
    uses = [ResourceUse.of_row({key: number(row, key) for key in row}) for row in rows]
    return [use.row(bounded(text(row, "name"), 63)) for use, row in zip(uses, rows, strict=True)]


def _cuts(cuts: Object) -> Pieces:
    """Return the counts of a job's cuts; those that there are not are left out."""
    return {
        **{key: cuts[key] for key in CUT_COUNTS if is_whole(cuts.get(key))},
        **{key: bounded(text(cuts, key)) for key in ("why",) if text(cuts, key)},
        **_times(cuts, "lastTime"),
    }


def endpoints(snapshot: Object) -> list[Pieces]:
    """Return each role with ports: how many of its ranks get requests, and where the first ones are."""
    return [
        {
            "role": bounded(text(role, "role"), 63),
            **{key: number(role, key) for key in ("ready", "desired")},
            "addresses": [
                {bounded(name, 15): bounded(str(at), MAX_ADDRESS) for name, at in list(ports.items())[:SHOWN_PORTS]}
                for ports in items(role, "addresses")[:SHOWN_SERVERS]
            ],
        }
        for role in items(snapshot, "endpoints")[:MAX_ROLES]
    ]


def served(addresses: Object) -> Mapping[str, tuple[Object, ...]]:
    """Return the bounded part of a job's endpoints that the operator keeps: role -> its ready ranks.

    Each has its rank, its IP address and its ports; what is no address is left out.
    """
    return {bounded(role, 63): _servers(items(addresses, role)) for role in list(part(addresses))[:MAX_ROLES]}


def _servers(rows: Sequence[Object]) -> tuple[Object, ...]:
    servers = (_server(row) for row in rows[:MAX_SERVERS])
    return tuple(server for server in servers if server is not None)


def _server(row: Object) -> Pieces | None:
    ports: dict[str, int] = {}
    ip = ""
    for name, address in list(part(row, "addresses").items())[:MAX_PORTS]:
        host, _, number_ = str(address).rpartition(":")
        try:
            ip, port = str(ip_address(host.strip("[]"))), int(number_)
        except ValueError:
            return None
        if not 0 < port < 65536:
            return None
        ports[bounded(name, 15)] = port
    return {"rank": number(row, "rank"), "ip": ip, "ports": ports} if ports else None


def places(placement: object) -> tuple[Object, ...]:
    """Return the bounded part of a placement that the operator keeps: what each pod holds."""
    return tuple(
        {
            "pod": bounded(text(place, "pod"), 253),
            "node": bounded(text(place, "node"), 253),
            "units": [bounded(",".join(texts(place, "units")), MAX_TEXT)],
            "ranks": bounded(text(place, "ranks"), MAX_TEXT),
        }
        for place in items(placement, "nodes")
    )


def _bounded_progress(progress: Object) -> Pieces:
    metrics = [(name, value) for name, value in sorted(part(progress, "metrics").items()) if _is_number(value)]
    return {
        **{key: progress[key] for key in ("step", *STEPS) if is_whole(progress.get(key))},
        **_step_times(progress),
        **({"metrics": {bounded(name, MAX_TEXT): value for name, value in metrics[:MAX_METRICS]}} if metrics else {}),
    }


def _step_times(progress: Object) -> Pieces:
    """Return the times of the last step and of the last complete checkpoint, and the seconds per step, where known."""
    times = _times(progress, *TIMES)
    usual = progress.get("secondsPerStep")
    return {**times, "secondsPerStep": usual} if _is_json_number(usual) else times


def _bounded_nodes(nodes: Object) -> Pieces:
    counts = {bounded(name, 63): count for name, count in part(nodes, "wanted").items() if is_whole(count)}
    few = dict(list(counts.items())[:MOST_ROLES])
    return {**_nodes(nodes), **({"wanted": few} if "wanted" in nodes else {})}


def _bounded_role(role: Object) -> Pieces:
    target = {"wanted": number(role, "wanted")} if "wanted" in role else {}
    return {**_role(role), **target}


def _role(role: Object) -> Pieces:
    """Return a role's counts, and the age of the events that its servers know, where it learns from a source."""
    lag = role.get(LAG)
    known = {LAG: lag} if _is_json_number(lag) else {}
    return {"name": bounded(text(role, "name"), 63), **{key: number(role, key) for key in COUNTS}, **known}


def pieces(snapshot: Object, *, clusters: int, at: str) -> Pieces:
    """Return the status fields that follow from a snapshot, which must not be empty.

    Args:
        snapshot: The snapshot of PrimeMaster.
        clusters: Restarts of the whole cluster, which the operator counts and PrimeMaster does not.
        at: The time of the figures under `progress`.
    """
    roles = [_role(role) for role in items(snapshot, "roles")[:MAX_ROLES]]
    restarts = {level: number(snapshot, "restarts", level) for level in LEVELS} | {"cluster": clusters}
    faults = [_fault(fault) for fault in items(snapshot, "recentFaults")[-MAX_FAULTS:]]
    fields: Pieces = {
        "roles": roles,
        "rolesReady": ready_text(roles),
        "restarts": restarts,
        "restartsTotal": total_restarts(restarts),
        "recentFaults": faults,
        "progress": _progress(part(snapshot, "progress"), at),
    }
    if part(snapshot, "placement"):
        fields["placement"] = _placement(part(snapshot, "placement"))
    if part(snapshot, "nodes"):
        fields["nodes"] = _nodes(part(snapshot, "nodes"))
    if items(snapshot, "endpoints"):
        fields["endpoints"] = endpoints(snapshot)
    if part(snapshot, "cuts"):
        fields["cuts"] = _cuts(part(snapshot, "cuts"))
    return fields


def ready_text(roles: list[Pieces]) -> str:
    """Return "ready/desired" over all roles; ranks that ended well count as ready."""
    return f"{sum(role['ready'] + role['succeeded'] for role in roles)}/{sum(role['desired'] for role in roles)}"


def significant(old: Object, new: Object) -> bool:
    """Whether two snapshots differ in more than progress: states, restarts, faults, nodes, or wanted sizes."""
    return _state(old) != _state(new)


def _state(snapshot: Object) -> tuple[object, ...]:
    return (
        snapshot.get("phase"),
        snapshot.get("reason"),
        snapshot.get("epoch"),
        snapshot.get("restarts"),
        # These two are progress: they change with each save.
        {key: value for key, value in part(snapshot, "carry").items() if key not in ("checkpoints", "data")},
        snapshot.get("lastFault"),
        roles_state(items(snapshot, "roles")),
        placement_state(part(snapshot, "placement")),
        [(text(node, "name"), text(node, "reason")) for node in items(snapshot, "nodes", "excluded")],
        part(snapshot, "nodes").get("wanted"),
        snapshot.get("services"),
        [(text(stall, "name"), stall.get("hung") is True) for stall in items(snapshot, "stalls")],
    )


def roles_state(roles: Sequence[Object]) -> tuple[object, ...]:
    """Return the part of the roles' counts whose change is a change of state: all or none ready, and each failure."""
    return tuple(
        (
            role.get("name"),
            role.get("desired"),
            number(role, "ready") + number(role, "succeeded") == number(role, "desired"),
            number(role, "succeeded") == number(role, "desired"),
            role.get("failed"),
            role.get("restarts"),
        )
        for role in roles
    )


def placement_state(placement: Object) -> object:
    """Return the part of the placement whose change is a change of state: whether all units are held."""
    return placement.get("units"), placement.get("ready") == placement.get("units")


def exclusions(snapshot: Object) -> list[Pieces]:
    """Return the nodes that PrimeMaster avoids for now, the newest last."""
    return [
        {
            **{key: bounded(text(node, key), 512) for key in EXCLUSION if text(node, key)},
            **_times(node, *EXCLUSION_TIMES),
        }
        for node in items(snapshot, "nodes", "excluded")[-MAX_EXCLUDED:]
        if text(node, "name") and text(node, "reason")
    ]


def _fault(fault: Object) -> Pieces:
    words: Pieces = {key: bounded(text(fault, key), 512) for key in FAULT if text(fault, key)}
    counts = {key: fault[key] for key in FAULT_COUNTS if is_whole(fault.get(key))}
    return {**words, **_times(fault, *FAULT_TIMES), **counts}


def _progress(progress: Object, at: str) -> Pieces:
    fields: Pieces = {"time": at}
    fields |= {key: number(progress, key) for key in STEPS if is_whole(progress.get(key))}
    fields |= _step_times(progress)
    metrics = [(name, value) for name, value in sorted(part(progress, "metrics").items()) if _is_number(value)]
    if metrics:
        fields["metrics"] = [{"name": bounded(n, 63), "value": f"{v:.6g}"} for n, v in metrics[:MAX_METRICS]]
    return fields


def _nodes(nodes: Object) -> Pieces:
    """Return PrimeMaster's own facts about nodes: how many it replaced, and which it avoids for now."""
    return {"replaced": number(nodes, "replaced"), "excluded": exclusions({"nodes": nodes})}


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, float) or is_whole(value)


def _is_json_number(value: object) -> TypeGuard[int | float]:
    """Whether a status can have such seconds: a head may send NaN or infinity, which JSON lacks."""
    return _is_number(value) and 0 <= value < MAX_SECONDS


def _placement(placement: Object) -> Pieces:
    counts: Pieces = {key: number(placement, key) for key in ("units", "ready", "pending")}
    waiting = [
        {key: bounded(text(unit, key), 512) for key in ("name", "node", "why") if text(unit, key)}
        for unit in items(placement, "notReady")[:MAX_NOT_READY]
    ]
    return {**counts, **({"notReady": waiting} if waiting else {})}
