"""Outcomes of user code: exit code, the innermost frame of the user's code, a bounded traceback."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import signal
import sysconfig
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from dljob.errors import DLJobError, ErrorOrigin
from dljob.master.state.views import Outcome, Reason
from dljob.runtime.process.error_origin import error_chain, remote_origin

DETAIL_BYTES = 8192
"""The longest traceback or log tail in an outcome: outcomes go into the journal."""
RESULT_BYTES = 8192
"""The longest result of a job, for the same reason."""

_OWN = str(Path(__file__).resolve().parents[2])
_LIBRARIES = tuple({sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")})


_IMPORTLIB = importlib.__path__[0]
_LOOPS = tuple(f"{sysconfig.get_paths()['stdlib']}/{package}/" for package in ("asyncio", "concurrent/futures"))


class ResultError(TypeError):
    """User code returned a value that cannot be the job's result. Reports name no frame, since no line raised."""


def from_exception(error: BaseException, *, code_dir: str, phase: str, fatal: bool = False) -> Outcome:
    """Return the outcome of user code that raised: `sys.exit` gives its exit code, any other exception exit code 1."""
    if isinstance(error, SystemExit):
        return _exited(error, phase)
    # Only while the entrypoint is imported: a later ImportError is an error of the code that ran.
    importing = isinstance(error, ImportError) and phase == "import"
    frame = user_frame(error, code_dir)
    unseen = isinstance(error, ModuleNotFoundError) and not frame and code_dir
    where = f"; it is looked for in {code_dir} and among the installed packages" if unseen else ""
    return Outcome(
        ok=False,
        reason=Reason.IMPORT_ERROR if importing else Reason.USER_ERROR,
        # A shell's code for Ctrl-C: 128 + SIGINT.
        code=130 if isinstance(error, KeyboardInterrupt) else 1,
        error_type=type(error).__name__,
        frame=frame,
        message=f"{_say(error)} (in {phase}){where}".lstrip(),
        detail=user_traceback(error),
        fatal=fatal,
        origin=remote_origin(error),
    )


def _exited(error: SystemExit, phase: str) -> Outcome:
    code = error.code
    if code is None or code == 0:
        return Outcome(ok=True, code=0)
    if isinstance(code, int):
        # As the kernel does it: an exit code has eight bits.
        number, said = code & 0xFF, f"sys.exit({code})"
    else:
        number, said = 1, f"sys.exit({str(code)[:500]!r})"
    return Outcome(
        ok=False,
        reason=Reason.USER_ERROR,
        code=number,
        error_type="SystemExit",
        message=f"{said} (in {phase})",
        origin=remote_origin(error),
    )


def decode_outcome(words: Mapping[str, Any]) -> Outcome:
    """Return an outcome that came as JSON."""
    origin = words.get("origin")
    values: dict[str, Any] = {**words, "origin": ErrorOrigin(**origin) if origin else None}
    return Outcome(**values)


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
    crashed = number in {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}
    return Outcome(
        ok=False,
        reason=Reason.USER_ERROR if crashed else Reason.UNKNOWN,
        code=128 + number,
        message=f"ended by {signal_name(number)}",
        detail=detail,
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
    frames = [frame for frame in _frames(error.__traceback__) if not frame[0].startswith((_OWN, "<frozen", _IMPORTLIB))]
    # Most errors surface inside a library, but the user looks for the line of their own that led there.
    own = [frame for frame in frames if is_users(frame[0], code_dir)]
    # Without a line of the user's the library's own is better than none.
    chosen = own or frames
    if not chosen:
        return ""
    filename, line, name = chosen[-1]
    return f"{_short(filename, code_dir)}:{line} in {name}"


def is_users(filename: str, code_dir: str) -> bool:
    """Whether a file is the user's: inside the code's folder, or outside of every library.

    Libraries may lie inside the code's folder, as in images whose Python is in the user's home.
    """
    if code_dir and _under(filename, code_dir) and not _under(filename, f"{code_dir}/.venv"):
        return not any(_under(library, code_dir) and _under(filename, library) for library in (*_LIBRARIES, _OWN))
    return not filename.startswith((*_LIBRARIES, _OWN, "<"))


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
            return _writable((f"{error.message}; {error.hint}" if error.hint else error.message)[:1000])
        return _writable(str(error)[:1000])
    return type(error).__name__


def _writable(text: str) -> str:
    """Escape surrogates: Python decodes file names that are no UTF-8 to them, and no file or socket takes them."""
    return text.encode(errors="backslashreplace").decode()
