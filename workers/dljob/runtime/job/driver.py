"""The launcher's work after the version check: find or create the job's PrimeMaster, and wait for the job's end."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from dljob import ray_private
from dljob.errors import DLJobError, PlacementError, UsageError
from dljob.raycluster import pods
from dljob.runtime.backend.connect import connect
from dljob.runtime.job.launch import JobConnection, begin, find
from dljob.runtime.job.outline import Outline, outline
from dljob.runtime.job.versions import Incompatible

ATTEMPT = "attempt"
"""File in a job's folder with the number of the attempt that the folder belongs to."""
NOTES_S = 30.0
"""Seconds of one long poll for the job's events."""
CODES = {"Succeeded": 0, "Failed": 1, "Suspended": 3, "Stopped": 6}
"""The launcher's exit code by the job's final phase."""
TERMINATED = 143
"""Exit code of a process that SIGTERM ended, as shells report it: 128 + 15."""


def drive(args: argparse.Namespace) -> int | Incompatible:
    """Run the job to its end; return an exit code of CODES, 1 for an error, or a refusal for the operator."""
    # Kept outside of the try: where the text was read, `explain` can say more than the exception.
    text = b""
    # The launcher does not validate: PrimeMaster does, from the same text (docs/adr/0011).
    try:
        text = read_spec(args.spec)
        job = outline(text.decode())
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        refusal = explain(text, args.spec) if text else None
        return refusal or Incompatible("InvalidSpec", f"cannot read the spec {args.spec}: {error!r}", "")
    except DLJobError as error:
        say(f"{type(error).__name__}: {error}")
        return 1
    try:
        connection = _begin(job, args)
        if isinstance(connection, Incompatible):
            return connection
        _gateway(args)
        return _wait(connection)
    except DLJobError as error:
        say(f"{type(error).__name__}: {error}")
        return 1


def read_spec(place: str) -> bytes:
    """Read a file, or a package that `PUT /api/packages/gcs/<name>` put into Ray's store.

    Ray keeps the packages of runtime environments there, under their URI in the GCS (source: Ray 2.60,
    `ray._private.runtime_env.packaging`), and drops one after ten minutes when no environment names it.

    Raises:
        OSError: It does not exist (any more).
        UnreachableError: Ray cannot be joined.
    """
    if not place.startswith(pods.PACKAGES):
        return Path(place).read_bytes()
    connect()
    content = ray_private.kv_get(place)
    if not content:
        raise FileNotFoundError(f"Ray does not keep {place} any more")
    return content


def explain(spec: bytes, place: str) -> Incompatible | None:
    """Return why a spec cannot be run; None if it can.

    Called only after a failure: the spec's models take half a second to import, and PrimeMaster validates it anyway.
    """
    from dljob.plan.plan import plan
    from dljob.spec.loading.load import parse

    try:
        plan(parse(json.loads(spec)))
    except ValueError as error:
        return Incompatible("InvalidSpec", f"cannot read the spec {place}: {error}", "")
    except PlacementError as error:
        return Incompatible("DoesNotFit", error.message, error.hint)
    except DLJobError as error:
        return Incompatible("InvalidSpec", error.message, error.hint)
    return None


def say(line: str) -> None:
    """Print into the log of Ray's job."""
    print(f"[dljob] {line}", flush=True)  # noqa: T201


def home(usual: str = "") -> Path:
    """Return the folder of all jobs' folders on this machine: DLJOB_HOME, else `usual`.

    Raises:
        UsageError: Neither is set. Each pod of a RayCluster that dljob made has DLJOB_HOME.
    """
    folder = os.environ.get("DLJOB_HOME") or usual
    if not folder:
        raise UsageError("DLJOB_HOME is not set", hint="set it to a folder for the jobs of this machine")
    return Path(folder).expanduser().absolute()


def _begin(job: Outline, args: argparse.Namespace) -> JobConnection | Incompatible:
    """Find the job, or create it."""
    uid = args.uid
    folder = home(args.home) / "jobs" / f"{job.name}-{uid[:8]}"
    connect(code_dir=_code(args))
    signal.signal(signal.SIGTERM, _told_to_go)  # after connect(): Ray puts its own handler there
    connection = find(job, job_dir=folder, uid=uid)
    # On a Ray that outlives attempts, an ended job in the folder may be of an earlier attempt: that one is over.
    if connection is not None and not (_older(folder, args.attempt) and connection.final() is not None):
        say(f"{job.name} ({uid[:8]}) exists already; waiting for its end")
        return connection
    if connection is not None:
        # Its master holds the actor name that this attempt's master needs.
        connection.let_leave()
    try:
        return _start(job, folder, args)
    except DLJobError:  # the message of a validation says more than the master's end does
        if refused := explain(job.text.encode(), args.spec):
            return refused
        raise


def _start(job: Outline, folder: Path, args: argparse.Namespace) -> JobConnection:
    began = time.monotonic()
    # The earlier attempt's logs stay, under another name; its journal must not be found by this one.
    if _older(folder, args.attempt):
        folder.rename(folder.with_name(f"{folder.name}.{_attempt_of(folder)}"))
    # The spec is in Ray's store exactly when the RayCluster is not the job's own (rayClusterRef).
    owns_cluster = not args.spec.startswith(pods.PACKAGES)
    try:
        new_connection = begin(
            job,
            job_dir=folder,
            code_dir=_code(args),
            uid=args.uid,
            attempt=args.attempt,
            own_nodes=owns_cluster,
            apart=True,
            carried=_carried(args.carried),
        )
    except UsageError:
        # Another launcher created the same job meanwhile.
        other_connection = find(job, job_dir=folder, uid=args.uid)
        if other_connection is None:
            raise
        return other_connection
    with suppress(OSError):
        (folder / ATTEMPT).write_text(f"{args.attempt}\n")
    took = time.monotonic() - began
    say(f"{job.name} ({args.uid[:8]}), attempt {args.attempt}: PrimeMaster answers after {took:.2f} s; {folder}")
    return new_connection


def _code(args: argparse.Namespace) -> Path | None:
    """Return the folder of user code; None on a RayCluster of another owner, whose folder holds other code."""
    code = Path(pods.CODE)
    return code if not args.spec.startswith(pods.PACKAGES) and _holds_files(code) else None


def _carried(place: str) -> str:
    """Return the state that the previous attempt handed on, such as its restart counts.

    A job runs without it too; its budgets then start at zero.
    """
    if not place:
        return ""
    try:
        return read_spec(place).decode()
    except (OSError, ValueError) as error:
        say(f"the state of the previous attempt cannot be read, so restart budgets start at zero: {error!r}")
        return ""


def _attempt_of(folder: Path) -> int | None:
    with suppress(OSError, ValueError):
        return int((folder / ATTEMPT).read_text())
    return None


def _older(folder: Path, attempt: int) -> bool:
    """Return whether the folder belongs to an earlier attempt, on a Ray that outlives attempts."""
    folder_attempt = _attempt_of(folder)
    return folder_attempt is not None and folder_attempt < attempt


def _holds_files(folder: Path) -> bool:
    with suppress(OSError):
        return any(folder.iterdir())
    return False


def _gateway(args: argparse.Namespace) -> None:
    """Create the gateway unless there is one. The job runs without it, but the operator cannot see it."""
    from dljob.runtime.job.gateway import ensure

    try:
        say(f"the gateway serves at {ensure(args.host, args.port, str(home(args.home)))}")
    except DLJobError as error:
        say(f"there is no gateway: {error}")


def _wait(job: JobConnection) -> int:
    """Print the job's events as they come; return the exit code of its final phase."""
    seq = 0
    while True:
        notes = job.notes(seq, NOTES_S)
        for note in notes:
            seq = note["seq"]
            say(_line(note))
        # Ask for the end only after a poll without events, so that the last events are printed.
        final = None if notes else job.final()
        if final is not None:
            break
    phase, reason = final["phase"], final.get("reason", "")
    say(f"{job.name} {phase}: {reason} {final.get('message', '')}".rstrip())
    return CODES[phase]


def _line(note: Mapping[str, Any]) -> str:
    at = time.strftime("%H:%M:%S", time.gmtime(note["time"]))
    return f"{at} {note['reason']} {note.get('target', '')}: {note.get('message', '')}"


def _told_to_go(_number: int, _frame: FrameType | None) -> None:
    """Handle SIGTERM, which Ray's job stop sends: leave, and let the job go on.

    Only a journaled command stops a job (docs/adr/0011): this process merely watches it.
    """
    say("SIGTERM: the launcher ends, and the job goes on (`dljob stop` would end it)")
    sys.exit(TERMINATED)
