"""Signals that faults send to processes of this machine, by pidfd, so that a reused pid is never hit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from dljob.runtime.forked_workers.processes import of_raylet

PERIOD_S = 0.2
"""Seconds of one cycle of a slowed process: it runs for a part of each."""


class Signals:
    """Sender of the signals. Processes stopped for a time resume when it is over, and at `close` at the latest."""

    def __init__(self) -> None:
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []

    def kill(self, pids: Iterable[int]) -> None:
        """Send SIGKILL."""
        with _HeldProcesses(pids) as processes:
            processes.send(signal.SIGKILL)

    def stop(self, pids: Iterable[int], seconds: float | None) -> None:
        """Send SIGSTOP, and SIGCONT after `seconds`; None for never."""
        # The same pidfds for both signals: a process that takes over a pid meanwhile gets no SIGCONT.
        processes = _HeldProcesses(pids)
        processes.send(signal.SIGSTOP)
        if seconds is None:
            processes.close()
        else:
            self._begin(lambda: self._go_on(processes, seconds))

    def leave(self, node: str, raylet: int, seconds: int) -> None:
        """Announce that a node is taken away, as its pod's preStop hook does; end its raylet after `seconds`."""
        command = [sys.executable, "-m", "dljob.runtime.leave", str(seconds), node]
        # With a pidfd: a process that takes over the pid meanwhile gets no signal.
        raylet_process = _HeldProcesses([raylet])
        hook = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd="/")
        self._begin(lambda: self._end_node(raylet_process, hook, seconds))

    def slow(self, pids: Iterable[int], factor: int, seconds: float) -> None:
        """Let processes run for one part in `factor` of the time, during `seconds`."""
        processes = _HeldProcesses(pids)
        self._begin(lambda: self._drag(processes, factor, seconds))

    def close(self) -> None:
        """Resume processes that are stopped for a time."""
        self._closed.set()
        # Wait: the process may exit next, and with it the threads that still have to send SIGCONT.
        for thread in self._threads:
            thread.join()

    def _begin(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="dljob-fault", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _end_node(self, raylet_process: _HeldProcesses, hook: subprocess.Popen[bytes], seconds: int) -> None:
        if not self._closed.wait(seconds):
            raylet_process.send(signal.SIGKILL)
        raylet_process.close()
        hook.kill()
        hook.wait()

    def _go_on(self, processes: _HeldProcesses, seconds: float) -> None:
        # Woken by `close`: a stopped process must run again before the sender exits.
        self._closed.wait(seconds)
        processes.send(signal.SIGCONT)
        processes.close()

    def _drag(self, processes: _HeldProcesses, factor: int, seconds: float) -> None:
        for _ in range(max(1, round(seconds / PERIOD_S))):
            processes.send(signal.SIGSTOP)
            over = self._closed.wait(PERIOD_S * (factor - 1) / factor)
            # Continued also when this sender is closed: a job must not stay stopped after `dljob chaos`.
            processes.send(signal.SIGCONT)
            if over or self._closed.wait(PERIOD_S / factor):
                break
        processes.close()


class _HeldProcesses:
    """Processes held by their pidfds; those that are gone already are left out."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._fds: list[int] = []
        for pid in pids:
            with suppress(ProcessLookupError):
                self._fds.append(os.pidfd_open(pid))

    def send(self, number: signal.Signals) -> None:
        """Send a signal to those that still exist."""
        for fd in self._fds:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, number)

    def close(self) -> None:
        """Close the pidfds."""
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()

    def __enter__(self) -> _HeldProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def raylets_here(address: str, proc: Path = Path("/proc")) -> dict[str, int]:
    """Return node id -> pid of the raylets on this machine of one Ray (host:port of its GCS), without its head."""
    raylets: dict[str, int] = {}
    for folder in proc.iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                words = (folder / "cmdline").read_text(errors="replace").split("\0")
                # By the GCS's address: another Ray on this machine must not be hit.
                if Path(words[0]).name == "raylet" and f"--gcs-address={address}" in words and "--head" not in words:
                    node = next((w.removeprefix("--node_id=") for w in words if w.startswith("--node_id=")), "")
                    raylets[node] = int(folder.name)
    return raylets


def processes_of_node(raylet: int) -> list[int]:
    """Return all processes of a node, the raylet first."""
    return of_raylet(raylet)
