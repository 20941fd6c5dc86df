"""A Ray on this machine for the jobs of a Python program: started on demand, ended with its work.

Without a running Ray, `job.submit()` starts one for its job; `with dljob.local():` starts one for several jobs.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self, cast

import dljob.errors
from dljob.api import registry
from dljob.errors import DLJobError, UnreachableError, UsageError

if TYPE_CHECKING:
    from dljob.spec.model import DLJobManifest

EXTRA = "pip install 'dljob[runtime]'"
# -P: in a folder with a `queue.py`, or with a file of another user, the host would import that.
COMMAND = (sys.executable, "-P", "-m", "dljob.api.local.host")


class LocalRay:
    """Context manager: jobs submitted in its block share one Ray of this machine, which ends with the block."""

    def __init__(self, *, pretend: Mapping[str, int] | None = None, once: bool = False) -> None:
        self._pretend = dict(pretend or {})
        self._once = once
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._said = ""
        self._jobs: list[registry.RegistryEntry] = []
        self._kept: set[str] = set()
        self._lock = threading.Lock()
        self._program = os.getpid()

    def __enter__(self) -> Self:
        """Make this Ray the target of `submit()`; Ray starts with the first job."""
        _open.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop the jobs that still run, with a last checkpoint, and end this Ray."""
        _open.remove(self)
        self.close("this `with dljob.local()` block")

    def submit(
        self, manifest: DLJobManifest, *, code_dir: Path, keep: bool, replace: bool, resume: str | None = None
    ) -> registry.RegistryEntry:
        """Start a job.

        Raises:
            UsageError: Ray is not installed; the job is not for a Ray, is suspended, or its name is taken.
            PlacementError: this machine lacks devices, or the job wants too many machines.
            UnreachableError: Ray did not start.
            JobStoppedError: `dljob stop` ended the start.
        """
        check_runtime()
        order = {
            "do": "submit",
            "manifest": manifest.model_dump(mode="json", by_alias=True, exclude_none=True),
            "code_dir": os.fspath(code_dir.absolute()),
            "pretend": self._pretend,
            "keep": keep,
            "replace": replace,
            "resume": resume,
        }
        with self._lock:  # threads of the program may submit concurrently; an answer belongs to the last command
            answer = self._ask(order)
            if "error" in answer:
                # The host's error by name, so that callers can catch what `submit` documents.
                error_type: type[DLJobError] = getattr(dljob.errors, answer["error"], UnreachableError)
                raise error_type(answer["message"], hint=answer["hint"])
            record = registry.find(answer["uid"])
            self._jobs.append(record)
            if keep:
                self._kept.add(record.uid)
        return record

    def _ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Send a command to the host and return its answer.

        Raises:
            UnreachableError: the host ended without an answer; the message has the last line that it wrote.
        """
        process = self._process = self._process or self._start()
        orders, answers = cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
        try:
            orders.write(json.dumps(order).encode() + b"\n")
            orders.flush()
            line = answers.readline()
        except OSError:
            line = b""  # the host is gone; its last words say why
        except BaseException:
            self._end(process)  # Ctrl-C while Ray starts: nothing may stay behind
            raise
        if not line:
            self._end(process)
            raise UnreachableError(f"the embedded Ray did not start{self._said}")
        return json.loads(line)

    def _start(self) -> subprocess.Popen[bytes]:
        # A file, not a pipe: nothing reads it while the host runs, and a full pipe would block the host. In memory: on
        # a full disk the host still says why it does not start.
        self._errors = os.fdopen(os.memfd_create("dljob-host", os.MFD_CLOEXEC), "w+b")
        words = ["--once"] if self._once else []
        _hosts.append(self)
        return subprocess.Popen(
            [*COMMAND, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # Ctrl-C reaches the program alone, which stops its jobs in order
        )

    def running(self) -> list[registry.RegistryEntry]:
        """Return the jobs that would end with this Ray."""
        return [
            record for record in self._jobs if record.uid not in self._kept and not record.over and not record.stale
        ]

    def close(self, owner_text: str) -> None:
        """End this Ray, except for kept jobs; name those that still run on stderr. A second Ctrl-C meanwhile kills it.

        Args:
            owner_text: what ends, for the message.
        """
        process = self._process
        if process is None or os.getpid() != self._program:  # a fork of the program does not own the host
            return
        for record in self.running():
            sys.stderr.write(
                f"job {record.name} ({record.uid[:8]}) still runs and ends with {owner_text}: it is saved and stopped; "
                f"its folder: {record.dir} (submit(detach=True) keeps a job)\n"
            )
        self._process = None
        self._end(process, wait=not self._kept)

    def _end(self, process: subprocess.Popen[bytes], *, wait: bool = True) -> None:
        """Close the host's stdin, whereupon it stops its jobs and exits."""
        # Off the list before anything can fail: `_leave` must not close the host again.
        if self in _hosts:
            _hosts.remove(self)
        self._process = None
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        try:
            if wait:
                process.wait()
            else:
                process.returncode = 0  # the host outlives this process: Popen must not warn about it
        except BaseException:
            process.kill()  # the sweeper of its Ray ends everything that it started
            process.wait()
            raise
        finally:
            self._said = _last_words(self._errors)
            self._errors = None

    def wait_until_ended(self) -> None:
        """Wait until this Ray ends, if it served a single job; that job has ended."""
        process = self._process
        if process is not None and self._once and not self._kept:
            self._end(process)


def _last_words(file: IO[bytes] | None) -> str:
    """Return the last line that a host wrote, after a colon; empty when there is none. Closes the file."""
    if file is None:
        return ""
    with file:
        file.seek(0)
        lines = file.read().decode("utf-8", "replace").strip().splitlines()
    return f": {lines[-1]}" if lines else ""


_open: list[LocalRay] = []
"""The open `with dljob.local():` blocks, innermost last."""
_hosts: list[LocalRay] = []
"""Every Ray of this program that may be running."""


def local(*, pretend: Mapping[str, int] | None = None) -> LocalRay:
    """Start a Ray on this machine for several jobs: `with dljob.local(): a.submit("a"); b.submit("b")`.

    Ray starts with the first job, in a separate process. Each job gets the machines of its plan, one raylet each, at
    most 8. At the end of the block, jobs that still run are saved and stopped, unless they were submitted with
    `detach=True`.

    Args:
        pretend: devices that every raylet declares although this machine has none, such as {"NPU": 8}.
    """
    for name, count in (pretend or {}).items():
        # bool has `__index__` too, and True is no number of devices.
        if isinstance(count, bool) or not hasattr(count, "__index__") or count < 1 or name in ("CPU", "memory"):
            raise UsageError(f"local(pretend={{{name!r}: {count!r}}}): not a device and a number", hint='{"NPU": 8}')
    return LocalRay(pretend=pretend)


def current() -> LocalRay:
    """Return the Ray of the innermost `with dljob.local()`, else a new one for one job."""
    return _open[-1] if _open else LocalRay(once=True)


def inside() -> bool:
    """Whether a `with dljob.local()` block is open."""
    return bool(_open)


def check_runtime() -> None:
    """Check that Ray can be started.

    Raises:
        UsageError: Ray is not installed.
    """
    # Not by an import: this process must stay free of Ray, so that it may fork.
    if find_spec("ray") is None:
        raise UsageError("Ray is not installed, and a job on this machine runs on it", hint=EXTRA)


@atexit.register
def _leave() -> None:
    """Stop the jobs that would end with this process, in order."""
    # A copy: closing removes the host from the list.
    for host in tuple(_hosts):
        host.close("this process")
