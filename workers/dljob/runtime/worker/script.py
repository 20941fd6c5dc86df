"""A forked rank, from the fork to its end: environment, log file, folder, and then the user's script.

The script runs in the main thread of its own process, so its signal handlers work; its `atexit` handlers and
non-daemon threads run to completion.
"""

from __future__ import annotations

import atexit
import contextlib
import dis
import faulthandler
import json
import os
import runpy
import signal
import stat
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from dljob.master.state.views import Outcome, Reason
from dljob.plan.env import COLLECTIVES
from dljob.runtime.collectives.table import register_for_rank
from dljob.runtime.process import activities, context, logfile, outcome
from dljob.runtime.process.entrypoint import EntrypointError
from dljob.runtime.process.error_origin import is_job_ending
from dljob.runtime.worker import last_save, rank_settings, supervise, torch_group

# The exit codes of a shell that cannot find, or cannot execute, a command.
NOT_FOUND = 127
NOT_EXECUTABLE = 126
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores, and so would a program that replaces it by exec: they get their defaults back.
`subprocess`, and so torchrun, does the same."""


def run(order: Mapping[str, Any]) -> int | str | None:
    """Become the rank of an order. Returns what the script passed to `sys.exit`, for `finish`."""
    try:
        _enter(order)
    except rank_settings.REFUSED as error:
        return _ended(order, error, "start", fatal=True)
    except Exception as error:  # noqa: BLE001 - whatever it is, the rank cannot start, and must report why
        return _ended(order, error, "start", fatal=False)
    kind, target = order["entrypoint"][0], order["entrypoint"][1]
    if kind == "command":
        return _exec(order)
    body = _path_body(target) if target.endswith(".py") else _module_body(target)
    try:
        _register(target)
        if order["store"]:
            activities.report_script(context.current_worker)
        body()
    except EntrypointError as error:
        return _ended(order, error, "import", fatal=True)
    except SystemExit as ended:
        end = outcome.from_exception(ended, code_dir=order["code_dir"], phase="run")
        if not end.ok:
            _say(order, end)
        return ended.code
    except BaseException as error:  # noqa: BLE001 - KeyboardInterrupt too is the end of a script
        return _ended(order, error, _phase(error, target, order), fatal=_repeats(error, target, order))
    return 0


def finish(code: int | str | None) -> NoReturn:
    """End as the interpreter does, but without tearing down modules: with torch that alone takes most of a second.

    Non-daemon threads are waited for, `atexit` handlers run and streams are flushed. Objects that still exist are not
    finalised, as in a child of `multiprocessing`.
    """
    number = code & 0xFF if isinstance(code, int) else int(code is not None)
    with contextlib.suppress(Exception):  # as in the interpreter, no exit handler changes the exit code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)  # noqa: T201 - what sys.exit("text") does
        threading._shutdown()  # type: ignore[attr-defined]
        if number:
            last_save.close(ok=False)
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, or the disk is full: there is nowhere to report it
            stream.flush()
    os._exit(number)


def _enter(order: Mapping[str, Any]) -> None:
    # The log comes first, so that whatever fails below is written to it.
    _redirect(order["log"])
    if order["output"]:
        os.write(2, order["output"])  # what the imports in the fork server printed: the rank's own would have
    os.environ.update(order["env"])
    os.chdir(order["code_dir"])
    sys.argv = [order["entrypoint"][1], *order["args"]]
    faulthandler.enable(file=2)
    outcome.watch_earlier_errors(lambda error: _send(order, {"earlier": error}), order["code_dir"])
    rank_settings.apply(order["settings"])
    # torch read OMP_NUM_THREADS when the fork server imported it, before this rank's environment was set.
    threads = os.environ.get("OMP_NUM_THREADS", "")
    torch = sys.modules.get("torch")
    if torch is not None and threads.isdigit():
        torch.set_num_threads(int(threads))
    # `random` does this for itself. With the server's state all ranks and lives would draw the same numbers.
    if (drawn := sys.modules.get("numpy.random")) is not None:
        drawn.seed()
    # The store must be empty before the script's own rendezvous uses it.
    if order["store"]:
        torch_group.renew(order["store"], order["generation"])


def _redirect(log: str) -> None:
    if not log:
        return
    with contextlib.suppress(OSError):
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)
    logfile.open_streams(is_unbuffered=True)


def _path_body(target: str) -> Callable[[], None]:
    """Return what `python train.py` runs."""
    path = Path(target).absolute()

    def body() -> None:
        if not path.is_file():
            raise FileNotFoundError(f"there is no {target} in {Path.cwd()}")
        # A new module, as the fork server's own `__main__` has its names.
        main = ModuleType("__main__")
        main.__file__ = str(path)
        main.__dict__["__builtins__"] = __builtins__
        sys.modules["__main__"] = main
        sys.path.insert(0, str(path.parent))
        # Bytes, not text: the script's own encoding line counts.
        code = compile(path.read_bytes(), str(path), "exec")
        exec(code, main.__dict__)  # noqa: S102 - running the user's script is what a rank is for

    return body


def _module_body(target: str) -> Callable[[], None]:
    """Return what `python -m pkg.mod` runs."""

    def body() -> None:
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(target, run_name="__main__", alter_sys=True)

    return body


def _register(target: str) -> None:
    """Register the job's collective backends, with the import path that the script will have."""
    if not os.environ.get(COLLECTIVES):
        return
    first = str(Path(target).absolute().parent if target.endswith(".py") else Path.cwd())
    sys.path.insert(0, first)
    try:
        register_for_rank(os.environ["DLJOB_ROLE"])
    finally:
        sys.path.remove(first)


def _exec(order: Mapping[str, Any]) -> int:
    """Replace this process by a command. Returns only when that is impossible: the exit code that says why."""
    argv = [*order["entrypoint"][1:], *order["args"]]
    for number in _IGNORED:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, dict(os.environ))  # noqa: S606 - the user's own argv, no shell wanted
    except OSError as error:
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        message = f"cannot run {argv[0]!r} in {order['code_dir']}: {error.strerror}"
        print(message, file=sys.stderr, flush=True)  # noqa: T201 - into the rank's log
        report = Outcome(
            ok=False, reason=Reason.USER_ERROR, code=code, error_type=type(error).__name__, message=message, fatal=True
        )
        _say(order, report)
        return code


def _phase(error: BaseException, target: str, order: Mapping[str, Any]) -> str:
    return "import" if _repeats(error, target, order) else "run"


def _repeats(error: BaseException, target: str, order: Mapping[str, Any]) -> bool:
    """Whether a script failed to load, so that a restart fails again: it is missing, or has bad syntax or imports."""
    script = Path(order["code_dir"], target).resolve()  # absolute: the script may have changed the working directory
    if isinstance(error, SyntaxError):
        return Path(error.filename or "").resolve() == script or _importing(error)
    if isinstance(error, FileNotFoundError):
        return target.endswith(".py") and not script.is_file()
    frame = outcome.user_frame(error, order["code_dir"])
    return isinstance(error, ImportError) and (not frame or frame.endswith("in <module>"))


def _importing(error: SyntaxError) -> bool:
    """Whether a syntax error comes from importing a module.

    Data that was parsed as Python (`ast.literal_eval`) may be fine the next time, so it does not count. An `import`
    statement hides the frames of the import system, and the last frame stands at IMPORT_NAME; importlib leaves its own
    frames ("<frozen ...").
    """
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return False
    code = last.tb_frame.f_code
    return code.co_filename.startswith("<frozen ") or code.co_code[last.tb_lasti] == dis.opmap["IMPORT_NAME"]


def _ended(order: Mapping[str, Any], error: BaseException, phase: str, *, fatal: bool) -> int:
    if is_job_ending(error):
        return 0
    report = outcome.from_exception(error, code_dir=order["code_dir"], phase=phase, fatal=fatal)
    with contextlib.suppress(Exception):  # the host gets the same below
        print(report.detail or "".join(traceback.format_exception_only(error)), file=sys.stderr, flush=True)  # noqa: T201
    _say(order, report)
    return report.code or 1


def _say(order: Mapping[str, Any], report: Outcome) -> None:
    """Pass the rank's report of its end to its supervisor, if it fits into the pipe."""
    _send(order, asdict(report))
    with contextlib.suppress(OSError):
        if os.getppid() == order["supervisor"]:  # else its successor is another process, which the signal would end
            os.kill(order["supervisor"], supervise.FAILING)


def _send(order: Mapping[str, Any], words: Mapping[str, Any]) -> None:
    """Write a line to the pipe that the supervisor reads after this process's end."""
    data = json.dumps(words).encode() + b"\n"
    # A longer one would block this process. User code may have closed the pipe, and its number be another file's.
    with contextlib.suppress(OSError):
        if len(data) <= supervise.WORDS_BYTES and stat.S_ISFIFO(os.fstat(order["words"]).st_mode):
            os.write(order["words"], data)
