"""What ends a worker process when nobody else does: its raylet is gone, SIGTERM, or a lease that ran out.

A Ray worker with a pending call leaves neither by SIGTERM nor through `exit_actor`, and outlives its raylet. So every
host has this thread, and every way out is `end()`: the descendants first, then `os._exit`.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import NoReturn

from dljob.runtime.linux import descendants

TICK_S = 0.2
"""How late a lease that ran out may be noticed."""


class EndCode(IntEnum):
    """What a host process exits with when it ends itself."""

    RAYLET_GONE = 70
    LEASE_OVER = 71
    NOT_KNOWN = 72
    """PrimeMaster says that this actor is nobody's host any more."""
    HELPER_GONE = 73
    """A fork host's helper process is gone."""
    CANNOT_GO_ON = 74
    """User code was left half set up in a process that should have been used again."""
    SIGTERM = 143


def boottime() -> float:
    """Seconds of CLOCK_BOOTTIME: it runs on while a process is stopped and while a machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def suspended() -> float:
    """Seconds that this machine was suspended since it booted."""
    return boottime() - time.clock_gettime(time.CLOCK_MONOTONIC)


def boot_id() -> str:
    """What names this machine's present life, also in a container; empty where nothing does."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def asleep_together(boot: str) -> Callable[[], float]:
    """Of a lease what is not counted, when PrimeMaster and all others live on the machine of that boot id; or none."""
    return suspended if boot and boot == boot_id() else lambda: 0.0


class Lease:
    """How long this process may go on unheard. Renewed by the time at which an answered beacon was *sent*.

    Time during which the machine is suspended counts: a successor may be at work elsewhere. But where there is no
    elsewhere (`asleep_together`) nobody is to wake up to the end of a lease that nobody could have renewed.
    """

    def __init__(
        self, seconds: float, clock: Callable[[], float] = boottime, excused: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._excused = excused
        self._until = clock() - excused() + seconds

    def renew(self, sent_at: float) -> None:
        """A beacon sent at that time was answered."""
        self._until = max(self._until, sent_at - self._excused() + self._seconds)

    @property
    def over(self) -> bool:
        """Whether the process must end before it does anything else."""
        return self._clock() - self._excused() >= self._until

    @property
    def seconds(self) -> float:
        """Its length."""
        return self._seconds


class Guard:
    """The guard thread. To be made in the main thread: only there can a signal be caught."""

    def __init__(self, lease: Lease, on_sigterm: Callable[[], None]) -> None:
        self._lease = lease
        self._on_sigterm = on_sigterm
        self._raylet = raylet_pidfd()
        self._signals = _catch_signals()
        self._told = False
        threading.Thread(target=self._watch, name="dljob-guard", daemon=True).start()

    def _watch(self) -> None:
        poll = select.poll()
        for fd in (self._raylet, self._signals):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll(TICK_S * 1000)}
            if self._lease.over:
                end(EndCode.LEASE_OVER, f"no answer from PrimeMaster for {self._lease.seconds:g} s: the lease is over")
            if self._raylet in ready:
                end(EndCode.RAYLET_GONE, "the raylet of this node is gone")
            if self._signals in ready and signal.SIGTERM in _read(self._signals) and not self._told:
                self._told = True
                threading.Thread(target=self._on_sigterm, name="dljob-term", daemon=True).start()


def raylet_pidfd() -> int | None:
    """A file descriptor that becomes readable when the raylet, our parent, is gone."""
    for pid in (os.getppid(), int(os.environ.get("RAY_RAYLET_PID") or 0)):
        with contextlib.suppress(OSError):
            if pid > 1:
                return os.pidfd_open(pid)
    return None


def _catch_signals() -> int | None:
    """A pipe into which the C half of Python's signal handler writes, even while the main thread is inside C."""
    if threading.current_thread() is not threading.main_thread():
        return None
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    os.set_blocking(reader, False)
    for number in (signal.SIGTERM, signal.SIGCONT):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def _read(fd: int | None) -> bytes:
    with contextlib.suppress(BlockingIOError):
        return os.read(fd, 512) if fd is not None else b""
    return b""


_ended = threading.Lock()
_last_things: list[Callable[[], None]] = []


def at_end(last_thing: Callable[[], None]) -> None:
    """Have something quick done before this process ends itself."""
    _last_things.append(last_thing)


def ending() -> bool:
    """Whether this process ends itself: whoever ends below it now ends for that reason."""
    return _ended.locked()


def end(code: int, why: str) -> NoReturn:
    """End this process: a last line into the log, every descendant killed, `os._exit`. The first caller decides."""
    if not _ended.acquire(blocking=False):
        while True:
            time.sleep(60)
    with contextlib.suppress(OSError):
        os.write(2, f"[dljob] {time.strftime('%H:%M:%S')} pid {os.getpid()} ends with code {code}: {why}\n".encode())
    for last_thing in (descendants.kill_all, *_last_things):
        with contextlib.suppress(Exception):  # the process ends now, whatever one of them says
            last_thing()
    os._exit(code)


def end_soon(code: int, why: str, delay_s: float = 0.03) -> None:
    """Answer first, then end: the call that orders it returns before the process goes."""
    timer = threading.Timer(delay_s, end, (code, why))
    timer.daemon = True
    timer.start()
