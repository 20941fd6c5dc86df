"""A host's line to the agent of its node: it hands its step counters over and is told in them that it may go on.

Nothing is said on the line after that. It breaks at once when either process dies, and with it the agent's work for
the host: from then on the host speaks for itself (`dljob.runtime.worker.heartbeat`), until there is an agent again.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from contextlib import suppress

from dljob.runtime.process.step_counters import Renewal, StepCounters, now

RETRY_S = 1.0


def address(uid: str, node: str) -> str:
    """Where the agent of a job's node listens: an abstract name (`man 7 unix`), of which nothing is left."""
    return f"\0dljob-agent-{uid}-{node}"


class AgentLine:
    """The host's end; used by one thread."""

    def __init__(self, where: str, role: str, actor: str, counters: StepCounters) -> None:
        self._where = where
        self._hello = json.dumps({"role": role, "actor": actor}).encode()
        self._counters = counters
        self._line: socket.socket | None = None
        self._next = 0.0

    def renewal(self) -> Renewal | None:
        """The newest answer for which the agent stands; None when it does not speak for this host (any more)."""
        if self._line is not None and _broken(self._line):
            self.close()
        if self._line is None and now() >= self._next:
            self._next = now() + RETRY_S
            self._line = self._connected()
        found = self._counters.renewal() if self._line is not None else None
        return found if found is not None and now() < found.until else None

    def close(self) -> None:
        """Have the agent speak for this host no more."""
        if self._line is not None:
            self._line.close()
            self._line = None

    def _connected(self) -> socket.socket | None:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with suppress(OSError):
            line.setblocking(False)  # an agent that is stopped takes no connections: we do not wait
            line.connect(self._where)
            if peer(line)[1] == os.getuid():
                socket.send_fds(line, [self._hello], [self._counters.fd])
                return line
        line.close()
        return None


def _broken(line: socket.socket) -> bool:
    try:
        return not line.recv(1, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def peer(line: socket.socket) -> tuple[int, int]:
    """Process and user id at the other end."""
    pid, uid, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid
