"""A stream of completions from the servers of a role, which goes on at another server when one is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from dljob.calls.completions import (
    CompletionChunk,
    CompletionProgress,
    VersionOf,
    Versions,
    WithoutIds,
    reported_version,
)
from dljob.calls.resumption import CalleeLoss, StreamSegment
from dljob.errors import PeerLostError, RemoteError, UsageError
from dljob.runtime.serving.endpoints import Endpoint, Endpoints, Policy, endpoints
from dljob.runtime.serving.http_transport import (
    BUSY,
    CONNECT_S,
    KEEPALIVE,
    LIMITS,
    NOT_SENT,
    NoServerReadyError,
    httpx,
    plain_tls,
    retry_after,
)
from dljob.runtime.serving.server_search import ServerSearch

log = logging.getLogger(__package__)

VERSION_POLL_S = 0.2
"""Seconds until a server that had another version is asked again."""
SHOWN = 500
"""Most bytes of a refusal that an error shows."""
EVENTS = "text/event-stream"


class CompletionStream:
    """Iterator over the chunks of one streamed completion or chat, with `for` or `async for`.

    When its server is lost, a completion goes on at another one behind the ids of the tokens that came. A chat, a
    completion with `stop` texts, and one of a server that tells no ids fail then, or begin anew (`without_ids`).

    Args:
        role: the servers' role.
        body: the request, as for `/v1/completions` (with `prompt`) or `/v1/chat/completions` (with `messages`).
        versions: `same` goes on only where the weights are of the version that began, and waits for such a server.
        without_ids: what a loss means where nothing can go on: `fail`, or `restart`, and `chunk.restarted` tells.
        timeout: seconds until a server begins its answer, at first and after the loss of one that had; None: without
            limit.
        silence: seconds without a byte after which a server counts as lost; None: without limit.
        policy: `least_loaded` by the streams of this object's process and role, or `round_robin`.
        key: streams of one key go to one server as long as it is ready.
        path: path of the request; by default one of the two above.
        port: name of the port of the role; by default its first.
        headers: headers of the request.
        version_of: (headers of the answer, chunk) -> the version of the weights, where the server tells it otherwise
            than by the header `x-weights-version` or the field `weights_version`.
    """

    def __init__(
        self,
        role: str,
        body: Mapping[str, Any],
        *,
        versions: Versions = "any",
        without_ids: WithoutIds = "fail",
        timeout: float | None = 600.0,
        silence: float | None = 600.0,
        policy: Policy = "least_loaded",
        key: str | None = None,
        path: str = "",
        port: str = "",
        headers: Mapping[str, str] | None = None,
        version_of: VersionOf = reported_version,
    ) -> None:
        for name, value, allowed in (
            ("versions", versions, ("same", "any")),
            ("without_ids", without_ids, ("restart", "fail")),
        ):
            if value not in allowed:
                raise UsageError(f"{name}={value!r}: wanted {' or '.join(allowed)}")
        self._role = role
        self._progress = CompletionProgress(body, versions=versions, without_ids=without_ids, version_of=version_of)
        self._timeout = timeout
        self._silence = silence
        self._policy: Policy = policy
        self._key = key
        self._path = path or ("/v1/chat/completions" if self._progress.is_chat else "/v1/completions")
        self._port = port
        self._headers = {"accept": EVENTS, **(headers or {})}
        self._chunks: Generator[CompletionChunk] | None = None
        self._chunks_async: AsyncGenerator[CompletionChunk] | None = None

    # -- for callers

    def __iter__(self) -> Generator[CompletionChunk]:
        if self._chunks is None:
            self._chunks = self._run()
        return self._chunks

    def __next__(self) -> CompletionChunk:
        return next(self.__iter__())

    def __aiter__(self) -> AsyncGenerator[CompletionChunk]:
        if self._chunks_async is None:
            self._chunks_async = self._run_async()
        return self._chunks_async

    @property
    def token_ids(self) -> Sequence[int]:
        """The ids of all tokens so far."""
        return tuple(self._progress.stream.received)

    @property
    def segments(self) -> tuple[StreamSegment, ...]:
        """The parts of the stream so far, by server and version."""
        return tuple(part for part in self._progress.stream.segments if part.count)

    @property
    def losses(self) -> tuple[CalleeLoss, ...]:
        """The servers that were lost so far, and why."""
        return tuple(self._progress.stream.losses)

    @property
    def restarts(self) -> int:
        """How often it began anew."""
        return self._progress.restarts

    def close(self) -> None:
        """End the stream early: its server stops."""
        if self._chunks is not None:
            self._chunks.close()

    async def aclose(self) -> None:
        """End the stream early, in a coroutine."""
        if self._chunks_async is not None:
            await self._chunks_async.aclose()

    def __enter__(self) -> CompletionStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> CompletionStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # -- the two ways to read

    def _run(self) -> Generator[CompletionChunk]:
        servers, progress = endpoints(self._role), self._progress
        search = self._search(servers)
        inner = httpx.HTTPTransport(verify=plain_tls(), trust_env=False, limits=LIMITS, socket_options=KEEPALIVE)
        with httpx.Client(transport=inner, trust_env=False) as client:
            while server := search.find():
                error: httpx.TransportError | None = None
                progress.begin_answer(self._name(server), server.incarnation, {})
                try:
                    with servers.counted(server), client.stream("POST", **self._request(server, search)) as response:
                        if self._begins(response):
                            progress.begin_answer(self._name(server), server.incarnation, dict(response.headers))
                            for part in _parts(response):
                                yield from progress.read_chunks(part)
                                if progress.end is not None:
                                    break
                        else:
                            self._refused(server, search, response, _first(response))
                            continue
                except httpx.TransportError as failed:
                    error = failed
                if self._is_over(server, search, error):
                    return
                if progress.has_all_tokens:
                    yield progress.last_chunk()
                    return
        raise self._nobody(search)

    async def _run_async(self) -> AsyncGenerator[CompletionChunk]:
        # The first stream of a process asks PrimeMaster, which may be away.
        servers, progress = await asyncio.to_thread(endpoints, self._role), self._progress
        search = self._search(servers)
        inner = httpx.AsyncHTTPTransport(verify=plain_tls(), trust_env=False, limits=LIMITS, socket_options=KEEPALIVE)
        async with httpx.AsyncClient(transport=inner, trust_env=False) as client:
            while server := await search.find_async():
                error: httpx.TransportError | None = None
                progress.begin_answer(self._name(server), server.incarnation, {})
                try:
                    with servers.counted(server):
                        async with client.stream("POST", **self._request(server, search)) as response:
                            if self._begins(response):
                                progress.begin_answer(self._name(server), server.incarnation, dict(response.headers))
                                async for part in _parts_async(response):
                                    for chunk in progress.read_chunks(part):
                                        yield chunk
                                    if progress.end is not None:
                                        break
                            else:
                                self._refused(server, search, response, await _first_async(response))
                                continue
                except httpx.TransportError as failed:
                    error = failed
                if self._is_over(server, search, error):
                    return
                if progress.has_all_tokens:
                    yield progress.last_chunk()
                    return
        raise self._nobody(search)

    # -- what both share

    def _search(self, servers: Endpoints) -> ServerSearch:
        return ServerSearch(servers, self._timeout, key=self._key, policy=self._policy)

    def _request(self, server: Endpoint, search: ServerSearch) -> dict[str, Any]:
        limits = [limit for limit in (self._silence, search.seconds_left()) if limit is not None]
        answer_s = max(0.001, min(limits)) if limits else None
        return {
            "url": server.url(self._path, self._port),
            "json": self._progress.next_body(),
            "headers": self._headers,
            "timeout": httpx.Timeout(self._silence, connect=CONNECT_S, read=answer_s),
        }

    def _name(self, server: Endpoint) -> str:
        return f"{self._role}/{server.rank}"

    def _begins(self, response: httpx.Response) -> bool:
        """Whether an answer is a stream; from then on it may take its time, but for silence."""
        if response.status_code != 200 or not response.headers.get("content-type", "").startswith(EVENTS):
            return False
        # httpcore looks here when it begins to read the body.
        response.request.extensions["timeout"]["read"] = self._silence
        return True

    def _refused(self, server: Endpoint, search: ServerSearch, response: httpx.Response, text: str) -> None:
        """Note a server that did not begin a stream.

        Raises:
            RemoteError: It would be the same at another server.
            PeerLostError: The stream is given up.
        """
        status = response.status_code
        refusal = f"status {status}" + (f": {text}" if text else "")
        if status in BUSY:
            search.failed(server, refusal, retry_after(response))
        elif status >= 500 and status != 501:
            # 502 and 504 are words of a proxy, whose server may be gone; 500 is the server's own.
            self._lost(server, search, refusal, died=status == 500, opened=status == 500)
        else:
            kind = response.headers.get("content-type", "no content type")
            raise self._failed(server, f"no stream, but {kind}: {text}" if status == 200 else refusal)

    def _is_over(self, server: Endpoint, search: ServerSearch, error: httpx.TransportError | None) -> bool:
        """Decide after an answer; returns whether the stream is over.

        Raises:
            RemoteError: It would be the same at another server.
            PeerLostError: The stream is given up.
        """
        progress = self._progress
        reason = "the connection ended" if error is None else f"{type(error).__name__}: {error}".rstrip(": ")
        # A rank that is stopped leaves the endpoints before it is told so; one that dies is still among them.
        is_present = any(
            (present_server.rank, present_server.incarnation) == (server.rank, server.incarnation)
            for present_server in search.servers
        )
        end = progress.end_answer(reason, died=is_present and not isinstance(error, NOT_SENT))
        if end.kind == "done":
            return True
        if end.kind == "failed":
            raise self._failed(server, end.reason)
        if end.kind == "other version" and not progress.has_token:
            search.failed(server, end.reason, VERSION_POLL_S)
            return False
        if progress.is_open:
            # The wait that is limited is that for the next server, not the time of the stream.
            search.again()
        self._lost(server, search, end.reason, died=end.kind == "died", opened=progress.has_token)
        return False

    def _lost(self, server: Endpoint, search: ServerSearch, reason: str, *, died: bool, opened: bool) -> None:
        progress = self._progress
        name, position = self._name(server), progress.position
        given_up = progress.note_loss(
            CalleeLoss(server.rank, server.incarnation, position, died, opened, f"{name}: {reason}")
        )
        if given_up:
            hint = "`dljob events` tells why each of them ended; leave this request out if it is their cause"
            raise PeerLostError(
                f"{self._role}{self._path}: {given_up}",
                role=self._role,
                rank=server.rank,
                incarnation=server.incarnation,
                died=died,
                hint=hint,
            )
        goes = "begins anew" if progress.position < position else "goes on"
        log.info("%s%s: %s is lost at token %d (%s); it %s", self._role, self._path, name, position, reason, goes)
        search.failed(server, reason, 0.0 if not died and progress.has_token else None)

    def _failed(self, server: Endpoint, reason: str) -> RemoteError:
        place = f"{self._name(server)}{self._path} at {server.address}"
        return RemoteError(f"{place}: {reason}", role=self._role, rank=server.rank, remote_traceback="")

    def _nobody(self, search: ServerSearch) -> NoServerReadyError:
        hint = f"dljob describe shows what the ranks of {self._role} wait for"
        return NoServerReadyError(f"{search.nobody()}", role=self._role, rank=-1, hint=hint)


def _parts(response: httpx.Response) -> Iterator[bytes]:
    """Return the parts of an answer, as they came unless compressed: to decode them costs a sixth of a token's time."""
    return response.iter_bytes() if "content-encoding" in response.headers else response.iter_raw()


def _parts_async(response: httpx.Response) -> AsyncIterator[bytes]:
    return response.aiter_bytes() if "content-encoding" in response.headers else response.aiter_raw()


def _first(response: httpx.Response) -> str:
    """Return the beginning of a refusal: it may be a page without end."""
    # Closed with its answer, of which no more is read.
    text = next(response.iter_bytes(SHOWN), b"")
    return text[:SHOWN].decode(errors="replace").strip()


async def _first_async(response: httpx.Response) -> str:
    text = await anext(response.aiter_bytes(SHOWN), b"")
    return text[:SHOWN].decode(errors="replace").strip()
