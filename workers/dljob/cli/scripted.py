"""A job of `dljob torchrun`: the ranks' lines on stdout as torchrun's are, everything else on stderr."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from dljob.api import logs
from dljob.cli import output, watch
from dljob.cli.live import Lines
from dljob.cli.progress import View
from dljob.cli.runner import STOP_S, Interrupted, Runner, listen
from dljob.cli.where import Where
from dljob.errors import DeadlineError, ExitCode, UnreachableError, UsageError

if TYPE_CHECKING:
    import argparse

    from dljob.api.handle import JobHandle
    from dljob.api.torchrun_console import Console
    from dljob.spec.model import DLJobManifest

OURS = "[dljob] "
"""What dljob itself writes into a rank's log begins with it."""


class Lined(Lines):
    """What happens to the job on stderr, and the ranks' lines on stdout."""

    def __init__(self, handle: JobHandle, console: Console) -> None:
        super().__init__(View(handle.name, begun=time.monotonic()))
        self._folder, self._console = handle.dir, console
        self._over = threading.Event()
        self._reader = threading.Thread(target=self._read, name="lines", daemon=True)

    def __enter__(self) -> Self:
        """Begin to read."""
        self._reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Read to the end of what the ranks wrote."""
        self._over.set()
        self._reader.join()

    def _read(self) -> None:
        for line in logs.follow(self._folder, self._over.is_set):
            if line.text.startswith(OURS):
                output.say(str(line))
            elif (text := self._console.shown(line.role, line.rank, line.text)) is not None:
                output.data(text)


class Here(Runner):
    """On a Ray of its own."""

    def __init__(self, manifest: DLJobManifest, console: Console, log_dir: str | None) -> None:
        super().__init__(manifest, Path.cwd())
        self._console, self._log_dir = console, log_dir

    def screen(self, handle: JobHandle) -> Lined:
        """Lines; the logs are linked as soon as the job has a folder."""
        link(handle, self._log_dir)
        return Lined(handle, self._console)

    def finish(self, handle: JobHandle, status: Mapping[str, Any], extra: Mapping[str, Any]) -> int:
        """The last words; nobody asked for faults, so there is nothing more to say."""
        del extra
        return finish(handle, status)


def here(manifest: DLJobManifest, console: Console, line: argparse.Namespace) -> int:
    """Run it on this machine; the exit code."""
    from dljob.runtime.backend import chosen
    from dljob.runtime.yr.admitted import local

    if chosen(None, None) == "yr":
        local(manifest)  # refuses it, by what its mode without a cluster lacks
    check_log_dir(line.log_dir)
    return Here(manifest, console, line.log_dir).run()


def on_ray(manifest: DLJobManifest, console: Console, line: argparse.Namespace) -> int:
    """Run it on a Ray that is there; Ctrl-C and SIGTERM stop the job, as they would torchrun's ranks."""
    from dljob.api.handle import submit

    check_log_dir(line.log_dir)
    handle = submit(manifest, address=line.to, code_dir=Path.cwd())
    try:
        listen()  # ray.init put a SIGTERM handler of its own in place of Python's
        output.say(f"job {handle.name} ({handle.uid[:8]}) on the Ray at {line.to}; folder: {handle.dir}")
        link(handle, line.log_dir)
        with Lined(handle, console) as shown:
            status = watch.watch(handle.connection, shown)
    except (Interrupted, KeyboardInterrupt):
        return _stopped(handle)
    except UsageError:  # the folder for the logs went, just now
        _stopped(handle)
        raise
    return finish(handle, status)


def _stopped(handle: JobHandle) -> int:
    """Stop the job in order; a second signal leaves at once."""
    output.say(f"stopping {handle.name}")
    try:
        handle.stop()
        handle.wait(STOP_S)
    except (DeadlineError, UnreachableError, Interrupted, KeyboardInterrupt):
        output.say(f"{handle.name} has not ended yet: dljob status {handle.name}")
    return ExitCode.INTERRUPTED


def on_kubernetes(manifest: DLJobManifest, line: argparse.Namespace) -> int:
    """Run it on a cluster with the folder it is given in; after Ctrl-C it goes on, a second one stops it."""
    from dljob.cli.kubernetes.run import run
    from dljob.cli.kubernetes.submit import Given

    where = Where(kubernetes=True, context=line.context, namespace=line.namespace)
    what = Given(manifest, Path.cwd(), False if line.no_upload else None, None)
    return run(what, where, "json", stop_on_interrupt=False)


def finish(handle: JobHandle, status: Mapping[str, Any]) -> int:
    """On a failure its first cause, and where to look: all on stderr, since stdout is the script's."""
    failed = status.get("phase") != "Succeeded"
    if failed:
        output.say(f"error: job {handle.name} failed: {status.get('reason')}: {status.get('message')}")
    output.say(f"journal, logs and what the job saved: {handle.dir}")
    return ExitCode.JOB_FAILED if failed else ExitCode.OK


def check_log_dir(log_dir: str | None) -> None:
    """Make the folder that --log-dir names, before any job is there that would go on without it.

    Raises:
        UsageError: that cannot be.
    """
    if log_dir is None:
        return
    try:
        Path(log_dir).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=log_dir):
            pass
    except OSError as error:
        raise _unfit(log_dir, error) from error


def link(handle: JobHandle, log_dir: str | None) -> None:
    """Put a link to the ranks' logs into the folder that --log-dir names.

    Raises:
        UsageError: that cannot be.
    """
    if log_dir is None:
        return
    try:
        there = Path(log_dir) / f"{handle.name}-{handle.uid[:8]}"
        there.symlink_to(handle.dir / "logs", target_is_directory=True)
    except OSError as error:
        raise _unfit(log_dir, error) from error


def _unfit(log_dir: str, error: OSError) -> UsageError:
    return UsageError(f"--log-dir {log_dir}: {error.strerror}", hint="name a folder that can be written to")
