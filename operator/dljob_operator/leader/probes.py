"""Probes /healthz and /readyz, served from before the first call to the API server until the end.

They share the event loop with everything else, so that a stuck loop fails both.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from aiohttp import web

Said: TypeAlias = Mapping[str, object]


class SickError(Exception):
    """A probe fails, for this reason."""


async def serve(port: int, health: Callable[[], Said], ready: Callable[[], Said]) -> web.AppRunner:
    """Serve both probes, which may raise SickError; the caller cleans the runner up at the end."""
    app = web.Application()
    app.router.add_get("/healthz", _answer(health))
    app.router.add_get("/readyz", _answer(ready))
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=0.5, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "0.0.0.0", port)  # noqa: S104 - the kubelet asks from the node
    await site.start()
    return runner


def _answer(check: Callable[[], Said]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_request: web.Request) -> web.Response:
        try:
            return web.json_response({"operator": check()})
        except SickError as error:
            return web.json_response({"failed": str(error)}, status=500)

    return answer
