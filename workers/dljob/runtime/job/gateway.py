"""The gateway: a detached actor on the head that serves HTTP for all jobs of its Ray. One for each RayCluster.

This module imports little, since launchers use it too; the HTTP server is imported by the actor alone.
"""

from __future__ import annotations

import asyncio
import math
import os
from typing import Any

from dljob import ray_private
from dljob.errors import DeadlineError, DLJobError, UnreachableError
from dljob.linux.priority import raise_priority
from dljob.runtime.backend.interface import ON_HEAD, ActorCallError, ActorSpec, Backend, factory
from dljob.runtime.process.guard import raylet_pidfd
from dljob.runtime.process.loop import settle
from dljob.tasks import TaskOwner

NAME = "gateway"
GATEWAY_CLASS = "dljob.runtime.job.gateway.Gateway"
CALLS = 100
"""Calls of `address` that the actor holds open at once."""
UP_S = 30.0
"""Seconds that a new gateway has to come up."""
RETRY_S = 1.0
"""Seconds between attempts to listen: an earlier gateway may still hold the port."""


def ensure(host: str, port: int, home: str) -> str:
    """Start the gateway of this Ray unless there is one; return its address as host:port.

    Args:
        host: The address to listen at.
        port: The port; 0 for any free one.
        home: The folder of all jobs' folders on the head.

    Raises:
        UnreachableError: It cannot be created, or cannot listen there.
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
            # The call waits until the gateway has bound its port, or raises what keeps it from that.
            async with asyncio.timeout_at(end):
                return await backend.call(ref, "address")
        except TimeoutError:
            raise DeadlineError(f"the gateway did not come up within {UP_S:g} s") from None
        except ActorCallError as error:
            raise UnreachableError(f"the gateway cannot serve: {error.message}") from error
        except DLJobError:  # it died, or another launcher created it meanwhile
            if loop.time() > end:
                raise
            await asyncio.sleep(RETRY_S / 10)


class Gateway:
    """The actor. Ray restarts it whenever it dies; it holds nothing that it cannot ask for again."""

    def __init__(self, host: str, port: int, home: str) -> None:
        raise_priority()
        loop = asyncio.get_running_loop()
        self._bound: asyncio.Future[str] = loop.create_future()
        self._tasks = TaskOwner(self._tell)
        self._serving = self._tasks.repeat("gateway", lambda: self._serve(host, port, home), tries=math.inf)
        raylet = raylet_pidfd()
        if raylet is not None:
            loop.add_reader(raylet, os._exit, 70)  # a Ray worker may outlive its raylet, and would keep the port

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
                self._tell(error)  # callers of `address` get it
                raise
            else:
                self._tell(self._server.address)
                return

    def _tell(self, result: str | Exception) -> None:
        # Each attempt has a result of its own: a caller must not get the error of an earlier one.
        if self._bound.done():
            self._bound = asyncio.get_running_loop().create_future()
        if isinstance(result, Exception):
            self._bound.set_exception(result)
            self._bound.exception()  # marked as retrieved: asyncio logs it if nobody calls `address`
        else:
            self._bound.set_result(result)

    async def address(self) -> str:
        """Return the address as host:port once it serves; raises the error that keeps it from serving."""
        # Shielded: a caller that gives up must not cancel it for the others.
        return await asyncio.shield(self._bound)
