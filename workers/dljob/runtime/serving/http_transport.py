"""A transport for httpx, and thus for the OpenAI client, whose hosts are the names of server roles."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Collection, Iterator
from typing import Any

from dljob.calls.servers import RetryDecision, decide_retry
from dljob.errors import CallTimeoutError, NotFoundError, UsageError, not_installed
from dljob.runtime.serving.endpoints import Endpoint, Endpoints, Policy, endpoints
from dljob.runtime.serving.server_search import NoServer, ServerSearch

try:
    import httpx
except ModuleNotFoundError as error:
    raise (not_installed(error) or error) from None

log = logging.getLogger(__package__)

KEY_HEADER = "dljob-key"
"""Header whose value sends requests to one rank as long as it is ready; servers do not get it."""
SAFE_HEADER = "idempotency-key"
"""Header that declares a request safe to be sent twice; servers get it."""
BUSY = (429, 503)
"""Answers of a server that did not take the request."""
BROKEN = (500, 502, 504)
"""Answers of a server that took the request and failed: it is ready by its probe, but does not work."""
CONNECT_S = 5.0
SHORTEST_PAUSE_S = 0.05
"""Seconds until a server that says `Retry-After: 0` is asked again: one that loads may say so for minutes."""
KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, name), value)
      for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)) if hasattr(socket, name)),
]  # fmt: skip
"""A machine that is cut off closes no connection: its silence is noticed after 25 s."""

NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""Errors after which certainly nothing has reached the server."""
LOST = (httpx.ReadError, httpx.WriteError, httpx.CloseError, httpx.RemoteProtocolError)
"""Errors after which the server may have got the request. A timeout is none: it is the caller's own deadline."""


class NoServerReadyError(CallTimeoutError, httpx.ConnectTimeout):
    """No server of a role took the request in time; clients of httpx see a connect timeout."""


@functools.cache
def plain_tls() -> ssl.SSLContext:
    """Return a context for plain HTTP: to read the certificates of this machine would take longer than a request."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class RoleRequest:
    """One request to a role: where it goes, and what becomes of it after a failure."""

    def __init__(self, transport: RoleTransport, servers: Endpoints, request: httpx.Request) -> None:
        self._own = transport
        self._request = request
        key = request.headers.get(KEY_HEADER)
        self.search = ServerSearch(servers, transport.timeout, key=key, policy=transport.policy)
        self._losses = 0
        self._safe = SAFE_HEADER in request.headers or any(map(request.url.path.startswith, transport.safe))
        # A body of bytes can be sent again; all others may be iterators that are read once.
        self._once = None if isinstance(request.stream, httpx.ByteStream) else OnceRead(request.stream)
        self._busy = 0

    def to(self, server: Endpoint) -> httpx.Request:
        """Return the request as a server gets it."""
        host, _, port = (
            server.addresses[self._own.port].rpartition(":") if self._own.port else server.address.rpartition(":")
        )
        old = self._request
        headers = httpx.Headers([pair for pair in old.headers.raw if pair[0].lower() != KEY_HEADER.encode()])
        url = old.url.copy_with(host=host.strip("[]"), port=int(port))
        headers["host"] = url.netloc.decode()
        stream = old.stream if self._once is None else self._once
        return httpx.Request(old.method, url, headers=headers, stream=stream, extensions=old.extensions)

    def failed(self, server: Endpoint, error: httpx.TransportError) -> RetryDecision:
        """Decide whether it goes to another server."""
        sent = not isinstance(error, NOT_SENT)
        self._losses += sent
        if sent:
            self.search.again()
        failure = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        self.search.failed(server, failure)
        return self._elsewhere(failure, sent=sent)

    def _elsewhere(self, failure: str, *, sent: bool) -> RetryDecision:
        return decide_retry(
            self._request.method,
            is_sent=sent,
            declared_safe=self._safe,
            repeatable=self._once is None or not self._once.begun,
            losses=self._losses,
            failure=failure,
        )

    def is_refused(self, server: Endpoint, response: httpx.Response) -> bool:
        """Whether a server was busy or broken, another one is ready, and it may be asked in its place."""
        broken = response.status_code in BROKEN
        if response.status_code not in BUSY and not broken:
            return False
        failure = f"status {response.status_code}"
        self._busy += 1
        # It may be the request: it goes to as many servers as one that ends them.
        self._losses += broken
        self.search.again()
        self.search.failed(server, failure, retry_after(response))
        # Each ready server is asked once: if all are busy the client gets the answer, and decides when to ask again.
        free = self._busy < len(self.search.servers) and not isinstance(self.search.look(), NoServer)
        passed = free and self._elsewhere(failure, sent=True).allowed
        if broken and passed:
            self._own.tell(server, f"{failure} to {self._request.method} {self._request.url.path}")
        return passed

    def nobody(self) -> NoServerReadyError:
        """Return the error of a request that found no server."""
        role = self.search.servers.role
        hint = f"dljob describe shows what the ranks of {role} wait for"
        error = NoServerReadyError(self.search.nobody(), role=role, rank=-1, hint=hint)
        error.request = self._request
        return error


class OnceRead(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that can be read once; knows whether that has begun."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.begun = False

    def __iter__(self) -> Iterator[bytes]:
        self.begun = True
        yield from self._stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self.begun = True
        async for part in self._stream:
            yield part


def retry_after(response: httpx.Response) -> float | None:
    """Return the seconds of a Retry-After header; None without one, or where it is a date."""
    value = response.headers.get("retry-after", "")
    return min(60.0, max(SHORTEST_PAUSE_S, float(value))) if value.isdecimal() else None


class CountedStream(httpx.SyncByteStream, httpx.AsyncByteStream):
    """An answer's body, which counts as load of its server until it is closed."""

    def __init__(self, stream: Any, load: contextlib.ExitStack) -> None:
        self._stream = stream
        self._load = load

    def __iter__(self) -> Iterator[bytes]:
        yield from self._stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    def close(self) -> None:
        """Close the body."""
        with self._load:
            self._stream.close()

    async def aclose(self) -> None:
        """Close the body, in a coroutine."""
        with self._load:
            await self._stream.aclose()


class RoleTransport:
    """What the transports for threads and for coroutines share: their options, and the servers of each role."""

    def __init__(
        self,
        *,
        policy: Policy = "round_robin",
        timeout: float | None = 60.0,
        safe: Collection[str] = (),
        port: str = "",
    ) -> None:
        if isinstance(safe, str):
            raise UsageError(f"safe={safe!r}: wanted a list of paths, as in safe=['/v1/embeddings']")
        self.policy: Policy = policy
        self.timeout = timeout
        self.safe = tuple(safe)
        self.port = port
        self._servers: dict[str, Endpoints] = {}
        self._told = set[tuple[str, int, int]]()
        """(role, rank, incarnation) of servers whose errors were told."""
        self._lock = threading.Lock()

    def servers(self, role: str) -> Endpoints:
        """Return the servers of a role, asking PrimeMaster at the first request to it."""
        with self._lock:
            if role not in self._servers:
                try:
                    self._servers[role] = endpoints(role)
                except NotFoundError as error:
                    message = f"http://{role}: the host of a request by this transport is the name of a role with ports"
                    raise NotFoundError(message, hint=error.hint) from None
            return self._servers[role]

    def tell(self, server: Endpoint, failure: str) -> None:
        """Log the first error of a process of a server that its probe calls ready."""
        process_key = server.role, server.rank, server.incarnation
        with self._lock:
            news = process_key not in self._told
            self._told.add(process_key)
        if news:
            message = "%s/%d (%s) is ready by its probe and answers with %s; another server gets such requests"
            log.warning(message, server.role, server.rank, server.address, failure)

    def known(self, role: str) -> Endpoints | None:
        """Return the servers of a role that a request went to before."""
        return self._servers.get(role)


class HttpTransport(RoleTransport, httpx.BaseTransport):
    """Transport of an `httpx.Client`: `http://rollout/v1/models` goes to a ready server of the role `rollout`.

    Args:
        policy: `round_robin`, or `least_loaded`: the server with the fewest open answers of this transport. A header
            `dljob-key` sends all requests of one value to one server as long as it is ready.
        timeout: seconds after which a request that no server took ends: none is ready, or none can be
            connected to; None: without limit.
        safe: paths, or their beginnings, of requests that may run twice whatever their method.
        port: name of the port of the role; by default its first.
        inner: transport of the requests themselves, as one with other limits.
    """

    def __init__(
        self,
        *,
        policy: Policy = "round_robin",
        timeout: float | None = 60.0,
        safe: Collection[str] = (),
        port: str = "",
        inner: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(policy=policy, timeout=timeout, safe=safe, port=port)
        self._inner = inner or httpx.HTTPTransport(
            verify=plain_tls(), trust_env=False, limits=LIMITS, socket_options=KEEPALIVE
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """See httpx.BaseTransport.

        Raises:
            NoServerReadyError: No server of the role took the request in time.
            NotFoundError: The host is no role with ports.
        """
        servers = self.servers(request.url.host)
        role_request = RoleRequest(self, servers, request)
        while server := role_request.search.find():
            load = contextlib.ExitStack()
            load.enter_context(servers.counted(server))
            try:
                response = self._inner.handle_request(role_request.to(server))
            except (*NOT_SENT, *LOST) as error:
                load.close()
                if not role_request.failed(server, error).allowed:
                    raise
                continue
            except BaseException:
                load.close()
                raise
            if role_request.is_refused(server, response):
                with load:
                    response.close()
                continue
            return answered(response, load)
        raise role_request.nobody()

    def close(self) -> None:
        """Close all connections."""
        self._inner.close()


class AsyncHttpTransport(RoleTransport, httpx.AsyncBaseTransport):
    """Transport of an `httpx.AsyncClient`; its arguments are those of HttpTransport."""

    def __init__(
        self,
        *,
        policy: Policy = "round_robin",
        timeout: float | None = 60.0,
        safe: Collection[str] = (),
        port: str = "",
        inner: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(policy=policy, timeout=timeout, safe=safe, port=port)
        self._inner = inner or httpx.AsyncHTTPTransport(
            verify=plain_tls(), trust_env=False, limits=LIMITS, socket_options=KEEPALIVE
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See httpx.AsyncBaseTransport; raises as HttpTransport does."""
        role = request.url.host
        # The first request to a role asks PrimeMaster, which may be away.
        servers = self.known(role) or await asyncio.to_thread(self.servers, role)
        role_request = RoleRequest(self, servers, request)
        while server := await role_request.search.find_async():
            load = contextlib.ExitStack()
            load.enter_context(servers.counted(server))
            try:
                response = await self._inner.handle_async_request(role_request.to(server))
            except (*NOT_SENT, *LOST) as error:
                load.close()
                if not role_request.failed(server, error).allowed:
                    raise
                continue
            except BaseException:
                load.close()
                raise
            if role_request.is_refused(server, response):
                with load:
                    await response.aclose()
                continue
            return answered(response, load)
        raise role_request.nobody()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._inner.aclose()


LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=100)
"""Rollouts keep more requests open than the 100 of httpx; those would wait for each other."""


def answered(response: httpx.Response, load: contextlib.ExitStack) -> httpx.Response:
    """Return an answer whose body counts as load of its server until it is closed."""
    return httpx.Response(
        response.status_code,
        headers=response.headers,
        stream=CountedStream(response.stream, load),
        extensions=response.extensions,
    )
