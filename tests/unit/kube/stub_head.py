"""A stub of a head's two ports in one server: Ray's Job API and our gateway, with a token and jobs set by tests."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

TOKEN = "T"


@dataclass
class StubHead:
    token: str = TOKEN
    """Required token; empty: any token is accepted."""
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Submission id -> Ray's record of it."""
    posted: list[dict[str, Any]] = field(default_factory=list)
    kept: dict[str, bytes] = field(default_factory=dict)
    """Packages by name."""
    logs: dict[str, str] = field(default_factory=dict)
    master_log: str | None = None
    """PrimeMaster's log; None: an older gateway, which answers every log request with the ranks' tails."""
    session: str = "session_1"
    snapshots: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Job uid (32 hex digits) -> snapshot; a missing uid is answered with 404."""
    places: dict[str, dict[str, Any]] = field(default_factory=dict)
    servers: dict[str, dict[str, Any]] = field(default_factory=dict)
    tails: dict[str, str] = field(default_factory=dict)
    commands: list[dict[str, Any]] = field(default_factory=list)
    causes: list[dict[str, Any]] = field(default_factory=list)
    """Commands of kind `cause`, which report evidence and order nothing."""
    away: bool = False
    """PrimeMaster does not answer; the gateway answers 503."""
    down: bool = False
    """The gateway answers 500."""
    ray_down: bool = False
    asked: list[str] = field(default_factory=list)
    taken: int = 500
    """Status for a submission id that exists already: 500 by Ray's head, 400 by its agent (Ray 2.60)."""
    accept: bool = True
    """Whether new submissions are accepted."""

    handlers: dict[str, Any] = field(default_factory=dict)
    """Handlers of a test that answer instead, by method and path."""

    submitted: Callable[[dict[str, Any]], None] = lambda _: None
    """Callback for each new submission."""

    def __post_init__(self) -> None:
        self._news: dict[str, asyncio.Event] = {}
        self.polled = asyncio.Event()
        """Set while a long poll waits."""

    def say(self, uid: str, **news: Any) -> None:
        """Change a job's snapshot and wake its long polls."""
        old = self.snapshots.get(uid, {"uid": uid, "version": 0, "phase": "Starting"})
        self.snapshots[uid] = {**old, "version": old["version"] + 1, "attempt": self._newest_attempt(uid), **news}
        self._news.pop(uid, asyncio.Event()).set()

    def _newest_attempt(self, uid: str) -> int:
        launchers = [shlex.split(body["entrypoint"]) for body in self.posted]
        attempts = [int(words[words.index("--attempt") + 1]) for words in launchers if uid in words]
        return attempts[-1] if attempts else 1

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.add_routes(
            [
                web.get("/api/version", self._version),
                web.post("/api/jobs/", self._submit),
                web.get("/api/packages/gcs/{name}", self._package),
                web.put("/api/packages/gcs/{name}", self._keep),
                web.get("/api/jobs/{id}", self._job),
                web.get("/api/jobs/{id}/logs", self._job_logs),
                web.get("/v1/version", self._version),
                web.get("/v1/jobs", self._names),
                web.get("/v1/jobs/{uid}/status", self._status),
                web.get("/v1/jobs/{uid}/events", self._events),
                web.get("/v1/jobs/{uid}/placement", self._placement),
                web.get("/v1/jobs/{uid}/endpoints", self._endpoints),
                web.get("/v1/jobs/{uid}/logs", self._tails),
                web.post("/v1/jobs/{uid}/commands", self._command),
            ]
        )
        return app

    async def serve(self) -> TestServer:
        server = TestServer(self.app())
        await server.start_server()
        return server

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path}")
        if self.token and request.headers.get("x-ray-authorization") != f"Bearer {self.token}":
            return web.json_response({"error": "no token, or a wrong one"}, status=401)
        if self.down and request.path.startswith("/v1/"):
            return web.Response(status=500, text="broken")
        if self.ray_down and request.path.startswith("/api/"):
            return web.Response(status=503, text="starting")
        return await self.handlers.get(f"{request.method} {request.path}", handler)(request)

    async def _version(self, _: web.Request) -> web.Response:
        return web.json_response({"session_name": self.session, "session": self.session, "dljob": "0.1.0"})

    async def _submit(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["submission_id"] in self.jobs:
            said = f"Job with submission_id {body['submission_id']} already exists."
            return web.Response(status=self.taken, text=said)
        if not self.accept:
            return web.Response(status=500, text="No available agent to submit job, please try again later.")
        self.posted.append(body)
        made = {"status": "PENDING", "message": "queued", "driver_exit_code": None, "metadata": body["metadata"]}
        self.jobs[body["submission_id"]] = made
        self.submitted(body)
        return web.json_response({"submission_id": body["submission_id"], "job_id": body["submission_id"]})

    async def _package(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if request.match_info["name"] in self.kept else 404)

    async def _keep(self, request: web.Request) -> web.Response:
        self.kept[request.match_info["name"]] = await request.read()
        return web.Response()

    async def _job(self, request: web.Request) -> web.Response:
        found = self.jobs.get(request.match_info["id"])
        return web.json_response(found) if found else web.Response(status=404, text="Job does not exist")

    async def _job_logs(self, request: web.Request) -> web.Response:
        if request.match_info["id"] not in self.jobs:
            return web.Response(status=404, text="Job does not exist")
        return web.json_response({"logs": self.logs.get(request.match_info["id"], "")})

    async def _names(self, _: web.Request) -> web.Response:
        return web.json_response([{"uid": uid, "name": "n", "phase": s["phase"]} for uid, s in self.snapshots.items()])

    async def _status(self, request: web.Request) -> web.Response:
        uid, after = request.match_info["uid"], int(request.query.get("after", 0))
        if self.away:
            return web.json_response({"error": "PrimeMaster does not answer now"}, status=503)
        if uid not in self.snapshots:
            return web.json_response({"error": f"no job {uid}"}, status=404)
        if self.snapshots[uid]["version"] <= after:
            self.polled.set()
            with contextlib.suppress(TimeoutError):
                news = self._news.setdefault(uid, asyncio.Event())
                await asyncio.wait_for(news.wait(), float(request.query.get("timeout", 0)))
        return web.json_response({**self.snapshots[uid], "ranks": request.query.get("ranks")})

    async def _events(self, request: web.Request) -> web.Response:
        return web.json_response({"events": [{"seq": int(request.query["after"]) + 1, "reason": "JobRunning"}]})

    async def _endpoints(self, request: web.Request) -> web.Response:
        return web.json_response(self.servers.get(request.match_info["uid"], {}))

    async def _placement(self, request: web.Request) -> web.Response:
        return web.json_response(self.places.get(request.match_info["uid"], {"version": 0, "nodes": []}))

    async def _tails(self, request: web.Request) -> web.Response:
        if "master" in request.query and self.master_log is not None:
            begin, end = int(request.query.get("from", 0)), len(self.master_log)
            return web.json_response({"text": self.master_log[begin:], "offset": end, "end": False, "timed": True})
        if "from" in request.query and "role" in request.query:
            start = int(request.query["from"])
            return web.json_response({"text": "abc"[start:], "offset": 3, "end": True})
        if "role" in request.query:
            key = f"{request.query['role']}/{request.query['rank']}"
            if key not in self.tails:
                return web.json_response({"error": f"no rank {key}"}, status=404)
            text, size = self.tails[key][-int(request.query["bytes"]) :], len(self.tails[key])
            return web.json_response({"text": text, "offset": size, "end": False, "size": size})
        own = {} if self.master_log is None else {"master": self.master_log}
        return web.json_response({"logs": self.tails, "cut": ["actor/9"], **own})

    async def _command(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["kind"] not in {"cause", "restart", "scale", "stop", "suspend"}:
            return web.json_response({"error": f"unknown kind {body['kind']}"}, status=400)
        (self.causes if body["kind"] == "cause" else self.commands).append(body)
        return web.json_response({}, status=202)
