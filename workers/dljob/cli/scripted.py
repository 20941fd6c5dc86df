"""Jobs of `dljob torchrun`: the ranks' lines on stdout as from torchrun, everything else on stderr."""

from __future__ import annotations

import codecs
import os
import re
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self

from dljob.api import logs
from dljob.api.logs import LogTail
from dljob.api.torchrun import has_derived_name
from dljob.cli import output, watch
from dljob.cli.live import Lines
from dljob.cli.progress import View
from dljob.cli.rank_output import NOTHING
from dljob.cli.runner import STOP_S, Interrupted, Runner, listen
from dljob.cli.target import JobTarget
from dljob.errors import DeadlineError, ExitCode, UnreachableError, UsageError

if TYPE_CHECKING:
    import argparse

    from dljob.api.handle import JobHandle
    from dljob.api.registry import RegistryEntry
    from dljob.api.torchrun_console import Console
    from dljob.spec.model import DLJobManifest

OURS = b"[dljob] "
"""Prefix of dljob's own lines in a rank's log."""


@dataclass(slots=True)
class RankStream:
    """Output of one rank on its way to the console, in the pieces in which it is written.

    Text without a line end is held for one turn: it may be half of a line that is just being written.
    """

    log: LogTail
    prefix: bytes | None
    """Text before each line; None: the rank is not shown."""
    held_bytes: bytes = b""
    in_line: bool = False
    """Whether the last text that was yielded ended within a line."""
    needs_prefix: bool = True
    """Whether its next text begins a line of the console."""
    decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("backslashreplace")
    )

    def turn(self, *, is_last: bool = False) -> Iterator[tuple[bytes, bool]]:
        """Yield the new text, and whether it is a line of dljob's; of the last turn all that is left."""
        size_before = len(self.held_bytes)
        for data in self.log.pieces():
            text, self.held_bytes = self.held_bytes + data, b""
            # A carriage return belongs to what rewrites the line, or is half of a "\r\n".
            end = max(size_before, text.rfind(b"\n") + 1, text.rfind(b"\r"))
            yield from self._parts(text[:end])
            self.held_bytes += text[end:]
            size_before = 0
        if self.held_bytes and (size_before or is_last):
            text, self.held_bytes = self.held_bytes, b""
            yield from self._parts(text, is_last=is_last)

    def _parts(self, text: bytes, *, is_last: bool = False) -> Iterator[tuple[bytes, bool]]:
        """Split off dljob's lines; the beginning of one is held."""
        begin = at = 0
        while at < len(text):
            end = text.find(b"\n", at) + 1 or len(text)
            line = text[at:end]
            is_whole = is_last or line.endswith(b"\n")
            if not self.in_line and (line.startswith(OURS) or (not is_whole and OURS.startswith(line))):
                if begin < at:
                    yield text[begin:at], False
                if not is_whole:
                    self.held_bytes = line
                    return
                yield line, True
                begin = end
            else:
                self.in_line = not line.endswith(b"\n")
            at = end
        if begin < at:
            yield text[begin:], False


_SEGMENT = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def add_prefix(stream: RankStream, text: bytes, *, keeps_returns: bool) -> bytes:
    """Return text with the prefix of --tee before each line.

    A carriage return begins a line, too. In a file it ends the one before it, as under torchrun.
    """
    lines: list[bytes] = []
    for segment in _SEGMENT.findall(text):
        if segment == b"\r" and stream.needs_prefix:
            continue  # of a progress bar that begins each of its states with one
        line = segment[:-1] + b"\n" if segment.endswith(b"\r") and not keeps_returns else segment
        lines.append(stream.prefix + line if stream.needs_prefix and stream.prefix else line)
        stream.needs_prefix = line.endswith((b"\r", b"\n"))
    return b"".join(lines)


class Lined(Lines):
    """Display with events of the job on stderr, and the ranks' output on stdout as it is written."""

    def __init__(self, handle: JobHandle, console: Console) -> None:
        super().__init__(View(handle.name, begun=time.monotonic()))
        self._folder, self._console = handle.dir, console
        self._streams: dict[Path, RankStream] = {}
        self._lock = threading.RLock()
        self._open_stream: RankStream | None = None
        """The rank whose unfinished line is the last of stdout."""
        self._shares_stderr = _shares_stderr()
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
            while not self._over.wait(logs.POLL_S):
                self._turn()
            self._turn(is_last=True)
            self._end_line()

    def _turn(self, *, is_last: bool = False) -> None:
        for path, log in logs.find_logs(self._folder).items():
            # New ranks appear while the job runs, so the folder is listed in each turn.
            if path not in self._streams:
                prefix = self._console.prefix(log.role, log.rank)
                self._streams[path] = RankStream(log, None if prefix is None else prefix.encode())
        for stream in self._streams.values():
            for text, is_dljobs in stream.turn(is_last=is_last):
                if is_dljobs:  # stdout is the script's own
                    self._print(str(stream.log.line(text.removesuffix(b"\n"))))
                elif stream.prefix is not None:
                    self._write(stream, text)

    def _write(self, stream: RankStream, text: bytes) -> None:
        is_terminal = sys.stdout.isatty()
        with self._lock:
            # A carriage return rewrites the line of another rank's progress bar, as under torchrun.
            if self._open_stream is not stream and not text.startswith(b"\r"):
                self._break_line()
            if stream.prefix:
                text = add_prefix(stream, text, keeps_returns=is_terminal)
            if not text:
                return
            self._open_stream = None if text.endswith(b"\n") else stream
            if is_terminal:
                output.progress(stream.decoder.decode(text))
            else:
                output.unchanged(text)

    def _break_line(self) -> None:
        """End the line on stdout that a rank has not finished."""
        with self._lock:
            if self._open_stream is not None:
                self._open_stream.needs_prefix = True
                self._open_stream = None
                output.unchanged(b"\n")

    def _end_line(self) -> None:
        """End an unfinished line before text on stderr that would stand behind it."""
        if self._shares_stderr:
            self._break_line()

    def _print(self, text: str) -> None:
        self._end_line()
        super()._print(text)


def _shares_stderr() -> bool:
    """Whether stdout and stderr are one terminal, or one pipe (`2>&1 | tee log`)."""
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (OSError, ValueError):
        return False


class LocalRunner(Runner):
    """Runner on an embedded Ray."""

    # A module of the user's folder would take the place of one that Ray or dljob imports.
    imports_code = False

    def __init__(self, manifest: DLJobManifest, console: Console, line: argparse.Namespace) -> None:
        # `Lined` shows the ranks' lines, on stdout.
        # A job that goes on keeps its name.
        is_numbered = has_derived_name(line) and not line.resume
        resume = "" if line.resume else None
        super().__init__(manifest, Path.cwd(), shown=NOTHING, replace=None, is_numbered=is_numbered, resume=resume)
        self._console, self._log_dir = console, line.log_dir
        self._stdin: Path | None = None
        """The link to this command's stdin, if ranks inherit that."""

    def run(self) -> int:
        """Start the job, watch it, and take everything down; return the exit code."""
        try:
            return super().run()
        finally:
            # Another process may get this one's pid.
            if self._stdin is not None:
                self._stdin.unlink(missing_ok=True)

    def _registered(self, record: RegistryEntry) -> RegistryEntry:
        from dljob.runtime.process.logfile import STDIN

        entry = super()._registered(record)
        ranks = sum(role.replicas for role in self._plan.roles.values())
        if is_for_ranks(sys.stdin, ranks):
            # A link: each host opens it for its ranks, before the first of which the job has begun.
            self._stdin = entry.folder / STDIN
            self._stdin.symlink_to(f"/proc/{os.getpid()}/fd/{sys.stdin.fileno()}")
        return entry

    def screen(self, handle: JobHandle) -> Lined:
        """Return the display, after linking the logs, whose folder exists now."""
        link(handle, self._log_dir)
        return Lined(handle, self._console)

    def finish(self, handle: JobHandle, status: Mapping[str, Any], extra: Mapping[str, Any]) -> int:
        """Print the outcome. `extra` is about faults, which torchrun has none of."""
        del extra
        return watch.tell(handle, status)


def is_for_ranks(stdin: IO[str] | None, ranks: int) -> bool:
    """Whether ranks of this machine inherit stdin: a pipe or a file, and a terminal if there is only one rank.

    Several ranks would take each other's keystrokes.
    """
    try:
        if stdin is None:
            return False
        mode = os.fstat(stdin.fileno()).st_mode
        if stdin.isatty():
            return ranks == 1 and os.tcgetpgrp(stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):  # closed, or a terminal that is not this process's
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def run_here(manifest: DLJobManifest, console: Console, line: argparse.Namespace) -> int:
    """Run a job on this machine; return the exit code."""
    from dljob.runtime.backend.interface import chosen
    from dljob.runtime.backend.yr_local_mode import local

    if chosen(None, None) == "yr":
        local(manifest)  # raises, naming what the local mode lacks for this job
    check_log_dir(line.log_dir)
    return LocalRunner(manifest, console, line).run()


def on_ray(manifest: DLJobManifest, console: Console, line: argparse.Namespace) -> int:
    """Run a job on a running Ray; Ctrl-C, SIGTERM and SIGHUP stop it, as they stop torchrun's ranks."""
    from dljob.api.handle import submit

    check_log_dir(line.log_dir)
    # Outside of the `try`: before its acceptance there is no job to stop.
    is_numbered = has_derived_name(line)
    handle = submit(
        manifest, address=line.to, code_dir=Path.cwd(), replace=None, is_numbered=is_numbered, imports_code=False
    )
    try:
        status = _watched(handle, console, line)
    # KeyboardInterrupt where Ctrl-C came before `listen` had replaced Python's handler.
    except (Interrupted, KeyboardInterrupt):
        return _stopped(handle)
    return ExitCode.INTERRUPTED if status is None else watch.tell(handle, status)


def _watched(handle: JobHandle, console: Console, line: argparse.Namespace) -> Mapping[str, Any] | None:
    """Show a job on a running Ray until it is over, and return the final status; None if a signal stopped it."""
    try:
        listen()  # ray.init has replaced Python's SIGTERM handler by its own
        output.say(f"job {handle.name} ({handle.uid[:8]}) on the Ray at {line.to}; folder: {handle.dir}")
        link(handle, line.log_dir)
        with Lined(handle, console) as shown:
            try:
                return watch.watch(handle.connection, shown)
            except (Interrupted, KeyboardInterrupt):
                _stopped(handle)  # while the display is open: ranks print in their signal handlers
                return None
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

    place = JobTarget(kubernetes=True, context=line.context, namespace=line.namespace)
    # None: the code is uploaded unless the spec names a place of it (`code_for`).
    resume = "" if line.resume else None
    given_job = GivenJob(manifest, Path.cwd(), False if line.no_upload else None, resume=resume)
    return run(given_job, place, "json", stop_on_interrupt=False)


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
        link_path = Path(log_dir) / f"{handle.name}-{handle.uid[:8]}"
        link_path.symlink_to(handle.dir / "logs", target_is_directory=True)
    except OSError as error:
        raise _unfit(log_dir, error) from error


def _unfit(log_dir: str, error: OSError) -> UsageError:
    return UsageError(f"--log-dir {log_dir}: {error.strerror}", hint="name a folder that can be written to")
