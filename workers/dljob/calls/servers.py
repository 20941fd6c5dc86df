"""Decisions of requests to servers of a role: which server is next, and whether a request may go to another one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

IDEMPOTENT = frozenset({"GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE"})
"""Methods that may run twice (RFC 9110, section 9.2.2)."""
MAX_LOSSES = 3
"""Servers that may be lost with a request in them; then the request itself counts as the cause."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
"""Pause before a server that failed is asked again while no other is ready; it doubles with each failure."""

Server = tuple[int, int]
"""Rank and incarnation."""


class NextServers(NamedTuple):
    """The servers that may be asked now; if there are none, the seconds until one may be asked again."""

    servers: tuple[Server, ...]
    wait_s: float | None = None
    """None: no server is ready, so only a change of the ready servers can help."""


class RetryDecision(NamedTuple):
    """Whether a failed request goes to another server, and why."""

    allowed: bool
    reason: str


def pause_after(failure_count: int) -> float:
    """Return the seconds before a server that failed so often is asked again."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(max(0, failure_count - 1), 16))


def next_servers(ready_servers: Collection[Server], retry_times: Mapping[Server, float], now: float) -> NextServers:
    """Return the ready servers that did not fail this request; else those that may be asked again.

    `retry_times`: a server that failed or refused -> the time from which it may be asked again. A server's next process
    is another server.
    """
    untried_servers = tuple(server for server in ready_servers if server not in retry_times)
    servers = untried_servers or tuple(server for server in ready_servers if retry_times[server] <= now)
    if servers:
        return NextServers(servers)
    return NextServers((), min((retry_times[server] - now for server in ready_servers), default=None))


def decide_retry(
    method: str, *, is_sent: bool, declared_safe: bool, repeatable: bool, losses: int, failure: str
) -> RetryDecision:
    """Decide whether a request that failed before an answer came goes to another server.

    `is_sent`: some of it may have reached the server. `repeatable`: its body can be sent once more. `losses`: how often
    it was lost after it was sent, this time included. `failure`: what happened, as in "status 502".
    """
    if not repeatable:
        allowed, reason = False, "its body is a stream that was read, and cannot be sent again"
    elif not is_sent:
        allowed, reason = True, "nothing was sent"
    elif losses >= MAX_LOSSES:
        allowed, reason = False, f"{losses} servers were lost with it, so it may be the cause"
    elif method in IDEMPOTENT:
        allowed, reason = True, f"{method} may run twice"
    elif declared_safe:
        allowed, reason = True, "it is declared safe"
    else:
        allowed, reason = False, f"{method} may have run, and is not declared safe"
    return RetryDecision(allowed, f"{failure}; {reason}")
