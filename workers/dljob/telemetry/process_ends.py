"""Words about how one of Ray's own processes ended, or why it does not answer: facts of the machine in, text out."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dljob.telemetry.wording import counted

CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
"""Signals by which a process ends because of its own code."""
STATES = {"T": "stopped", "t": "held by a debugger", "D": "waiting for a disk or a driver"}
"""State in /proc/PID/stat in which a process cannot run -> its meaning."""
_LOGGED = re.compile(r"^\[[^\]]* [EF] [^\]]*\] (?:\(\w+\) )?\S+:\d+: +(?P<text>.+)")
"""A line that Ray's C++ code logs at level ERROR or FATAL, without the time, the program and the place in its code."""
_TEXT = 300
"""Characters of such a line that are shown."""
_FRAMES = ("@ ", "*** ", "PC: ")
"""Beginnings of the lines that follow a crash: its stack."""


class ProcessEnd(NamedTuple):
    """How a process of Ray ended."""

    program: str
    """raylet or gcs_server."""
    node: str
    """Name of its node."""
    pid: int
    status: int | None
    """Its wait status; None where nobody could read it."""
    error: str = ""
    """The last error in its log."""


def describe_end(end: ProcessEnd) -> str:
    """Return how a process ended: `the raylet (pid 7242) of cpu2-0 was ended by SIGKILL from outside`."""
    return describe_exit(f"the {end.program} (pid {end.pid}) of {end.node}", end.status, end.error)


def describe_exit(process: str, status: int | None, error: str = "") -> str:
    """Return how a process ended, by its wait status and the last error that it logged."""
    if status is None:
        return f"{process} ended, and its exit status is unknown"
    number, error = status & 0x7F, f": {error}" if error else ""
    if not number:
        return f"{process} ended by itself with code {status >> 8 & 0xFF}{error}"
    known = {signal_number.value: signal_number.name for signal_number in signal.Signals}
    name = known.get(number, f"signal {number}")
    return f"{process} crashed: {name}{error}" if number in CRASHES else f"{process} was ended by {name} from outside"


def last_error(lines: Iterable[str]) -> str:
    """Return the last error in the log of a process of Ray's C++ code, shortened; empty if it has none."""
    texts = [match["text"].strip() for line in lines if (match := _LOGGED.match(line))]
    texts = [text for text in texts if not text.startswith(_FRAMES)]
    return texts[-1][:_TEXT] if texts else ""


def describe_states(raylet: int, states: Sequence[str]) -> str:
    """Return why a node does not answer, by the states of its processes; empty if they can run.

    Args:
        raylet: Pid of the node's raylet.
        states: State in /proc/PID/stat of the raylet, then those of its descendants.
    """
    stuck = next((state for state in STATES if state in states), "")
    if not stuck:
        return ""
    number, others = states[1:].count(stuck), len(states) - 1
    meaning = f"{STATES[stuck]} (state {stuck})"
    below = f"{number} of the {counted(others, 'process', plural='processes')} below it"
    if states[0] != stuck:
        verb = "is" if number == 1 else "are"
        return f"its raylet (pid {raylet}) can run, but {below} {verb} {meaning}"
    return f"its raylet (pid {raylet}) {f'and {below} are' if number else 'is'} {meaning}"
