"""`dljob status`: a list of this user's jobs, or one job in detail."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from dljob.api import registry
from dljob.api.local.connection import lost
from dljob.cli import output
from dljob.cli.attach import local
from dljob.cli.where import HERE, JobTarget, elsewhere
from dljob.errors import UnreachableError, UsageError
from dljob.spec.status import TERMINAL

Row = tuple[str, ...]
HEAD: Row = ("NAME", "UID", "PHASE", "ROLES", "RESTARTS", "STEP", "STARTED")
WATCH_S = 1.0
"""Poll interval of `--watch` in seconds; a status is written no more often."""
ROW_AGAIN_S = 10.0
"""Interval, in seconds, at which a row is repeated while the step stands still."""
ENDED = (*TERMINAL, "Lost")
ANSWER_S = 2.0
"""Time, in seconds, for PrimeMaster to answer before the status in the job's folder is shown."""
LEAST = 0.0005
"""Smallest share of the ranks' time that is shown: below it prints as 0.0 %."""


def status(
    job: str | None = None,
    /,
    *,
    where: JobTarget = HERE,
    everywhere: Annotated[bool, Parameter(name=("--all-namespaces", "-A"), negative="")] = False,
    watch: Annotated[bool, Parameter(name=("--watch", "-w"), negative="")] = False,
    form: Annotated[output.TableFormat, Parameter(name=("--output", "-o"))] = "table",
) -> None:
    """Show all jobs, or one job: phase, roles, step, restarts, the last fault.

    Args:
        job: name or uid; default: all jobs.
        where: this machine, or a cluster.
        everywhere: list the jobs of all namespaces of the cluster.
        watch: print a row for every change, for one job until it has ended.
        form: table, json or yaml.
    """
    if where.remote or everywhere:
        if everywhere and (job is not None or where.namespace is not None):
            raise UsageError("--all-namespaces is for the list of all jobs", hint="leave out JOB and --namespace")
        # Here and in other commands: the Kubernetes client takes over a second to import, so only its users pay for it.
        from dljob.cli.kubernetes.status import status as remote

        remote(job, where, form, everywhere=everywhere, watch=watch)
        return
    if watch:
        follow(None if job is None else local("status", job), form)
        return
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


def current(record: registry.RegistryEntry) -> dict[str, Any]:
    """Return the status from the running job, else from its folder; a job whose runner is gone has phase Lost.

    Raises:
        UnreachableError: nothing answers for the job, and its folder has no status that could still be true.
    """
    if record.over:
        return record.status()
    if record.stale:
        return lost(record)
    from dljob.api.reach import reach

    with reach(record) as connection:
        try:
            # A person waits for this: better an old status with its age than none for 10 s.
            return connection.status(reach_s=ANSWER_S)
        except UnreachableError as error:
            # Without a runner the Ray is elsewhere, and the folder here may never get a later status.
            filed = record.status() if record.runner else {}
            if not filed:
                raise
            age = output.seconds(max(0.0, time.time() - (record.folder / "status.json").stat().st_mtime))
            output.say(f"PrimeMaster does not answer; this was written {age} ago ({error.message})")
            return filed


def _all(form: output.TableFormat) -> None:
    """Print one row per job from its last written status, without asking any Ray."""
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
        now = time.time()
        output.table([HEAD, *(_row(r, s, now) for r, s in found)])
    else:
        output.say(f"no jobs in {registry.home()}")
        other = elsewhere("status")
        if other:
            output.say(other)


def follow(only: registry.RegistryEntry | None, form: output.TableFormat) -> None:
    """Print a row for every change of a job until it has ended, or of all jobs until Ctrl-C.

    Raises:
        UnreachableError: nothing answers for a job on a Ray that outlives its commands.
    """
    rows = Rows(form)
    if only is not None and not only.runner and not only.over:
        _follow_on_ray(only, rows)
        return
    while True:
        # Jobs that start meanwhile join the list, so the registry is read each time.
        found = [(r, lost(r) if r.stale else r.status()) for r in ([only] if only else registry.records())]
        rows.add(found, time.time())
        if only and found[0][1].get("phase") in ENDED:
            return
        time.sleep(WATCH_S)


def _follow_on_ray(record: registry.RegistryEntry, rows: Rows) -> None:
    """Follow a job by its PrimeMaster: its folder may be on another machine, and would miss the end of its Ray."""
    from dljob.api.reach import reach

    with reach(record) as connection:
        found: dict[str, Any] = {}
        while found.get("phase") not in ENDED:
            # Half the interval, so that a step that stands still is repeated in time without a new status.
            found = connection.status(int(found.get("version", 0)), ROW_AGAIN_S / 2)
            rows.add([(record, found)], time.time())


class Rows:
    """Rows under one heading; an unchanged row is not repeated, unless its step stands still."""

    def __init__(self, form: output.TableFormat) -> None:
        self._form: output.TableFormat = form
        self._widths: list[int] = []
        self._last: dict[str, tuple[Row, bool, float]] = {}

    def add(self, found: Sequence[tuple[registry.RegistryEntry, dict[str, Any]]], now: float) -> None:
        """Print the rows that changed since the last call."""
        fresh = [(record, status) for record, status in found if self._is_fresh(record, status, now)]
        rows = [_row(record, status, now) for record, status in fresh]
        if rows and not self._widths and self._form == "table":
            self._widths = output.widths([HEAD, *rows])
            # The widths are fixed by the first rows; leave room for the longest phase that may follow.
            self._widths[HEAD.index("PHASE")] = max(self._widths[HEAD.index("PHASE")], len("Recovering"))
            self._print(HEAD)
        for (record, status), cells in zip(fresh, rows, strict=True):
            if self._form == "table":
                self._print(cells)
            else:
                # One document per line (JSON) or list item (YAML), so that a stream of them can be parsed.
                told = {**status, "name": record.name, "uid": record.uid, "dir": record.dir}
                output.structured(told if self._form == "json" else [told], self._form, indent=None)

    def _is_fresh(self, record: registry.RegistryEntry, status: dict[str, Any], now: float) -> bool:
        # Compared without the age of the step, which changes each second.
        cells, stands = _row(record, {**status, "progress": {"step": _step(status)}}, now), bool(_stands(status, now))
        before = self._last.get(record.uid)
        if before and before[:2] == (cells, stands) and not (stands and now - before[2] >= ROW_AGAIN_S):
            return False
        self._last[record.uid] = cells, stands, now
        return True

    def _print(self, cells: Row) -> None:
        output.data(output.cells(cells, self._widths))


def _step(status: Mapping[str, Any]) -> int | None:
    progress: Mapping[str, Any] = status.get("progress") or {}
    return progress.get("step")


def _stands(status: Mapping[str, Any], now: float) -> str:
    """Return for how long a running job's step has stood still, when that is unusually long; else empty."""
    return "" if status.get("phase") in ENDED else output.standing(status.get("progress") or {}, now)


def _row(record: registry.RegistryEntry, status: dict[str, Any], now: float) -> Row:
    step = _step(status)
    return (
        record.name,
        record.uid[:8],
        status.get("phase", "Pending"),
        ready(status),
        str(sum(status.get("restarts", {}).values())),
        "-" if step is None else f"{step}{_stands(status, now)}",
        output.moment(record.started),
    )


def ready(status: dict[str, Any]) -> str:
    """Return ready and succeeded ranks out of all: 7/9."""
    roles = status.get("roles", [])
    return f"{sum(r['ready'] + r['succeeded'] for r in roles)}/{sum(r['desired'] for r in roles)}"


def describe(record: registry.RegistryEntry, status: dict[str, Any]) -> list[str]:
    """Format a job as lines for people."""
    lines = [f"{record.name} ({record.uid[:8]}): {status['phase']}"]
    if status.get("message"):
        # Without a reason the text would begin with " : ".
        lines.append(f"  {status.get('reason', '')}: {status['message']}".replace(" : ", " "))
    progress: dict[str, Any] = status.get("progress", {})
    if progress.get("step") is not None:
        metrics = "  ".join(f"{k} {v:g}" for k, v in progress.get("metrics", {}).items())
        stands = _stands(status, time.time())
        lines.append(f"  step {progress['step']}{stands}{output.saved(progress)}  {metrics}".rstrip())
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
    """Format goodput and the other accounts of the ranks' time as one line; none before any time has passed."""
    if ledger.get("goodput") is None:
        return []
    # Accounts are in seconds summed over all ranks; their shares need the total of rank seconds.
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
            str(r.get("nodeName") or r.get("node") or "-")[:24],
        )
        for r in ranks
    ]
    return output.aligned(rows)
