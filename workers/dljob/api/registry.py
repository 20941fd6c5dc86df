"""Registry of this user's jobs: one folder each under DLJOB_HOME, found by name from any terminal."""

from __future__ import annotations

import errno
import fcntl
import os
import shlex
import shutil
import time
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from dljob.api.values import suggestion
from dljob.errors import NotFoundError, UnreachableError, UsageError
from dljob.linux.plain_files import read_json, read_plain
from dljob.runtime.control_socket.location import ENTRY, read, remove, socket_of, write
from dljob.runtime.process.guard import boot_id
from dljob.spec.status import TERMINAL
from dljob.telemetry import reasons
from dljob.telemetry.wording import moment, seconds

_UID8 = 8
_PREFIX = 4
"""Fewest digits of a uid that name a job."""
STARTS = ".starting-"
"""How the folder of a job begins that is being started: it has one of its own once there is a Ray for it."""
STARTING = "Starting"
"""The phase of such a job."""
_STATUS = "status.json"


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    """Content of a job's job.json."""

    name: str
    uid: str
    dir: str
    """The job's folder: where job.json was found, which then need not be where it was written."""
    address: str = ""
    """host:port of Ray's GCS."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables with which a process of this user reaches that Ray."""
    runner: int = 0
    """Pid of the process that owns the embedded Ray (`dljob run`, a session host); 0 on a Ray that was there before."""
    runner_started: int = 0
    """Start of that process in clock ticks since boot, to tell it from a later process with the same pid."""
    runner_host: str = ""
    """Host name, boot and pid namespace of that process, between which a folder of jobs may be shared."""
    started: float = 0.0
    """Unix seconds."""
    socket: str = ""
    """Control socket of the job's PrimeMaster, by its name alone in the job's folder; empty until it listens."""
    socket_trouble: str = ""
    """Why there is no control socket."""
    program: str = ""
    """What it runs (`next_attempt.program_of`), by which jobs of one name are told apart; empty: not known."""

    @property
    def folder(self) -> Path:
        """The job's folder: journal, logs, status, and what user code keeps there."""
        return Path(self.dir)

    def status(self) -> dict[str, Any]:
        """Return the status in the folder: the final one, or the last one written."""
        # No status, or a damaged one: the job then counts as one that has not ended.
        with suppress(OSError, ValueError):
            return self.read_status()
        return {}

    @property
    def status_damage(self) -> str:
        """Why the status in the folder cannot be read; empty where it can."""
        try:
            self.read_status()
        except OSError as error:
            return error.strerror or str(error)
        except ValueError as error:
            return str(error)
        return ""

    @property
    def has_damaged_status(self) -> bool:
        """Whether there is a status in the folder that cannot be read."""
        return bool(self.status_damage) and (self.folder / _STATUS).exists()

    def read_status(self) -> dict[str, Any]:
        """Return the status in the folder. Raises OSError without one, and ValueError for a damaged one."""
        content: object = read_json(self.folder / _STATUS)
        status = cast("dict[str, Any]", content) if isinstance(content, dict) else {}
        if not isinstance(status.get("phase"), str):
            raise ValueError("it names no phase of a job")
        return status

    @property
    def over(self) -> bool:
        """Whether the job ended and wrote its final status."""
        return self.status().get("phase") in TERMINAL

    @property
    def is_starting(self) -> bool:
        """Whether its runner still starts a Ray for it, so that there is no job to ask yet."""
        return self.folder.name.startswith(STARTS)

    @property
    def stale(self) -> bool:
        """Whether the runner is gone without a final status: nothing of the job can be alive."""
        is_runner_gone = self.runner != 0 and start_of(self.runner) != self.runner_started
        return is_runner_gone and not self.over and not self.elsewhere

    def why_lost(self) -> tuple[str, str]:
        """Return a reason and a message about a runner that is gone without a final status."""
        sentence = f"its runner (pid {self.runner}) is gone without a final status"
        this_place, runner_place = this_host().split("/"), self.runner_host.split("/")
        if this_place[1:2] != runner_place[1:2] and runner_place[1:2] not in ([], [""]):
            return reasons.MACHINE_RESTARTED, f"{sentence}: this machine was restarted while the job ran"
        return reasons.RUNNER_KILLED, f"{sentence}: it was killed; the job's processes were ended"

    @property
    def elsewhere(self) -> str:
        """Host on which the job may run, though nothing of it can be seen from here; empty for one of this host."""
        if not self.runner or not self.runner_host:
            return ""
        (host, *runner_place), (this_name, *this_place) = self.runner_host.split("/"), this_host().split("/")
        # The same name after another boot: this machine has been restarted since, and nothing of it lives.
        return (
            ""
            if runner_place == this_place or (host == this_name and runner_place[:1] != this_place[:1]) or self.over
            else host
        )

    @property
    def alive(self) -> bool:
        """Whether the job has neither ended nor lost its runner; one that cannot be seen from here does not count."""
        return not (self.over or self.stale or self.elsewhere)


def this_host() -> str:
    """Return where pids of this process mean the same: its host's name, boot and pid namespace."""
    pids = ""
    with suppress(OSError):  # a sandbox may have none
        pids = str(Path("/proc/self/ns/pid").readlink())
    return f"{os.uname().nodename}/{boot_id()}/{pids}"


def start_of(pid: int) -> int:
    """Return the start of a process in clock ticks since boot; 0 when there is no such process.

    One that has ended and is not waited for by its parent, as under a first process of a container that waits for none,
    is gone, too.
    """
    try:
        # Field 22 of stat. The command in field 2 may itself contain spaces and parentheses: count from the last ")".
        stat_fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return 0 if stat_fields[0] in "ZX" else int(stat_fields[19])
    except (OSError, IndexError, ValueError):
        return 0


def home() -> Path:
    """Return DLJOB_HOME, else dljob's folder in the user's state folder.

    Raises:
        UnreachableError: the user has no home folder, as in a container with a uid of its own.
    """
    dljob_home = os.environ.get("DLJOB_HOME")
    try:
        if dljob_home:
            return Path(dljob_home).expanduser().absolute()
        from platformdirs import user_state_path

        return user_state_path("dljob").expanduser().absolute()
    except RuntimeError:
        raise UnreachableError(
            f"user {os.geteuid()} has no home folder: HOME is not set, and the user database has no such user",
            hint="set DLJOB_HOME to a folder that you may write to",
        ) from None


def check_home() -> None:
    """Create the folder of all jobs.

    Raises:
        UnreachableError: it cannot be created or written.
    """
    try:
        folder = _folder_of_jobs()
    except OSError as error:
        raise _refused(error) from error
    # `mkdir` accepts a folder that exists, also one in which nothing can be written.
    if not os.access(folder, os.W_OK | os.X_OK):
        number = errno.EROFS if os.statvfs(folder).f_flag & os.ST_RDONLY else errno.EACCES
        raise _refused(OSError(number, os.strerror(number)))


def _folder_of_jobs() -> Path:
    """Create the folder of all jobs, which only this user can enter, and return it. Raises OSError."""
    for folder in (home(), home() / "jobs"):  # the mode of `mkdir` is not that of the parents that it makes
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def no_folder(error: OSError) -> str:
    """Return why a folder cannot be made: what stands in its place may be a link to nowhere, or a file."""
    path = Path(error.filename or "")
    if not isinstance(error, FileExistsError):
        return error.strerror or str(error)
    if path.is_symlink() and not path.exists():
        return f"{path} is a link to {path.readlink()}, a folder that does not exist"
    return f"{path} is no folder"


def _refused(error: OSError) -> UnreachableError:
    return UnreachableError(
        f"cannot keep jobs in {home()}: {no_folder(error)}",
        hint="set DLJOB_HOME to a folder that you may write to",
    )


def register(record: RegistryEntry) -> RegistryEntry:
    """Create the job's folder, readable by this user only, and write its entry.

    Raises:
        UnreachableError: the folder cannot be created or written.
    """
    host = record.runner_host or (this_host() if record.runner else "")
    record = replace(record, started=record.started or time.time(), runner_host=host)
    try:
        record.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write(record.folder / ENTRY, {**asdict(record), "environment": dict(record.environment)})
    except OSError as error:
        raise _refused(error) from error
    return record


@contextmanager
def claimed(name: str) -> Generator[RegistryEntry | None]:
    """Hold the lock of a name, and yield the running job of that name, if any.

    Until the block ends no other process can register a job of this name. The kernel releases the lock if this process
    dies.

    Raises:
        UnreachableError: the lock cannot be had; in a home that users share, it may be another user's.
    """
    lock = home() / "jobs" / f".{name}.lock"
    try:
        _folder_of_jobs()
        # O_CLOEXEC: a child that inherited the descriptor would hold the lock after this process.
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        with suppress(OSError):  # there is no lock, or no way to it
            if isinstance(error, PermissionError) and (owner := lock.stat().st_uid) != os.geteuid():
                raise UnreachableError(
                    f"the job name {name} is in use by user {owner} in {home()}: {lock} is theirs",
                    hint="take another name, or set DLJOB_HOME to a folder of your own",
                ) from error
        raise _refused(error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield living(name)
    finally:
        # The lock file stays: if it were removed, two processes could hold locks on two files of one name.
        os.close(descriptor)


def living(name: str) -> RegistryEntry | None:
    """Return the newest job of a name that lives, as far as can be seen from here; None when there is none."""
    # A container that was killed beside a home folder that stays would else hold the name for ever.
    living_records = [record for record in records() if record.name == name and record.alive]
    return living_records[-1] if living_records else None


def register_start(name: str) -> RegistryEntry:
    """Write an entry of a job that this process begins to start. It counts no more once this process has ended.

    Raises:
        UnreachableError: the entry cannot be written.
    """
    for path, record in _entries():  # a process that was killed could not remove its own
        if record.is_starting and record.stale:
            shutil.rmtree(path.parent, ignore_errors=True)
    uid, runner = uuid.uuid4().hex, os.getpid()
    folder = home() / "jobs" / f"{STARTS}{uid[:_UID8]}"
    return register(RegistryEntry(name, uid, os.fspath(folder), runner=runner, runner_started=start_of(runner)))


def write_activity(start: RegistryEntry, activity: str) -> None:
    """Write what a job that is being started waits for from now on."""
    status = {"name": start.name, "uid": start.uid, "phase": STARTING}
    with suppress(OSError):  # it is only shown
        write(start.folder / _STATUS, {**status, "message": activity, "startTime": moment(start.started)})


def starting_status(start: RegistryEntry) -> dict[str, Any]:
    """Return the status of a job that is being started: what it waits for, and for how long."""
    status = start.status()
    with suppress(OSError):  # the start is over
        waited_s = max(0.0, time.time() - (start.folder / _STATUS).stat().st_mtime)
        status["message"] = f"{status.get('message')}, for {seconds(waited_s)}"
    return status


def register_begun(record: RegistryEntry, start: RegistryEntry) -> RegistryEntry:
    """Write a job's entry in place of that of its start, from which the job's age counts on; raises as `register`."""
    entry = register(replace(record, started=start.started))
    remove_start(start)
    return entry


def remove_start(start: RegistryEntry) -> None:
    """Remove the entry of a start that is over. Idempotent."""
    shutil.rmtree(start.folder, ignore_errors=True)


def forget(record: RegistryEntry) -> None:
    """Remove the entry of a job that never started; its folder stays."""
    with suppress(OSError):  # the folder is gone, or another user's: either way no entry can be found
        (record.folder / ENTRY).unlink()


def close_socket(record: RegistryEntry) -> None:
    """Remove the control socket of a dead job, whose PrimeMaster may have been killed before it could."""
    with suppress(OSError, ValueError):  # without folder or entry, nothing can find the socket either
        if path := socket_of(record.folder, read(record.folder)):
            remove(path)


def folder_of(name: str, uid: str) -> Path:
    """Return the folder of a job."""
    return home() / "jobs" / f"{name}-{uid[:_UID8]}"


def records() -> list[RegistryEntry]:
    """Return all jobs of this user, oldest first; folders without an entry are not jobs.

    Jobs that other processes of this host are starting are among them.

    Raises:
        UnreachableError: the folder of all jobs cannot be listed.
    """
    begun_records = [
        record
        for _, record in _entries()
        if not record.is_starting or not (record.stale or record.elsewhere or record.runner == os.getpid())
    ]
    return sorted(begun_records, key=lambda r: r.started)


def _entries() -> Iterator[tuple[Path, RegistryEntry]]:
    """Yield the path and the content of each job.json that can be read."""
    jobs = home() / "jobs"
    try:
        os.listdir(jobs)  # noqa: PTH208 - `glob` takes a folder that may not be read for an empty one
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise UnreachableError(f"{error.strerror}: {jobs}", hint=f"ls -ld {shlex.quote(str(jobs))}") from error
    known = {field.name for field in fields(RegistryEntry)}  # entries of a later dljob may have more fields
    for entry in jobs.glob(f"*/{ENTRY}"):
        # A damaged entry must not hide the other jobs; AttributeError: one that is no object, or has none inside.
        with suppress(OSError, ValueError, TypeError, AttributeError):
            # The folder may have been moved or copied since, and the one that it was is then another's or gone.
            data: dict[str, Any] = {**read_json(entry), "dir": os.fspath(entry.parent)}
            environment: dict[str, str] = data.get("environment") or {}
            data["environment"] = tuple(environment.items())
            yield entry, RegistryEntry(**{key: value for key, value in data.items() if key in known})


def find(job: str) -> RegistryEntry:
    """Find a job by name, uid, or at least the first 4 digits of its uid.

    Of several jobs of one name the running one is meant, else the newest.

    Raises:
        NotFoundError: there is none, or several uids begin with the digits.
    """
    # A full match comes first: a name may look like the beginning of a uid.
    everything = records()
    named = [r for r in everything if job in (r.name, r.uid, r.folder.name)]
    # From four digits on: fewer would often name several jobs.
    if not named and len(job) >= _PREFIX:
        named = [r for r in everything if r.uid.startswith(job)]
        if len(named) > 1:
            uids = ", ".join(f"{r.uid[:12]} ({r.name})" for r in named)
            raise NotFoundError(f"{job} begins the uids of {len(named)} jobs", hint=f"give more digits: {uids}")
    if not named and (refusal := _unreadable(job)):
        raise refusal
    if not named:
        names = {r.name for r in everything}
        hint = suggestion(job, names) if names else f"there is no job in {home()}; is DLJOB_HOME another one?"
        raise NotFoundError(f"no job {job!r}", hint=hint)
    # `records` is sorted by start, so the last is the newest.
    living = [r for r in named if r.alive]
    return (living or named)[-1]


def _unreadable(job: str) -> UnreachableError | None:
    """Return an error about a job's folder that the kernel refuses to read, by the job's name or uid."""
    for folder in (home() / "jobs").glob("*-*"):
        name, _, uid8 = folder.name.rpartition("-")
        if job in (name, folder.name) or (len(job) >= _PREFIX and uid8 and job.startswith(uid8[: len(job)])):
            try:
                read_plain(folder / ENTRY)
            except FileNotFoundError:
                continue
            except OSError as error:
                hint = f"its owner and mode: ls -ld {shlex.quote(str(folder))}"
                return UnreachableError(f"{error.strerror}: {folder / ENTRY}", hint=hint)
    return None


def refuse_living(record: RegistryEntry) -> None:
    """Refuse to delete a running job.

    Raises:
        UsageError: the job has neither ended nor lost its runner, or the latter cannot be seen from here.
    """
    if record.elsewhere:
        raise UsageError(
            f"job {record.name} ({record.uid[:_UID8]}) runs on {record.elsewhere}, or was killed there",
            hint=f"delete it there; where {record.elsewhere} is gone: rm -r -- {shlex.quote(record.dir)}",
        )
    if not record.over and not record.stale:
        phase = record.status().get("phase", "starting")
        raise UsageError(
            f"job {record.name} ({record.uid[:_UID8]}) has not ended: {phase}",
            hint=f"dljob stop {record.uid[:_UID8]} --wait",
        )


def refuse_link(record: RegistryEntry) -> None:
    """Refuse to delete what lies outside the folder of all jobs.

    Raises:
        UsageError: the job's folder is a link.
    """
    if record.folder.is_symlink():
        link = record.folder.readlink()
        raise UsageError(f"{record.dir} is a link to {link}, not a folder that dljob made", hint="delete both by hand")


def delete(record: RegistryEntry) -> None:
    """Delete the folder of an ended job, if dljob made it.

    Raises:
        UsageError: the folder is a link, or cannot be deleted.
    """
    refuse_link(record)
    try:
        shutil.rmtree(record.folder)
    except OSError as error:
        raise UsageError(f"cannot delete {record.dir}: {error.strerror or error}") from error
