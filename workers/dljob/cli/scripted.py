"""Jobs of `dljob torchrun`: the ranks' lines on stdout as from torchrun, everything else on stderr."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from dljob.api import logs
from dljob.api.logs import LogLine, LogTail
from dljob.cli import output, watch
from dljob.cli.live import Lines
from dljob.cli.progress import View
from dljob.cli.rank_output import NOTHING, UNFINISHED_S
from dljob.cli.runner import STOP_S, Interrupted, Runner, listen
from dljob.cli.target import JobTarget
from dljob.errors import DeadlineError, ExitCode, UnreachableError, UsageError

if TYPE_CHECKING:
    import argparse

    from dljob.api.handle import JobHandle
    from dljob.api.torchrun_console import Console
    from dljob.spec.model import DLJobManifest

OURS = "[dljob] "
"""Prefix of dljob's own lines in a rank's log."""


@dataclass(slots=True)
class UnfinishedLines:
    """Unfinished lines of ranks, each due at intervals as long as it changes: a progress bar may last for hours."""

    clock: Callable[[], float] = time.monotonic
    _shown: dict[Path, tuple[bytes, float]] = field(default_factory=dict[Path, tuple[bytes, float]])
    """The line of each log as it was last due, and when; empty, and since when, while there was none."""

    def due(self, logs: Iterable[LogTail]) -> list[LogLine]:
        """Return those to show now."""
        now, lines = self.clock(), list[LogLine]()
        for log in logs:
            shown, at = self._shown.setdefault(log.path, (b"", now))
            if not log.rest:
                # The interval begins with the line, not with the last one that was shown.
                self._shown[log.path] = b"", now
            elif now - at >= UNFINISHED_S and log.rest != shown:
                self._shown[log.path] = log.rest, now
                lines.append(log.line(log.rest))
        return lines


class Lined(Lines):
    """Display with events of the job on stderr, and the ranks' lines on stdout."""

    def __init__(self, handle: JobHandle, console: Console) -> None:
        super().__init__(View(handle.name, begun=time.monotonic()))
        self._folder, self._console = handle.dir, console
        self._unfinished = UnfinishedLines()
        self._over = threading.Event()
        self._reader = threading.Thread(target=self._read, name="lines", daemon=True)

    def __enter__(self) -> Self:
        """Begin to read."""
        self._reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Read the ranks' output to its end."""
        self._over.set()
        self._reader.join()

    def _read(self) -> None:
        with suppress(OSError):  # stdout has no reader any more; the lines are in the logs
            self._show()

    def _show(self) -> None:
        # A file gets each byte once, so there an unfinished line waits for its end.
        unfinished = self._show_unfinished if sys.stdout.isatty() else None
        for line in logs.follow(self._folder, self._over.is_set, unfinished=unfinished):
            self._show_line(line)

    def _show_unfinished(self, tails: Iterable[LogTail]) -> None:
        for line in self._unfinished.due(tails):
            self._show_line(line)

    def _show_line(self, line: LogLine) -> None:
        # stdout is the script's own: dljob's lines in a rank's log go to stderr.
        if line.text.startswith(OURS):
            output.say(str(line))
        # Before the prefix of --tee, which a carriage return must not remove.
        elif (text := self._console.shown(line.role, line.rank, output.of_rank(line.text))) is not None:
            output.data(text)


class LocalRunner(Runner):
    """Runner on an embedded Ray."""

    def __init__(self, manifest: DLJobManifest, console: Console, log_dir: str | None) -> None:
        super().__init__(manifest, Path.cwd(), shown=NOTHING)  # `Lined` shows the ranks' lines, on stdout
        self._console, self._log_dir = console, log_dir

    def screen(self, handle: JobHandle) -> Lined:
        """Return the display, after linking the logs, whose folder exists now."""
        link(handle, self._log_dir)
        return Lined(handle, self._console)

    def finish(self, handle: JobHandle, status: Mapping[str, Any], extra: Mapping[str, Any]) -> int:
        """Print the outcome. `extra` is about faults, which torchrun has none of."""
        del extra
        return watch.tell(handle, status)


def run_here(manifest: DLJobManifest, console: Console, line: argparse.Namespace) -> int:
    """Run a job on this machine; return the exit code."""
    from dljob.runtime.backend.interface import chosen
    from dljob.runtime.yr.admitted import local

    if chosen(None, None) == "yr":
        local(manifest)  # raises, naming what the local mode lacks for this job
    check_log_dir(line.log_dir)
    return LocalRunner(manifest, console, line.log_dir).run()


def on_ray(manifest: DLJobManifest, console: Console, line: argparse.Namespace) -> int:
    """Run a job on a running Ray; Ctrl-C, SIGTERM and SIGHUP stop it, as they stop torchrun's ranks."""
    from dljob.api.handle import submit

    check_log_dir(line.log_dir)
    # Outside of the `try`: before its acceptance there is no job to stop.
    handle = submit(manifest, address=line.to, code_dir=Path.cwd())
    try:
        status = _watched(handle, console, line)
    # KeyboardInterrupt where Ctrl-C came before `listen` had replaced Python's handler.
    except (Interrupted, KeyboardInterrupt):
        return _stopped(handle)
    return watch.tell(handle, status)


def _watched(handle: JobHandle, console: Console, line: argparse.Namespace) -> Mapping[str, Any]:
    """Show a job on a running Ray until it is over, and return the final status."""
    try:
        listen()  # ray.init has replaced Python's SIGTERM handler by its own
        output.say(f"job {handle.name} ({handle.uid[:8]}) on the Ray at {line.to}; folder: {handle.dir}")
        link(handle, line.log_dir)
        with Lined(handle, console) as shown:
            return watch.watch(handle.connection, shown)
    # The folder for the logs has just been removed; or a pipe or terminal was closed, and nobody reads our output.
    except (UsageError, OSError):
        _stopped(handle)
        raise


def _stopped(handle: JobHandle) -> int:
    """Stop the job in order, also where nobody reads our output; a second signal leaves at once."""
    output.say_if_open(f"stopping {handle.name}")
    try:
        handle.stop()
        handle.wait(STOP_S)
    except (DeadlineError, UnreachableError, Interrupted, KeyboardInterrupt):
        output.say_if_open(f"{handle.name} has not ended yet: dljob status {handle.name}")
    return ExitCode.INTERRUPTED


def on_kubernetes(manifest: DLJobManifest, line: argparse.Namespace) -> int:
    """Run a job on a cluster with the current folder; after Ctrl-C it goes on, a second Ctrl-C stops it."""
    from dljob.api.kubernetes.submit import GivenJob
    from dljob.cli.kubernetes.run import run

    where = JobTarget(kubernetes=True, context=line.context, namespace=line.namespace)
    # None: the code is uploaded unless the spec names a place of it (`code_for`).
    what = GivenJob(manifest, Path.cwd(), False if line.no_upload else None)
    return run(what, where, "json", stop_on_interrupt=False)


def check_log_dir(log_dir: str | None) -> None:
    """Create the folder of --log-dir, before a job starts that would run without it.

    Raises:
        UsageError: it cannot be created or written.
    """
    if log_dir is None:
        return
    try:
        # torchrun creates the folder, too.
        Path(log_dir).mkdir(parents=True, exist_ok=True)
        # A real write: permission bits say nothing of a read-only disk, or of root.
        with tempfile.TemporaryFile(dir=log_dir):
            pass
    except OSError as error:
        raise _unfit(log_dir, error) from error


def link(handle: JobHandle, log_dir: str | None) -> None:
    """Link the ranks' logs into the folder of --log-dir.

    Raises:
        UsageError: the link cannot be made.
    """
    if log_dir is None:
        return
    try:
        # With the uid: the folder may collect the logs of many runs.
        there = Path(log_dir) / f"{handle.name}-{handle.uid[:8]}"
        there.symlink_to(handle.dir / "logs", target_is_directory=True)
    except OSError as error:
        raise _unfit(log_dir, error) from error


def _unfit(log_dir: str, error: OSError) -> UsageError:
    return UsageError(f"--log-dir {log_dir}: {error.strerror}", hint="name a folder that can be written to")
