"""`dljob chaos`: inject faults into a running job."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from dljob.cli import chaos as shown
from dljob.cli import output
from dljob.cli.target import HERE, JobTarget, local
from dljob.errors import ExitCode, UnreachableError, UsageError

if TYPE_CHECKING:
    from dljob.api.registry import RegistryEntry
    from dljob.plan.model import JobPlan
    from dljob.runtime.control_socket.client import Connection
    from dljob.runtime.faults.injector import FaultInjector

LOOK_S = 0.5


def chaos(
    job: str,
    file: Path,
    /,
    *,
    where: JobTarget = HERE,
    form: Annotated[output.TableFormat, Parameter(name=("--output", "-o"))] = "table",
) -> ExitCode:
    """Inject the faults of a file into a running job on this machine, and report its reaction to each.

    Times and events count from now on. Returns when all faults are injected and the job runs as before, or is over.
    Exits with 1 when a reaction differs from the file's expectation. Ctrl-C stops injecting and resumes paused
    processes.

    Args:
        job: name or uid.
        file: YAML list of faults, as for `dljob run --faults`.
        where: this machine; on Kubernetes it is refused, since processes of pods cannot be reached from here.
        form: table, json or yaml, for the report.
    """
    if where.remote:
        raise UsageError(
            "dljob chaos is for jobs on this machine: it signals processes, and cannot reach those of pods",
            hint="on Kubernetes: kubectl delete pod POD, or kubectl exec POD -- kill PID",
        )
    from dljob.api.local.connection import refuse_dead

    with local("chaos", job) as found:
        refuse_dead(found.record)
        return _inflict(found.record, found.connection, file, form)


def _inflict(record: RegistryEntry, connection: Connection, file: Path, form: output.TableFormat) -> ExitCode:
    from dljob.plan.targets import load_faults
    from dljob.runtime.faults.injector import FaultInjector
    from dljob.runtime.faults.signals import raylets_here

    plan = _plan(record)
    status, raylets = connection.status(), raylets_here(record.address)
    # Refused as a whole: half of a scenario would prove nothing.
    elsewhere = {rank["node"] for rank in status["ranks"] if rank["node"]} - raylets.keys()
    if elsewhere:
        raise UnreachableError(
            f"ranks of job {record.name} are not on this machine but on {', '.join(sorted(elsewhere))}",
            hint="dljob chaos signals processes of this machine only",
        )
    faults = load_faults(file, plan, tuple(sorted(raylets)))
    inflictor = FaultInjector(faults, plan, connection, begin=time.time(), raylets=lambda: raylets_here(record.address))
    try:
        status = _watch(connection, inflictor)
    finally:
        # Also after Ctrl-C: paused processes go on.
        inflictor.close()
    told = inflictor.finish(status)
    if form == "table":
        shown.show(told)
    else:
        output.structured(told, form)
    return shown.verdict(told)


def _plan(record: RegistryEntry) -> JobPlan:
    """Return the job's plan, from the spec in its folder."""
    from dljob.plan.plan import plan
    from dljob.runtime.journal.job_record import SPEC
    from dljob.spec.loading.load import parse

    try:
        return plan(parse(json.loads((record.folder / SPEC).read_text(encoding="utf-8"))))
    except (OSError, ValueError) as error:
        raise UnreachableError(f"cannot read the spec of job {record.name} in {record.dir}: {error}") from None


def _watch(connection: Connection, inflictor: FaultInjector) -> dict[str, Any]:
    """Watch until all faults are injected and recovered from, or the job is over; return the last status."""
    from dljob.runtime.journal.job_record import FINAL

    look = shown.Looking(inflictor, output.say)
    # Earlier notes are skipped: faults wait for events from now on.
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
