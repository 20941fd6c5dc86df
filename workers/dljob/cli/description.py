"""Text of `dljob status JOB` and `dljob describe JOB`, for any place of jobs. Pure; `now` is in unix seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dljob.api.views import entries, nested
from dljob.cli import timeline
from dljob.cli.output import aligned, lost_steps, saved, standing
from dljob.cli.terminal import unbroken
from dljob.spec.status import TERMINAL
from dljob.telemetry.reasons import STALL_FOUND
from dljob.telemetry.wording import counted, level_words, seconds, unix

if TYPE_CHECKING:
    from dljob.api.shown_job import Overview, Page

Json = Mapping[str, Any]
Row = tuple[str, ...]

EVENTS = 10
"""Number of events shown; `dljob events` shows all."""
STILL = (*TERMINAL, "Suspended", "Lost")
"""Phases without expected steps."""
LEAST = 0.0005
"""Smallest share of the ranks' time that is shown: below it prints as 0.0 %."""
_MESSAGE = 100
_NODE = 24


# -- one job


def detail(job: Overview, now: float, more_events: str) -> list[str]:
    """Describe a job in detail; a status has only some of the fields, by the place of the job.

    `more_events`: command that shows all events.
    """
    lines, status = [f"{job.title}: {job.shown_phase}"], job.status
    if job.unseen:
        return [*lines, f"  {job.unseen}"]
    stalls = stall_lines(status)
    lines += [f"  {line}" for line in stalls]
    # The message of a job that stands still says the same.
    if status.get("message") and not (stalls and status.get("reason") == STALL_FOUND):
        reason = f"{status['reason']}: " if status.get("reason") else ""
        lines.append(f"  {reason}{status['message']}")
    lines += _cluster(status)
    lines += _progress(status, now)
    lines += [f"  {line}" for line in spent(nested(status, "ledger"))]
    restarts = ", ".join(f"{v} {level_words(k)}" for k, v in nested(status, "restarts").items() if v)
    lines.append(f"  restarts: {restarts or 'none'}")
    lines += _cuts(nested(status, "cuts"))
    lines += [line for fault in entries(status, "recentFaults") for line in _fault(fault)]
    problems = entries(status, "problems")
    lines += [f"  {problem_line(row, more_events)}" for row in problems]
    if (hidden_count := (status.get("problemCount") or 0) - len(problems)) > 0:
        lines.append(f"  and {counted(hidden_count, 'more problem')}")
    lines += [_unit(unit) for unit in entries(nested(status, "placement"), "notReady")]
    # After the end nobody serves, and nobody is missing.
    lines += [_servers(role) for role in entries(status, "endpoints") if status.get("phase") not in TERMINAL]
    lines += [f"  folder: {job.folder}"] if job.folder else []
    # On Kubernetes a status has counts in place of its ranks.
    lines += _below(_ranks(entries(status, "ranks")) if "ranks" in status else _roles(entries(status, "roles")))
    lines += _below(_conditions(entries(status, "conditions"), now))
    # Causes, messages and names are users' text.
    return [unbroken(line) for line in lines]


def problem_line(row: Json, more_events: str, width: int | None = None) -> str:
    """Return the line of a problem, shortened to a width; of several events with the command that shows all of them."""
    line = f"problem since {row.get('since')}: {row.get('reason')}: {row.get('message')}"
    command = f"; all: {more_events}" if (row.get("count") or 1) > 1 else ""
    return (one_line(line, width - len(command)) if width else line) + command


def stall_lines(status: Json) -> list[str]:
    """Return a line for each stall of a status: who waits for whom, and since when."""
    return [
        f"{'hung' if stall.get('hung') else 'stands still'}: {stall.get('sentence') or '-'}"
        for stall in entries(status, "stalls")
    ]


def _cluster(status: Json) -> list[str]:
    cluster, effective = nested(status, "rayCluster"), nested(status, "effective")
    attempt = status.get("attempt") or 0
    parts = [f"attempt {attempt}"] if attempt > 1 or (attempt and cluster) else []
    parts += [f"RayCluster {cluster['name']}"] if cluster.get("name") else []
    parts += [f"head {cluster['headPod']}"] if cluster.get("headPod") else []
    parts += [f"image {effective['image']}"] if effective.get("image") else []
    return [f"  {', '.join(parts)}"] if parts else []


def _progress(status: Json, now: float) -> list[str]:
    progress = nested(status, "progress")
    if progress.get("step") is None:
        return []
    stands = "" if status.get("phase") in STILL else standing(progress, now)
    metrics = "  ".join(
        f"{name} {value if isinstance(value, str) else f'{value:g}'}"
        for name, value in nested(progress, "metrics").items()
    )
    return [f"  step {progress['step']}{stands}{saved(progress)}  {metrics}".rstrip()]


def _cuts(cuts: Json) -> list[str]:
    if not cuts:
        return []
    last = f"; the last one is {cuts['last']}" if cuts.get("last") else ""
    restored_cut = f"cut {cuts['restoredCut']}" if cuts.get("restoredCut") else "the beginning"
    back = (
        f"; the job went back {counted(cuts['restored'], 'time')}, last to {restored_cut}"
        if cuts.get("restored")
        else ""
    )
    reason = f" ({cuts['why']})" if cuts.get("why") else ""
    return [f"  cuts: {cuts.get('committed', 0)} committed, {cuts.get('givenUp', 0)} given up{reason}{last}{back}"]


def spent(ledger: Json) -> list[str]:
    """Format goodput and the other accounts of the ranks' time as one line; none before any time has passed."""
    if ledger.get("goodput") is None:
        return []
    # Accounts are in seconds summed over all ranks, whose number may have changed; spares come on top.
    ranks = sum(amount for name, amount in ledger["accounts"].items() if name != "spare") or 1.0
    recent = ledger["recentGoodput"]
    unproductive = [(name, amount) for name, amount in ledger["accounts"].items() if name != "productive"]
    most = sorted(unproductive, key=lambda item: -item[1])
    rest = ", ".join(f"{name} {amount / ranks:.1%}" for name, amount in most if amount / ranks >= LEAST)
    return [f"goodput: {ledger['goodput']:.1%}, last 10 min {recent:.1%}" + (f"; {rest}" if rest else "")]


def _fault(fault: Json) -> list[str]:
    took = "not yet recovered" if fault.get("seconds") is None else f"recovered in {seconds(fault['seconds'])}"
    head = f"  fault: {fault.get('target')} [{fault.get('level')}] {fault.get('firstCause')}; {took}{lost_steps(fault)}"
    evidence = [f"    evidence: {line}" for line in fault.get("evidence") or ()]
    return [head, *evidence, *(f"    after it: {line}" for line in fault.get("followed") or ())]


def _unit(unit: Json) -> str:
    on = f" on {unit['node']}" if unit.get("node") else ""
    reason = f": {unit['why']}" if unit.get("why") else ""
    return f"  waits: {unit.get('name')}{on}{reason}"


def _servers(role: Json) -> str:
    """Return how many servers of a role are ready, and where the first ones are: the first port of each."""
    first = [next(iter(ports.values()), "") for ports in entries(role, "addresses")]
    more = int(role.get("ready", 0)) - len(first)
    places = ", ".join([*first, *([f"and {more} more"] if more > 0 else [])])
    line = f"  endpoints of {role.get('role')}: {role.get('ready')} of {role.get('desired')} ready"
    return f"{line}: {places}" if places else line


def _ranks(ranks: Sequence[Json]) -> list[Row]:
    rows = [
        (
            f"{r['role']}/{r['rank']}",
            rank_phase(r),
            "-" if r.get("step") is None else str(r["step"]),
            str(r.get("pid") or "-"),
            str(r["incarnation"]),
            # A node's name where it has one; Ray's ids are longer than a table has room for.
            str(r.get("nodeName") or r.get("node") or "-")[:_NODE],
        )
        for r in ranks
    ]
    return [("RANK", "PHASE", "STEP", "PID", "INCARNATION", "NODE"), *rows]


def rank_phase(rank: Json) -> str:
    """Return the phase of a rank for users. A server that gets no requests is not called Ready, though it lives."""
    phase = str(rank.get("phase") or "-")
    if phase != "Ready" or rank.get("serves", True):
        return phase
    state = str(nested(rank, "weights").get("state"))
    return state if state in ("Stale", "Loading") else "Unready"


def _roles(roles: Sequence[Json]) -> list[Row]:
    rows = [
        (
            str(role["name"]),
            # A rank that has succeeded is not ready any more, and nothing waits for it.
            f"{role.get('ready', 0) + role.get('succeeded', 0)}/{role.get('desired', 0)}",
            str(role.get("failed", 0) or "-"),
            str(role.get("restarts", 0) or "-"),
        )
        for role in roles
    ]
    return [("ROLE", "READY", "FAILED", "RESTARTS"), *rows]


def _conditions(conditions: Sequence[Json], now: float) -> list[Row]:
    rows: list[Row] = []
    for condition in conditions:
        at = unix(condition.get("lastTransitionTime"))
        # Never below 0: the cluster's clock may be ahead of this machine's.
        age = "-" if at is None else seconds(max(0.0, now - at))
        message = one_line(str(condition.get("message") or ""), _MESSAGE)
        rows.append(
            (str(condition["type"]), str(condition["status"]), str(condition.get("reason") or "-"), age, message)
        )
    return [("CONDITION", "STATUS", "REASON", "SINCE", "MESSAGE"), *rows]


def one_line(text: str, width: int) -> str:
    """Remove line breaks from a text, and shorten it to a width."""
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: width - 3] + "..."


def _table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of a table; nothing for a heading alone."""
    return aligned(rows) if len(rows) > 1 else []


def _below(rows: Sequence[Row]) -> list[str]:
    """Return a table below an empty line; nothing for a heading alone."""
    return ["", *_table(rows)] if len(rows) > 1 else []


# -- its page


def lines(page: Page, begin: float, now: float) -> list[str]:
    """Return the lines of the page; `begin`: time from which the timeline counts."""
    events = [timeline.line(event, begin).strip() for event in page.events]
    hidden_count = len(events) - EVENTS
    more = [f"... {hidden_count} before: {page.more_events}"] if hidden_count > 0 else []
    pods = _table([("NODE", "POD", "IS", "PHASE"), *page.pods])
    return [
        *detail(page.overview, now, page.more_events),
        *_section("Job", page.facts),
        *_section("Roles", roles(page.spec)),
        # Pods only where this user may list them; ranks tell their nodes too.
        *_section("Nodes", pods or nodes(entries(page.overview.status, "ranks")) or page.pods_remarks),
        *_section("Events", [*more, *events[-EVENTS:], *page.event_remarks]),
        *_section("Logs", page.logs),
        *_section("Dashboard of Ray", page.dashboard),
    ]


def _section(title: str, lines: Sequence[str]) -> list[str]:
    """Return lines indented below a title; nothing for no lines."""
    return ["", f"{title}:", *(f"  {line}".rstrip() for line in lines)] if lines else []


def roles(spec: Json) -> list[str]:
    """Describe the roles of a spec: entrypoint, ranks, resources and dependencies."""
    rows = [_role(role) for role in entries(spec, "roles")]
    return _table([("ROLE", "TYPE", "RANKS", "RUNS", "EACH RANK TAKES", "AFTER"), *rows])


def _role(role: Json) -> Row:
    least, most = role.get("minReplicas"), role.get("maxReplicas")
    span = f" ({least or role.get('replicas', 1)} to {most or role.get('replicas', 1)})" if least or most else ""
    return (
        str(role["name"]),
        str(role.get("type") or "Actor"),
        f"{role.get('replicas', 1)}{span}",
        _entrypoint(nested(role, "entrypoint")),
        _takes(role),
        ", ".join(str(dependency.get("role")) for dependency in entries(role, "dependsOn")) or "-",
    )


def _entrypoint(entrypoint: Json) -> str:
    # Of a command its program alone: secrets should not, but may, stand in the rest.
    command = list[str](entrypoint.get("command") or [])
    return str(
        entrypoint.get("class")
        or entrypoint.get("module")
        or " ".join([*command[:1], *["..."] * (len(command) > 1)])
        or "-"
    )


def _takes(role: Json) -> str:
    resources, device = nested(role, "resources"), nested(role, "accelerator")
    # Values at their defaults are absent from a spec.
    amounts = [f"{device.get('count', 1)} {device.get('type') or 'device'}"] if "accelerator" in role else []
    amounts += [f"{resources.get('cpu') or 1} CPU"]
    amounts += [f"{resources['memory']} memory"] if resources.get("memory") else []
    amounts += [f"{amount} {name}" for name, amount in nested(resources, "custom").items()]
    return ", ".join(amounts)


def nodes(ranks: Sequence[Json]) -> list[str]:
    """Describe the ranks of each node, by role: n1: actor 0-3, critic 0."""
    from dljob.plan.words import ranges

    ranks_by_node: dict[str, dict[str, list[int]]] = {}
    for rank in ranks:
        # A rank that is not placed has no node.
        node = str(rank.get("nodeName") or rank.get("node") or "")
        if node:
            ranks_by_node.setdefault(node, {}).setdefault(str(rank["role"]), []).append(int(rank["rank"]))
    return [
        f"{node}: {', '.join(f'{role} {ranges(sorted(of))}' for role, of in sorted(roles.items()))}"
        for node, roles in sorted(ranks_by_node.items())
    ]
