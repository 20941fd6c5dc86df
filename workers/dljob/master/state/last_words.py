"""What a process wrote as it died, read from the end of its log: a C++ exception, an abort, a stack, a traceback.

A log is user output, and a line that looks like a cause must not become one. So only the formats of runtimes are read,
only at the end of the log, and only where the exit status agrees: `terminate called` with SIGABRT, faulthandler's stack
with the signal of a crash, a traceback with exit code 1.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dljob.telemetry.causes import ABORT_LINES

SIGABRT_CODE = 134
THROWN_LINES = 150
"""Last lines before a stack in which a C++ exception is looked for: torch adds its own C++ stack to the message."""
ABORT_NEAR = 5
"""Last lines before a stack in which the message of an abort is looked for."""
MESSAGE = 600
"""Characters of a message that are kept."""
_FATAL = "Fatal Python error: "
_THROWN = re.compile(
    r"terminate called after throwing an instance of '([^']+)'|uncaught exception of type (\S+?)(?:: (.*))?$"
)
_THREAD = re.compile(r"(Current thread|Thread|Stack)( 0x[0-9a-f]+.*)? \(most recent call first\):")
"""Heading of a thread's stack. `Stack` is that of the thread that crashed: Ray lets faulthandler write no other one."""
_NATIVE = re.compile(r"(\[.* logging\.cc:\d+: )?(\*\*\* SIG\w+ received at |(PC: |    )@ +0x)")
"""A line of the native stack that Ray's workers write, twice, before Python's."""
_FATAL_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_FRAME = re.compile(r'  File "(.*)", line (\d+), in (.*)')
_RAISED = re.compile(r"([A-Za-z_][\w.]*)(?:: (.*))?")
_ERROR = re.compile(r"([A-Za-z_][\w.]*(?:Error|Exception))(?:: (.*))?")
_TRACEBACK = "Traceback (most recent call last):"
_LINK_SENTENCES = ("the direct cause of the following exception", "another exception occurred")
_RANK = re.compile(r"^\[[a-z]*\d+\]: ?")
"""Prefix with which torch marks each line of a traceback."""
_BUILD_PATH = re.compile(r"/\S*/(?=[^/\s]+:\d+\])")
"""Folders of the machine on which a library was built, before one of its files."""
_HARMLESS_LINE_STARTS = (
    "[W",
    "CUDA kernel errors",
    "For debugging consider",
    "Compile with `TORCH_USE",
    "Search for `cuda",
    "  warn",
)
"""Beginnings of lines that runtimes write after a traceback."""
_LAUNCHER_ERROR_TYPES = ("ChildFailedError",)
"""Errors of launchers that only say that their child failed: the child's own traceback stands before."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a stack."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class LastWords:
    """What a process wrote as it died. Stacks are innermost first."""

    error_type: str = ""
    message: str = ""
    stack: tuple[Frame, ...] = ()
    log: str = ""
    """The end of the log without stacks of other threads, lists of modules and frames that are no user's."""


def read_crash(tail: str, code: int, is_users: Callable[[str], bool]) -> LastWords:
    """Return what a process wrote that a signal of its own ended (`code` 128 + n)."""
    lines = tail.splitlines()
    native_at, at = _find_stacks(lines)
    before, stack = lines[:at], _crashed_stack(lines[at:])
    error_type, message = _thrown(lines[:native_at]) if code == SIGABRT_CODE else ("", "")
    message = _BUILD_PATH.sub("", message)
    shown = [f'  File "{frame.file}", line {frame.line} in {frame.function}' for frame in stack if is_users(frame.file)]
    return LastWords(error_type, message[:MESSAGE], stack, "\n".join([*before, *lines[at : at + 1], *shown]))


def read_traceback(tail: str) -> tuple[LastWords, ...]:
    """Return the exceptions of the traceback that ends a log, the outermost first; empty if it ends otherwise."""
    lines: Sequence[str] = [_RANK.sub("", line) for line in tail.splitlines()]
    chain: list[LastWords] = []
    while (block := _last_traceback(lines)) is not None:
        start, error, rest = block
        if chain and chain[-1].error_type in _LAUNCHER_ERROR_TYPES:
            chain.clear()
        elif chain:
            if not any(words in line for line in rest for words in _LINK_SENTENCES):
                break
        elif error.error_type not in _LAUNCHER_ERROR_TYPES and any(
            line.strip() and not line.startswith(_HARMLESS_LINE_STARTS) for line in rest
        ):
            return ()
        chain.append(error)
        lines = lines[:start]
    return tuple(chain)


def last_error(tail: str, most_lines: int) -> LastWords | None:
    """Return the last exception that is written with a traceback among the last lines of a log.

    Several processes may have written at once: the stack then has frames of each, in their order.
    """
    lines = [_RANK.sub("", line) for line in tail.splitlines()][-most_lines:]
    start = next((n for n, line in enumerate(lines) if line.startswith(_TRACEBACK)), len(lines))
    errors = [(n, match) for n in range(start, len(lines)) if (match := _ERROR.fullmatch(lines[n]))]
    if not errors:
        return None
    at, raised = errors[-1]
    # Some messages begin on the line after the type.
    further = itertools.takewhile(lambda line: line.startswith(" "), lines[at + 1 :])
    message = (raised[2] or "").strip() or " ".join(line.strip() for line in further)
    stack = [Frame(f[1], int(f[2]), f[3]) for line in lines[start:at] if (f := _FRAME.match(line))]
    return LastWords(raised[1].rpartition(".")[2], message[:MESSAGE], tuple(reversed(stack)))


def last_line(tail: str) -> str:
    """Return the last line of a log or a traceback that was written before the stacks of a crash."""
    lines = [line for line in tail.splitlines() if line.strip()]
    at, _ = _find_stacks(lines)
    return lines[at - 1].strip() if at else lines[0].strip() if lines else ""


def _find_stacks(lines: Sequence[str]) -> tuple[int, int]:
    """Return where the native stack of a crash begins, which may be empty, and where Python's does."""
    at = max((n for n, line in enumerate(lines) if line.startswith(_FATAL)), default=len(lines))
    native = sum(1 for _ in itertools.takewhile(_NATIVE.match, reversed(lines[:at])))
    return at - native, at


def _thrown(before: Sequence[str]) -> tuple[str, str]:
    """Return type and message of the C++ exception or abort that these lines end with."""
    near = before[-THROWN_LINES:]
    for number in range(len(near) - 1, -1, -1):
        thrown = _THROWN.search(near[number])
        if thrown:
            message = next((line for line in near[number + 1 : number + 3] if "what():" in line), "")
            return (thrown[1] or thrown[2]).strip(), (message.partition("what():")[2] or thrown[3] or "").strip()
    for line in reversed([line.strip() for line in before if line.strip()][-ABORT_NEAR:]):
        error_type = next((known for pattern, known in ABORT_LINES if pattern in line.lower()), None)
        if error_type is not None:
            return error_type, line
    return "", ""


def _crashed_stack(lines: Sequence[str]) -> tuple[Frame, ...]:
    """Return the stack of the thread that crashed, innermost first; of the main thread, if it was none of Python's."""
    stacks: list[list[Frame]] = []
    current: list[Frame] = []
    for line in lines:
        if thread := _THREAD.match(line):
            stacks.append([])
            current = stacks[-1] if thread[1] != "Thread" else current
        elif stacks and (frame := _FATAL_FRAME.match(line)):
            stacks[-1].append(Frame(frame[1], int(frame[2]), frame[3]))
    # faulthandler lists the main thread last.
    return tuple(current or (stacks[-1] if stacks else ()))


def _last_traceback(lines: Sequence[str]) -> tuple[int, LastWords, Sequence[str]] | None:
    """Return the beginning of the last traceback, its error, and the lines after it; None: there is none."""
    start = max((n for n, line in enumerate(lines) if line.startswith(_TRACEBACK)), default=-1)
    if start < 0:
        return None
    for number in range(start + 1, len(lines)):
        line = lines[number]
        if line and not line.startswith(" "):
            raised = _RAISED.fullmatch(line)
            if raised is None:
                return None
            stack = [Frame(f[1], int(f[2]), f[3]) for text in lines[start:number] if (f := _FRAME.match(text))]
            error_type = raised[1].rpartition(".")[2]
            words = LastWords(error_type, (raised[2] or "")[:MESSAGE], tuple(reversed(stack)))
            return start, words, lines[number + 1 :]
    return None
