"""Client of one port of a RayCluster's head, directly or through the API server, with the token in every request."""

from __future__ import annotations

import asyncio
import contextlib
import io
import ipaddress
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Protocol, TypeAlias, cast
from weakref import WeakValueDictionary

import aiohttp

from dljob.errors import ExitCode, NotFoundError, UnreachableError, UsageError
from dljob.kube import answers
from dljob.kube.api import Json, Kube
from dljob.kube.transport import AnyJson, Query, Response

HEADER = "x-ray-authorization"
"""Header in which Ray also accepts its token; the API server's proxy does not pass `Authorization` on."""

TOKEN_REFUSED = "the head does not take the token"  # noqa: S105 - no token, but words
"""Message for 401, and for 403: Ray (2.60) answers 403 to a wrong token, and 401 to a missing one."""

SMALL = 64 * 1024
"""Bytes of an answer that are read at once; few answers are larger, and few of those are read concurrently."""
LARGE_AT_ONCE = 4
LARGE_SECONDS = 5.0
"""Time, in seconds, for the rest of a larger answer, which holds one of the few slots."""

Slot: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]
"""Waits for the right to read a large answer, which ends with the block."""


class HeadError(UnreachableError):
    """The head did not answer (status 0), or refused (its HTTP status); `said` is its own message."""

    def __init__(self, status: int, message: str, answer: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.said = answer


class UnknownError(NotFoundError, HeadError):
    """404: the job, role, rank or submission does not exist there."""

    exit_code = ExitCode.NOT_FOUND


class MisbehavesError(HeadError):
    """An answer that no head of dljob gives: too large, too slow, not JSON, of another form, or a redirect."""


class UnavailableError(HeadError):
    """503: PrimeMaster or a node is away at the moment; a retry may succeed."""


class TooOldError(UsageError, HeadError):
    """The head's dljob is older than the requested feature."""

    exit_code = ExitCode.USAGE


class Ask(Protocol):
    """Call of one port. Raises HeadError when there is no answer; any status is an answer."""

    async def __call__(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: object = None,
        limit: float = 5.0,
        large: bool = False,
    ) -> Response:
        """Make a call that takes at most `limit` seconds; a `large` answer has higher bounds."""
        ...


class LargeAnswerSlots:
    """Limits on the large answers that are read concurrently: LARGE_AT_ONCE in all, and one of each namespace.

    Without the second limit, four slow heads of one namespace would hold up the answers of all others.
    """

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(LARGE_AT_ONCE)
        # Weak: a lock lives as long as somebody holds it or waits for it.
        self._single: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, namespace: str) -> Slot:
        """Return the slot of a namespace's heads."""
        return partial(self._slot, namespace)

    @contextlib.asynccontextmanager
    async def _slot(self, namespace: str) -> AsyncGenerator[None]:
        # In this order: while a head waits for others of its namespace, it holds no slot that all share.
        async with self._single.setdefault(namespace, asyncio.Lock()), self._all:
            yield


def address(host: str, port: int) -> str:
    """Return the URL of a pod's port."""
    try:
        # Pods of an IPv6 cluster: a colon in the host would be read as its port.
        six = ipaddress.ip_address(host).version == 6
    except ValueError:
        six = False
    return f"http://[{host}]:{port}" if six else f"http://{host}:{port}"


def directly(
    session: aiohttp.ClientSession,
    url: str,
    token: str,
    on_status: Callable[[int], None] = lambda _status: None,
    slot: Slot | None = None,
) -> Ask:
    """Return a client over the pod network. Redirects are not followed, and answers are bounded before they are parsed.

    Args:
        session: the connection pool.
        url: address of the port.
        token: token of the RayCluster.
        on_status: called with every HTTP status, 0 for no answer.
        slot: limits how many large answers are read concurrently; None: one.
    """
    # Without compression: a small compressed body could expand to any size.
    headers = {HEADER: f"Bearer {token}", "Authorization": f"Bearer {token}", "Accept-Encoding": "identity"}
    slot = slot or LargeAnswerSlots().of("")

    async def ask(
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: object = None,
        limit: float = 5.0,
        large: bool = False,
    ) -> Response:
        # A pod that swallows packets fails within 5 s, even when the answer itself may take as long as a long poll.
        timeout = aiohttp.ClientTimeout(total=limit, sock_connect=min(limit, 5.0))
        try:
            # aiohttp warns about bytes of more than 1 MiB, and blocks while it sends them.
            data = io.BytesIO(body) if isinstance(body, bytes) else None
            call = session.request(
                method,
                url + path,
                params=query,
                data=data,
                json=None if data is not None else body,
                headers=headers,
                timeout=timeout,
                # A head could otherwise send the operator, token and all, to any address that it can reach.
                allow_redirects=False,
            )
            async with call as answer:
                on_status(answer.status)  # before the body: the head did answer, even if its body is refused below
                if 300 <= answer.status < 400:
                    raise MisbehavesError(
                        answer.status, f"{url} sends elsewhere (HTTP {answer.status}), which is not followed"
                    )
                return Response(
                    answer.status, await _body(answer, url, answers.LARGE if large else answers.USUAL, slot)
                )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            on_status(0)  # no answer is the only case without a status
            reason = str(error) or f"nothing within {limit:g} s"
            raise HeadError(0, f"no answer from {url}: {reason}") from error

    return ask


async def _body(answer: aiohttp.ClientResponse, url: str, bounds: answers.Bounds, slot: Slot) -> bytes:
    """Read the body within its bounds. Raises MisbehavesError."""
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        raise MisbehavesError(answer.status, f"{url} compresses its answer, which was not asked for")
    # Counted while it is read: a chunked answer announces no length.
    body = bytearray()
    # Small answers are read at once and by all; the slots are for large ones, each up to 4 MiB in memory.
    if await _more(answer, body, SMALL):
        async with slot():
            try:
                async with asyncio.timeout(LARGE_SECONDS):
                    await _more(answer, body, bounds.size)
            except TimeoutError:
                raise MisbehavesError(answer.status, f"{url} takes over {LARGE_SECONDS:g} s for an answer") from None
            return _within(answer, url, body, bounds)
    return _within(answer, url, body, bounds)


async def _more(answer: aiohttp.ClientResponse, body: bytearray, most: int) -> bool:
    """Read on until there are more than `most` bytes; return whether there are."""
    while len(body) <= most:
        chunk = await answer.content.read(2**16)
        if not chunk:
            return False
        body += chunk
    return True


def _within(answer: aiohttp.ClientResponse, url: str, body: bytearray, bounds: answers.Bounds) -> bytes:
    excess = answers.excess(body, bounds)
    if excess:
        raise MisbehavesError(answer.status, f"{url} answers with {excess}")
    return bytes(body)


def through(kube: Kube, pod: str, port: int, namespace: str, token: str) -> Ask:
    """Return a client through the API server, which must allow `pods/proxy` to the caller."""
    headers: Mapping[str, str] = {HEADER: f"Bearer {token}"}

    async def ask(
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: object = None,
        limit: float = 5.0,
        large: bool = False,  # noqa: ARG001 - a command at a terminal reads an answer of any size
    ) -> Response:
        if method == "GET":
            return await kube.proxy_get(
                pod, port, path, namespace, headers=headers, query=query or {}, timeout=limit + 5.0
            )
        return await kube.proxy_post(pod, port, path, namespace, body, headers=headers, timeout=limit + 5.0)

    return ask


def answered(reply: Response, subject: str) -> AnyJson:
    """Parse the JSON of a good answer; None when it is empty.

    Raises:
        UnknownError: the status is 404.
        UnavailableError: the status is 503.
        MisbehavesError: the body is neither an object nor a list in JSON.
        HeadError: the head refused otherwise.
    """
    if reply.status >= 400:
        raise refused(reply, subject)
    try:
        parsed = answers.parsed(reply.body)
    except ValueError:
        # No JSON: the check below refuses it like a bare text.
        parsed = ""
    if parsed is not None and not isinstance(parsed, dict | list):
        raise MisbehavesError(reply.status, f"{subject}: no JSON but {reply.body[:200].decode(errors='replace')!r}")
    return cast("AnyJson", parsed)


def answered_object(reply: Response, subject: str) -> Json:
    """Parse the JSON object of a good answer. Raises as `answered` does, and MisbehavesError for anything else."""
    parsed = answered(reply, subject)
    if not isinstance(parsed, dict):
        raise MisbehavesError(
            reply.status, f"{subject}: no JSON object but {reply.body[:200].decode(errors='replace')!r}"
        )
    return cast("Json", parsed)


def refused(reply: Response, subject: str) -> HeadError:
    """Convert a refusal into an error with its own message: `{"error": ...}` from the gateway, plain text from Ray."""
    answer = reply.text().strip()[:1000]
    with contextlib.suppress(ValueError, KeyError, TypeError):  # not the gateway's JSON: the text stays as it is
        answer = str(answers.parsed(reply.body)["error"])[:1000]
    kind = {404: UnknownError, 503: UnavailableError}.get(reply.status, HeadError)
    answer = answer or f"HTTP {reply.status}"
    prefix = f"{TOKEN_REFUSED} (HTTP {reply.status}): " if reply.status in (401, 403) else ""
    return kind(reply.status, f"{subject}: {prefix}{answer}", answer)
