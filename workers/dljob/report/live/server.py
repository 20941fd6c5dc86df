"""HTTP on 127.0.0.1 for the readers of one page: GET alone, no other origin, and 401 for all who showed no code.

Written on asyncio's streams: the command has no HTTP server without the extras of Ray or Kubernetes, and needs little
of one. What it does not need, it refuses.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from dljob.report.live.access import PageAccess

HEAD_BYTES = 16 << 10
HEAD_S = 75.0
"""Longest time, in seconds, until a request is whole; also how long an idle connection stays open."""
CONNECTIONS, STRANGERS = 256, 32
"""Connections at a time of those who may read, of whom a browser needs up to six; and of those who have not shown it
yet: of these the oldest goes, so that nobody who connects and says nothing keeps the reader out."""
HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
NOTHING = "default-src 'none'; frame-ancestors 'none'"
ONWARD = '<!doctype html><meta http-equiv="refresh" content="0;url=/"><title>dljob</title>'
"""A page that leads to the real one. A redirect would not do where another site holds the link: the cookie would not
come along, since that site asked."""


class PageRequest(NamedTuple):
    """A request of a reader who may read."""

    path: str
    query: Mapping[str, str]
    search: str = ""
    """The query as it was written."""


@dataclass(frozen=True)
class PageAnswer:
    """An answer: its status, body, and headers beside those that all answers have."""

    status: int = 200
    body: bytes = b""
    kind: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


Handler = Callable[[PageRequest], Awaitable[PageAnswer]]


class RefusedError(Exception):
    """A request that gets an answer without a body, after which its connection is closed."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(str(status))
        self.answer = PageAnswer(status, headers=headers)


class PageServer:
    """Server of one page on a free port; `handler` answers those who may read."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._readers: set[asyncio.StreamWriter] = set()
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        """The connections of those who have not shown that they may read, the oldest first."""
        self._server: asyncio.Server | None = None
        self.access = PageAccess(0)
        self.port = 0

    async def start(self, port: int = 0) -> None:
        """Listen on 127.0.0.1; port 0 is any free one."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=HEAD_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]
        self.access = PageAccess(self.port)

    def link(self) -> str:
        """Return a link that is good once."""
        return f"http://127.0.0.1:{self.port}/?code={self.access.code()}"

    async def close(self) -> None:
        """Take no further connections."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._strangers[writer] = None
        if len(self._strangers) > STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.transport.abort()
        try:
            # Cancelled: by the end of the command, with connections that browsers keep open; asyncio would print each.
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._answer_request(reader, writer) and self._has_room(writer):
                    pass
        finally:
            self._strangers.pop(writer, None)
            self._readers.discard(writer)
            writer.close()

    def _has_room(self, writer: asyncio.StreamWriter) -> bool:
        """Count a connection among those of who may read; return whether it may stay."""
        self._strangers.pop(writer, None)
        self._readers.add(writer)
        return len(self._readers) <= CONNECTIONS

    async def _answer_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether the connection stays open."""
        stays = False
        try:
            async with asyncio.timeout(HEAD_S):
                head = await reader.readuntil(b"\r\n\r\n")
            answer = await self._answered(*_parsed(head))
            stays = True
        except asyncio.LimitOverrunError:
            answer = PageAnswer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        except RefusedError as refused:
            answer = refused.answer
        writer.write(_encoded(answer, stays=stays))
        await writer.drain()
        return stays

    async def _answered(self, method: str, target: str, headers: Mapping[str, str]) -> PageAnswer:
        # A name that resolves to 127.0.0.1 is how another site would get at the page: only our own names are served.
        if headers.get("host") not in (f"127.0.0.1:{self.port}", f"localhost:{self.port}"):
            raise RefusedError(HTTPStatus.MISDIRECTED_REQUEST)
        if method != "GET":
            raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, Allow="GET")
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            raise RefusedError(HTTPStatus.BAD_REQUEST)
        try:
            url = urlsplit(target)
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
        except ValueError:
            raise RefusedError(HTTPStatus.BAD_REQUEST) from None
        if url.path == "/" and "code" in query:
            cookie = self.access.redeem(query["code"])
            if cookie is None:
                raise RefusedError(HTTPStatus.UNAUTHORIZED)
            # `none`: somebody typed or pasted the link, or the client is no browser.
            if headers.get("sec-fetch-site", "none") == "none":
                return PageAnswer(HTTPStatus.SEE_OTHER, headers={"Set-Cookie": cookie, "Location": "/"})
            return PageAnswer(200, ONWARD.encode(), "text/html; charset=utf-8", {"Set-Cookie": cookie})
        if not self.access.admits(headers.get("cookie", "")):
            raise RefusedError(HTTPStatus.UNAUTHORIZED)
        return await self._handler(PageRequest(url.path, query, url.query))


def _parsed(head: bytes) -> tuple[str, str, dict[str, str]]:
    """Return method, target and headers of a request.

    Raises:
        RefusedError: it is none, or one of which two readers could think differently.
    """
    line, *rows = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    words = line.split(" ")
    if len(words) != 3 or words[2] != "HTTP/1.1" or not words[1].startswith("/"):
        raise RefusedError(HTTPStatus.BAD_REQUEST)
    headers: dict[str, str] = {}
    for row in rows:
        name, colon, value = row.partition(":")
        key = name.lower()
        # A name with blanks, a folded line, or a second Host: never made by a browser.
        if not colon or not name or name != name.strip() or key in headers:
            raise RefusedError(HTTPStatus.BAD_REQUEST)
        headers[key] = value.strip()
    return words[0], words[1], headers


def _encoded(answer: PageAnswer, *, stays: bool) -> bytes:
    status = HTTPStatus(answer.status)
    headers = {
        **HEADERS,
        "Content-Security-Policy": NOTHING,
        **answer.headers,
        **({"Content-Type": answer.kind} if answer.kind else {}),
        "Connection": "keep-alive" if stays else "close",
    }
    # 204 has no body, and so no length.
    if status is not HTTPStatus.NO_CONTENT:
        headers["Content-Length"] = str(len(answer.body))
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + answer.body


def as_json(body: bytes) -> PageAnswer:
    """Return an answer with JSON."""
    return PageAnswer(200, body, "application/json")


def trouble(message: str, since: float | None = None) -> PageAnswer:
    """Return an answer for a reader of a job that does not answer, since a time (unix seconds) if it is known."""
    body = {"error": message, **({} if since is None else {"since": round(since, 3)})}
    return PageAnswer(HTTPStatus.SERVICE_UNAVAILABLE, json.dumps(body).encode(), "application/json")
