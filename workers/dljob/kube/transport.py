"""HTTP to the API server: credentials, a busy server, an answer that does not come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlencode
from urllib.request import getproxies

import aiohttp
from kubernetes.aio.client.api_client import ApiClient

from dljob.kube.connection import Way
from dljob.kube.errors import ApiError

T = TypeVar("T")
AnyJson: TypeAlias = Any
"""What JSON can be: an object, a list, a text, a number."""
Query: TypeAlias = Mapping[str, str | int]

TIMEOUT = 30.0
"""Seconds for one call, from the first byte sent to the last one read."""
_SILENCE = 300.0
"""Seconds without a byte after which a stream counts as broken; the server sends bookmarks each minute."""
_BUSY_TRIES = 4
"""How often a call is made while the server says 429, waiting as long as it asks."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as it came."""

    status: int
    body: bytes

    def json(self) -> AnyJson:
        """The body as JSON; None when it is empty."""
        return json.loads(self.body) if self.body else None

    def text(self) -> str:
        """The body as text."""
        return self.body.decode(errors="replace")


class Transport:
    """One connection to one API server."""

    def __init__(self, way: Way, agent: str) -> None:
        self.server: str = way.configuration.host
        self.on_call: Callable[[str, int], None] = lambda _method, _status: None
        """Told of every call's method and HTTP status (0: no answer), for metrics."""
        self.fence: Callable[[str], None] = lambda _method: None
        """Asked right before each call is sent, with its method; what it raises keeps the call from being made."""
        self._refresh = way.refresh
        # With trust_env aiohttp (3.14) looks for proxies and netrc files anew, in a thread, before every call.
        way.configuration.client_session_kwargs = {"trust_env": bool(getproxies())}
        self._client: Any = ApiClient(way.configuration)
        self._client.user_agent = agent

    async def close(self) -> None:
        """Drop the connections."""
        await self._client.close()

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
        content: str = "application/json",
        timeout: float = TIMEOUT,  # noqa: ASYNC109
    ) -> Reply:
        """Any call, whatever the answer. A busy server (429) is asked again; raises ApiError when nothing answers."""
        url = f"{path}?{urlencode(query)}" if query else path
        sent = {"Content-Type": content, **(headers or {})}
        for tried in range(1, _BUSY_TRIES + 1):
            answer = await self._send(method, url, body, sent, aiohttp.ClientTimeout(total=timeout))
            read = await self._guard(method, answer.read())
            if answer.status == 429 and tried < _BUSY_TRIES:
                await asyncio.sleep(min(float(answer.headers.get("Retry-After") or 1), 10.0))
                continue
            if answer.status == 401 and self._refresh and tried == 1:
                await self._refresh()
                continue
            return Reply(answer.status, read)
        raise AssertionError("unreachable")

    async def stream(self, path: str, query: Query) -> aiohttp.ClientResponse:
        """A GET whose answer is read as it comes; close it when done."""
        limit = aiohttp.ClientTimeout(sock_read=_SILENCE)
        return await self._send("GET", f"{path}?{urlencode(query)}", None, {}, limit)

    async def _send(
        self, method: str, url: str, body: object, headers: Mapping[str, str], limit: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        # The body goes past param_serialize, which would copy it.
        prepared = await self._client.param_serialize(
            method, url, header_params=dict(headers), auth_settings=["BearerToken"]
        )
        self.fence(method)
        call = self._client.call_api(prepared[0], prepared[1], prepared[2], body, _request_timeout=limit)
        answer: aiohttp.ClientResponse = (await self._guard(method, call)).response
        self.on_call(method, answer.status)
        return answer

    async def _guard(self, method: str, call: Awaitable[T]) -> T:
        try:
            return await call
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.on_call(method, 0)
            why = str(error) or type(error).__name__
            raise ApiError(0, "Unreachable", f"no answer from the Kubernetes API at {self.server}: {why}") from error
