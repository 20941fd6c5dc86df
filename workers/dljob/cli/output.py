"""Output of the command: data on stdout, everything else on stderr. No other module of dljob prints."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import threading
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, cast

from dljob.cli.terminal import rewritten, safe, unbroken
from dljob.errors import DLJobError
from dljob.telemetry.wording import counted, seconds, unix

if TYPE_CHECKING:
    from pydantic import JsonValue

DataFormat = Literal["json", "yaml"]
TableFormat = Literal["table", "json", "yaml"]

_RED, _DIM, _END = "\033[31m", "\033[2m", "\033[0m"


def data(text: str) -> None:
    """Print text for people to stdout, with a final newline and control sequences from user data escaped."""
    # A pipe, too: what reads it, such as ssh or the log of a CI, often shows it on a terminal.
    document(safe(text, colours=coloured(sys.stdout.isatty())))


def document(text: str) -> None:
    """Print text for programs to stdout, with a final newline. Files and pipes get it unchanged."""
    if sys.stdout.isatty():
        text = safe(text, colours=coloured(terminal=True))
    sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
    # A program that reads the pipe acts on each line.
    sys.stdout.flush()


def unchanged(text: bytes) -> None:
    """Write bytes of a rank to stdout, a file or a pipe, as they are."""
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


def progress(text: str) -> None:
    """Write text of a rank to the terminal: a carriage return goes back to the beginning of the line."""
    colours = coloured(terminal=True)
    sys.stdout.write("\r".join(safe(part, colours=colours) for part in text.split("\r")))
    sys.stdout.flush()


def of_rank(text: str) -> str:
    """Return a rank's line for stdout: a terminal shows the last state of a progress bar, a file gets the bytes."""
    return rewritten(text) if sys.stdout.isatty() else text


_RANK = re.compile(r"\[[^]/\s]+/\d+\] ")
"""Prefix of a rank's line, as in `LogLine`; PrimeMaster's lines have none."""


class Stdout:
    """Text stream of logs: each line is written as by `document`, the text of a rank's line as by `of_rank`."""

    def write(self, line: str) -> int:
        """Print a line."""
        if prefix := _RANK.match(line):
            document(prefix[0] + of_rank(line[prefix.end() :].removesuffix("\n")))
        else:
            document(line)
        return len(line)

    def writelines(self, lines: Iterable[str]) -> None:
        """Print lines."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Do nothing: each line has been flushed."""


def say(text: str) -> None:
    """Print a line for people to stderr, with control sequences from user data escaped."""
    sys.stderr.write(f"{safe(text, colours=coloured(sys.stderr.isatty()))}\n")
    sys.stderr.flush()


def say_if_open(text: str) -> None:
    """Print a line as `say` does, ignoring a closed pipe or terminal: the command goes on to stop the job."""
    with suppress(OSError):
        say(text)


@contextmanager
def telling(doing: str, first_s: float = 3.0) -> Generator[None]:
    """Say what the block does once it has lasted for `first_s`, and again each time that has doubled."""
    ended = threading.Event()

    def tell() -> None:
        begun, lasts = time.monotonic(), first_s
        while not ended.wait(max(0.0, begun + lasts - time.monotonic())):
            say_if_open(f"{doing}, for {seconds(lasts)}")
            lasts *= 2

    thread = threading.Thread(target=tell, name="dljob-telling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def structured(value: Mapping[str, Any] | Sequence[Any], form: DataFormat, *, indent: int | None = 2) -> None:
    """Print data as JSON or YAML to stdout, never wrapped or coloured."""
    if form == "json":
        # Never Python's NaN, which other parsers of JSON refuse.
        document(json.dumps(_strict(value), indent=indent, ensure_ascii=False, allow_nan=False))
        return
    from dljob.spec.text.emit import to_yaml

    document(to_yaml(cast("JsonValue", value)))


def _strict(value: object) -> object:
    """Replace NaN and infinity, which JSON lacks and a loss can be, by their names in protobuf's JSON."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _strict(inner) for key, inner in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_strict(inner) for inner in cast("Sequence[Any]", value)]
    return value


def widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column."""
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def cells(row: Sequence[str], to: Sequence[int]) -> str:
    """Return one line of a table whose columns have these widths."""
    return "  ".join(cell.ljust(width) for cell, width in zip(row, to, strict=True)).rstrip()


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table; nothing for no rows."""
    to = widths(rows)
    return [cells(row, to) for row in rows]


def table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns to stdout; the first row is the heading."""
    data("\n".join(aligned(rows)))


def error(problem: DLJobError) -> None:
    """Print an error and its hint to stderr."""
    # By stderr, where errors go: stdout may be a pipe at the same time.
    red, dim, end = (_RED, _DIM, _END) if coloured(sys.stderr.isatty()) else ("", "", "")
    say(f"{red}error:{end} {problem.message}")
    if problem.hint:
        say(f"  {dim}{problem.hint}{end}")


def fate(name: str, status: Mapping[str, Any]) -> str:
    """Describe why an ended job did not succeed."""
    if status.get("phase") == "Stopped":
        return unbroken(f"job {name} was stopped: {status.get('message')}")
    return unbroken(f"error: job {name} failed: {status.get('reason')}: {status.get('message')}")


def coloured(terminal: bool) -> bool:  # noqa: FBT001 - the one thing it depends on
    """Whether to use colours: NO_COLOR forbids, FORCE_COLOR enforces, else only on a terminal."""
    # no-color.org: any value but an empty one counts.
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (terminal and os.environ.get("TERM") != "dumb")


def saved(progress: Mapping[str, Any]) -> str:
    """Describe the last checkpoint on disk; empty while there is none."""
    step = progress.get("lastCheckpointStep")
    return "" if step is None else f", saved {step}"


def age(started: str, now: float) -> str:
    """Return how long ago a job started (RFC 3339, or "-")."""
    at = unix(started)
    return "-" if at is None else seconds(max(0.0, now - at))


STANDS_STEPS, STANDS_S = 3.0, 2.0
"""Age from which a step counts as standing still: so many times its usual duration, and so many seconds."""
STANDS_FIRST_S = 30.0
"""The same in seconds while no usual duration is known."""
STATUS_S = 20.0
"""Extra age, in seconds, of a step in a DLJob's status (which has `time`): it is written every 15 s at most."""


def standing(progress: Mapping[str, Any], now: float) -> str:
    """Describe how long a step has stood still, if unusually long: ", 46 s ago (usually every 0.4 s)"."""
    at, usual = unix(progress.get("stepTime")), progress.get("secondsPerStep")
    # No step has been reported, or none with its time: nothing can stand still yet.
    if at is None:
        return ""
    since = now - at
    late = STATUS_S if "time" in progress else 0.0
    if since < late + (STANDS_FIRST_S if usual is None else max(STANDS_STEPS * usual, STANDS_S)):
        return ""
    return f", {span(since)} ago" + ("" if usual is None else f" (usually every {span(usual)})")


def span(value: float) -> str:
    """Format a duration in two digits: 0.4 s, 46 s, 3m12s."""
    return f"{value:.2g} s" if value < 10 else f"{value:.0f} s" if value < 60 else seconds(value)


def lost_steps(fault: Mapping[str, Any]) -> str:
    """Describe the steps lost by a fault; empty when unknown."""
    steps = fault.get("lostSteps")
    return "" if steps is None else f", {counted(steps, 'step')} lost"
