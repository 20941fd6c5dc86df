"""A fault-injecting proxy in front of a real API server; faults are chosen by method and path.

    with Proxy(cluster.kubeconfig, folder / "config") as proxy:
        proxy.fault("PATCH", "/dljobs/.*/status", status=500, times=3)
        Operator(cluster, folder, kubeconfig=proxy.kubeconfig)

The proxy speaks plain HTTP on a loopback address; to the server it uses the certificates of the given kubeconfig.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import aiohttp
import yaml
import yarl
from aiohttp import web

REASONS = {409: "Conflict", 410: "Expired", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}
HOPS = frozenset({"host", "connection", "transfer-encoding", "content-length", "content-encoding", "keep-alive"})
EVER = 10**9
Moment: TypeAlias = Literal["before", "after"]


@dataclass
class Fault:
    """A fault of calls whose method and path (with the query) match, for a number of times.

    Without any other field the connection is closed without an answer.
    """

    method: str
    path: str
    times: int = 1
    status: int = 0
    """HTTP status to answer with instead of handing the call on."""
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    """Seconds before the call is handed on; without other fields the call then succeeds."""
    lost: bool = False
    """Hand the call on and drop its answer."""
    cut: int = -1
    """Close a watch after this many bytes."""
    error: int = 0
    """Begin a watch with an ERROR event of this code."""
    hide: Callable[[dict[str, Any]], bool] | None = None
    """Watch events for which this returns true are not delivered."""
    stall: bool = False
    """Answer nothing until the caller gives up."""
    hit: int = 0

    def fits(self, method: str, path: str) -> bool:
        return self.hit < self.times and re.fullmatch(self.method, method) and re.search(self.path, path) is not None


class Proxy:
    """A proxy in a thread of its own. `calls`: method, path and status of each call; status 0: no answer."""

    def __init__(self, kubeconfig: Path, own: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        kinds = ("clusters", "users", "contexts")
        one = {kind: {item["name"]: item[kind[:-1]] for item in config[kind]} for kind in kinds}
        context = one["contexts"][config["current-context"]]
        self._cluster, self._user = one["clusters"][context["cluster"]], one["users"][context["user"]]
        self._folder = own.parent
        self.kubeconfig = own
        self.calls: list[tuple[str, str, int]] = []
        self.faults: list[Fault] = []
        self.on_call: Callable[[Moment, str, str], None] = lambda _moment, _method, _path: None
        """Callback right before a call is handed on and right after its answer; it runs in the proxy's thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._port = 0

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._do(self._start())
        server = {"clusters": [{"name": "p", "cluster": {"server": f"http://127.0.0.1:{self._port}"}}]}
        context = [{"name": "p", "context": {"cluster": "p", "user": "p"}}]
        users = [{"name": "p", "user": {"token": "the-proxy-knows"}}]
        named = {"users": users, "contexts": context, "current-context": "p"}
        self.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
        self.kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **server, **named}))
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def fault(self, method: str, path: str, **knobs: Any) -> Fault:
        """Add a fault; the method pattern must match fully, the path pattern anywhere in the path with its query."""
        made = Fault(method, path, **knobs)
        self.faults.append(made)
        return made

    def clear(self) -> None:
        """Remove all faults."""
        self.faults.clear()

    def down(self) -> None:
        """Stop listening and close all connections."""
        self._do(self._close())

    def up(self) -> None:
        """Listen again, at the same address."""
        self._do(self._listen())

    def cut(self) -> None:
        """Close all connections; clients that reconnect are served."""
        self._do(self._close())
        self._do(self._listen())

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    async def _start(self) -> None:
        limits = aiohttp.ClientTimeout(total=None, sock_connect=10)
        connector = aiohttp.TCPConnector(ssl=self._tls(), limit=0)
        self._session = aiohttp.ClientSession(connector=connector, timeout=limits, auto_decompress=False)
        await self._listen()

    async def _listen(self) -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{tail:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.0, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def _close(self) -> None:
        for protocol in list(self._runner.server.connections if self._runner.server else ()):
            if protocol.transport is not None:
                protocol.transport.abort()
        await self._runner.cleanup()

    async def _end(self) -> None:
        await self._close()
        await self._session.close()

    def _tls(self) -> ssl.SSLContext:
        def file(holder: Mapping[str, str], name: str) -> str:
            if f"{name}-data" in holder:
                path = self._folder / f"proxy-{name}"
                path.write_bytes(base64.b64decode(holder[f"{name}-data"]))
                return str(path)
            return holder[name]

        self._folder.mkdir(parents=True, exist_ok=True)
        made = ssl.create_default_context(cafile=file(self._cluster, "certificate-authority"))
        made.load_cert_chain(file(self._user, "client-certificate"), file(self._user, "client-key"))
        return made

    # -- calls

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        fault = next((one for one in self.faults if one.fits(request.method, request.path_qs)), None)
        if fault:
            fault.hit += 1
            if not self._hands_on(fault):
                return await self._refuse(request, fault)
            await asyncio.sleep(fault.delay)
        self.on_call("before", request.method, request.path_qs)
        body = await request.read()
        headers = {key: value for key, value in request.headers.items() if key.lower() not in HOPS | {"authorization"}}
        url = self._cluster["server"] + request.path_qs
        call = {"data": body or None, "headers": headers, "skip_auto_headers": ("Content-Type", "Accept-Encoding")}
        async with self._session.request(request.method, yarl.URL(url, encoded=True), **call) as got:
            if request.query.get("watch") == "true":
                return await self._stream(request, got, fault)
            data = await got.read()
            self.on_call("after", request.method, request.path_qs)
            if fault and fault.lost:
                return self._nothing(request)
            self.calls.append((request.method, request.path_qs, got.status))
            kept = {key: value for key, value in got.headers.items() if key.lower() not in HOPS - {"content-encoding"}}
            return web.Response(status=got.status, body=data, headers=kept)

    @staticmethod
    def _hands_on(fault: Fault) -> bool:
        return bool(fault.delay and not fault.status) or fault.lost or fault.cut >= 0 or fault.hide is not None

    async def _refuse(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        if fault.stall:
            await asyncio.Event().wait()
        await asyncio.sleep(fault.delay)
        if fault.error:
            event = {"type": "ERROR", "object": _status(fault.error)}
            return web.Response(text=json.dumps(event) + "\n", content_type="application/json")
        if not fault.status:
            return self._nothing(request)
        self.calls.append((request.method, request.path_qs, fault.status))
        return web.json_response(_status(fault.status), status=fault.status, headers=fault.headers)

    def _nothing(self, request: web.Request) -> web.Response:
        self.calls.append((request.method, request.path_qs, 0))
        if request.transport is not None:
            request.transport.abort()
        return web.Response()

    async def _stream(
        self, request: web.Request, got: aiohttp.ClientResponse, fault: Fault | None
    ) -> web.StreamResponse:
        self.calls.append((request.method, request.path_qs, got.status))
        answer = web.StreamResponse(status=got.status, headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        left = fault.cut if fault and fault.cut >= 0 else EVER
        rest = b""
        async for chunk in got.content.iter_any():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if fault and fault.hide and fault.hide(json.loads(line)):
                    continue
                data = line + b"\n"
                await answer.write(data[:left])
                left -= len(data)
                if left <= 0:
                    return self._nothing(request)
        await answer.write_eof()
        return answer


def _status(code: int) -> dict[str, Any]:
    words = {"reason": REASONS.get(code, "InternalError"), "message": f"the proxy says {code}"}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, **words}
