"""The host's end of the lines to its forked ranks: a unix socket that only this user can reach."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from dljob.errors import CallError
from dljob.runtime.context import Calls, Outgoing
from dljob.runtime.frames import Frames
from dljob.runtime.messages import Reply


class HostSocket:
    """Serves the ranks of a fork host. `facts(rank, incarnation)` is what a rank is told, None for one of the past."""

    def __init__(
        self,
        facts: Callable[[int, int], Mapping[str, Any] | None],
        progress: Callable[[int, int, Mapping[str, float]], None],
        calls: Callable[[int], Calls],
    ) -> None:
        self._facts = facts
        self._progress = progress
        self._calls = calls
        self._lock = threading.Lock()
        self._lines: dict[int, list[Frames]] = {}
        # In /tmp since socket paths are short; only this user may enter.
        self.folder = Path(tempfile.mkdtemp(prefix="dljob-", dir="/tmp"))
        self.path = str(self.folder / "host")
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self.path)
        Path(self.path).chmod(0o600)
        self._server.listen(256)
        threading.Thread(target=self._accept, name="dljob-socket", daemon=True).start()

    def stopping(self, rank: int, reason: str) -> None:
        """Tell a rank's processes that it is to end."""
        with self._lock:
            lines = list(self._lines.get(rank, ()))
        for line in lines:
            with contextlib.suppress(OSError):
                line.send({"op": "stopping", "reason": reason})

    def close(self) -> None:
        """Close all lines and remove the socket's folder."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        with self._lock:
            lines = [line for lines in self._lines.values() for line in lines]
        for line in lines:
            line.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(Frames(connection),), name="dljob-line", daemon=True).start()

    def _serve(self, line: Frames) -> None:
        rank = -1
        try:
            hello = line.receive()
            if hello is None:
                return
            rank = int(hello[0]["rank"])
            facts = self._facts(rank, int(hello[0]["incarnation"]))
            if facts is None:
                return
            with self._lock:
                self._lines.setdefault(rank, []).append(line)
            line.send(dict(facts))
            while (frame := line.receive()) is not None:
                self._one(line, rank, *frame)
        except OSError:
            pass
        finally:
            with self._lock, contextlib.suppress(KeyError, ValueError):
                self._lines[rank].remove(line)
            line.close()

    def _one(self, line: Frames, rank: int, head: Mapping[str, Any], body: bytes) -> None:
        if head["op"] == "progress":
            self._progress(rank, head["step"], head["metrics"])
            return
        call = Outgoing(head["role"], head["rank"], head["method"], body, head["timeout_s"], head["idempotent"])
        future = self._calls(rank).send(call)
        future.add_done_callback(lambda done: _answer(line, head["id"], done))


def _answer(line: Frames, number: int, done: Future[Reply]) -> None:
    error = done.exception()
    with contextlib.suppress(OSError):
        if error is None:
            reply = done.result()
            said = {"error_type": reply.error_type, "message": reply.message, "traceback": reply.traceback}
            line.send({"op": "reply", "id": number, "refused": reply.refused, **said}, reply.payload)
        else:
            known = isinstance(error, CallError)
            said = {"message": error.message if known else f"{type(error).__name__}: {error}"}
            said |= {"kind": type(error).__name__ if known else "CallError", "hint": error.hint if known else ""}
            line.send({"op": "error", "id": number, **said})
