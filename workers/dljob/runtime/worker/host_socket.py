"""The unix socket on which a fork host serves its forked ranks; only processes of the same user can connect.

Its name is abstract (`man 7 unix`), so no file stays behind however the host ends. The kernel tells who connects.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import astuple
from typing import Any

from dljob.errors import CallError, CallTimeoutError, PeerLostError
from dljob.linux.socket_peer import peer
from dljob.runtime.process.frames import Frames, IncomingCalls, abstract
from dljob.runtime.process.messages import Reply
from dljob.runtime.process.worker_context import CallTransport, RankCall

log = logging.getLogger(__package__)
RETRY_S = 1.0
"""Seconds until connections are accepted again after that has failed."""


class HostSocket:
    """Serves the ranks of a fork host.

    `facts(rank, incarnation)` returns a rank's context, None for an earlier incarnation. `counter(rank)` returns the
    descriptor of the host's step counters and the rank's index in them. `calls(rank)` sends the rank's calls;
    `saver(rank)` returns its place in the node's saver.
    """

    def __init__(
        self,
        facts: Callable[[int, int], Mapping[str, Any] | None],
        counter: Callable[[int], tuple[int, int]],
        calls: Callable[[int], CallTransport],
        saver: Callable[[int], Mapping[str, Any]] = lambda _: {},
    ) -> None:
        self._facts = facts
        self._counter = counter
        self._calls = calls
        self._saver = saver
        self._lock = threading.Lock()
        self._lines: dict[int, list[Frames]] = {}
        self._closed = threading.Event()
        self.path = f"@dljob-{os.getpid()}-{secrets.token_hex(8)}"
        """The leading @ stands for a zero byte, which an environment variable cannot hold."""
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(abstract(self.path))
        self._server.listen(256)
        threading.Thread(target=self._accept, name="dljob-socket", daemon=True).start()

    def stopping(self, ranks: Collection[int], reason: str) -> None:
        """Notify the processes of ranks that these are to end."""
        with self._lock:
            lines = [line for rank in ranks for line in self._lines.get(rank, ())]
        _notify(lines, {"op": "stopping", "reason": reason})

    def tell_sizes(self, sizes: Mapping[str, int], numbers: Mapping[str, tuple[int, ...]]) -> None:
        """Tell the processes of all ranks how many ranks roles have now, and which."""
        with self._lock:
            lines = [line for lines in self._lines.values() for line in lines]
        _notify(lines, {"op": "sizes", "sizes": dict(sizes), "numbers": dict(numbers)})

    def close(self) -> None:
        """Close the socket and all connections."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        with self._lock:
            lines = [line for lines in self._lines.values() for line in lines]
        for line in lines:
            line.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError as error:
                # `close` has shut the socket; or no descriptor is left, and the rank waits until one is.
                if self._closed.wait(RETRY_S):
                    return
                log.warning("no rank can connect: %s (ulimit -n); tried again each second", error.strerror)
                continue
            if peer(connection)[1] != os.getuid():
                connection.close()
                continue
            thread = threading.Thread(target=self._serve, args=(Frames(connection),), name="dljob-line", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                log.warning("a rank is refused: %s (ulimit -u, or the pod's pids limit)", error)
                connection.close()

    def _serve(self, line: Frames) -> None:
        rank = -1
        try:
            hello = line.receive()
            if hello is None:
                return
            rank = int(hello[0]["rank"])
            # Before its facts are read: what the host is told after that reaches the rank as a notice.
            # A rank may connect more than once: processes that it forks have their own connections.
            with self._lock:
                self._lines.setdefault(rank, []).append(line)
            facts = self._facts(rank, int(hello[0]["incarnation"]))
            if facts is None:
                return
            fd, slot = self._counter(rank)
            line.send({**facts, "slot": slot}, fds=(fd,))
            incoming = IncomingCalls()
            while (frame := line.receive()) is not None:
                self._handle_frame(line, rank, incoming, frame)
        except OSError:  # the rank is gone; its supervisor reports how it ended
            pass
        finally:
            with self._lock, contextlib.suppress(KeyError, ValueError):
                self._lines[rank].remove(line)
            line.close()

    def _handle_frame(
        self, line: Frames, rank: int, incoming: IncomingCalls, frame: tuple[Mapping[str, Any], bytes]
    ) -> None:
        head, body = frame
        if head["op"] == "saver":
            threading.Thread(target=self._say_saver, args=(line, rank), name="dljob-saver", daemon=True).start()
            return
        if head["op"] == "ask":
            asked = self._calls(rank).ask(head["what"], head["args"], head["timeout_s"])
            asked.add_done_callback(lambda done: _say(line, head["id"], done))
            return
        if head["op"] == "argument":
            incoming.keep(head, body)
            return
        calls, read_calls = self._calls(rank), incoming.read(head, body)
        for number, future in zip(read_calls, _start_calls(calls, tuple(read_calls.values())), strict=True):
            future.add_done_callback(functools.partial(_answer, line, number, calls))

    def _say_saver(self, line: Frames, rank: int) -> None:
        """Answer in a thread of its own: the saver may have to be started first, which takes a while."""
        try:
            answer: dict[str, Any] = {"place": dict(self._saver(rank))}
        except Exception as error:  # noqa: BLE001 - whatever it is, the rank waits for an answer, and gets it
            answer = {"why": f"{type(error).__name__}: {error}"}
        line.post({"op": "saver", **answer})


def _notify(lines: Collection[Frames], notice: Mapping[str, Any]) -> None:
    """Send a notice to ranks. One that is stopped gets it once it reads again, and holds up no other one."""
    for line in lines:
        line.post(dict(notice))


def _start_calls(calls: CallTransport, rank_calls: Sequence[RankCall]) -> Sequence[Future[Reply]]:
    """Start calls that belong together. If they cannot be sent, e.g. as Ray's store is full, each future has failed."""
    try:
        return calls.send_all(rank_calls)
    except Exception as error:  # noqa: BLE001 - an exception would close the connection, and with it all other calls
        return [_not_sent(call, error) for call in rank_calls]


def _not_sent(call: RankCall, error: Exception) -> Future[Reply]:
    failed: Future[Reply] = Future()
    message = f"{call.name}: it could not be sent: {type(error).__name__}: {error}"
    failed.set_exception(CallError(message, role=call.role, rank=call.rank))
    return failed


def _say(line: Frames, number: int, done: Future[Any]) -> None:
    error = done.exception()
    answer = {"said": done.result()} if error is None else {"why": str(error)}
    line.post({"op": "said", "id": number, **answer})


def _answer(line: Frames, number: int, calls: CallTransport, done: Future[Reply]) -> None:
    """Send the answer of a call, in the thread of all calls of the rank: one process that does not read stops none."""
    about = {"id": number, "sizes": calls.sizes, "numbers": calls.numbers, "incarnations": calls.incarnations}
    error = done.exception()
    if error is None:
        reply = done.result()
        fields = {"error_type": reply.error_type, "message": reply.message, "traceback": reply.traceback}
        line.post({"op": "reply", **about, "refused": reply.refused, "origin": reply.origin, **fields}, reply.payload)
        return
    known = isinstance(error, CallError)
    fields: dict[str, Any] = {"message": error.message if known else f"{type(error).__name__}: {error}"}
    fields |= {"kind": type(error).__name__ if known else "CallError", "hint": error.hint if known else ""}
    if isinstance(error, PeerLostError):
        fields |= {"incarnation": error.incarnation, "died": error.died}
    if isinstance(error, CallTimeoutError) and error.origin is not None:
        fields["origin"] = astuple(error.origin)
    line.post({"op": "error", **about, **fields})
