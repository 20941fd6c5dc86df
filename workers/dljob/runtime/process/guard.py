"""The guard of a worker process: it ends the process when its raylet is gone, on SIGTERM, or when its lease is over.

A Ray worker with a pending call ends neither by SIGTERM nor by `exit_actor`, and outlives its raylet. So every host has
this thread, and every way out is `end()`: it kills the descendants first, then calls `os._exit`.
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

from dljob.linux import descendants, shared_memory
from dljob.runtime.process.activities import user_lines

TICK_S = 0.2
"""Longest delay, in seconds, until the end of a lease is noticed."""
LONG_PAUSE_S = 5.0
"""Seconds without a tick that are told as the reason for the end of a lease."""


class EndCode(IntEnum):
    """The exit codes of a host process that ends itself."""

    RAYLET_GONE = 70
    """The raylet of its node has died."""
    LEASE_OVER = 71
    """PrimeMaster did not answer for the time of the lease; another may run the rank elsewhere."""
    NOT_KNOWN = 72
    """PrimeMaster answered that it has replaced this actor."""
    HELPER_GONE = 73
    """A fork host's fork server is gone."""
    CANNOT_GO_ON = 74
    """User code was left half set up in a process that a restart in process should have used."""
    SIGTERM = 143
    """SIGTERM came from outside; the code is a shell's, 128 + 15."""


def boottime() -> float:
    """Return CLOCK_BOOTTIME in seconds, which runs on while a process is stopped or the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def suspended() -> float:
    """Return the seconds for which this machine has been suspended since it booted."""
    return boottime() - time.clock_gettime(time.CLOCK_MONOTONIC)


def boot_id() -> str:
    """Return the id of this machine's present boot, the same in its containers; empty where there is none."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def asleep_together(boot: str) -> Callable[[], float]:
    """Return the clock of suspended time, which a lease excuses, if the whole job is on this machine; else zero."""
    return suspended if boot and boot == boot_id() else lambda: 0.0


class Lease:
    """The time that this process may run without an answer from PrimeMaster.

    It is renewed as of the time at which the answered heartbeat was *sent*. Time for which the machine is suspended
    counts, since a successor may be at work elsewhere. It does not count where there is no elsewhere
    (`asleep_together`): otherwise every process would wake up to the end of a lease that nobody could have renewed.

    Another process may send heartbeats for this one, which hears of their answers only while it runs: `answered_at`
    returns when the last of them was sent. It is asked before a lease is over, as code that held the GIL, or a SIGSTOP,
    may have kept this process from hearing.
    """

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float] = boottime,
        excused: Callable[[], float] = lambda: 0.0,
        answered_at: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._excused = excused
        self._answered_at = answered_at
        # The first lease needs no answer: PrimeMaster may be away while this process starts.
        self._until = clock() - excused() + seconds

    def renew(self, sent_at: float) -> None:
        """Extend the lease: a heartbeat sent at that time was answered."""
        # Answers may arrive out of order; an earlier heartbeat must not shorten the lease.
        self._until = max(self._until, sent_at - self._excused() + self._seconds)

    @property
    def over(self) -> bool:
        """Whether the process must end before it does anything else."""
        if not self._is_past():
            return False
        if (sent_at := self._answered_at()) is not None:
            self.renew(sent_at)
        return self._is_past()

    def _is_past(self) -> bool:
        return self._clock() - self._excused() >= self._until

    @property
    def seconds(self) -> float:
        """The length of the lease."""
        return self._seconds


class Guard:
    """The guard thread. Create it in the main thread: only there can Python install signal handlers."""

    def __init__(self, lease: Lease, on_sigterm: Callable[[], None]) -> None:
        self._lease = lease
        self._on_sigterm = on_sigterm
        # Opened at once: later the raylet's pid might be another process's.
        self._raylet = raylet_pidfd()
        self._signals = _catch_signals()
        self._has_ended = False
        threading.Thread(target=self._watch, name="dljob-guard", daemon=True).start()

    def _watch(self) -> None:
        # A poll, not a sleep: signals and the raylet's end wake it at once, the lease alone is looked at by time.
        poll = select.poll()
        for fd in (self._raylet, self._signals):
            if fd is not None:
                poll.register(fd, select.POLLIN)
        looked_at = boottime()
        while True:
            ready = {fd for fd, _ in poll.poll(TICK_S * 1000)}
            before, looked_at = looked_at, boottime()
            # First of all: the lease may have run out while this process was stopped.
            if self._lease.over:
                cause = f"no answer from PrimeMaster for {self._lease.seconds:g} s: the lease is over"
                end(EndCode.LEASE_OVER, cause + _words_of_pause(looked_at - before))
            if self._raylet in ready:
                full = f"; {shared_memory.SHM} is full, of which a raylet dies" if shared_memory.is_full() else ""
                end(EndCode.RAYLET_GONE, f"the raylet of this node is gone{full}")
            if self._signals in ready and signal.SIGTERM in _read(self._signals) and not self._has_ended:
                # In a thread of its own: winding down takes seconds, in which the lease is watched on.
                self._has_ended = True
                threading.Thread(target=self._on_sigterm, name="dljob-term", daemon=True).start()


def _words_of_pause(seconds: float) -> str:
    """Return in words why this thread has not run for so long; empty where it has."""
    if seconds < LONG_PAUSE_S:
        return ""
    lines = user_lines()
    place = f", which was at {' and '.join(lines)}" if lines else ""
    return f"; for {seconds:.0f} s this process was stopped, or its code held the GIL{place}"


def raylet_pidfd() -> int | None:
    """Return a descriptor that becomes readable when the raylet is gone; None without a raylet.

    Ray names the raylet; without a name it is this process's parent.
    """
    # A pid of 1 means that the parent is gone already, or that this process leads a container.
    for pid in (int(os.environ.get("RAY_RAYLET_PID") or 0), os.getppid()):
        with contextlib.suppress(OSError):
            if pid > 1:
                return os.pidfd_open(pid)
    return None


def _catch_signals() -> int | None:
    """Install signal handlers that write to a pipe, and return its read end; None outside of the main thread.

    The C half of Python's handler writes to the pipe even while the main thread is inside C code.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
    reader, writer = os.pipe()
    # `set_wakeup_fd` demands it: a handler that waits for room in the pipe would stop the main thread.
    os.set_blocking(writer, False)
    os.set_blocking(reader, False)
    # SIGCONT, because a process that was stopped and resumed must check its lease before it does anything else.
    for number in (signal.SIGTERM, signal.SIGCONT):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def _read(fd: int | None) -> bytes:
    with contextlib.suppress(BlockingIOError):
        return os.read(fd, 512) if fd is not None else b""
    return b""


_ended = threading.Lock()
_last_actions: list[Callable[[], None]] = []


def at_end(last_thing: Callable[[], None]) -> None:
    """Register a quick function to be called before this process ends itself."""
    _last_actions.append(last_thing)


def ending() -> bool:
    """Whether this process is ending itself, which then causes the ends of its descendants."""
    return _ended.locked()


def end(code: int, reason: str = "") -> NoReturn:
    """Write `reason` to the log, if any, kill every descendant, and end this process. The first caller decides."""
    # Another thread is ending the process; this one must not go on with what it was doing.
    if not _ended.acquire(blocking=False):
        while True:
            time.sleep(60)
    with contextlib.suppress(OSError):
        if reason:
            line = f"[dljob] {time.strftime('%H:%M:%S')} pid {os.getpid()} ends with code {code}: {reason}\n"
            os.write(2, line.encode())
    # Descendants before anything else: they hold devices and sockets that the rank's next process needs.
    for last_thing in (descendants.kill_all, *_last_actions):
        with contextlib.suppress(Exception):  # the process ends now, whatever one of them raises
            last_thing()
    os._exit(code)


def end_soon(code: int, reason: str, delay_s: float = 0.03) -> None:
    """End this process after a short delay, so that the call which orders it can return first."""
    timer = threading.Timer(delay_s, end, (code, reason))
    timer.daemon = True
    timer.start()
