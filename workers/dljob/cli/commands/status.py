"""`dljob status`: all jobs of this user, or one of them in full."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from cyclopts import Parameter

from dljob.api import registry
from dljob.cli import output
from dljob.cli.attach import local
from dljob.cli.where import HERE, Where, elsewhere
from dljob.errors import UsageError

Row = tuple[str, ...]
LEAST = 0.0005
"""The share of the ranks' time from which an account is named: less is 0.0 %."""


def status(
    job: str | None = None,
    /,
    *,
    where: Where = HERE,
    everywhere: Annotated[bool, Parameter(name=("--all-namespaces", "-A"), negative="")] = False,
    watch: Annotated[bool, Parameter(name=("--watch", "-w"), negative="")] = False,
    form: Annotated[output.TableFormat, Parameter(name=("--output", "-o"))] = "table",
) -> None:
    """Show all jobs, or one job: phase, roles, step, restarts, the last fault.

    Args:
        job: name or uid; left out: all jobs.
        where: on which side.
        everywhere: of all namespaces of the cluster.
        watch: on Kubernetes, go on with a row for every change.
        form: table, json or yaml.
    """
    if where.remote or everywhere:
        if everywhere and (job is not None or where.namespace is not None):
            raise UsageError("--all-namespaces is for the list of all jobs", hint="leave out JOB and --namespace")
        from dljob.cli.kubernetes.status import status as remote

        remote(job, where, form, everywhere=everywhere, watch=watch)
        return
    if watch:
        raise UsageError("--watch is for jobs on Kubernetes", hint="here: dljob events JOB --follow")
    if job is None:
        _all(form)
        return
    record = local("status", job)
    found = current(record)
    if form != "table":
        output.structured({**found, "dir": record.dir}, form)
        return
    for text in describe(record, found):
        output.data(text)


def current(record: registry.JobRecord) -> dict[str, Any]:
    """The status from the living job, else from its folder; a job whose runner is gone has phase Lost."""
    if record.over:
        return record.status()
    if record.stale:
        return lost(record)
    from dljob.cli.attach import attached

    with attached(record) as handle:
        return handle.status()


def lost(record: registry.JobRecord) -> dict[str, Any]:
    """What can be said of a job that ended without a last word."""
    message = f"its runner, pid {record.runner}, ended without a last word"
    return {"name": record.name, "uid": record.uid, **record.status(), "phase": "Lost", "message": message}


def _all(form: output.TableFormat) -> None:
    """One row a job, without asking any Ray: the last status that each wrote."""
    found = [(r, lost(r) if r.stale else r.status()) for r in registry.records()]
    if form != "table":
        fields = ("phase", "reason", "message", "seconds")
        jobs = [
            {"name": r.name, "uid": r.uid, "dir": r.dir, "started": output.moment(r.started)}
            | {k: s.get(k) for k in fields}
            for r, s in found
        ]
        output.structured(jobs, form)
    elif found:
        output.table(
            [("NAME", "UID", "PHASE", "ROLES", "RESTARTS", "STEP", "STARTED"), *(_row(r, s) for r, s in found)]
        )
    else:
        output.say(f"no jobs in {registry.home()}")
        other = elsewhere("status")
        if other:
            output.say(other)


def _row(record: registry.JobRecord, status: dict[str, Any]) -> Row:
    step = status.get("progress", {}).get("step")
    return (
        record.name,
        record.uid[:8],
        status.get("phase", "Pending"),
        ready(status),
        str(sum(status.get("restarts", {}).values())),
        "-" if step is None else str(step),
        output.moment(record.started),
    )


def ready(status: dict[str, Any]) -> str:
    """Ranks that are ready or have ended well, of all: 7/9."""
    roles = status.get("roles", [])
    return f"{sum(r['ready'] + r['succeeded'] for r in roles)}/{sum(r['desired'] for r in roles)}"


def describe(record: registry.JobRecord, status: dict[str, Any]) -> list[str]:
    """A job as lines for people."""
    lines = [f"{record.name} ({record.uid[:8]}): {status['phase']}"]
    if status.get("message"):
        lines.append(f"  {status.get('reason', '')}: {status['message']}".replace(" : ", " "))
    progress: dict[str, Any] = status.get("progress", {})
    if progress.get("step") is not None:
        metrics = "  ".join(f"{k} {v:g}" for k, v in progress.get("metrics", {}).items())
        lines.append(f"  step {progress['step']}{output.saved(progress)}  {metrics}".rstrip())
    restarts = {k: v for k, v in status.get("restarts", {}).items() if v}
    lines += [f"  {line}" for line in spent(status.get("ledger", {}))]
    lines.append("  restarts: " + (", ".join(f"{v} {k.replace('_', ' ')}" for k, v in restarts.items()) or "none"))
    for fault in status.get("recentFaults", []):
        took = (
            "not yet recovered" if fault.get("seconds") is None else f"recovered in {output.seconds(fault['seconds'])}"
        )
        lines.append(f"  fault: {fault['target']} [{fault['level']}] {fault['firstCause']}; {took}{output.lost(fault)}")
        lines += [f"    evidence: {line}" for line in fault.get("evidence", [])]
        lines += [f"    after it: {line}" for line in fault.get("followed", [])]
    lines.append(f"  folder: {record.dir}")
    ranks = status.get("ranks", [])
    if ranks:
        lines += ["", *_ranks(ranks)]
    return lines


def spent(ledger: Mapping[str, Any]) -> list[str]:
    """Goodput, and where the rest of the ranks' time went, in one line; nothing before any time has passed."""
    if ledger.get("goodput") is None:
        return []
    ranks, recent = ledger["seconds"] * ledger["processes"], ledger["recentGoodput"]
    held = [(name, seconds) for name, seconds in ledger["accounts"].items() if name != "productive"]
    most = sorted(held, key=lambda item: -item[1])
    rest = ", ".join(f"{name} {seconds / ranks:.1%}" for name, seconds in most if seconds / ranks >= LEAST)
    return [f"goodput: {ledger['goodput']:.1%}, last 10 min {recent:.1%}" + (f"; {rest}" if rest else "")]


def _ranks(ranks: list[dict[str, Any]]) -> list[str]:
    rows: list[Row] = [("RANK", "PHASE", "STEP", "PID", "LIFE", "NODE")]
    rows += [
        (
            f"{r['role']}/{r['rank']}",
            str(r["phase"]),
            "-" if r.get("step") is None else str(r["step"]),
            str(r.get("pid") or "-"),
            str(r["incarnation"]),
            str(r.get("node") or "-")[:12],
        )
        for r in ranks
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
