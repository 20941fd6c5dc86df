"""A stand-in PrimeMaster that serves only its control socket, in a thread, and raw connections to it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dljob.runtime.control_socket.server import ControlSocket

UID = "0123456789abcdef0123456789abcdef"
RUNNING: dict[str, Any] = {
    "name": "ppo",
    "uid": UID,
    "phase": "Running",
    "version": 7,
    "roles": [{"name": "actor", "desired": 2, "ready": 2, "running": 2, "succeeded": 0, "failed": 0, "restarts": 0}],
    "ranks": [],
    "units": [],
    "restarts": {"process": 0},
    "progress": {"step": 3, "metrics": {}},
}


class Master:
    """A PrimeMaster with fixed answers that records its questions."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.shown: dict[str, Any] = dict(RUNNING)
        self.said: list[dict[str, Any]] = []

    def calls(self) -> dict[str, Any]:
        async def status(after: int, timeout_s: float) -> dict[str, Any]:
            return self.shown

        async def notes(after: int, timeout_s: float) -> list[dict[str, Any]]:
            return [note for note in self.said if note["seq"] > after]

        async def command(order: str, kind: str, target: str, by: str) -> None:
            self.asked.append((kind, target))
            accepted = {"reason": "CommandAccepted", "target": target.partition("=")[0], "message": kind}
            self.said.append({"seq": len(self.said) + 1, "time": 101.0, **accepted})

        async def learned(target: str, incarnation: int, source: str, text: str) -> None:
            self.asked.append((target, incarnation, source, text))

        async def stacks(target: str) -> dict[str, str]:
            return {"actor/0": "File x, line 1"}

        async def pids() -> dict[str, int]:
            return {"master": 1}

        async def wait(timeout_s: float) -> dict[str, Any] | None:
            return None

        found = (status, notes, command, learned, stacks, pids, wait)
        return {call.__name__: call for call in found}


@contextmanager
def serving(folder: Path, uid: str = UID, master: Master | None = None, **more: Any) -> Iterator[ControlSocket]:
    """Serve a control socket for the block; `job.json` is written if it does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "job.json").exists():
        (folder / "job.json").write_text(json.dumps({"name": "ppo", "uid": uid}))
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    made = ControlSocket(folder, uid, (master or Master()).calls(), **more)
    asyncio.run_coroutine_threadsafe(made.open(), loop).result(10)
    try:
        yield made
    finally:
        asyncio.run_coroutine_threadsafe(_end(made), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end(made: ControlSocket) -> None:
    made.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def dial(path: Path | str | None) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.settimeout(5)
    line.connect(str(path))
    return line


def ask(line: socket.socket, data: bytes) -> dict[str, Any]:
    """Send data and return the answer; empty when the connection is closed."""
    with suppress(BrokenPipeError):
        line.sendall(data)
    with line.makefile("rb") as found:
        return json.loads(found.readline() or b"{}")


def closed(line: socket.socket) -> bool:
    """Return whether the other end has closed the connection; unread data there turns the close into a reset."""
    try:
        return line.recv(1) == b""
    except ConnectionResetError:
        return True
