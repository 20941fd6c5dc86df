"""How a command that only looks at jobs ends early: by a signal, or since nobody reads its output any more."""

from __future__ import annotations

import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType

_POLL_MS = 500


@contextmanager
def early_end() -> Generator[None]:
    """Let SIGTERM, SIGHUP and the end of stdout's reader raise SystemExit, so that blocks remove their files.

    A command that waits for news would otherwise find out only at the next line that its pipe is closed.
    """
    # Only the main thread may set handlers.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # by nohup
    numbers = [signal.SIGTERM, *([] if ignored else [signal.SIGHUP]), *([signal.SIGPIPE] if _is_piped() else [])]
    before = {number: signal.signal(number, _exit) for number in numbers}
    try:
        with ExitStack() as stack:
            if signal.SIGPIPE in before:
                stack.enter_context(_watched_reader())
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _is_piped() -> bool:
    with suppress(OSError, ValueError):  # it is closed, or no file at all
        mode = os.fstat(sys.stdout.fileno()).st_mode
        return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
    return False


@contextmanager
def _watched_reader() -> Generator[None]:
    """Send this process SIGPIPE once the other end of stdout is closed."""
    ended = threading.Event()
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # errors alone

    def watch() -> None:
        while not ended.is_set():
            if poll.poll(_POLL_MS):
                if not ended.is_set():
                    os.kill(os.getpid(), signal.SIGPIPE)
                return

    threading.Thread(target=watch, daemon=True, name="dljob-reader").start()
    try:
        yield
    finally:
        ended.set()
