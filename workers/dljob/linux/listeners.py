"""The users whose programs listen on a TCP port of this machine."""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc/net")
LISTEN = "0A"
"""The state of a listening socket in /proc/net/tcp. Source: docs.kernel.org, networking/proc_net_tcp."""


def users_of(port: int, proc: Path = PROC) -> frozenset[int]:
    """Return the user ids of all that listen on a port, by IPv4 and IPv6; empty where the kernel does not tell."""
    user_ids: set[int] = set()
    for table in ("tcp", "tcp6"):
        try:
            rows = (proc / table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for row in map(str.split, rows):
            if row[3] == LISTEN and int(row[1].rpartition(":")[2], 16) == port:
                user_ids.add(int(row[7]))
    return frozenset(user_ids)
