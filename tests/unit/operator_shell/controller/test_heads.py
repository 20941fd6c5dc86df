"""Heads of several namespaces over one connection pool."""

from __future__ import annotations

import asyncio

from aiohttp import web
from shell_kit import shell, token

from dljob.kube.head import LARGE_AT_ONCE, SMALL, MisbehavesError

UID, JOB_ID = "u-1", "0" * 32


async def test_slow_large_answers_of_one_namespace_do_not_hold_up_another() -> None:
    """Else four heads of one tenant would hold every slot for large answers."""
    over, begun = asyncio.Event(), asyncio.Semaphore(0)

    async def drip(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"x" * (SMALL + 1))
        begun.release()
        await over.wait()
        return answer

    async with shell() as it:
        it.head.token = token(UID, "c1")
        it.head.handlers["GET /v1/version"] = drip
        it.head.places[JOB_ID] = {"version": 1, "nodes": [{"pod": "p" * SMALL}]}
        theirs, ours = (it.heads.gateway(namespace, UID, "c1", "10.0.0.1") for namespace in ("theirs", "ours"))
        slow = [asyncio.create_task(theirs.version()) for _ in range(LARGE_AT_ONCE)]
        for _ in slow:
            await begun.acquire()
        found = await asyncio.wait_for(ours.placement(JOB_ID), 3)
        over.set()
        ends = await asyncio.gather(*slow, return_exceptions=True)
    assert found["version"] == 1
    assert {type(end) for end in ends} == {MisbehavesError}
