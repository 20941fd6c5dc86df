"""The operator's client of a head, cut off below `Ask`: Ray's Job API and the gateway as the operator calls them."""

from __future__ import annotations

import json
from typing import Any

from dljob.kube.head import HeadError
from dljob.kube.transport import Query, Response
from dljob_operator.testing.head_process import HeadProcess, Launch
from dljob_operator.testing.simulated_process import SimulatedProcess
from dljob_operator.testing.slow_calls import SlowCall, arrival
from dljob_operator.testing.world import StoryState

UNKNOWN = Response(404, b'{"error": "not found"}')
AWAY = Response(503, b'{"error": "PrimeMaster does not answer"}')


class HeadClient:
    """The `Ask` of one host, whatever its port."""

    def __init__(self, operator: SimulatedProcess, world: StoryState, host: str) -> None:
        self._operator = operator
        self._world = world
        self._host = host

    async def __call__(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: object = None,
        limit: float = 5.0,
        large: bool = False,  # noqa: ARG002 - as in the protocol
    ) -> Response:
        """Make a call. Raises HeadError when no head answers at the address."""
        # A poll counts towards no crash: polls are most calls, and would take most crashes (ADR 71).
        reads = method == "GET"
        await self._operator.travel(reads=reads)
        head = self._world.reach(self._host)
        slow = self._world.slow.take("head", reads=reads)
        if head is None:
            answer = None
        elif slow is not None:
            call = self._slowly(head, slow, (method, path), query or {}, body)
            try:
                answer = await self._world.slow.wait(self._operator, limit, call, f"{method} {path}")
            except TimeoutError:
                answer = None
        elif path.endswith("/status"):
            answer = await self._status(head, query or {})
        elif path == "/api/jobs/":
            answer = await self._submit(head, body)
        else:
            answer = self._answer(head, method, path, body)
        await self._operator.travel(reads=reads)
        if answer is None:
            raise HeadError(0, f"cannot connect to {self._host}")
        return answer

    async def _slowly(
        self,
        head: HeadProcess,
        slow: SlowCall,
        request: tuple[str, str],
        query: Query,
        body: Any,  # noqa: ANN401 - JSON
    ) -> Response | None:
        """Make a slow call to a head; one that restarts meanwhile has closed the connection."""
        container, (method, path) = head.container, request

        def is_same_head() -> bool:
            return self._world.reach(self._host) is head and head.container == container

        def do() -> Response | None:
            if not is_same_head():
                return None
            if path != "/api/jobs/":
                return self._answer(head, method, path, body)
            self._world.submitted(self._operator, head, body)
            return _json({})

        if not path.endswith("/status"):
            return await arrival(self._operator, self._world.slow, slow, do)
        await self._operator.sleep(slow.request)
        answer = await self._status(head, query) if is_same_head() else None
        await self._operator.sleep(slow.answer)
        return answer

    def _answer(self, head: HeadProcess, method: str, path: str, body: Any) -> Response:  # noqa: ANN401 - JSON
        *_, collection, name = path.split("/")
        if path == "/api/version":
            return _json({"session_name": head.session})
        if collection == "gcs":
            return self._package(head, method, name, body)
        if path.startswith("/api/jobs/"):
            launch = head.launches.get(collection if name == "logs" else name)
            return UNKNOWN if launch is None else _json(_log(launch) if name == "logs" else _submission(launch))
        master = head.master()
        if master is None:
            # 503 while a known PrimeMaster restarts, 404 before the first one began.
            return AWAY if head.masters else UNKNOWN
        if name == "commands":
            head.order(master, body["id"], body["kind"])
            # A reported cause changes nothing in this model, so it is no event from outside.
            if body["kind"] != "cause":
                self._world.happened()
            return _json({})
        if name == "placement":
            return _json({"version": master.version, "nodes": self._world.nature.placement(head)})
        return _json({"logs": {}, "cut": [], "master": ""})

    async def _status(self, head: HeadProcess, query: Query) -> Response | None:
        """Answer with a snapshot that is newer than the known one, or with the present one when the time is over."""
        until = self._operator.loop.time() + float(query["timeout"])
        container = head.container
        # A head that restarts breaks the connection: the poll ends without an answer.
        while self._world.reach(self._host) is head and head.container == container:
            master = head.master()
            if master is None:
                return AWAY if head.masters else UNKNOWN
            if master.version > int(query["after"]) or self._operator.loop.time() >= until:
                return _json(master.snapshot())
            await self._operator.news(until)
        return None

    async def _submit(self, head: HeadProcess, body: Any) -> Response | None:  # noqa: ANN401 - JSON
        trouble = self._world.trouble()
        # With `done` Ray takes the submission, and only its answer is lost.
        if trouble is None or trouble.done:
            self._world.submitted(self._operator, head, body)
        if trouble is None:
            return _json({})
        await self._operator.sleep(trouble.seconds)
        return Response(trouble.status, b"no answer from Ray") if trouble.status else None

    def _package(self, head: HeadProcess, method: str, name: str, body: bytes) -> Response:
        if method == "PUT":
            head.packages[name] = body.decode()
        return _json({}) if name in head.packages else UNKNOWN


def _json(body: object) -> Response:
    return Response(200, json.dumps(body).encode())


def _submission(launch: Launch) -> dict[str, object]:
    return {"status": launch.status, "driver_exit_code": launch.exit_code, "metadata": launch.metadata}


def _log(launch: Launch) -> dict[str, object]:
    """Return the last lines of a launcher: its refusal, if any."""
    return {"logs": json.dumps({"dljob": "refused", **launch.refusal}) if launch.refusal else ""}
