"""Outcomes of user code: exit code, the innermost frame of the user's code, a bounded traceback."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib
import inspect
import json
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from dljob.errors import DLJobError, ErrorOrigin
from dljob.linux import broken_connection, full_disks, killed_children, own_sockets
from dljob.linux.process_limit import describe_refusal
from dljob.master.state import last_words
from dljob.master.state.causes import add_clues, matches
from dljob.master.state.views import Clue, Outcome, Reason
from dljob.runtime.process.error_origin import error_chain, is_job_ending, remote_origin
from dljob.telemetry.causes import CHILD_LOST
from dljob.telemetry.evidence import Source

DETAIL_BYTES = 8192
"""The longest traceback or log tail in an outcome: outcomes go into the journal."""
RESULT_BYTES = 8192
"""The longest result of a job, for the same reason."""

LOG_BYTES = 65_536
"""Bytes of the end of a log that are read: the stacks of a crash may be long."""
OUTPUT_LINES, OUTPUT_CHARS = 2, 300
"""Last lines of a failed command that are shown, and characters of each."""
CHILDREN, CHILD_LINES = 8, 400
"""Most killed children that are told, and last lines of the log in which the error of a lost child is looked for."""
CHAIN = 20
"""Exceptions of a chain that are followed."""
CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
"""Signals by which a process ends of itself."""
MESSAGE = 1000
"""Characters of an error's message that are reported."""
EARLIER_MOST = 3
"""Errors that are reported; the first ones are likelier causes than what follows them."""
EARLIER_CHARS = 1000
"""Characters of one report."""
_FATAL_START = re.compile(r"^Fatal Python error: init.*", re.MULTILINE)
_WORKER_START_LINES = 200
"""Most lines of Ray's logs in which the error of a worker that cannot start is looked for."""
_CONTROL_FLOW = (StopIteration, StopAsyncIteration, GeneratorExit, asyncio.CancelledError)

_OF_LOGIC = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, KeyboardInterrupt, LookupError, NameError),
    *(NotImplementedError, RecursionError, SyntaxError, TypeError),
)
"""Errors of the code itself, which no file that is cut off or missing explains."""

_TEXT_FRAME = re.compile(r'^ *File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<name>\S+)', re.MULTILINE)
"""A frame of a traceback that was written as text."""
_COPIED = "Original Traceback (most recent call last):"
"""What stands in a message of torch before the traceback of a DataLoader's worker."""
_MOST_TEXT = 100_000
"""Most characters of an error's text in which frames are looked for."""
_OWN = str(Path(__file__).resolve().parents[2])
_LIBRARIES = tuple({sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")})


_IMPORTLIB = importlib.__path__[0]
_LOOPS = tuple(f"{sysconfig.get_paths()['stdlib']}/{package}/" for package in ("asyncio", "concurrent/futures"))


class ResultError(TypeError):
    """User code returned a value that cannot be the job's result. Reports name no frame, since no line raised."""


def from_exception(error: BaseException, *, code_dir: str, phase: str, fatal: bool = False) -> Outcome:
    """Return the outcome of user code that raised: `sys.exit` gives its exit code, any other exception exit code 1."""
    first, clues = _first_of_chain(error, code_dir)
    if isinstance(error, SystemExit):
        return add_clues(_exited(error, code_dir, phase), clues)
    for link in dict.fromkeys((error, first)):
        clues += tuple(Clue(Source.CONNECTION, end) for end in (broken_connection.describe(link),) if end)
        clues += tuple(Clue(Source.OUTPUT, line) for line in _command_output(link))
    clues += tuple(_of_children(error, code_dir))
    # Only while the entrypoint is imported: a later ImportError is an error of the code that ran.
    importing = isinstance(error, ImportError) and phase == "import"
    frame = _frame_in_text(error, code_dir) or user_frame(error, code_dir)
    limit = f"; {met}" if (met := describe_refusal(error)) else ""
    unseen = isinstance(error, ModuleNotFoundError) and not frame and code_dir
    search_text = f"; it is looked for in {code_dir} and among the installed packages" if unseen else ""
    in_handler = "; raised in its handler of SIGTERM" if _is_in_handler(error, signal.SIGTERM) else ""
    own_reason = Reason.KILLED if in_handler else Reason.USER_ERROR
    return Outcome(
        ok=False,
        reason=Reason.IMPORT_ERROR if importing else own_reason,
        # A shell's code for Ctrl-C: 128 + SIGINT.
        code=130 if isinstance(error, KeyboardInterrupt) else 1,
        error_type=type(error).__name__,
        frame=frame,
        message=f"{_say(error)} (in {phase}){search_text}{limit}{in_handler}{_of_machine(error)}".lstrip(),
        detail=user_traceback(error),
        fatal=fatal,
        origin=remote_origin(error),
        clues=clues,
    )


def _is_in_handler(error: BaseException, number: signal.Signals) -> bool:
    """Return whether an error comes out of the user's Python function that handles a signal, wherever that struck."""
    handler: Any = signal.getsignal(number)
    code = getattr(getattr(handler, "__func__", handler), "__code__", None)
    trace = error.__traceback__
    while code is not None and trace is not None:
        if trace.tb_frame.f_code is code:
            return True
        trace = trace.tb_next
    return False


def _first_of_chain(error: BaseException, code_dir: str) -> tuple[BaseException, tuple[Clue, ...]]:
    """Return the first exception of a chain, and a clue: the error was raised from it, or while it was handled."""
    first, source = error, Source.CAUSE
    for _ in range(CHAIN):
        # An error of dljob says of itself what it follows from.
        if isinstance(first, DLJobError):
            break
        before = first.__cause__
        if isinstance(first, BaseExceptionGroup):
            before = first.exceptions[0]
        elif before is None and not first.__suppress_context__:
            before = first.__context__
            # A SystemExit in a handler is how programs end for what they handle.
            if before is not None and not isinstance(first, SystemExit):
                source = Source.HANDLED
        if before is None or isinstance(before, _CONTROL_FLOW) or before is error:
            break
        first = before
    # Libraries repeat the words of what they handle, and a file that could not be written cannot be closed either.
    if first is error or (source is Source.HANDLED and _say(first) in _say(error)):
        return first, ()
    return first, (Clue(source, describe_error(first, code_dir)),)


def describe_error(error: BaseException, code_dir: str) -> str:
    """Return an error in one line, as `KeyError: 'labels' at data.py:3 in load`."""
    message = _say(error).strip()
    users = [frame for frame in _frames(error.__traceback__) if not _is_own(frame[0]) and is_users(frame[0], code_dir)]
    place = f" at {_short(users[-1][0], code_dir)}:{users[-1][1]} in {users[-1][2]}" if users else ""
    return f"{type(error).__name__}{f': {message}' if message else ''}{place}"


def _command_output(error: BaseException) -> tuple[str, ...]:
    """Return the last lines that a command wrote before it failed: those that were kept, else those in the rank's log.

    They may be lines of the rank itself, which writes to the same log.
    """
    if not isinstance(error, subprocess.CalledProcessError):
        return ()
    captured = next((output for output in (error.stderr, error.output) if output), b"")
    text = captured if isinstance(captured, str) else bytes(captured).decode(errors="replace")
    text = text or _end_of_own_log()
    lines = [line.strip()[:OUTPUT_CHARS] for line in text.splitlines() if line.strip()]
    return tuple(_writable(line) for line in lines[-OUTPUT_LINES:])


def _of_children(error: BaseException, code_dir: str) -> Iterable[Clue]:
    """Yield what is known of the children of this process that an error may be about."""
    killed = killed_children.pids(error)[:CHILDREN]
    for pid in killed:
        yield Clue(Source.CHILD, f"its child (pid {pid}) was ended by SIGKILL")
    if killed or not any(matches(words, _say(error)) for words in CHILD_LOST):
        return
    child_error = last_words.last_error(_end_of_own_log(), CHILD_LINES)
    if child_error is not None and child_error.error_type != type(error).__name__:
        place = _frame_of(child_error.stack, code_dir)
        message = f": {child_error.message.rstrip('.')}" if child_error.message else ""
        yield Clue(Source.CHILD_ERROR, f"{child_error.error_type}{message}{f' at {place}' if place else ''}")


def _of_machine(error: BaseException) -> str:
    """Return what this machine shows of why an error came: a dead connection, a full disk; empty: nothing."""
    if isinstance(error, _OF_LOGIC) or getattr(error, "errno", None) == errno.ENOSPC:
        return ""
    machine_text = ""
    with contextlib.suppress(Exception):  # it is a hint; the error itself is reported in any case
        machine_text = own_sockets.describe_dead_links() or full_disks.describe(_end_of_own_log())
        if not machine_text and resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss:  # a child of it has ended
            machine_text = full_disks.describe_log(2)
    return f"; {_writable(machine_text)}" if machine_text else ""


def _end_of_own_log() -> str:
    """Return the end of the file that this process's stderr is written to; empty where it is none."""
    with contextlib.suppress(OSError, ValueError):
        log = Path("/proc/self/fd/2").readlink()
        if stat.S_ISREG(log.stat().st_mode):
            return read_end(log)
    return ""


def read_end(log: Path, start: int = 0) -> str:
    """Return the last LOG_BYTES of a log, from `start` at the earliest. Raises OSError."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(start, size - LOG_BYTES))
        return file.read().decode(errors="replace")


def _exited(error: SystemExit, code_dir: str, phase: str) -> Outcome:
    code = error.code
    if code is None or code == 0:
        return Outcome(ok=True, code=0)
    if isinstance(code, int):
        # As the kernel does it: an exit code has eight bits.
        number, exit_text = code & 0xFF, f"sys.exit({code})"
    else:
        number, exit_text = 1, f"sys.exit({str(code)[:500]!r})"
    return Outcome(
        ok=False,
        reason=Reason.USER_ERROR,
        code=number,
        error_type="SystemExit",
        frame=user_frame(error, code_dir),
        message=f"{exit_text} (in {phase}){_of_machine(error)}",
        origin=remote_origin(error),
    )


def from_status(status: int, *, detail: str = "") -> Outcome:
    """Return the outcome of a child process by its wait status: the exit code, or 128 + n for signal n."""
    number = -status_code(status)
    if number <= 0:
        code = -number
        message = f"exited with code {code}"
        return Outcome(
            ok=code == 0,
            reason=None if code == 0 else Reason.USER_ERROR,
            code=code,
            message="" if code == 0 else message,
            detail="" if code == 0 else detail,
        )
    # A crash is a bug in the code that ran; any other signal came from outside.
    crashed = number in CRASHES
    return Outcome(
        ok=False,
        reason=Reason.USER_ERROR if crashed else Reason.UNKNOWN,
        code=128 + number,
        message=f"ended by {signal_name(number)}",
        detail=detail,
    )


def with_log(outcome: Outcome, tail: str, code_dir: str, *, command: bool = False) -> Outcome:
    """Return the outcome of a process that reported nothing itself, with what the end of its log tells.

    Args:
        outcome: what its exit status tells.
        tail: the end of its log.
        code_dir: the folder of the user's code.
        command: whether it is a command, whose exceptions only its log has.
    """
    code = outcome.code or 0
    if code - 128 in CRASHES:
        words = last_words.read_crash(tail, code, lambda file: is_users(file, code_dir))
        message = outcome.message
        if words.message:
            message = f"{words.message}; {message}" if words.error_type else f"{message}: {words.message}"
        return replace(
            outcome,
            error_type=words.error_type,
            message=message,
            frame=_frame_of(words.stack, code_dir),
            detail=clip(words.log),
        )
    outcome = replace(outcome, detail=clip(tail))
    chain = last_words.read_traceback(tail) if command and code == 1 else ()
    if not chain:
        return outcome
    error, first = chain[0], chain[-1]
    place = _frame_of(first.stack, code_dir)
    message = f": {first.message}" if first.message else ""
    cause = f"{first.error_type}{message}{f' at {place}' if place else ''}"
    return replace(
        outcome,
        error_type=error.error_type,
        message=f"{error.message} (in its log)".lstrip(),
        frame=_frame_of(error.stack, code_dir),
        clues=(Clue(Source.CAUSE, cause),) if first is not error else (),
    )


def from_worker_start(tail: str, env: Mapping[str, str]) -> Outcome | None:
    """Return the end of a host whose Ray worker cannot start, by what workers wrote meanwhile; None: none blames it.

    Args:
        tail: errors of workers of Ray that ended before they had a log of their own; of which host, none says.
        env: the host's own variables. A frame in a folder of its PYTHONPATH makes the error this host's, and so does
            an interpreter that finds no library where it has a PYTHONHOME.
    """
    failed = Outcome(ok=False, reason=Reason.IMPORT_ERROR, detail=clip(tail), fatal=True)
    if env.get("PYTHONHOME") and (fatal_error := _FATAL_START.search(tail)):
        words = f"a worker of Ray cannot start with {env['PYTHONHOME']} as the role's PYTHONHOME"
        return replace(failed, message=f"{fatal_error[0]} ({words})")
    folders = [folder for folder in env.get("PYTHONPATH", "").split(os.pathsep) if folder and "${" not in folder]
    error = last_words.last_error(tail, _WORKER_START_LINES)
    for frame in error.stack if error is not None else ():
        folder = next((folder for folder in folders if Path(frame.file).is_relative_to(folder)), "")
        if error is not None and folder:
            words = f"a worker of Ray cannot start with {folder} in the role's PYTHONPATH"
            place = f"{frame.file}:{frame.line} in {frame.function}"
            return replace(failed, error_type=error.error_type, frame=place, message=f"{error.message} ({words})")
    return None


def _frame_of(stack: Sequence[last_words.Frame], code_dir: str) -> str:
    """Return the innermost frame of the user's code, else of a library; empty: there is none."""
    frames = [frame for frame in stack if not _is_own(frame.file)]
    chosen = next((frame for frame in frames if is_users(frame.file, code_dir)), frames[0] if frames else None)
    return f"{_short(chosen.file, code_dir)}:{chosen.line} in {chosen.function}" if chosen else ""


def decode_outcome(words: Mapping[str, Any]) -> Outcome:
    """Return an outcome that came as JSON."""
    outcome, origin = Outcome(**words), words.get("origin")
    return replace(
        outcome,
        origin=ErrorOrigin(**origin) if origin else None,
        reason=Reason(outcome.reason) if outcome.reason else None,
        metrics=tuple((name, value) for name, value in outcome.metrics),
        clues=tuple(Clue(**clue) for clue in words.get("clues", ())),
    )


def status_code(status: int) -> int:
    """Convert a wait status to the form of `subprocess`: the exit code, or minus the signal's number."""
    signalled = status & 0x7F
    return -signalled if signalled else (status >> 8) & 0xFF


def signal_name(number: int) -> str:
    """Return the signal's name, as SIGKILL for 9; `signal N` for one without a name."""
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def encode_result(value: Any) -> str:
    """Encode user code's return value as JSON. Raises ResultError, which says what to return instead."""
    try:
        text = json.dumps(value, allow_nan=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise ResultError(
            f"run() returned a {type(value).__name__} that is no JSON ({error}): return numbers, strings, lists, "
            "dicts; write larger things to current_worker().job_dir"
        ) from None
    if len(text.encode()) > RESULT_BYTES:
        raise ResultError(
            f"run() returned {len(text.encode())} bytes of JSON, more than {RESULT_BYTES}: "
            "write larger things to current_worker().job_dir and return their path"
        )
    return text


def user_frame(error: BaseException, code_dir: str) -> str:
    """Return an error's location as `file.py:12 in f`: the innermost frame of the user's code, else of a library."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename, code_dir)}:{error.lineno or 0} in <module>"
    frames = [frame for frame in _frames(error.__traceback__) if not _is_own(frame[0])]
    # Most errors surface inside a library, but the user looks for the line of their own that led there.
    user_frames = [frame for frame in frames if is_users(frame[0], code_dir)]
    # Without a line of the user's the library's own is better than none.
    chosen = user_frames or frames
    if not chosen:
        return ""
    filename, line, name = chosen[-1]
    return f"{_short(filename, code_dir)}:{line} in {name}"


def _frame_in_text(error: BaseException, code_dir: str) -> str:
    """Return the innermost line of the user's code in a traceback that a process of theirs has sent as text.

    `multiprocessing` and `concurrent.futures` chain it as the cause, torch's DataLoader puts it into the message. Empty
    where there is none.
    """
    cause = error.__cause__
    chained = type(cause).__name__ in ("RemoteTraceback", "_RemoteTraceback")
    message = ""
    with contextlib.suppress(Exception):  # a user's __str__ may raise
        message = str(cause if chained else error)[:_MOST_TEXT]
    if not chained and _COPIED not in message:
        return ""
    frames = [match for match in _TEXT_FRAME.finditer(message) if is_users(match["file"], code_dir)]
    return f"{_short(frames[-1]['file'], code_dir)}:{frames[-1]['line']} in {frames[-1]['name']}" if frames else ""


def is_users(filename: str, code_dir: str) -> bool:
    """Whether a file is the user's: inside the code's folder, or outside of every library.

    Libraries may lie inside the code's folder, as in images whose Python is in the user's home.
    """
    if code_dir and _under(filename, code_dir) and not _under(filename, f"{code_dir}/.venv"):
        return not any(_under(library, code_dir) and _under(filename, library) for library in (*_LIBRARIES, _OWN))
    # A role's own interpreter has its libraries elsewhere.
    foreign = any(folder in filename for folder in ("/site-packages/", "/dist-packages/"))
    return not foreign and not filename.startswith((*_LIBRARIES, _OWN, "<"))


def _is_own(filename: str) -> bool:
    """Whether a file is dljob's, or of the import system."""
    return filename.startswith((_OWN, "<frozen", _IMPORTLIB))


def origin_of(error: BaseException, *, rank: str, incarnation: int, code_dir: str, line: str) -> ErrorOrigin:
    """Return where an error of a rank's code began: in it, or in a rank that it called.

    Args:
        error: What the code raised.
        rank: The rank, as `reward/0`.
        incarnation: That of its process.
        code_dir: The folder of the user's code.
        line: The place to name where no line of the user's raised.
    """
    if (origin := remote_origin(error)) is not None:
        return origin
    *_, first = error_chain(error)
    frame = user_frame(first, code_dir) or line
    return ErrorOrigin(rank, incarnation, type(first).__name__, _say(first), frame)


def code_line(function: Any, code_dir: str) -> str:
    """Return where a function begins, as `file.py:12 in f`; empty for one that is not written in Python."""
    code = getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)
    return "" if code is None else f"{_short(code.co_filename, code_dir)}:{code.co_firstlineno} in {code.co_name}"


def user_traceback(error: BaseException) -> str:
    """Format the traceback without dljob's outer frames, at most 8 KiB of its end, which has the cause."""
    first = error.__traceback__
    # The outermost frames are dljob's and those of the loop that it runs coroutines on: nothing about the user's error.
    while first is not None and first.tb_frame.f_code.co_filename.startswith((_OWN, "<frozen", *_LOOPS)):
        first = first.tb_next
    with contextlib.suppress(Exception):  # a user's __str__ may raise: then the type's name must do
        return clip(_writable("".join(traceback.format_exception(type(error), error, first))))
    return type(error).__name__


def clip(text: str, limit: int = DETAIL_BYTES) -> str:
    """Return the last `limit` bytes of a text, cut at a line, with a mark where something is missing."""
    data = text.encode(errors="replace")
    if len(data) <= limit:
        return text
    mark = b"...\n"
    tail = data[-(limit - len(mark)) :]
    # A cut line would read as another message, so the tail begins behind it.
    newline = tail.find(b"\n")
    if 0 <= newline < len(tail) - 1:
        tail = tail[newline + 1 :]
    return (mark + tail).decode(errors="ignore")


def _frames(trace: TracebackType | None) -> list[tuple[str, int, str]]:
    return [(s.filename, s.lineno or 0, s.name) for s in traceback.extract_tb(trace)]


def _under(filename: str, folder: str) -> bool:
    return filename.startswith(folder.rstrip("/") + "/")


def _short(filename: str, code_dir: str) -> str:
    if code_dir and _under(filename, code_dir):
        return filename[len(code_dir.rstrip("/")) + 1 :]
    return filename


def _say(error: BaseException) -> str:
    """Return an error's message; its type is in `error_type`."""
    with contextlib.suppress(Exception):  # user code's __str__ may raise anything
        # An event is one line: the hint of dljob's own errors stands behind their message there.
        if isinstance(error, DLJobError):
            return _writable(_shortened(f"{error.message}; {error.hint}" if error.hint else error.message))
        message = str(error)
        head, copied, trace = message.partition(f"\n{_COPIED}")
        if copied and (last := trace.strip().rpartition("\n")[2].removeprefix(f"{type(error).__name__}: ")):
            message = f"{last} ({head.strip().rstrip('.')})"  # a DataLoader's; the traceback is in the log
        return _writable(_shortened(message))
    return type(error).__name__


def _shortened(message: str) -> str:
    """Cut the middle of a long message: a chain of causes ends with the first one."""
    return message if len(message) <= MESSAGE else f"{message[: MESSAGE // 2]} ... {message[5 - MESSAGE // 2 :]}"


def _writable(text: str) -> str:
    """Escape surrogates: Python decodes file names that are no UTF-8 to them, and no file or socket takes them."""
    return text.encode(errors="backslashreplace").decode()


def watch_earlier_errors(report: Callable[[str], None], code_dir: str) -> None:
    """Call `report` with each of the first EARLIER_MOST errors of this process that do not end it, in words.

    They are raised in threads, in `__del__` and in `atexit` functions. Python prints them and goes on; the process then
    ends by a `queue.Empty` or an exit code that says nothing. The hooks of Python are called as ever.
    """
    pid, reported = os.getpid(), 0
    thread_hook, unraisable_hook = threading.excepthook, sys.unraisablehook

    def note(origin: str, error: BaseException | None) -> None:
        nonlocal reported
        # A child that user code forked has the hooks, too, but is another process.
        if error is None or isinstance(error, SystemExit) or reported >= EARLIER_MOST or os.getpid() != pid:
            return
        reported += 1
        with contextlib.suppress(Exception):  # it is a hint; the error itself is printed in any case
            report(f"{origin} raised {describe_error(error, code_dir)}"[:EARLIER_CHARS])

    def on_thread(args: threading.ExceptHookArgs) -> None:
        if is_job_ending(args.exc_value):
            return
        note(f"thread {args.thread.name}" if args.thread else "a thread", args.exc_value)
        thread_hook(args)

    def on_unraisable(unraisable: sys.UnraisableHookArgs) -> None:
        note(_origin(unraisable), unraisable.exc_value)
        unraisable_hook(unraisable)

    threading.excepthook = on_thread
    sys.unraisablehook = on_unraisable


def _origin(unraisable: sys.UnraisableHookArgs) -> str:
    """Return where Python ignored an error: `atexit function flush`, `Buffer.__del__`."""
    name = getattr(unraisable.object, "__qualname__", type(unraisable.object).__name__)
    message = unraisable.err_msg or ""
    return f"atexit function {name}" if "atexit" in message else name


def with_earlier(outcome: Outcome, errors: Iterable[str]) -> Outcome:
    """Return a failed outcome with the errors that came before it as clues."""
    if outcome.ok:
        return outcome
    return add_clues(outcome, [Clue(Source.EARLIER, error) for error in errors])
