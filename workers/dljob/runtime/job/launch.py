"""The client's side of a job: create its PrimeMaster, find it again, ask it and command it. All calls block.

A connection survives restarts of the master: a call that breaks is made again until the job has ended, and then the
final status is read from the job's folder.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dljob.errors import DeadlineError, NotFoundError, UnreachableError, UsageError
from dljob.runtime.backend.interface import ActorCallError, ActorLostError, ActorRef, Backend, chosen, factory
from dljob.runtime.backend.masters import FIRST, SECOND, actor_name, call_commander, find_commander
from dljob.runtime.collectives.driver import register_when_used
from dljob.runtime.job import admitting
from dljob.runtime.job.create_master import create
from dljob.runtime.job.outline import Outline, outline
from dljob.runtime.journal.job_record import (
    FINAL,
    REGISTRY,
    SPEC,
    JobRecord,
    MasterOrder,
    bring,
    has_ended,
    is_final,
    read_notes,
    read_status,
)
from dljob.runtime.journal.timeline import write_atomically
from dljob.runtime.process.loop import settle

if TYPE_CHECKING:
    from dljob.master.state.views import Clue
    from dljob.spec.model import DLJobManifest

NAMESPACE = "dljob"
RETRY_S = 0.05
LOST_S = 30.0
"""Seconds without a master and without a final status in the folder, after which it is taken for lost."""
LEAVES_S = 10.0
"""Seconds after the end of its job until a master that is still there is killed."""


def new_uid() -> str:
    """Return a new uid for a job: 32 hex digits."""
    return uuid.uuid4().hex


class JobConnection:
    """A job, seen from outside. Made by `launch` or `attach` in a process that has joined the job's Ray."""

    def __init__(self, backend: Backend, entry: JobRecord) -> None:
        self._backend = backend
        self._entry = entry
        self._master: ActorRef | None = None
        """The master that answered last: to look for it costs as much as to ask it."""

    @property
    def uid(self) -> str:
        """The job's uid: 32 hex digits."""
        return self._entry.uid

    @property
    def name(self) -> str:
        """The job's name."""
        return self._entry.name

    @property
    def dir(self) -> Path:
        """The job's folder on the master's machine."""
        return Path(self._entry.dir)

    def status(self, after_version: int = 0, timeout_s: float = 0.0) -> dict[str, Any]:
        """Return the status; with a timeout, once its version is greater than `after_version`."""
        answer = self._call("status", after_version, timeout_s)
        return answer if answer is not None else self._final()

    def notes(self, after_seq: int = 0, timeout_s: float = 0.0) -> list[dict[str, Any]]:
        """Return the events with a number greater than `after_seq`, also of an ended job; a timeout waits for some."""
        answer = self._call("notes", after_seq, timeout_s)
        return answer if answer is not None else read_notes(self.dir, after_seq)

    def command(self, kind: str, target: str = "job", *, by: str = "", id: str = "") -> None:  # noqa: A002
        """Send a command. It takes effect once, even if PrimeMaster dies meanwhile; an ended job ignores it."""
        # The id makes a repeated call one order: an answer may be lost with the master.
        self._call("command", id or uuid.uuid4().hex, kind, target, by)

    def learned(self, target: str, incarnation: int, clue: Clue) -> None:
        """Report evidence for the end of a rank's process, before or after that end."""
        self._call("learned", target, incarnation, clue)

    def stacks(self, target: str = "job") -> dict[str, str]:
        """Return rank -> the stacks of its process as text; nothing for an ended job.

        Raises:
            NotFoundError: There is no such target.
        """
        answer: dict[str, str] = self._call("stacks", target) or {}
        return answer

    def pids(self) -> dict[str, int]:
        """Return the processes as `master` and `<role>/<rank>` -> pid; nothing for an ended job."""
        return self._call("pids") or {}

    def wait(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait for the end; return the final status. Raises DeadlineError when the job does not end in time."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            # In polls: the master bounds each one, and the caller's deadline may be far away.
            seconds_left = 30.0 if end is None else end - time.monotonic()
            if seconds_left <= 0:
                raise DeadlineError(f"job {self.name} was not over after {timeout_s:g} s")
            # No version is that high: the call returns at the end of the job, or when its time is over.
            status = self.status(2**53, min(seconds_left, 30.0))
            if status.get("phase") in FINAL:
                return status

    def final(self) -> dict[str, Any] | None:
        """Return the final status; None while the job runs."""
        answer = self._call("wait", 0.0)
        if answer is not None:
            return answer
        final_status = self._final()
        return final_status if final_status.get("phase") in FINAL else None

    def kill(self) -> None:
        """Kill a master that does not answer. Its ranks end when their leases do."""
        settle(self._kill())

    def let_leave(self) -> None:
        """Wait until the master of an ended job is gone: it still answers clients that wait for the end."""
        settle(self._let_leave())

    async def _let_leave(self) -> None:
        end = time.monotonic() + LEAVES_S
        while (ref := await find_commander(self._backend, self.uid)) is not None:
            # It answers nobody any more, yet holds the name that the next master of this uid needs.
            if time.monotonic() > end:
                await self._backend.kill(ref)
            await asyncio.sleep(RETRY_S)

    async def _kill(self) -> None:
        # The standby first: it would take over from the other one.
        for number in (SECOND, FIRST):
            ref = await self._backend.lookup(actor_name(self.uid, number))
            if ref is not None:
                await self._backend.kill(ref)

    def _call(self, method: str, *args: Any) -> Any:
        """Return the master's answer, through its restarts; None when the job has ended."""
        return settle(self._answer(method, args))

    async def _answer(self, method: str, args: tuple[Any, ...]) -> Any:
        missed: float | None = None
        # The folder first: the job's Ray may have ended with it, and a call would start a new Ray or wait for a minute.
        while not is_final(self.dir):
            ref, has_head_answered = None, True
            try:
                ref = self._master or await find_commander(self._backend, self.uid)
                self._master = None  # unless it answers
                if ref is not None:
                    answer = await call_commander(self._backend, ref, self.uid, method, *args)
                    self._master = ref
                    return answer
            except ActorLostError:  # without a ref the lookup itself failed: Ray's head does not answer
                has_head_answered = ref is not None
            except ActorCallError as error:
                raise UnreachableError(f"PrimeMaster of {self.name}: {error.message}") from error
            # The end may be in Ray's store alone: the folder of a master on another node is out of reach.
            if has_head_answered and await has_ended(self._backend.kv, self.uid, self.dir):
                return None
            # An actor that Ray still lists is only restarting, however long that takes: time counts without one.
            missed = None if ref is not None else missed or time.monotonic()
            if missed is not None:
                await self._give_up(time.monotonic() - missed, has_head_answered=has_head_answered)
            await asyncio.sleep(RETRY_S)
        return None

    async def _give_up(self, seconds: float, *, has_head_answered: bool) -> None:
        """Raise once a master that has been away for so long cannot come back, as it may while Ray's head is silent."""
        if has_head_answered and (seconds > LOST_S or await self._backend.kv.get(REGISTRY + self.uid) is None):
            raise UnreachableError(
                f"PrimeMaster of {self.name} is gone and left no final status in {self.dir}",
                hint=f"its journal and logs are in {self.dir}",
            )
        if seconds > LOST_S:
            raise UnreachableError(
                f"the Ray of PrimeMaster of {self.name} does not answer", hint=f"its journal and logs are in {self.dir}"
            )

    def _final(self) -> dict[str, Any]:
        return read_status(self.dir)


def launch(
    manifest: DLJobManifest,
    *,
    job_dir: Path,
    code_dir: Path | None,
    uid: str = "",
    backend: str | None = None,
    attempt: int = 1,
    carried: str = "",
) -> JobConnection:
    """Start a job on the Ray that this process has joined, from the manifest as it is now. Arguments as in `begin`."""
    # No operator ends a job here that this Ray could never hold: PrimeMaster does.
    manifest = manifest.model_copy(update={"spec": manifest.spec.model_copy(update={"ray_cluster_ref": None})})
    # As JSON, with the names of the file: PrimeMaster validates the same text that a launcher sends.
    text = manifest.model_dump_json(by_alias=True, exclude_none=True)
    register_when_used({backend.name: backend.class_ for backend in manifest.spec.collectives.backends})
    job = outline(text)
    return begin(job, job_dir=job_dir, code_dir=code_dir, uid=uid, backend=backend, attempt=attempt, carried=carried)


def begin(
    job: Outline,
    *,
    job_dir: Path,
    code_dir: Path | None,
    uid: str = "",
    backend: str | None = None,
    attempt: int = 1,
    own_nodes: bool = False,
    apart: bool = False,
    carried: str = "",
) -> JobConnection:
    """Create the PrimeMaster of a job; return when it answers.

    Args:
        job: The job.
        job_dir: Its folder: journal, logs, status, and what user code keeps there. Created if needed.
        code_dir: The folder of user code: first on the workers' path, and their working directory. None: each process
            keeps the one in which Ray starts it.
        uid: A `new_uid()` if the folder's name contains it; else one is made.
        backend: The backend's name from the command line, over the spec and `DISTRIBUTED_BACKEND`.
        attempt: Counts from 1; a later attempt never reads the journal of an earlier one.
        own_nodes: The operator makes the nodes of the job's plan, so the job waits for them without a limit.
        apart: The head is a machine of its own, so that it matters whether the master lives there.
        carried: State of the previous attempt; empty without one.
    """
    name = chosen(backend, job.backend)
    job_backend = factory(name)(job.options)
    # Refuse before anything is written or created.
    admitting.check(job.text, job_backend)
    uid = uid or new_uid()
    code = str(code_dir or "")
    order = MasterOrder(uid, str(job_dir), code, NAMESPACE, name, job.options, attempt, own_nodes, carried)
    if apart and (job.on_worker or job.survives):
        # The next master may be on another node, where this folder is not: journal to Ray's store, or to a volume.
        options = job.options if job.journal else {**job.options, "journal": "kv"}
        order = replace(order, options=options, roams=True)
    entry = JobRecord(uid, job.name, str(job_dir), time.time())
    try:
        # Private to this user: the job's logs are in it.
        job_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(job_dir / SPEC, job.text)
    except OSError as error:
        raise UsageError(
            f"the job's folder {job_dir} cannot be written: {error.strerror}",
            hint="set DLJOB_HOME to a folder of yours",
        ) from error
    settle(create(job_backend, order, entry, job, away=apart and job.on_worker))
    return JobConnection(job_backend, entry)


def find(job: Outline, *, job_dir: Path, uid: str, backend: str | None = None) -> JobConnection | None:
    """Return the job of this uid if its PrimeMaster lives here or left a final status; else None."""
    job_backend = factory(chosen(backend, job.backend))(job.options)
    if settle(find_commander(job_backend, uid)) is None and not settle(has_ended(job_backend.kv, uid, job_dir)):
        return None
    return JobConnection(job_backend, JobRecord(uid, job.name, str(job_dir), time.time()))


def list_jobs(backend: str | None = None) -> tuple[JobRecord, ...]:
    """Return the live jobs of the cluster, oldest first."""
    return settle(_entries(factory(chosen(backend, None))({})))


async def _entries(backend: Backend) -> tuple[JobRecord, ...]:
    # A job may end between the list of keys and a read: its value is None then.
    values = [await backend.kv.get(key) for key in await backend.kv.keys(REGISTRY)]
    entries = [JobRecord(**json.loads(value)) for value in values if value]
    return tuple(sorted(entries, key=lambda entry: entry.started))


def attach(job: str, backend: str | None = None) -> JobConnection:
    """Find a live job by its uid, the first 8 digits of it, or its name (the latest of several).

    A whole uid also finds a job that has ended, if its final status is on the cluster. Raises NotFoundError without
    one.
    """
    job_backend = factory(chosen(backend, None))({})
    entries = settle(_entries(job_backend))
    # Newest first: names may occur several times, and a user means the job that was started last.
    for entry in reversed(entries):
        if job in (entry.uid, entry.uid[:8], entry.name):
            return JobConnection(job_backend, entry)
    # Live jobs first: the registry is one look, and an ended job is only found by its whole uid.
    if (ended_folder := settle(bring(job_backend.kv, job))) is not None:
        return JobConnection(job_backend, JobRecord(job, read_status(ended_folder)["name"], str(ended_folder), 0.0))
    job_names = ", ".join(sorted({entry.name for entry in entries})) or "none"
    raise NotFoundError(f"no job {job!r} lives on this cluster; there: {job_names}")
