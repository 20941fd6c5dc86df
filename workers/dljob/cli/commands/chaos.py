"""`dljob chaos`: inject faults into a running job."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from dljob.cli import chaos as shown
from dljob.cli import output
from dljob.cli.target import HERE, JobTarget, local
from dljob.errors import ExitCode, UnreachableError, UsageError
from dljob.linux.plain_files import read_json
from dljob.telemetry.wording import counted

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
    yes: Annotated[bool, Parameter(name=("--yes", "-y"), negative="")] = False,
    place: JobTarget = HERE,
    form: Annotated[output.TableFormat, Parameter(name=("--output", "-o"))] = "table",
) -> ExitCode:
    """Inject the faults of a file into a running job, and report its reaction to each.

    Times and events count from now on. Returns when all faults are injected and the job runs as before, or is over.
    Exits with 1 when a reaction differs from the file's expectation. Ctrl-C stops injecting and resumes paused
    processes. On Kubernetes it acts with your own rights alone: it execs into pods, deletes or evicts them, and cordons
    nodes.

    Args:
        job: name or uid.
        file: YAML list of faults, as for `dljob run --faults`.
        yes: do not ask, on Kubernetes, whether the listed faults are to be injected into that job.
        place: this machine, or a cluster.
        form: table, json or yaml, for the report.
    """
    if place.remote:
        return _in_pods(job, file, place, form, yes=yes)
    from dljob.api.local.connection import refuse_dead

    with local("chaos", job) as handle:
        refuse_dead(handle.record)
        return _inflict(handle.record, handle.connection, file, form)


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
    return _shown(inflictor.finish(status), form)


def _in_pods(job: str, file: Path, place: JobTarget, form: output.TableFormat, *, yes: bool) -> ExitCode:
    from dljob.api.kubernetes.chaos import ClusterFaults
    from dljob.api.kubernetes.cluster_thread import ClusterThread
    from dljob.runtime.faults.injector import describe, when_in_words

    with ClusterThread(place.context) as cluster:
        cluster_faults = ClusterFaults(cluster, job, place.namespace, file)
        if not yes:
            for fault in cluster_faults.faults:
                output.say(f"{describe(fault)} {when_in_words(fault.when)}")
            _confirm(f"inject {counted(len(cluster_faults.faults), 'fault')} into job {cluster_faults.place}")
        return _shown(cluster_faults.inflict(output.say), form)


def _confirm(deed: str) -> None:
    """Ask at a terminal. Raises UsageError without one, and for any answer but yes.

    A job of a machine is its user's own; one of a cluster may be production, and a name is soon mistyped.
    """
    if not sys.stdin.isatty():
        raise UsageError(f"not confirmed: {deed}", hint="--yes injects them without a question")
    output.say(f"{deed}? [y/N]")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was injected")


def _shown(report: Mapping[str, Any], form: output.TableFormat) -> ExitCode:
    if form == "table":
        shown.show(report)
    else:
        output.structured(report, form)
    return shown.verdict(report)


def _plan(record: RegistryEntry) -> JobPlan:
    """Return the job's plan, from the spec in its folder."""
    from dljob.plan.plan import plan
    from dljob.runtime.journal.job_record import SPEC
    from dljob.spec.loading.load import parse

    try:
        return plan(parse(read_json(record.folder / SPEC)))
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
