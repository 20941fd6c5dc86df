"""Report on a failed job, for people: the cause, the rank that failed first, the end of its log, and the outcome."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from dljob.api import logs
from dljob.cli import diagnosis, output
from dljob.cli.terminal import rewritten
from dljob.linux.plain_files import open_plain
from dljob.telemetry.remedies import ENDS_WITHOUT_FAILURE

Log: TypeAlias = Callable[[str, int], BinaryIO]
LAST_LINES = 20
MOST_LINES = 120
"""Most lines of a traceback that is shown whole, beyond LAST_LINES."""
_END_BYTES = 128 << 10
_TRACEBACK = "Traceback (most recent call last):"
_INDENTED = re.compile(rf"\s+{re.escape(_TRACEBACK)}")
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)


def report(name: str, folder: Path, status: Mapping[str, Any]) -> list[str]:
    """Return the report on a job of this machine; empty when it succeeded."""

    def log(role: str, rank: int) -> BinaryIO:
        return open_plain(folder / "logs" / f"{role}-{rank}.log")

    return report_lines(name, status, log)


_FOREIGN = re.compile(
    r'Extension modules: |  File ".*/dljob/runtime/(worker|forked_workers)/[a-z_]+\.py", line \d+ in '
)
"""Lines of faulthandler that say nothing about a crash: the frames below the user's code, and all C modules."""


def report_lines(name: str, status: Mapping[str, Any], log: Log, flags: str = "") -> list[str]:
    """Return the lines of the report: the cause; for a failed rank its incarnation, its log's end and the logs command.

    Args:
        name: the job's name.
        status: its final status. A fault that the job recovered from did not end it.
        log: opens the log of a role's rank; raises OSError when there is none.
        flags: flags by which `dljob logs` finds the job, after a blank.
    """
    if status.get("phase") == "Succeeded":
        return []
    lines = [output.fate(name, status)]
    fault: Mapping[str, Any] = status.get("lastFault") or {}
    rank = str(fault.get("rank") or "")
    is_end_without_failure = status.get("reason") in ENDS_WITHOUT_FAILURE and fault.get("level") != "Fail"
    # The job recovered from its last fault, or was to end anyway: something else ended it.
    if not rank or fault.get("recoveredAt") or is_end_without_failure:
        return lines
    role, _, number = rank.rpartition("/")
    if diagnosis.names_store(fault):
        return [
            *lines,
            f"{role}/store, where the ranks of {role} meet, failed first: dljob logs {name} --master{flags}",
        ]
    incarnation = int(fault.get("incarnation") or 1)
    logs_command = f"dljob logs {name} --role {role} --rank {number}{flags}"
    end: list[str] = []
    # Only of the failed incarnation: one log file has all of a rank, and an earlier traceback would mislead.
    with suppress(OSError), log(role, int(number)) as file:  # no log: the line below says so
        end = _end(logs.of_incarnation(file, rank, incarnation, _END_BYTES))
    caller = str(fault.get("caller") or "")
    first = f"{rank} raised the error that ended {caller}" if caller else f"{rank} failed first"
    if not end:
        return [*lines, f"{first}, in its incarnation {incarnation}; its log, if there is one: {logs_command}"]
    lines.append(f"{first}, in its incarnation {incarnation}. The end of its log:")
    return [*lines, *(f"  {line}".rstrip() for line in end), f"all of it: {logs_command}"]


def _end(text: bytes) -> list[str]:
    """Return the last lines, extended to the beginning of the last traceback."""
    decoded = text.decode("utf-8", "backslashreplace").split("\n")
    lines = [rewritten(line).rstrip() for line in decoded]
    lines = [line for line in lines if not _FOREIGN.match(line)]
    # Empty lines at the end would use up LAST_LINES.
    while lines and not lines[-1]:
        lines.pop()
    begin = max(0, len(lines) - LAST_LINES)
    last = _traceback(lines)
    # From the beginning of the last traceback if that is earlier than the last lines, within MOST_LINES.
    return lines[max(min(begin, last), len(lines) - MOST_LINES, 0) :]


def _traceback(lines: list[str]) -> int:
    """Return where the last traceback begins, with its chained ones; the number of lines when there is none."""
    # An indented one is part of a message, as that of a callee in the error of its caller.
    starts = [at for at, line in enumerate(lines) if _TRACEBACK in line and not _INDENTED.match(line)]
    if not starts:
        return len(lines)
    first = starts.pop()
    # Go back over "During handling ..." and "... direct cause": the root of a chain is printed first.
    while starts and any(line in _CHAINED for line in lines[starts[-1] : first]):
        first = starts.pop()
    return first
