"""The gateway, an actor: one per RayCluster, on the head, detached; serves HTTP for all jobs of its Ray.

This module is light, since launchers import it too; what serves is imported by the actor alone.
"""

from __future__ import annotations

import asyncio
import math
import os
from typing import Any

from dljob.errors import DeadlineError, DLJobError, UnreachableError
from dljob.plan.model import Resources
from dljob.runtime import ray_private
from dljob.runtime.backend.interface import ActorCallError, ActorSpec, Backend, factory
from dljob.runtime.linux.priority import raise_priority
from dljob.runtime.process.guard import raylet_pidfd
from dljob.runtime.process.loop import settle
from dljob.tasks import TaskOwner

NAME = "gateway"
GATEWAY_CLASS = "dljob.runtime.job.gateway.Gateway"
ON_HEAD: Resources = (("node:__internal_head__", 1),)
"""A ten-thousandth of what only a head has: whichever node is the head when the gateway is made or made again."""
CALLS = 100
UP_S = 30.0
RETRY_S = 1.0


def ensure(host: str, port: int, home: str) -> str:
    """Start the gateway of this Ray, unless there is one; where it serves, host:port.

    Args:
        host: The address to listen at.
        port: 0: any that is free.
        home: The folder of all jobs' folders on the head.

    Raises:
        UnreachableError: It cannot be made, or cannot listen there.
        DeadlineError: It did not come up in time.
    """
    return settle(_ensure(factory("ray")({}), host, port, home))


async def _ensure(backend: Backend, host: str, port: int, home: str) -> str:
    loop = asyncio.get_running_loop()
    end = loop.time() + UP_S
    spec = ActorSpec(NAME, GATEWAY_CLASS, (host, port, home), resources=ON_HEAD, max_concurrency=CALLS, immortal=True)
    while True:
        ref = await backend.lookup(NAME)
        try:
            if ref is None:
                ref = await backend.spawn(spec)
            async with asyncio.timeout_at(end):
                return await backend.call(ref, "address")
        except TimeoutError:
            raise DeadlineError(f"the gateway did not come up within {UP_S:g} s") from None
        except ActorCallError as error:
            raise UnreachableError(f"the gateway cannot serve: {error.message}") from error
        except DLJobError:  # it died, or another launcher was quicker
            if loop.time() > end:
                raise
            await asyncio.sleep(RETRY_S / 10)


class Gateway:
    """The actor. Ray restarts it as often as it dies; it keeps nothing that it cannot ask for again."""

    def __init__(self, host: str, port: int, home: str) -> None:
        raise_priority()
        loop = asyncio.get_running_loop()
        self._bound: asyncio.Future[str] = loop.create_future()
        self._tasks = TaskOwner(self._tell)
        self._serving = self._tasks.repeat("gateway", lambda: self._serve(host, port, home), tries=math.inf)
        raylet = raylet_pidfd()
        if raylet is not None:
            loop.add_reader(raylet, os._exit, 70)  # a worker may outlive its raylet, and would keep the port

    async def _serve(self, host: str, port: int, home: str) -> None:
        from dljob.runtime.job.gateway_app import serve
        from dljob.runtime.job.gateway_jobs import RayJobs, about

        while True:
            try:
                jobs = RayJobs(factory("ray")({}), home)
                self._server: Any = await serve(jobs, ray_private.auth_token(), about(), host, port)
            except OSError as error:
                self._tell(UnreachableError(f"cannot listen at {host}:{port}: {error.strerror or error}"))
                await asyncio.sleep(RETRY_S)
            except Exception as error:
                self._tell(error)  # who asks for the address hears it
                raise
            else:
                self._tell(self._server.address)
                return

    def _tell(self, what: str | Exception) -> None:
        if self._bound.done():
            self._bound = asyncio.get_running_loop().create_future()
        if isinstance(what, Exception):
            self._bound.set_exception(what)
            self._bound.exception()  # seen: it may be that nobody asks
        else:
            self._bound.set_result(what)

    async def address(self) -> str:
        """Where it serves, host:port, as soon as it does. Raises why it does not."""
        return await asyncio.shield(self._bound)
