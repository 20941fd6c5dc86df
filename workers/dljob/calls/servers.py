"""Decisions of requests to servers of a role: which server is next, and whether a request may go to another one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

IDEMPOTENT = frozenset({"GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE"})
"""Methods that may run twice (RFC 9110, section 9.2.2)."""
LOSSES = 3
"""Servers that may be lost with a request in them; then the request itself counts as the cause."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
"""Pause before a server that failed is asked again while no other is ready; it doubles."""

Server = tuple[int, int]
"""Rank and incarnation."""


class NextServers(NamedTuple):
    """The servers that may be asked now; or none, and then when to look again, unless the ready ones change."""

    servers: tuple[Server, ...]
    wait_s: float | None = None
    """None: only a change can help."""


class Elsewhere(NamedTuple):
    """Whether a failed request goes to another server, and why."""

    allowed: bool
    why: str


def pause(failures: int) -> float:
    """Return the seconds before a server that failed so often is asked again."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(max(0, failures - 1), 16))


def next_servers(ready: Collection[Server], avoid: Mapping[Server, float], now: float) -> NextServers:
    """Return the ready servers that did not fail this request; else those that may be asked again.

    `avoid`: a server that failed or refused -> the time from which it may be asked again. A server's next process is
    another server.
    """
    fresh = tuple(server for server in ready if server not in avoid)
    allowed = fresh or tuple(server for server in ready if avoid[server] <= now)
    if allowed:
        return NextServers(allowed)
    return NextServers((), min((avoid[server] - now for server in ready), default=None))


def goes_elsewhere(
    method: str, *, sent: bool, declared_safe: bool, repeatable: bool, losses: int, what: str
) -> Elsewhere:
    """Decide about a request that failed before an answer came.

    `sent`: some of it may have reached the server. `repeatable`: its body can be sent once more. `losses`: requests of
    it that were lost after they were sent, this one included.
    """
    if not repeatable:
        return Elsewhere(False, f"{what}; its body is a stream that was read, and cannot be sent again")
    if not sent:
        return Elsewhere(True, f"{what}; nothing was sent")
    if losses >= LOSSES:
        return Elsewhere(False, f"{what}; {losses} servers were lost with it, so it may be the cause")
    if method in IDEMPOTENT:
        return Elsewhere(True, f"{what}; {method} may run twice")
    if declared_safe:
        return Elsewhere(True, f"{what}; it is declared safe")
    return Elsewhere(False, f"{what}; {method} may have run, and is not declared safe")
