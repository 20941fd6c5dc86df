"""`dljob chaos`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from dljob.cli import chaos as shown
from dljob.cli import output
from dljob.cli.attach import attached, local
from dljob.cli.where import HERE, Where
from dljob.errors import ExitCode, UnreachableError, UsageError

if TYPE_CHECKING:
    from dljob.api.registry import JobRecord
    from dljob.plan.model import JobPlan
    from dljob.runtime.inflict import Inflictor
    from dljob.runtime.launch import JobConnection

LOOK_S = 0.5


def chaos(
    job: str,
    file: Path,
    /,
    *,
    where: Where = HERE,
    form: Annotated[output.TableFormat, Parameter(name=("--output", "-o"))] = "table",
) -> ExitCode:
    """Do the faults of a file to a running job of this machine, and tell what it did about each.

    Times and events count from now on. Returns when everything was done and the job runs as before, or is over. Exits
    with 1 when something is not as the file expects. Ctrl-C does no more, and lets go on what was stopped for a time.

    Args:
        job: name or uid.
        file: YAML list of faults, as for `dljob run --faults`.
        where: on which side; on Kubernetes it is refused: no process of a pod can be reached from here.
        form: table, json or yaml, of what was done.
    """
    if where.remote:
        raise UsageError(
            "dljob chaos is for jobs on this machine: it signals processes, and those of pods are not here",
            hint="on Kubernetes: kubectl delete pod POD, or kubectl exec POD -- kill PID",
        )
    record = local("chaos", job)
    with attached(record) as handle:
        return _inflict(record, handle.connection, file, form)


def _inflict(record: JobRecord, connection: JobConnection, file: Path, form: output.TableFormat) -> ExitCode:
    from dljob.plan.targets import load_faults
    from dljob.runtime.harm import raylets_here
    from dljob.runtime.inflict import Inflictor

    plan = _plan(record)
    status, raylets = connection.status(), raylets_here(record.address)
    elsewhere = {rank["node"] for rank in status["ranks"] if rank["node"]} - raylets.keys()
    if elsewhere:
        raise UnreachableError(
            f"ranks of job {record.name} are not on this machine but on {', '.join(sorted(elsewhere))}",
            hint="dljob chaos signals processes of this machine only",
        )
    faults = load_faults(file, plan, tuple(sorted(raylets)))
    inflictor = Inflictor(faults, plan, connection, begin=time.time(), raylets=lambda: raylets_here(record.address))
    try:
        status = _watch(connection, inflictor)
    finally:
        inflictor.close()
    told = inflictor.finish(status)
    if form == "table":
        shown.show(told)
    else:
        output.structured(told, form)
    return shown.verdict(told)


def _plan(record: JobRecord) -> JobPlan:
    """The job's plan, from the spec in its folder."""
    from dljob.plan.plan import plan
    from dljob.runtime.entries import SPEC
    from dljob.spec.load import parse

    try:
        return plan(parse(json.loads((record.folder / SPEC).read_text(encoding="utf-8"))))
    except (OSError, ValueError) as error:
        raise UnreachableError(f"cannot read the spec of job {record.name} in {record.dir}: {error}") from None


def _watch(connection: JobConnection, inflictor: Inflictor) -> dict[str, Any]:
    """Until everything was done and is well again, or the job is over; gives the last status."""
    from dljob.runtime.entries import FINAL

    look = shown.Looking(inflictor, output.say)
    notes = connection.notes()
    version, seq = 0, notes[-1]["seq"] if notes else 0
    while True:
        status = connection.status(version, min(LOOK_S, look.patience()))
        version = status.get("version", version)
        fresh = connection.notes(seq)
        seq = fresh[-1]["seq"] if fresh else seq
        look(status, fresh)
        over = status.get("phase") in FINAL
        if over or (inflictor.done and inflictor.settled(status, time.time())):
            return status
