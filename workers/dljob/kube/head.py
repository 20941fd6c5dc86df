"""A port of a RayCluster's head, asked directly or through the API server; the token goes with every request."""

from __future__ import annotations

import io
import ipaddress
import json
from collections.abc import Callable, Mapping
from typing import Protocol

import aiohttp

from dljob.errors import ExitCode, NotFoundError, UnreachableError
from dljob.kube.api import Kube
from dljob.kube.transport import AnyJson, Query, Reply

HEADER = "x-ray-authorization"
"""Ray takes its token from this header too; `Authorization` does not get through the API server's proxy."""

TOKEN_REFUSED = "the head does not take the token"  # noqa: S105 - no token, but words
"""What is said of 401, and of 403: Ray (2.60) answers that to a wrong token, and 401 to none."""

MOST = 32 * 1024 * 1024
"""Bytes of an answer: whoever runs a head may not fill the operator's memory."""


class HeadError(UnreachableError):
    """The head did not answer (status 0), or refused (its HTTP status); `said`: its own words."""

    def __init__(self, status: int, message: str, said: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.said = said


class UnknownError(NotFoundError, HeadError):
    """404: no such job, role, rank or submission there."""

    exit_code = ExitCode.NOT_FOUND


class AwayError(HeadError):
    """503: who should answer is not there at the moment; ask again."""


class Ask(Protocol):
    """A way to ask one port. Raises HeadError when nothing answers; any status is an answer."""

    async def __call__(
        self, method: str, path: str, *, query: Query | None = None, body: object = None, limit: float = 5.0
    ) -> Reply:
        """Make a call that takes at most `limit` seconds."""
        ...


def address(host: str, port: int) -> str:
    """The URL of a port of a pod."""
    try:
        six = ipaddress.ip_address(host).version == 6
    except ValueError:
        six = False
    return f"http://[{host}]:{port}" if six else f"http://{host}:{port}"


def directly(
    session: aiohttp.ClientSession, url: str, token: str, told: Callable[[int], None] = lambda _status: None
) -> Ask:
    """Over the pod network; `told` hears every HTTP status, 0 for no answer.

    A head belongs to users: where it points to is not gone to, and of what it says no more than `MOST` bytes are read.
    """
    headers = {HEADER: f"Bearer {token}", "Authorization": f"Bearer {token}"}

    async def ask(
        method: str, path: str, *, query: Query | None = None, body: object = None, limit: float = 5.0
    ) -> Reply:
        timeout = aiohttp.ClientTimeout(total=limit, sock_connect=min(limit, 5.0))
        try:
            data = io.BytesIO(body) if isinstance(body, bytes) else None
            call = session.request(
                method,
                url + path,
                params=query,
                data=data,
                json=None if data is not None else body,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
            )
            async with call as answer:
                told(answer.status)
                if 300 <= answer.status < 400:
                    raise HeadError(
                        answer.status, f"{url} sends elsewhere (HTTP {answer.status}), which is not followed"
                    )
                return Reply(answer.status, await _body(answer, url))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            told(0)
            why = str(error) or f"nothing within {limit:g} s"
            raise HeadError(0, f"no answer from {url}: {why}") from error

    return ask


async def _body(answer: aiohttp.ClientResponse, url: str) -> bytes:
    body = bytearray()
    async for chunk in answer.content.iter_chunked(2**16):
        body += chunk
        if len(body) > MOST:
            raise HeadError(answer.status, f"{url} answers with more than {MOST} bytes")
    return bytes(body)


def through(kube: Kube, pod: str, port: int, namespace: str, token: str) -> Ask:
    """Through the API server, which must allow `pods/proxy` to the caller."""
    headers: Mapping[str, str] = {HEADER: f"Bearer {token}"}

    async def ask(
        method: str, path: str, *, query: Query | None = None, body: object = None, limit: float = 5.0
    ) -> Reply:
        if method == "GET":
            return await kube.proxy_get(
                pod, port, path, namespace, headers=headers, query=query or {}, timeout=limit + 5.0
            )
        return await kube.proxy_post(pod, port, path, namespace, body, headers=headers, timeout=limit + 5.0)

    return ask


def answered(reply: Reply, what: str) -> AnyJson:
    """The JSON of a good answer.

    Raises:
        UnknownError: 404.
        AwayError: 503.
        HeadError: Another refusal, or no JSON.
    """
    if reply.status >= 400:
        raise refused(reply, what)
    try:
        return reply.json()
    except json.JSONDecodeError as error:
        raise HeadError(reply.status, f"{what}: no JSON but {reply.text()[:200]!r}") from error


def refused(reply: Reply, what: str) -> HeadError:
    """The error that a refusal means, in its own words: `{"error": ...}` from the gateway, plain text from Ray."""
    said = reply.text().strip()[:1000]
    try:
        parsed = reply.json()
        said = str(parsed["error"])
    except (ValueError, KeyError, TypeError):
        pass
    kind = {404: UnknownError, 503: AwayError}.get(reply.status, HeadError)
    said = said or f"HTTP {reply.status}"
    refused = f"{TOKEN_REFUSED} (HTTP {reply.status}): " if reply.status in (401, 403) else ""
    return kind(reply.status, f"{what}: {refused}{said}", said)
