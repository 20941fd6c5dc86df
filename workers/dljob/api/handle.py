"""Handle of a submitted job on a Ray: status, events, logs, orders and result, also after the job's end."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO, Unpack, cast

from dljob.api import logs, master_log, registry
from dljob.api.any_job import LogSelection
from dljob.api.local import views
from dljob.api.local.connection import RecordConnection, refuse_dead, refuse_starting
from dljob.api.next_attempt import (
    CHECKPOINTS,
    NextAttempt,
    link_checkpoints,
    next_attempt,
    program_of,
    put_back,
    set_aside,
)
from dljob.api.reach import check_owner
from dljob.api.shown_job import JobAccounts, JobSummary, Overview, Page, ShownJob
from dljob.api.values import check_target
from dljob.errors import DLJobError, NotFoundError, UnreachableError, UsageError
from dljob.spec.status import TERMINAL
from dljob.telemetry import reasons

if TYPE_CHECKING:
    from dljob.api.views import JobEvent, JobStatus, Suspension
    from dljob.runtime.control_socket.client import Connection
    from dljob.spec.model import DLJobManifest


log = logging.getLogger(__package__)
NAME_LENGTH = 47
"""Most characters of a job's name."""
ASK_S = 5.0
"""Interval, in seconds, at which PrimeMaster on a running Ray is asked for the job's end while logs are followed."""
SILENT_S = 60.0
"""The same after no answer: finding that out can take 10 s, in which no line is shown."""
START_ACTIVITY = "starting Ray and the job"
"""What a session host does until its job has begun."""
INTERRUPTED_START = "interrupted before the job began"
INTERRUPT_S = 10.0
"""Longest time, in seconds, for a process to end the start of a job that was interrupted."""
LOOK_S = 0.05
"""Interval, in seconds, at which that is looked for."""
NEWS_S = 10.0
"""Longest wait, in seconds, for further entries of a timeline; a new one ends it."""


class JobHandle(ShownJob):
    """A job on a Ray: of a cluster, or of this machine."""

    def __init__(self, record: registry.RegistryEntry, connection: Connection) -> None:
        self.record = record
        self.connection = connection
        self._ask_at = 0.0
        self._silent = False

    @property
    def name(self) -> str:
        """The job's name."""
        return self.record.name

    @property
    def uid(self) -> str:
        """The job's uid: 32 hex digits."""
        return self.record.uid

    def __enter__(self) -> Self:
        """Use one connection for all calls in the block."""
        if isinstance(self.connection, AbstractContextManager):  # that of `submit` is open as long as its process
            self.connection.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the connection."""
        if isinstance(self.connection, AbstractContextManager):
            self.connection.__exit__(kind, error, at)

    @property
    def place(self) -> str:
        """The job in a message: its name."""
        return self.name

    @property
    def flags(self) -> str:
        """Empty: without a flag, commands look on this machine."""
        return ""

    @property
    def remains(self) -> str:
        """Remains of a stopped job, for a message: its folder."""
        return "it had not begun" if self.record.is_starting else f"its folder: {self.dir}"

    @property
    def dir(self) -> Path:
        """The job's folder: journal, logs, status, and what user code keeps there."""
        return self.record.folder

    def status(self) -> JobStatus:
        """Return the present status: phase, roles, ranks, restarts, progress, result."""
        return cast("JobStatus", self.connection.status())

    def events(self, after: int = 0) -> list[JobEvent]:
        """Return the timeline: notes with a number greater than `after`."""
        return cast("list[JobEvent]", self.connection.notes(after))

    @property
    def started(self) -> float:
        """Time of the submission, in unix seconds."""
        return self.record.started

    def tell_events(self, show: Callable[[JobEvent], None], *, follow: bool, tail: int | None = None) -> None:
        """Show the entries of the timeline, or the last `tail` of them; with `follow`, continue until its end."""
        last_number = 0
        if tail is not None:
            from dljob.runtime.journal.job_record import last_notes

            # A folder on another machine may have no events, or old ones: what follows comes from PrimeMaster.
            # One at least: its number tells which entries are shown already.
            last = last_notes(self.dir, max(1, tail)) if self.record.runner or self.record.over else self.events()
            for note in last[max(0, len(last) - tail) :]:
                show(cast("JobEvent", note))
            last_number = int(last[-1].get("seq", 0)) if last else 0
        while True:
            # Asked first: entries between the last read and the end would be lost otherwise.
            ended = self.connection.status().get("phase") in views.ENDED
            fresh = self.connection.notes(last_number, NEWS_S if follow and not ended else 0.0)
            for note in fresh:
                show(cast("JobEvent", note))
            last_number = fresh[-1]["seq"] if fresh else last_number
            if ended or not follow:
                return

    def overview(self) -> Overview:
        """Return the job in detail, by its PrimeMaster, or by its folder where that does not answer in time."""
        return views.overview(self.record, views.current(self.record, self._way, self._remark))

    def ranks(self) -> Overview:
        """Return the job in detail; a status here has all ranks."""
        return self.overview()

    def evidence(self) -> Overview:
        """Return the job in detail; a status here has all evidence of its failures."""
        return self.overview()

    def accounts(self) -> JobAccounts:
        """Return where the time of the job's ranks went."""
        return JobAccounts(self.overview(), views.spec(self.dir))

    def page(self) -> Page:
        """Return the job in detail, with its spec, nodes and last events."""
        refuse_starting(self.record)
        overview, record = self.overview(), self.record
        # A page without events is still worth showing: the folder has the rest.
        try:
            events, remarks = self.events(), list[str]()
        except UnreachableError as error:
            events, remarks = [], [f"PrimeMaster does not answer: {error.message}"]
        short = record.uid[:8]
        return Page(
            overview,
            facts=views.facts(record, dict(overview.status)),
            spec=views.spec(record.folder),
            events=events,
            event_remarks=remarks,
            more_events=f"dljob events {short}",
            logs=[f"{record.folder / 'logs'}/<role>-<rank>.log", f"dljob logs {short} --follow"],
        )

    def watch(self, show: Callable[[Sequence[JobSummary]], None]) -> None:
        """Show the job at every change, or more often, until it has ended."""
        views.watch(self.record, self._way, show)

    @property
    def _way(self) -> RecordConnection:
        return self.connection if isinstance(self.connection, RecordConnection) else RecordConnection(self.record)

    def wait(self, timeout: float | None = None) -> JobStatus:
        """Wait for the end and return the final status.

        Args:
            timeout: seconds; None: without limit.

        Raises:
            DeadlineError: the job had not ended in time.
        """
        return cast("JobStatus", self.connection.wait(timeout))

    def _result(self, status: JobStatus) -> str | None:
        return status.get("result")

    def _write_logs(self, to: TextIO, *, follow: bool, **which: Unpack[LogSelection]) -> None:
        refuse_starting(self.record)
        if follow:
            lines = logs.follow(self.dir, self._has_ended, **which)
        else:
            lines = logs.read(self.dir, alive=self.record.alive, **which)
        _write(to, lines, flush=follow)

    def _write_master_log(self, to: TextIO, *, follow: bool, tail: int | None, since: float | None) -> None:
        refuse_starting(self.record)
        if follow:
            lines = master_log.follow(self.dir, self._has_ended, tail=tail, since=since)
        else:
            lines = master_log.read(self.dir, tail=tail, since=since)
        _write(to, lines, flush=follow)

    def restart(self, target: str = "job") -> None:
        """Restart the job, a role ("rollout") or a rank ("rollout/2").

        Raises:
            NotFoundError: the job has ended, or has no such target.
        """
        self._check_target(target)
        self.connection.command("restart", target, by=_me())

    def stacks(self, target: str = "job") -> dict[str, str]:
        """Return the stacks of all threads of each rank ("rollout/2"), as text, without stopping the ranks.

        Raises:
            NotFoundError: the job has ended, or has no such target.
        """
        self._check_target(target)
        stacks = self.connection.stacks(target)
        if not stacks:  # it ended since the check
            raise NotFoundError(f"job {self.name} has ended", hint=f"see dljob status {self.name}")
        return stacks

    def _check_target(self, target: str) -> None:
        # Before the request: for an ended job no PrimeMaster would answer it.
        refuse_dead(self.record)
        # Checked here for an answer at once: PrimeMaster would refuse an unknown target in a note.
        roles = self.connection.status().get("roles") or ()
        check_target(self.name, {role["name"]: role["desired"] for role in roles}, target)

    def scale(self, role: str, ranks: int) -> None:
        """Resize a role within minReplicas and maxReplicas, as far as there is capacity.

        Raises:
            UsageError: PrimeMaster refused: there is no such role, or it cannot have this size.
        """
        # The answer to a command carries no refusal; PrimeMaster notes it in the timeline, after the last note of now.
        before = max((int(note["seq"]) for note in self.connection.notes()), default=0)
        self.connection.command("scale", f"{role}={ranks}", by=_me())
        for note in self.connection.notes(before):
            if (note["reason"], note["target"]) == (reasons.COMMAND_REFUSED, role):
                raise UsageError(note["message"])

    def stop(self, *, wait: bool = False) -> None:
        """End the job; its journal and checkpoints stay in its folder.

        Args:
            wait: return only when the job has ended.
        """
        if self.record.is_starting:
            begun = interrupt_start(self.record)
            if begun is None:
                return
            self.record, self.connection = begun, RecordConnection(begun)
        self.connection.command("stop", "job", by=_me())
        if wait:
            self.connection.wait()

    def suspend(self, *, wait: bool = False) -> Suspension:
        """Refuse: on a Ray, without an operator, nothing would start the job again.

        Raises:
            UsageError: always.
        """
        raise self._only_on_kubernetes("suspend", wait=wait)

    def resume(self, *, wait: bool = False) -> Suspension:
        """Refuse, like `suspend`.

        Raises:
            UsageError: always.
        """
        raise self._only_on_kubernetes("resume", wait=wait)

    def _only_on_kubernetes(self, verb: str, *, wait: bool) -> UsageError:
        del wait
        return UsageError(
            f"{verb}() of job {self.name}: only Kubernetes suspends and resumes jobs",
            hint="stop() saves a checkpoint; submit(resume=True), or dljob run with --resume, goes on from it",
        )

    def _has_ended(self) -> bool:
        """Whether no process of the job writes any more. Called several times a second, so it must be cheap."""
        if self.record.over or self.record.stale:
            return True
        # A runner writes the final status here. On a Ray of others this folder may never get one: PrimeMaster is asked,
        # but seldom, since the way to it may be a process that has to join that Ray.
        if self.record.runner or time.monotonic() < self._ask_at:
            return False
        self._ask_at = time.monotonic() + ASK_S
        # The process that submitted the job has a connection open, so asking costs no new process.
        if not isinstance(self.connection, RecordConnection):
            return self.connection.status().get("phase") in TERMINAL
        try:
            with self.connection.reached() as job:
                phase = job.status(reach_s=views.ANSWER_S).get("phase")
        except UnreachableError:
            # PrimeMaster may be restarting while its ranks write on, and their output is to be shown.
            self._ask_at = time.monotonic() + SILENT_S
            # Not even its Ray listens, twice in a row: it is gone, and nothing will ever write a final status.
            before, self._silent = self._silent, not may_run(self.record)
            if before and self._silent:
                self._remark(f"nothing listens at {self.record.address} any more: the job's Ray is gone")
            return before and self._silent
        self._silent = False
        return phase in TERMINAL


def _write(to: TextIO, lines: Iterable[object], *, flush: bool) -> None:
    for line in lines:
        to.write(f"{line}\n")
        if flush:
            to.flush()


def submit(
    manifest: DLJobManifest,
    *,
    address: str | None = None,
    code_dir: Path,
    backend: str | None = None,
    record: Callable[[registry.RegistryEntry], registry.RegistryEntry] = registry.register,
    environment: tuple[tuple[str, str], ...] = (),
    runner: int = 0,
    replace: bool | None = False,
    is_numbered: bool = False,
    imports_code: bool = True,
    resume: str | None = None,
    uid: str = "",
) -> JobHandle:
    """Start a job on a Ray. `DLJob.submit` is the public form.

    Args:
        manifest: the job.
        address: host:port of Ray's GCS; by default RAY_ADDRESS, or the Ray that this process has joined.
        code_dir: first on the workers' path, and their working directory.
        backend: name of the backend, over that of the spec.
        record: writes the job's entry where other terminals find it.
        environment: variables with which other processes reach this Ray.
        runner: pid of the process that owns this Ray, which ends with it; 0 for a Ray that was there before.
        replace: stop a running job of that name first; None: the caller has no way to ask for that.
        is_numbered: take the next free name (train-2) where a job of that name runs.
        imports_code: whether Ray's workers import user code; they do not where all ranks are scripts.
        resume: uid of an ended job of that name, which goes on from its newest checkpoint; empty: the newest one.
        uid: of the entry under which it is being started (`announce_start`); empty: a new one.

    Raises:
        UnreachableError: there is no Ray, or DLJOB_HOME cannot be written.
        UsageError: a job of that name runs; there is no working directory; the job is suspended; there is nothing to
            go on with.
    """
    from dljob.runtime.backend.connect import JOIN_S, connect
    from dljob.runtime.job.launch import launch, new_uid

    refuse_unchosen(manifest)
    refuse_suspended(manifest)  # checks that need no Ray come first: joining a Ray takes seconds
    check_code_dir(code_dir)
    if not is_numbered:
        free_name(manifest.metadata.name, replace=replace)
    # An embedded Ray answers. Joining another one can hang in C++, so it is given up after JOIN_S (ADR 56).
    reached = connect(address, code_dir, within_s=None if runner else JOIN_S, imports_code=imports_code)
    attempts: list[NextAttempt] = []
    program = program_of(manifest, code_dir)

    def register(name: str) -> registry.RegistryEntry:
        job_uid = uid or new_uid()
        if resume is not None:
            attempts.append(next_attempt(name, resume, program=program))
            job_uid = attempts[0].record.uid
            set_aside(attempts[0])
        folder = attempts[0].record.folder if attempts else registry.folder_of(name, job_uid)
        started = registry.start_of(runner) if runner else 0
        return record(
            registry.RegistryEntry(
                name=name,
                uid=job_uid,
                dir=os.fspath(folder),
                program=program,
                address=reached,
                environment=environment or _own_environment(),
                runner=runner,
                runner_started=started,  # a later process may get its pid
            )
        )

    entry = _claim_name(manifest.metadata.name, register, replace=replace, is_numbered=is_numbered)
    metadata = manifest.metadata.model_copy(update={"name": entry.name})
    manifest = manifest.model_copy(update={"metadata": metadata})
    checkpoint = manifest.spec.checkpoint
    path = checkpoint.path if runner and checkpoint is not None else None
    if path and (obstacle := link_checkpoints(entry.folder, path, entry.name, entry.uid)):
        log.warning("checkpoints are in %s, not below checkpoint.path: %s", entry.folder / CHECKPOINTS, obstacle)
    resumed = attempts[0] if attempts else None
    try:
        connection = launch(
            manifest,
            job_dir=entry.folder,
            code_dir=code_dir,
            uid=entry.uid,
            backend=backend,
            attempt=1 if resumed is None else resumed.number,
            carried="" if resumed is None else resumed.carried,
        )
    except UnreachableError:
        raise  # its master may still come up, and then this entry is how the user finds the job
    except DLJobError:
        # It never began, and its entry would be shown as a running job for ever.
        if resumed is None:
            registry.forget(entry)
        else:
            put_back(resumed)
        raise
    return JobHandle(entry, connection)


@contextmanager
def announce_start(name: str, *, replace: bool | None, is_numbered: bool = False) -> Generator[registry.RegistryEntry]:
    """Hold the name of a job that this process starts, and have the start seen and stopped from other terminals.

    Raises:
        UsageError: a job of that name runs, or is being started.
        UnreachableError: DLJOB_HOME cannot be written, or a job that is to be replaced does not end.
    """
    entry = _claim_name(name, registry.register_start, replace=replace, is_numbered=is_numbered)
    try:
        yield entry
    finally:
        registry.remove_start(entry)


def interrupt_start(record: registry.RegistryEntry) -> registry.RegistryEntry | None:
    """Interrupt the start of a job as Ctrl-C does; return the job's entry if it began before that.

    Raises:
        UnreachableError: it is another user's, or its process does not end the start.
    """
    check_owner(record)
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(record.runner)
        try:
            if registry.start_of(record.runner) == record.runner_started:  # else a later process has got its pid
                signal.pidfd_send_signal(pidfd, signal.SIGINT)
        finally:
            os.close(pidfd)
    deadline = time.monotonic() + INTERRUPT_S
    while record.folder.exists() and not record.stale:
        if time.monotonic() > deadline:
            raise UnreachableError(
                f"process {record.runner} still starts job {record.name}, {INTERRUPT_S:.0f} s after SIGINT",
                hint=f"kill {record.runner}",
            )
        time.sleep(LOOK_S)
    jobs = [job for job in registry.records() if job.runner == record.runner and job.name == record.name and job.alive]
    return jobs[-1] if jobs else None


def _claim_name(
    name: str,
    register: Callable[[str], registry.RegistryEntry],
    *,
    replace: bool | None,
    is_numbered: bool,
) -> registry.RegistryEntry:
    """Register a job under its name, or under the next free one."""
    # The name is looked at again, under the lock: connecting takes seconds, and another process may have taken it.
    names = numbered_names(name)
    while True:
        candidate = next(names)
        with registry.claimed(candidate) as namesake:
            if namesake is None or not may_run(namesake):
                # Before the launch: if this process dies in between, the job can still be found and stopped.
                return register(candidate)
            if not is_numbered and not replace:
                raise name_taken_error(namesake, can_replace=replace is not None)
        if replace:  # not under the lock: it may take as long as a last checkpoint
            free_name(name, replace=True)
            names = numbered_names(name)


def numbered_names(name: str) -> Iterator[str]:
    """Yield the names of jobs that run at once and were given this one: train, train-2, train-3."""
    yield name
    for number in itertools.count(2):
        yield f"{name[: NAME_LENGTH - len(str(number)) - 1].rstrip('-')}-{number}"


def free_name(name: str, *, replace: bool | None) -> None:
    """Make sure that no job of a name runs; with `replace`, by stopping it; None: the command cannot do that.

    Raises:
        UsageError: a job of that name runs.
        UnreachableError: it does not answer, or does not end.
    """
    # The folder may say "running" for ever: a job whose Ray was killed wrote no final status.
    namesake = registry.living(name)
    if namesake is None or not may_run(namesake):
        return
    if not replace:
        raise name_taken_error(namesake, can_replace=replace is not None)
    try:
        handle_of(namesake).stop(wait=True)  # until its end, as only then the name is free
    except (NotFoundError, UnreachableError):
        if namesake.alive and may_run(namesake):
            raise
        # It ended, or was killed, meanwhile, as where two jobs replace it at once.


def may_run(record: registry.RegistryEntry) -> bool:
    """Whether a job without a final status may still run: its runner is alive, or its Ray listens."""
    from dljob.runtime.backend.connect import listens

    # Without a runner there is no process to look for, only the port of a Ray that outlives its jobs.
    return listens(record.address) if not record.runner else not record.stale


def name_taken_error(record: registry.RegistryEntry, *, can_replace: bool) -> UsageError:
    """Return the error that the name of a new job is taken by the running job `record`."""
    job_text = f"a job {record.name} ({record.uid[:8]})"
    if record.is_starting:
        waits = registry.starting_status(record).get("message")
        message, way = f"process {record.runner} starts {job_text}: {waits}", f"stop it (dljob stop {record.name})"
    elif record.status().get("phase") == "Stopping":
        message, way = f"{job_text} is still being stopped", f"wait for its end (dljob stop {record.name} --wait)"
    else:
        message, way = f"{job_text} runs already", f"stop it (dljob stop {record.name})"
    replacing = "replace it (--replace, or replace=True), " if can_replace else ""
    hint = f"{replacing}{way}, or take another name{'' if can_replace else ' (--name)'}"
    return UsageError(message if record.is_starting else f"{message}; its folder: {record.dir}", hint=hint)


def handle_of(record: registry.RegistryEntry) -> JobHandle:
    """Return the handle of a job of this user, also of an ended one, or one that another process started."""
    return JobHandle(record, RecordConnection(record))


def refuse_unchosen(manifest: DLJobManifest) -> None:
    """Refuse a job whose resources are still to be chosen: the commands choose them, from records that they read.

    Raises:
        UsageError: a role has `resources.auto`.
    """
    for role in manifest.spec.roles:
        if role.resources.auto is not None:
            raise UsageError(
                f"resources.auto of role {role.name} is chosen by dljob run and dljob submit --address",
                hint="write to_yaml(); dljob run FILE",
            )


def refuse_suspended(manifest: DLJobManifest) -> None:
    """Refuse a job that is to begin suspended: on a Ray, without an operator, nothing would resume it.

    Raises:
        UsageError: `spec.suspend` is set.
    """
    if manifest.spec.suspend:
        raise UsageError(
            f"job {manifest.metadata.name} is suspended (spec.suspend), and only Kubernetes can suspend a job",
            hint="leave spec.suspend out to run it here",
        )


def check_code_dir(code_dir: Path) -> None:
    """Check that ranks can use a folder as their working directory.

    Raises:
        UsageError: it is not a folder.
    """
    if not code_dir.is_dir():
        raise UsageError(f"the working directory {code_dir} does not exist", hint="see spec.code.workingDir")


def _own_environment() -> tuple[tuple[str, str], ...]:
    """Return how this process itself reached its Ray: the file of the token, never the token."""
    names = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH")
    return tuple((name, os.environ[name]) for name in names if name in os.environ)


def _me() -> str:
    """Return the author of an order, for the timeline."""
    return f"pid {os.getpid()}"
