"""The stage of the lives: the API server's objects from watches, and the one Ray behind its door."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from dljob.kube.api import CONFIG_MAPS, DLJOBS, EVENTS, PODS, RAYCLUSTERS, SECRETS, Json, Kube

HERE = Path(__file__).resolve().parent
KINDS = (DLJOBS, RAYCLUSTERS, SECRETS, CONFIG_MAPS, PODS, EVENTS)


class World:
    """All present and past objects of every namespace, from watches."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube
        self.objects: dict[tuple[str, str, str], Json] = {}
        self.history: dict[str, list[tuple[str, str, Json]]] = defaultdict(list)
        """Namespace -> (plural, what happened, object)."""
        self._news = asyncio.Event()

    async def watch(self) -> None:
        """Watch everything for ever."""
        async with asyncio.TaskGroup() as group:
            for resource in KINDS:
                group.create_task(self._watch(resource))

    async def _watch(self, resource: Any) -> None:
        async for kind, body in self.kube.watch(resource):
            meta = body["metadata"]
            key = (resource.plural, meta["namespace"], meta["name"])
            if kind == "DELETED":
                self.objects.pop(key, None)
            else:
                self.objects[key] = body
            self.history[meta["namespace"]].append((resource.plural, kind, body))
            self._news.set()
            self._news = asyncio.Event()

    def all(self, plural: str, namespace: str) -> list[Json]:
        """Return the objects of a kind in a namespace."""
        return [body for (kind, where, _), body in list(self.objects.items()) if (kind, where) == (plural, namespace)]

    async def until(self, check: Callable[[], Any], what: str, seconds: float) -> Any:
        """Return the first true answer; checked at every event."""
        end = time.monotonic() + seconds
        while not (got := check()):
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{what}: not within {seconds:g} s")
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._news.wait()), min(left, 5.0))
        return got


class Scene:
    """The Ray's process and its door."""

    def __init__(self, door: str, session: aiohttp.ClientSession) -> None:
        self.door = door
        self._session = session

    async def head(self, ip: str, **about: Any) -> None:
        """Start a head at an address."""
        await self._ask("POST", "head", {"ip": ip, **about})

    async def lose(self, ip: str) -> None:
        """Lose the head at an address with everything it ran."""
        await self._ask("POST", f"lose/{ip}")

    async def replace(self, ip: str, pod: str) -> None:
        """Replace the worker pod of a head."""
        await self._ask("POST", f"replace/{ip}/{pod}")

    async def touch(self, uid: str, file: str) -> None:
        """Create a file that a job's user code waits for."""
        await self._ask("POST", f"touch/{uid}/{file}")

    async def told(self, uid: str) -> Json:
        """Return Ray's state of a job."""
        return await self._ask("GET", f"told/{uid}")

    async def _ask(self, method: str, path: str, body: Json | None = None) -> Json:
        async with self._session.request(method, f"{self.door}/scene/{path}", json=body) as answer:
            assert answer.status == 200, (path, answer.status, await answer.text())
            return await answer.json()


class Nursery:
    """The process that starts and ends operators."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._ended: dict[int, asyncio.Future[int]] = {}

    async def listen(self) -> None:
        """Receive the ends of operators for ever."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            told = json.loads(line)
            self._ended.pop(told["id"]).set_result(told["code"])
        for waiting in self._ended.values():
            waiting.set_exception(RuntimeError("the nursery ended"))

    async def run(self, flags: list[str], env: dict[str, str], log: Path) -> int:
        """Run an operator to its end; returns the exit code, negative for a signal. Cancelling kills it."""
        number = len(self._ended) + 1 + max(self._ended, default=0)
        ended = self._ended[number] = asyncio.get_running_loop().create_future()
        self._say({"id": number, "flags": flags, "env": env, "log": str(log)})
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError:
            self._say({"kill": number})
            with suppress(RuntimeError):
                await ended
            raise

    def _say(self, order: Json) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")


@asynccontextmanager
async def nursery(log: Path) -> AsyncIterator[Nursery]:
    """Run a nursery for the block; its operators end with it."""
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(HERE / "nursery.py")),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=out,
        )
    made = Nursery(process)
    listening = asyncio.create_task(made.listen())
    try:
        yield made
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()
        await listening


@asynccontextmanager
async def scene(prefix: list[str], log: Path) -> AsyncIterator[Scene]:
    """Run a Ray, in its own network if the prefix creates one; its door is in the caller's network."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    port = listener.getsockname()[1]
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *(*prefix, sys.executable, "-W", "ignore", str(HERE / "scene.py"), str(listener.fileno())),
            pass_fds=[listener.fileno()],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=out,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    listener.close()
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(300):
            while (line := await process.stdout.readline()) and line.strip() != b"open":
                pass
            assert line, f"no Ray, see {log}"
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
            yield Scene(f"http://127.0.0.1:{port}", session)
    finally:
        process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(60):
                await process.wait()
        if process.returncode is None:
            process.kill()
            await process.wait()
