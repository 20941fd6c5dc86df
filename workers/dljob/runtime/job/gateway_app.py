"""The gateway's HTTP: routes, token, errors. Its data comes from a `Jobs`; nothing here knows Ray.

All answers are JSON, also errors ({"error": ...}), except for /healthz, /metrics and the end of a single log, which are
text.
"""

from __future__ import annotations

import base64
import hmac
import json
import re
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol

from aiohttp import web

from dljob.errors import DeadlineError, DLJobError, NotFoundError, UnreachableError, UsageError
from dljob.runtime.journal.record_files import NAME, RecordNews
from dljob.telemetry.exposition import CONTENT_TYPE

BODY_BYTES = 64 << 10
"""Most bytes of a request's body: a command is small."""
LONGEST_S = 30.0
"""Longest long poll in seconds; a caller that wants more asks again."""
AT_ONCE = 500
"""Requests under way at once; more get a 503. Each long poll is a parked call at PrimeMaster."""
ALL_LOGS_BYTES = 600 << 10
"""Default size of all ranks' tails together: as much as fits into a ConfigMap."""
ONE_LOG_BYTES = 64 << 10
"""Default size of a part of one log."""
MOST_BYTES = 8 << 20
"""Most bytes of logs in one answer."""
VERSION_MAX = 2**63 - 1
"""Largest number in a query."""
UID = re.compile(r"[0-9a-f]{32}")
ID = re.compile(r"[\x21-\x7e]{1,253}")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class LogPart:
    """A part of a log."""

    text: str
    offset: int
    """Bytes of the log up to the end of the text: where the next read goes on."""
    end: bool
    """Whether the log is complete."""
    size: int
    """Bytes of the whole log when it was read."""
    timed: bool = True
    """Whether it begins at the requested moment; false where no time stamps tell when lines were written."""


ReadLog = Callable[[int | None, int, float | None], Awaitable[LogPart]]
"""A function (offset, limit, since) that returns that part of a log."""


class Jobs(Protocol):
    """The jobs of one Ray. Methods raise NotFoundError, UsageError, or UnreachableError for a passing trouble."""

    async def jobs(self) -> list[dict[str, Any]]:
        """Return uid, name and phase of each."""
        ...

    async def brief(self, uid: str, after: int, timeout_s: float) -> dict[str, Any]:
        """Return the brief snapshot once its version is greater than `after`, or after `timeout_s`."""
        ...

    async def status(self, uid: str, after: int, timeout_s: float) -> dict[str, Any]:
        """Return the whole snapshot once its version is greater than `after`, or after `timeout_s`."""
        ...

    async def events(self, uid: str, after: int, timeout_s: float) -> list[dict[str, Any]]:
        """Return the events with a number greater than `after`, once there are some."""
        ...

    async def command(self, uid: str, order: CommandRequest) -> None:
        """Pass a command to PrimeMaster; it is in the journal when this returns."""
        ...

    async def endpoints(self, uid: str) -> dict[str, Any]:
        """Return role -> its ranks that get requests."""
        ...

    async def placement(self, uid: str) -> dict[str, Any]:
        """Return the units and ranks of each node and pod."""
        ...

    async def tails(self, uid: str, budget: int) -> dict[str, Any]:
        """Return the ends of all logs within a budget of bytes, as {"logs", "cut", "master"}."""
        ...

    async def log(
        self, uid: str, rank: tuple[str, int], offset: int | None, limit: int, since: float | None = None
    ) -> LogPart:
        """Return a rank's log from an offset, since a moment (unix seconds), or its end."""
        ...

    async def master_log(
        self, uid: str, offset: int | None, limit: int, since: float | None = None, *, older: bool = False
    ) -> LogPart:
        """Return PrimeMaster's log in the same way; with `older` the file before the last rotation."""
        ...

    async def record(self, uid: str, have: Mapping[str, int]) -> RecordNews:
        """Return the files of the job's record, and what is new in those that the caller has in part."""
        ...

    async def stacks(self, uid: str, target: str) -> dict[str, str]:
        """Return rank -> the stacks of its process as text."""
        ...

    async def metrics(self) -> str:
        """Return the metrics as text for Prometheus."""
        ...


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """A command. It takes effect once for each id, however often it is sent."""

    id: str
    kind: str
    target: str
    by: str


class HttpServer:
    """A running server; `address` is host:port."""

    def __init__(self, runner: web.AppRunner, host: str) -> None:
        self._runner = runner
        self.address = f"{host}:{runner.addresses[0][1]}"

    async def close(self) -> None:
        """Stop serving."""
        await self._runner.cleanup()


async def serve(jobs: Jobs, token: str | None, about: Mapping[str, str], host: str, port: int) -> HttpServer:
    """Start to serve; return the server. Raises OSError when it cannot listen there."""
    # No signal handlers: the server runs inside of an actor, whose process Ray ends.
    runner = web.AppRunner(make_app(jobs, token, about), access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError:  # the caller tries again with a new application
        await runner.cleanup()
        raise
    return HttpServer(runner, host)


def make_app(jobs: Jobs, token: str | None, about: Mapping[str, str]) -> web.Application:
    """Build the application.

    Args:
        jobs: The source of all answers.
        token: The token that callers of /v1 must send; None where Ray asks for none.
        about: The answer of GET /v1/version.
    """
    # Outermost first: the bound holds for all requests, and the token is checked before any handler runs.
    app = web.Application(middlewares=[_Busy().limit, _errors, _authenticate(token)], client_max_size=BODY_BYTES)
    routes = _Routes(jobs, about)
    app.router.add_get("/healthz", routes.healthz)
    app.router.add_get("/metrics", routes.metrics)
    app.router.add_get("/v1/version", routes.version)
    app.router.add_get("/v1/jobs", routes.jobs)
    app.router.add_get("/v1/jobs/{uid}/status", routes.status)
    app.router.add_get("/v1/jobs/{uid}/events", routes.events)
    app.router.add_post("/v1/jobs/{uid}/commands", routes.command)
    app.router.add_get("/v1/jobs/{uid}/placement", routes.placement)
    app.router.add_get("/v1/jobs/{uid}/endpoints", routes.endpoints)
    app.router.add_get("/v1/jobs/{uid}/logs", routes.logs)
    app.router.add_get("/v1/jobs/{uid}/record", routes.record)
    app.router.add_get("/v1/jobs/{uid}/stacks", routes.stacks)
    return app


class _Routes:
    def __init__(self, jobs: Jobs, about: Mapping[str, str]) -> None:
        self._jobs = jobs
        self._about = about

    async def healthz(self, _request: web.Request) -> web.Response:
        """Answer that the gateway serves."""
        return web.Response(text="ok")

    async def metrics(self, _request: web.Request) -> web.Response:
        """Answer the metrics of all live jobs."""
        text = await self._jobs.metrics()
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})

    async def version(self, _request: web.Request) -> web.Response:
        """Answer the versions of this process."""
        return _json(dict(self._about))

    async def jobs(self, _request: web.Request) -> web.Response:
        """Answer the live jobs, then those that ended."""
        return _json(await self._jobs.jobs())

    async def status(self, request: web.Request) -> web.Response:
        """Answer a snapshot newer than `after`, or the last one after the timeout."""
        uid, after, timeout_s = _uid(request), _integer(request, "after", 0, VERSION_MAX), _timeout(request)
        # `ranks=1` only on request: with 10,000 ranks the whole status takes PrimeMaster 35 ms, the brief one 4 ms.
        ask = self._jobs.status if _integer(request, "ranks", 0, 1) else self._jobs.brief
        return _json(await ask(uid, after, timeout_s))

    async def events(self, request: web.Request) -> web.Response:
        """Answer the events after number `after`."""
        uid, after = _uid(request), _integer(request, "after", 0, VERSION_MAX)
        return _json({"events": await self._jobs.events(uid, after, _timeout(request))})

    async def command(self, request: web.Request) -> web.Response:
        """Pass a command on. 202: it is accepted, not yet carried out."""
        uid = _uid(request)
        await self._jobs.command(uid, _order(await request.read()))
        return _json({}, 202)

    async def placement(self, request: web.Request) -> web.Response:
        """Answer the units and ranks of each node and pod."""
        return _json(await self._jobs.placement(_uid(request)))

    async def endpoints(self, request: web.Request) -> web.Response:
        """Answer the ranks of each role with ports that get requests."""
        return _json(await self._jobs.endpoints(_uid(request)))

    async def stacks(self, request: web.Request) -> web.Response:
        """Answer the stacks of a rank, a role or the job."""
        return _json({"stacks": await self._jobs.stacks(_uid(request), request.query.get("target", "job")[:128])})

    async def record(self, request: web.Request) -> web.Response:
        """Answer the files of the job's record with their sizes, and new bytes of the files in `have`."""
        news = await self._jobs.record(_uid(request), _have(request))
        parts = [
            {"file": part.name, "from": part.offset, "data": base64.b64encode(part.data).decode()}
            for part in news.parts
        ]
        return _json({"files": news.files, "parts": parts})

    async def logs(self, request: web.Request) -> web.Response:
        """Answer the ends of all logs, or a part of one: a rank's, or PrimeMaster's."""
        uid = _uid(request)
        read = self._one_log(request, uid)
        if read is None:
            return _json(await self._jobs.tails(uid, _integer(request, "bytes", ALL_LOGS_BYTES, MOST_BYTES)))
        limit = _integer(request, "bytes", ONE_LOG_BYTES, MOST_BYTES)
        # Text for people and curl; a reader that follows needs the offset, so it gets JSON.
        if not _integer(request, "follow", 0, 1):
            return web.Response(text=(await read(None, limit, None)).text)
        since = _integer(request, "since", 0, VERSION_MAX) / 1000 if "since" in request.query else None
        begin = _integer(request, "from", 0, VERSION_MAX) if "from" in request.query else None
        piece = await read(begin, limit, since)
        return _json(asdict(piece))

    def _one_log(self, request: web.Request, uid: str) -> ReadLog | None:
        """Return the reader of the log that a request names; None when it asks for the ends of all."""
        role = request.query.get("role")
        if _integer(request, "master", 0, 1):
            if role is not None:
                raise UsageError("master=1 is for PrimeMaster's log, and role for a rank's: leave one out")
            return partial(self._jobs.master_log, uid, older=bool(_integer(request, "older", 0, 1)))
        if role is None:
            return None
        return partial(self._jobs.log, uid, (role, _integer(request, "rank", 0, VERSION_MAX)))


# -- parsing of requests


def _uid(request: web.Request) -> str:
    uid = request.match_info["uid"]
    if not UID.fullmatch(uid):
        raise NotFoundError(f"no job {uid[:64]!r}: a uid is 32 hex digits")
    return uid


def _integer(request: web.Request, name: str, default: int, most: int) -> int:
    """Return a whole number of the query, from 0 to `most`. Raises UsageError for anything else."""
    text = request.query.get(name)
    if text is None:
        return default
    # isdigit() alone also takes digits of other scripts and superscripts, which int() may refuse.
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
        raise UsageError(f"{name} is {text[:64]!r}; it must be a whole number from 0 to {most}")
    return int(text)


def _have(request: web.Request) -> dict[str, int]:
    """Return the files that a caller has, and how much of each. Raises UsageError for what is no file of a record."""
    sizes: dict[str, int] = {}
    for text in filter(None, request.query.get("have", "").split(",")):
        name, _, size = text.rpartition(":")
        if not NAME.fullmatch(name) or not (size.isascii() and size.isdigit() and len(size) < 20):
            raise UsageError(f"have has {text[:64]!r}; it must be name:bytes, of files of the record")
        sizes[name] = int(size)
    return sizes


def _timeout(request: web.Request) -> float:
    """Return the query's timeout in seconds, at most LONGEST_S."""
    text = request.query.get("timeout", "0")
    # Not by float() alone, which also takes nan, inf and numbers with underscores.
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text, re.ASCII):
        raise UsageError(f"timeout is {text[:64]!r}; it must be a number of seconds, from 0 to {LONGEST_S:g}")
    return min(float(text), LONGEST_S)


def _order(body: bytes) -> CommandRequest:
    try:
        data: Any = json.loads(body)
        fields = {"target": "job", "by": "", **data}
    except (ValueError, TypeError):
        fields = {}
    if fields.keys() != {"id", "kind", "target", "by"} or not all(isinstance(value, str) for value in fields.values()):
        raise UsageError('a command is {"id", "kind", "target", "by"}, all texts; target is job when left out')
    order = CommandRequest(**fields)
    if not ID.fullmatch(order.id):
        raise UsageError("the id of a command is 1 to 253 letters, digits and signs")
    if len(order.target) > 128 or len(order.by) > 253:
        raise UsageError("target has at most 128 letters, by at most 253")
    return order


# -- around every request


def _json(data: object, status: int = 200) -> web.Response:
    return web.json_response(data, status=status, dumps=partial(json.dumps, ensure_ascii=False))


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every error as JSON, with a status code by its class."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        answer = _json({"error": f"{error.reason}: {request.method} {request.path[:200]}"}, error.status)
        if allowed := error.headers.get("Allow"):
            answer.headers["Allow"] = allowed
        return answer
    except DLJobError as error:
        return _json({"error": str(error)}, _code(error))
    except Exception as error:  # noqa: BLE001 - one bad request must not end the others
        print(f"[dljob] gateway: {traceback.format_exc()}", file=sys.stderr, flush=True)  # noqa: T201
        return _json({"error": f"{type(error).__name__}: {error}"}, 500)


def _code(error: DLJobError) -> int:
    match error:
        case NotFoundError():
            return 404
        case UsageError():
            return 400
        case UnreachableError() | DeadlineError():
            return 503
        case _:
            return 500


def _authenticate(token: str | None) -> Any:
    """Answer 401 to requests below /v1 without the token."""
    expected_token = None if token is None else token.encode()

    @web.middleware
    async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
        if expected_token is not None and request.path.startswith("/v1") and not _shown(request, expected_token):
            return _json({"error": "the token is missing or wrong: send `Authorization: Bearer <Ray's token>`"}, 401)
        return await handler(request)

    return authenticate


def _shown(request: web.Request, expected_token: bytes) -> bool:
    # The API server's proxy does not pass `Authorization` on, so the operator sends the second one.
    for header in ("Authorization", "x-ray-authorization"):
        kind, _, token = request.headers.get(header, "").partition(" ")
        # Compared in constant time, so that answers' timing tells nothing of the token.
        if kind.lower() == "bearer" and hmac.compare_digest(token.strip().encode(errors="replace"), expected_token):
            return True
    return False


class _Busy:
    """A bound on the requests under way, and so on the gateway's memory."""

    def __init__(self) -> None:
        self._count = 0

    @property
    def limit(self) -> Any:
        @web.middleware
        async def limit(request: web.Request, handler: Handler) -> web.StreamResponse:
            # A gateway that is merely busy must not fail its health check.
            if self._count >= AT_ONCE and request.path != "/healthz":
                return _json({"error": f"{AT_ONCE} requests are under way; ask again"}, 503)
            self._count += 1
            try:
                return await handler(request)
            finally:
                self._count -= 1

        return limit
