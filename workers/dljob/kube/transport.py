"""HTTP transport to the API server: credentials, retries of a busy server, timeouts."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlencode
from urllib.request import getproxies

import aiohttp
from kubernetes.aio.client.api_client import ApiClient

from dljob.kube.connection import ApiConnection
from dljob.kube.errors import ApiError, from_status

T = TypeVar("T")
AnyJson: TypeAlias = Any
"""Any JSON value: an object, a list, a text, a number."""
Query: TypeAlias = Mapping[str, str | int]

TIMEOUT = 30.0
"""Timeout of one call in seconds, from the first byte sent to the last one read."""
_SILENCE = 300.0
"""Seconds without a byte after which a stream counts as broken; the server sends bookmarks each minute."""
_CHANNELS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_BUSY_TRIES = 4
"""Attempts at a call while the server answers 429; each waits as long as the server asks."""


@dataclass(frozen=True, slots=True)
class Response:
    """An HTTP answer."""

    status: int
    body: bytes

    def json(self) -> AnyJson:
        """Return the body as JSON; None when it is empty.

        Raises:
            ApiError: It cannot be read: a proxy's page, or an object nested more deeply than Python can follow.
        """
        try:
            return json.loads(self.body) if self.body else None
        except (ValueError, RecursionError) as error:
            reason = "it is nested too deep" if isinstance(error, RecursionError) else error
            raise ApiError(self.status, "", f"an answer of the API server cannot be read: {reason}") from None

    def text(self) -> str:
        """Return the body as text."""
        return self.body.decode(errors="replace")


APPLY = "application/apply-patch+yaml"
_BEYOND_ASCII = re.compile("[^\x20-\x7e\U00010000-\U0010ffff]")


def as_yaml(body: object) -> str:
    """Write an object as text that is JSON and YAML.

    The API server reads an apply as YAML, which has no surrogate pairs: JSON's way to escape an emoji.
    """
    return _BEYOND_ASCII.sub(_escaped, json.dumps(body, ensure_ascii=False))


def _escaped(match: re.Match[str]) -> str:
    number = ord(match[0])
    # Half a pair is no character. One comes from a log whose bytes were no text.
    return f"\\u{0xFFFD if 0xD800 <= number < 0xE000 else number:04x}"


class Transport:
    """One connection to one API server."""

    def __init__(self, way: ApiConnection, agent: str) -> None:
        self.server: str = way.configuration.host
        self.on_call: Callable[[str, int], None] = lambda _method, _status: None
        """Called with every call's method and HTTP status (0: no answer), for metrics."""
        self.fence: Callable[[str], None] = lambda _method: None
        """Called right before each call is sent, with its method; its exception prevents the call."""
        self._refresh = way.refresh
        # With trust_env, aiohttp (3.14) searches for proxies and netrc files in a thread before every call.
        way.configuration.client_session_kwargs = {"trust_env": bool(getproxies())}
        self._client: Any = ApiClient(way.configuration)
        self._client.user_agent = agent

    async def close(self) -> None:
        """Close the connections."""
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
    ) -> Response:
        """Make any call and return any answer. A busy server (429) is retried; raises ApiError without an answer."""
        url = f"{path}?{urlencode(query)}" if query else path
        # The kind of a patch (merge, JSON, apply) is known to the API server by its Content-Type alone.
        sent = {"Content-Type": content, **(headers or {})}
        if content == APPLY:
            # Under another name than the client's own, which would write it as JSON.
            body, sent["Content-Type"] = as_yaml(body), f"{APPLY}; charset=utf-8"
        for tried in range(1, _BUSY_TRIES + 1):
            answer = await self._send(method, url, body, sent, aiohttp.ClientTimeout(total=timeout))
            # Read in any case, also of an error: otherwise the connection cannot be reused.
            read = await self._guard(method, answer.read())
            if answer.status == 429 and tried < _BUSY_TRIES:
                # As long as the server asks, within reason: a command's user waits for it.
                await asyncio.sleep(min(float(answer.headers.get("Retry-After") or 1), 10.0))
                continue
            # Tokens of exec plugins and OIDC expire while a command runs: fetch a new one, once.
            if answer.status == 401 and self._refresh and tried == 1:
                await self._refresh()
                continue
            return Response(answer.status, read)
        raise AssertionError("unreachable")

    async def stream(self, path: str, query: Query) -> aiohttp.ClientResponse:
        """Start a GET whose answer is read as it comes; the caller closes it."""
        limit = aiohttp.ClientTimeout(sock_read=_SILENCE)
        return await self._send("GET", f"{path}?{urlencode(query)}", None, {}, limit)

    async def socket(self, path: str, query: Sequence[tuple[str, str]]) -> aiohttp.ClientWebSocketResponse:
        """Open a WebSocket to a subresource that streams, such as `exec`; the caller closes it.

        Raises:
            ApiError: the server refused, with its HTTP status, or was not reached.
        """
        prepared = await self._client.param_serialize(
            "GET", f"{path}?{urlencode(query)}", auth_settings=["BearerToken"]
        )
        rest = self._client.rest_client
        if rest.pool_manager is None:
            # The client opens its connections with its first ordinary call.
            rest.pool_manager = rest._create_pool_manager()  # noqa: SLF001 - as its own WsApiClient does
        self.fence("GET")
        # v5 (Kubernetes 1.30) can close stdin; a server that is older chooses v4.
        call = rest.pool_manager.ws_connect(
            "ws" + prepared[1].removeprefix("http"), headers=prepared[2], protocols=_CHANNELS, proxy=rest.proxy,
            max_msg_size=0,
        )  # fmt: skip
        try:
            return await self._guard("GET", call)
        except ApiError as error:
            cause = error.__cause__
            if isinstance(cause, aiohttp.WSServerHandshakeError):
                # The refusal's body is not read by the client: its status is all there is.
                word = "Forbidden" if cause.status == 403 else ""
                raise from_status(cause.status, word, f"GET {path}: HTTP {cause.status} {word}".rstrip()) from error
            raise

    async def _send(
        self, method: str, url: str, body: object, headers: Mapping[str, str], limit: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        # The body bypasses param_serialize, which would copy it.
        prepared = await self._client.param_serialize(
            method, url, header_params=dict(headers), auth_settings=["BearerToken"]
        )
        # After all awaits that prepare the call: the Lease may have been lost during them.
        self.fence(method)
        call = self._client.call_api(prepared[0], prepared[1], prepared[2], body, _request_timeout=limit)
        answer: aiohttp.ClientResponse = (await self._guard(method, call)).response
        # By attempt: a 429 that is retried counts as well.
        self.on_call(method, answer.status)
        return answer

    async def _guard(self, method: str, call: Awaitable[T]) -> T:
        try:
            return await call
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.on_call(method, 0)
            reason = str(error) or type(error).__name__
            raise ApiError(0, "Unreachable", f"no answer from the Kubernetes API at {self.server}: {reason}") from error
