"""The launcher's work once the versions are right: find the job's PrimeMaster or make it, and wait for the end."""

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

from dljob.errors import DLJobError, PlacementError, SpecError, UsageError
from dljob.plan import pods
from dljob.plan.plan import plan
from dljob.runtime.connect import connect
from dljob.runtime.entries import FINAL
from dljob.runtime.launch import JobConnection, find, launch
from dljob.runtime.versions import Refusal
from dljob.spec.load import parse
from dljob.spec.model import DLJobManifest

ATTEMPT = "attempt"
"""The file in a job's folder that says which attempt the folder is of."""
NOTES_S = 30.0
TERMINATED = 143


def drive(args: argparse.Namespace) -> int | Refusal:
    """Run the job to its end: 0 or 1; or a refusal, before Ray is asked for anything."""
    try:
        manifest = _read(Path(args.spec))
        plan(manifest)
    except (SpecError, UsageError) as error:
        return Refusal("InvalidSpec", error.message, error.hint)
    except PlacementError as error:
        return Refusal("DoesNotFit", error.message, error.hint)
    try:
        return _run(manifest, args)
    except DLJobError as error:
        say(f"{type(error).__name__}: {error}")
        return 1


def say(line: str) -> None:
    """Into the log of Ray's job."""
    print(f"[dljob] {line}", flush=True)  # noqa: T201


def home() -> Path:
    """The folder of all jobs' folders on this machine.

    Raises:
        UsageError: DLJOB_HOME, which every pod of a job has, is not set.
    """
    said = os.environ.get("DLJOB_HOME")
    if not said:
        raise UsageError("DLJOB_HOME is not set", hint="set it to a folder for the jobs of this machine")
    return Path(said).expanduser().absolute()


def _read(path: Path) -> DLJobManifest:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the spec {path}: {error}") from None
    return parse(data)


def _run(manifest: DLJobManifest, args: argparse.Namespace) -> int:
    name, uid = manifest.metadata.name, args.uid
    folder = home() / "jobs" / f"{name}-{uid[:8]}"
    connect()
    signal.signal(signal.SIGTERM, _told_to_go)  # after connect(): Ray puts its own handler there
    job = find(manifest, job_dir=folder, uid=uid)
    if job is not None and _older(folder, args.attempt) and job.final() is not None:
        job = None
    if job is None:
        job = _start(manifest, folder, args)
    else:
        say(f"{name} ({uid[:8]}) is there already; waiting for it")
    _gateway(args)
    return _wait(job)


def _start(manifest: DLJobManifest, folder: Path, args: argparse.Namespace) -> JobConnection:
    began = time.monotonic()
    if _older(folder, args.attempt):
        folder.rename(folder.with_name(f"{folder.name}.{_attempt_of(folder)}"))
    code = Path(pods.CODE)
    try:
        job = launch(manifest, job_dir=folder, code_dir=code if _holds_files(code) else None, uid=args.uid)
    except UsageError:
        # Another launcher of this job was quicker.
        job = find(manifest, job_dir=folder, uid=args.uid)
        if job is None:
            raise
        return job
    with suppress(OSError):
        (folder / ATTEMPT).write_text(f"{args.attempt}\n")
    took = time.monotonic() - began
    say(f"{job.name} ({args.uid[:8]}), attempt {args.attempt}: PrimeMaster answers after {took:.2f} s; {folder}")
    return job


def _attempt_of(folder: Path) -> int | None:
    with suppress(OSError, ValueError):
        return int((folder / ATTEMPT).read_text())
    return None


def _older(folder: Path, attempt: int) -> bool:
    """Whether the folder is left from an earlier attempt, on a Ray that outlives attempts."""
    there = _attempt_of(folder)
    return there is not None and there < attempt


def _holds_files(folder: Path) -> bool:
    with suppress(OSError):
        return any(folder.iterdir())
    return False


def _gateway(args: argparse.Namespace) -> None:
    """Make sure of the gateway. A job runs without one too; then nobody outside hears of it."""
    from dljob.runtime.gateway import ensure

    try:
        say(f"the gateway serves at {ensure(args.host, args.port, str(home()))}")
    except DLJobError as error:
        say(f"there is no gateway: {error}")


def _wait(job: JobConnection) -> int:
    """Tell the job's notes as they come; 0 when it succeeds, 1 when it fails."""
    seq = 0
    while True:
        notes = job.notes(seq, NOTES_S)
        for note in notes:
            seq = note["seq"]
            say(_line(note))
        final = None if notes else job.final()
        if final is not None:
            break
    phase, reason = final["phase"], final.get("reason", "")
    say(f"{job.name} {phase}: {reason} {final.get('message', '')}".rstrip())
    return 0 if phase == FINAL[0] else 1


def _line(note: Mapping[str, Any]) -> str:
    at = time.strftime("%H:%M:%S", time.gmtime(note["time"]))
    return f"{at} {note['reason']} {note.get('target', '')}: {note.get('message', '')}"


def _told_to_go(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM, as Ray's job stop sends it. What stops the job is a command, not the end of who watches it."""
    say("told to go; the job goes on without me (`dljob stop` would end it)")
    sys.exit(TERMINATED)
