"""A host's connection to its node's agent: it passes the descriptor of the host's step counters, where leases return.

Nothing else is sent. The kernel closes the connection when either process dies, so neither side needs a timeout: the
agent stops reporting for the host, and the host sends its own heartbeats (`dljob.runtime.worker.heartbeat`) until an
agent listens again.

A host whose code holds the GIL, or that is stopped, cannot connect to an agent that starts meanwhile. So the hello is
in the counters' memory as well, where the agent finds it at its start (`present_hosts`).
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from dljob.linux.socket_peer import peer
from dljob.runtime.process.step_counters import MEMORY_NAME, Renewal, StepCounters, now

RETRY_S = 1.0
"""Seconds between attempts to connect."""


def address(uid: str, node: str) -> str:
    """Return the address of a node's agent: an abstract socket (`man 7 unix`), which leaves no file behind."""
    return f"\0dljob-agent-{uid}-{node}"


class AgentLine:
    """The host's end of the connection; for one thread."""

    def __init__(self, agent_address: str, role: str, actor: str, counters: StepCounters) -> None:
        self._where = agent_address
        self._hello = json.dumps({"role": role, "actor": actor, "pid": os.getpid(), "agent": agent_address}).encode()
        self._counters = counters
        counters.introduce(self._hello)
        self._line: socket.socket | None = None
        self._next = 0.0

    def renewal(self) -> Renewal | None:
        """Return the newest lease that the agent wrote; None while no agent speaks for this host.

        The lease is also None once it is overdue, so that a frozen agent costs the host nothing: it sends its own
        heartbeat.
        """
        if self._line is not None and _broken(self._line):
            self.close()
        if self._line is None and now() >= self._next:
            self._next = now() + RETRY_S
            self._line = self._connected()
        last_renewal = self._counters.renewal() if self._line is not None else None
        return last_renewal if last_renewal is not None and now() < last_renewal.until else None

    def close(self) -> None:
        """Disconnect, so that the agent stops reporting for this host."""
        if self._line is not None:
            self._line.close()
            self._line = None

    def _connected(self) -> socket.socket | None:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with suppress(OSError):
            line.setblocking(False)  # a stopped agent accepts nothing: the caller's heartbeat must not wait for it
            line.connect(self._where)
            # An abstract address has no file permissions: whoever binds it first gets the descriptor, so the user is
            # checked.
            if peer(line)[1] == os.getuid():
                socket.send_fds(line, [self._hello], [self._counters.fd])
                return line
        line.close()
        return None


def present_hosts(agent_address: str) -> Iterator[tuple[dict[str, Any], StepCounters]]:
    """Yield hello and counters of each host of an agent that has a process now, connected or not."""
    for folder in Path("/proc").glob("[0-9]*"):
        links: list[Path] = []
        with suppress(OSError):  # a process that has ended meanwhile, or that we may not inspect
            if folder.stat().st_uid == os.geteuid():
                links = list((folder / "fd").iterdir())
        for link in links:
            if (host := _host_of(link, folder.name, agent_address)) is not None:
                yield host


def _host_of(link: Path, pid: str, agent_address: str) -> tuple[dict[str, Any], StepCounters] | None:
    """Return hello and counters behind a descriptor; None where it is another file, or of another process or agent."""
    fd = -1
    with suppress(OSError):  # it is closed by now
        fd = os.open(link, os.O_RDWR | os.O_CLOEXEC) if MEMORY_NAME in link.readlink().name else -1
    if fd < 0:
        return None
    try:
        counters = StepCounters.opened(fd)
    except ValueError:
        os.close(fd)
        return None
    with suppress(ValueError, KeyError, TypeError):  # nobody has introduced itself there, or something else is there
        hello = json.loads(counters.hello())
        # Children inherit the descriptor.
        if (str(hello["pid"]), hello["agent"]) == (pid, agent_address):
            return hello, counters
    counters.close()
    return None


def _broken(line: socket.socket) -> bool:
    try:
        # The agent never sends: readable data of length 0 means that it closed the connection.
        return not line.recv(1, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
