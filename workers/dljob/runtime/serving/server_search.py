"""The search for a ready server by one request: in turn, by load or by key, and on to another one after a failure."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import NamedTuple

from dljob.calls.servers import Server, next_servers, pause_after
from dljob.runtime.serving.endpoints import Endpoint, Endpoints, Policy, Table
from dljob.telemetry.wording import counted


class NoServer(NamedTuple):
    """No server may be asked now."""

    known_table: Table
    wait_s: float
    """Longest wait for a change; 0 or less: the request's time is over."""


class ServerSearch:
    """One request's way from server to server, with the time that it may wait for one."""

    def __init__(
        self,
        servers: Endpoints,
        timeout: float | None,
        *,
        key: str | None = None,
        policy: Policy = "round_robin",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.servers = servers
        self._key = key
        self._policy: Policy = policy
        # One for all its tries: else a server that fails would take every second request's first try.
        self._turn = servers.turn()
        self._clock = clock
        self._timeout = timeout
        self._end = None if timeout is None else clock() + timeout
        self._avoid: dict[Server, float] = {}
        self._failures: dict[Server, int] = {}
        self._said: dict[str, str] = {}
        """Server -> why it is not asked, for an error."""

    def again(self) -> None:
        """Begin the time for a server anew, as for the next one of a request that was at work meanwhile."""
        self._end = None if self._timeout is None else self._clock() + self._timeout

    def seconds_left(self) -> float | None:
        """Return the seconds until its end; None: it has none."""
        return None if self._end is None else self._end - self._clock()

    def failed(self, server: Endpoint, reason: str, pause_s: float | None = None) -> None:
        """Note a failure or a refusal: another server is asked first. `pause_s`: as the server itself says."""
        process_key = server.rank, server.incarnation
        self._failures[process_key] = self._failures.get(process_key, 0) + 1
        self._avoid[process_key] = self._clock() + (
            pause_after(self._failures[process_key]) if pause_s is None else pause_s
        )
        self._said[f"{server.role}/{server.rank} ({server.address})"] = reason

    def look(self) -> Endpoint | NoServer:
        """Return the server to ask now.

        Raises:
            NotFoundError: The job has no role of that name with ports.
            UnreachableError: PrimeMaster does not answer.
        """
        known_table, ready = self.servers.look()
        now = self._clock()
        # Servers that fail slowly would otherwise take turns for ever: by the next try of one, another's pause is over.
        if self._failures and self._end is not None and now >= self._end:
            return NoServer(known_table, 0.0)
        choice = next_servers([(server.rank, server.incarnation) for server in ready], self._avoid, now)
        if choice.servers:
            allowed = [server for server in ready if (server.rank, server.incarnation) in choice.servers]
            return self.servers.choose(allowed, self._turn, key=self._key, policy=self._policy)
        seconds_left = float("inf") if self._end is None else self._end - now
        return NoServer(
            known_table, seconds_left if choice.wait_s is None else min(seconds_left, max(choice.wait_s, 0.001))
        )

    def find(self) -> Endpoint | None:
        """Wait for a server; None when the time is over."""
        while isinstance(step := self.look(), NoServer):
            if step.wait_s <= 0:
                return None
            self.servers.feed.wait(step.known_table, None if step.wait_s == float("inf") else step.wait_s)
        return step

    async def find_async(self) -> Endpoint | None:
        """Wait for a server in a coroutine; None when the time is over."""
        while isinstance(step := self.look(), NoServer):
            if step.wait_s <= 0:
                return None
            change = asyncio.wrap_future(self.servers.feed.on_change(step.known_table))
            with contextlib.suppress(TimeoutError):  # then it looks again, and at its time
                await asyncio.wait_for(change, None if step.wait_s == float("inf") else step.wait_s)
        return step

    def nobody(self) -> str:
        """Return what an error says after `find` found none."""
        role, ready = self.servers.role, len(self.servers)
        failures = "; ".join(f"{server}: {reason}" for server, reason in self._said.items())
        waited = "" if self._timeout is None else f" within {self._timeout:g} s"
        if not failures:
            return f"no server of {role} was ready{waited} ({counted(ready, 'server')} ready now)"
        return f"no server of {role} answered{waited} ({counted(ready, 'server')} ready now); {failures}"
