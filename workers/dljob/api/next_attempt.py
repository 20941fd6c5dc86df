"""The next attempt of a job of this machine that has ended: with its uid, in its folder, from its newest checkpoint."""

from __future__ import annotations

import json
import shlex
import shutil
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dljob.api import registry
from dljob.api.local.connection import filed
from dljob.api.registry import RegistryEntry
from dljob.api.views import nested
from dljob.errors import UnreachableError, UsageError
from dljob.logs import archive
from dljob.runtime.control_socket.location import read
from dljob.runtime.journal.timeline import STATUS
from dljob.spec.status import TERMINAL

if TYPE_CHECKING:
    from dljob.spec.model import DLJobManifest

ATTEMPTS, CHECKPOINTS = "attempts", "checkpoints"
"""Folders of a job's folder that stay where they are: what earlier attempts left, and what ranks saved."""
RESUME = "--resume (resume= in Python)"


class NextAttempt(NamedTuple):
    """How an ended job goes on."""

    record: RegistryEntry
    number: int
    """Number of the new attempt; the first one was 1."""
    step: int
    """The step of its newest complete checkpoint."""
    carried: str
    """What the last attempt hands on, as JSON; empty where that is not known (`previous_attempt.carried`)."""


def program_of(manifest: DLJobManifest, code_dir: Path) -> str:
    """Return what the roles of a job run, and where: two folders may have a train.py each, and one folder two jobs."""
    entrypoints = ((role.name, role.entrypoint) for role in manifest.spec.roles)
    programs = (f"{name}={e.module or e.class_ or shlex.join(e.command or ())}" for name, e in entrypoints)
    return f"{', '.join(programs)} in {code_dir.resolve()}"


def next_attempt(name: str, job: str = "", *, program: str) -> NextAttempt:
    """Return how a job of a name goes on: the newest one, or the one of `job`, its uid or the beginning of it.

    Without `job` it is one that ran this `program`. Jobs that ended before their first checkpoint are passed over where
    an earlier one has one.

    Raises:
        NotFoundError: there is no such job.
        UsageError: it runs, has succeeded, has another name, ran another program, or has no complete checkpoint; it is
            a copy that would save where the original does.
    """
    record = registry.find(job or name)
    if not job and record.name == name:
        record = _newest_of_program(record, program)
    job_text = f"job {record.name} ({record.uid[:8]})"
    if record.name != name:
        raise UsageError(f"{job_text} is not of the name of the file's job, {name}", hint=f"add --name {record.name}")
    phase = filed(record).get("phase")
    if phase == "Succeeded":
        raise UsageError(f"{job_text} has succeeded: nothing is left to go on with", hint=f"run it without {RESUME}")
    if record.has_damaged_status and phase == ("Unknown" if record.elsewhere else "Lost"):
        status, folder = (shlex.quote(str(path)) for path in (record.folder / STATUS, record.folder))
        raise UsageError(
            f"how {job_text} ended is not known: {status} is damaged: {record.status_damage}",
            hint=f"dljob replay {folder} shows it by the journal"
            + ("" if record.elsewhere else f"; to go on all the same: rm {status}"),
        )
    if phase not in (*TERMINAL, "Lost"):
        raise UsageError(f"{job_text} has not ended", hint=f"stop it (dljob stop {record.uid[:8]} --wait)")
    step = newest_step(record.folder)
    if step is None:
        raise UsageError(f"{job_text} has no complete checkpoint", hint=f"without {RESUME} it begins at its start")
    link = record.folder / CHECKPOINTS
    if link.is_symlink() and (original := _original_of(record)):
        raise UsageError(
            f"{job_text} is a copy of {original}, and both save in {link.readlink()}",
            hint=f"put a copy of that folder in the place of the link {link}, or delete {original}",
        )
    number = 2 + len(list((record.folder / ATTEMPTS).glob("*")))
    return NextAttempt(record, number, step, _carried(record, number - 1))


def _newest_of_program(newest: RegistryEntry, program: str) -> RegistryEntry:
    """Return the newest job of the same name and program that has ended with a checkpoint, else the newest of them."""
    namesakes = [record for record in registry.records() if record.name == newest.name]
    records = [record for record in namesakes if record.program in ("", program)]
    if not records:
        raise UsageError(
            f"job {newest.name} ({newest.uid[:8]}) ran another program: {newest.program}; this is {program}",
            hint=f"to go on with it, run that; dljob run also takes --resume={newest.uid[:8]}",
        )
    for record in reversed(records):
        is_passed_over = filed(record).get("phase") in ("Failed", "Stopped", "Lost")
        if not is_passed_over or newest_step(record.folder) is not None:
            return record
    return records[-1]


def _original_of(record: RegistryEntry) -> Path | None:
    """Return the folder of which a job's folder is a copy; None: it is no copy, or the original is gone."""
    with suppress(OSError, ValueError):
        written_in = Path(str(read(record.folder).get("dir")))
        if read(written_in).get("uid") == record.uid and not written_in.samefile(record.folder):
            return written_in
    return None


def newest_step(folder: Path) -> int | None:
    """Return the highest of the steps that the worlds of a job have saved last, each by all its ranks; else None."""
    from dljob.runtime.checkpoint.listing import rows, worlds

    with suppress(OSError):
        saved = (
            (row.mark.step for row in rows(*world) if row.state == "whole") for world in worlds(folder / CHECKPOINTS)
        )
        return max((step for steps in saved for step in islice(steps, 1)), default=None)
    return None


def _carried(record: RegistryEntry, attempt: int) -> str:
    status = record.status()
    state = nested(status, "carry")
    if "v" not in state:
        return ""
    handed_on = {"job": record.uid, "attempt": attempt, "step": status.get("step"), "state": state, "newBudgets": True}
    return json.dumps(handed_on)


def set_aside(attempt: NextAttempt) -> None:
    """Move what the last attempt has left in the job's folder below `attempts`: its journal is not the new one's.

    The job's entry stays, too, so that the job is found wherever this process ends.

    Raises:
        UnreachableError: it cannot be moved.
    """
    folder = attempt.record.folder
    place = _place_of(attempt)
    try:
        place.mkdir(parents=True, mode=0o700)
        shutil.copy2(folder / registry.ENTRY, place)
        for path in _left_in(folder):
            path.rename(place / path.name)
    except OSError as error:
        raise UnreachableError(f"cannot move what the last attempt left in {folder}: {error}") from error


def put_back(attempt: NextAttempt) -> None:
    """Undo `set_aside` for an attempt that was refused, so that the job is again what it was."""
    folder, place = attempt.record.folder, _place_of(attempt)
    for path in _left_in(folder):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in list(place.iterdir()):
        path.replace(folder / path.name)
    place.rmdir()


def _place_of(attempt: NextAttempt) -> Path:
    """Return the folder for what the attempt before it has left."""
    return attempt.record.folder / ATTEMPTS / str(attempt.number - 1)


def _left_in(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name not in (ATTEMPTS, CHECKPOINTS, registry.ENTRY)]


def link_checkpoints(folder: Path, path: str, name: str, uid: str) -> str:
    """Have a job of this machine save below its `checkpoint.path`, by a link in its folder.

    Returns why it cannot, and saves in its own folder; empty: it can. A path of pods may not be there on a laptop.
    """
    place, link = archive.root(path, name, uid), folder / CHECKPOINTS
    if link.is_dir() and not link.is_symlink():
        return f"its earlier checkpoints are in {link}"
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not link.is_symlink():
            link.symlink_to(place)
    except OSError as error:
        return f"{registry.no_folder(error)} ({place})"
    return ""


def offer(name: str, program: str) -> str:
    """Return in words that a job of a name and program could go on; empty: none could."""
    with suppress(Exception):  # it only helps: whatever is wrong with an earlier job, the new one begins
        attempt = next_attempt(name, program=program)
        ended = filed(attempt.record)["phase"].lower()
        return f"a {ended} job of this name has a checkpoint of step {attempt.step}: add --resume to go on from it"
    return ""
