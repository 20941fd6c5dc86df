"""Frames on the socket between a fork host and its ranks: a JSON head and a body of bytes."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dljob.runtime.process.wire import LARGE
from dljob.runtime.process.worker_context import ASKED, RankCall

_LENGTHS = struct.Struct(">IQ")
"""The lengths of head and body, in front of each frame."""


class Frames:
    """One connection. `send` may be called from any thread, `receive` from one at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._head_bytes = b""
        self._posting = threading.Lock()
        self._waiting: deque[tuple[bytes, bytes]] = deque()
        """What a thread is going to send, since the other side did not take it at once."""
        self._has_sender = False

    def send(self, head: dict[str, Any], body: bytes = b"", fds: Sequence[int] = ()) -> None:
        """Send a frame, with file descriptors. Raises OSError when the other side is gone."""
        frame = _begin(head, body)
        # Frames of different threads must not mix.
        with self._sending:
            # Descriptors ride on the first bytes; the kernel may take only some of these, and the rest follows.
            sent = socket.send_fds(self._connection, [frame], fds) if fds else 0
            self._connection.sendall(frame[sent:])
            if body:
                self._connection.sendall(body)

    def post(self, head: dict[str, Any], body: bytes = b"") -> None:
        """Send a frame and wait for nobody: what the other side does not take at once is sent by a thread.

        For a connection without `wait_at_most`. Frames stay in their order. Errors are dropped: who is gone needs none.
        """
        frame = _begin(head, body), body
        with self._posting:
            if not self._has_sender and self._sending.acquire(blocking=False):
                rest = self._sent_now(*frame)
                if not rest:
                    self._sending.release()
                    return
                # The lock stays taken until the whole frame is sent.
                self._has_sender = True
                self._send_later(rest)
                return
            self._waiting.append(frame)
            if not self._has_sender:
                self._has_sender = True
                self._send_later()

    def _sent_now(self, begin: bytes, body: bytes) -> bytes:
        """Send as much of a frame as the kernel takes; return the rest."""
        sent, total = 0, len(begin) + len(body)
        try:
            while sent < total:
                parts = [begin[sent:], body] if sent < len(begin) else [memoryview(body)[sent - len(begin) :]]
                sent += self._connection.sendmsg(parts, (), socket.MSG_DONTWAIT)
        except BlockingIOError:
            # Not both in one first: a body may be large.
            return begin[sent:] + body if sent < len(begin) else bytes(memoryview(body)[sent - len(begin) :])
        except OSError:
            if sent:  # a frame that breaks off must be the last one
                self.close()
        return b""

    def _send_later(self, rest: bytes = b"") -> None:
        try:
            threading.Thread(target=self._send_waiting, args=(rest,), name="dljob-sender", daemon=True).start()
        except RuntimeError:  # no thread can be made: a frame that breaks off must be the last one
            self.close()
            if rest:
                self._sending.release()

    def _send_waiting(self, rest: bytes) -> None:
        """Send the rest of a frame, whose lock is taken, and then what waits."""
        try:
            if rest:
                try:
                    self._connection.sendall(rest)
                finally:
                    self._sending.release()
            while frame := self._next_waiting():
                with self._sending:
                    for part in frame:
                        self._connection.sendall(part)
        except OSError:  # nobody is there who would read the rest
            with self._posting:
                self._waiting.clear()
                self._has_sender = False

    def _next_waiting(self) -> tuple[bytes, bytes] | None:
        with self._posting:
            if not self._waiting:
                self._has_sender = False
                return None
            return self._waiting.popleft()

    def receive(self) -> tuple[dict[str, Any], bytes] | None:
        """Return the next frame; None when the other side is gone."""
        lengths = self._read_exactly(_LENGTHS.size)
        if lengths is None:
            return None
        head_length, body_length = _LENGTHS.unpack(lengths)
        head = self._read_exactly(head_length)
        body = self._read_exactly(body_length)
        if head is None or body is None:
            return None
        return json.loads(head), body

    def receive_fds(self, count: int) -> list[int]:
        """Return the descriptors sent with the next frame, before `receive` returns it; fewer if the peer is gone."""
        # One byte is enough for the kernel to deliver the descriptors; `_read_exactly` puts it back in front.
        try:
            self._head_bytes, fds, _, _ = socket.recv_fds(self._connection, 1, count, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            self.close()  # `receive` is not to wait once more
            return []
        return fds

    def wait_at_most(self, seconds: float | None) -> None:
        """Have each later wait for the other side end after some seconds, as if that were gone; None: never."""
        self._connection.settimeout(seconds)

    def close(self) -> None:
        """Close the connection; `receive` in another thread returns None."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _read_exactly(self, count: int) -> bytes | None:
        parts, self._head_bytes = bytearray(self._head_bytes), b""
        while len(parts) < count:
            try:
                # In pieces: `recv` allocates as much as it is asked for, and a body may be large.
                got = self._connection.recv(min(count - len(parts), 1 << 20))
            except OSError:
                return None
            if not got:
                return None
            parts += got
        return bytes(parts)


def _begin(head: dict[str, Any], body: bytes) -> bytes:
    """Return what comes before the body of a frame."""
    text = json.dumps(head).encode()
    return _LENGTHS.pack(len(text), len(body)) + text


def abstract(path: str) -> str:
    """Convert an address to the kernel's form: `@name` is abstract, as `ss` prints it."""
    return f"\0{path[1:]}" if path.startswith("@") else path


def call_frames(calls: Mapping[int, RankCall], numbers: Iterator[int]) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Return the frames of calls that are made together: each large argument, then the calls with all else.

    An argument that several of them share goes to the host once, and is one object there.

    Args:
        calls: number of each call -> the call.
        numbers: numbers that this connection has not used, for the large arguments.
    """
    large: dict[int, int] = {}
    heads, body = list[dict[str, Any]](), list[bytes]()
    for number, call in calls.items():
        arguments = list[tuple[int, int]]()
        for data in (call.payload, call.common):
            if len(data) < LARGE:
                arguments.append((0, len(data)))
                body.append(data)
                continue
            if id(data) not in large:
                large[id(data)] = next(numbers)
                yield {"op": "argument", "id": large[id(data)]}, data
            arguments.append((large[id(data)], 0))
        heads.append({"id": number, "arguments": arguments, **{name: getattr(call, name) for name in ASKED}})
    yield {"op": "calls", "calls": heads}, b"".join(body)


class IncomingCalls:
    """The host's side of a connection: makes the calls from their frames."""

    def __init__(self) -> None:
        self._large: dict[int, bytes] = {}
        """Number -> a large argument whose calls have not come yet."""

    def keep(self, head: Mapping[str, Any], body: bytes) -> None:
        """Keep a large argument for the calls that come next."""
        self._large[head["id"]] = body

    def read(self, head: Mapping[str, Any], body: bytes) -> dict[int, RankCall]:
        """Return number -> call, of calls that were made together; their large arguments are dropped here."""
        calls, at, used = dict[int, RankCall](), 0, set[int]()
        for call_head in head["calls"]:
            call_arguments = list[bytes]()
            for number, length in call_head["arguments"]:
                if number:
                    used.add(number)
                call_arguments.append(self._large[number] if number else body[at : at + length])
                at += length
            payload, common = call_arguments
            fields = {name: call_head[name] for name in ASKED}
            calls[call_head["id"]] = RankCall(payload=payload, common=common, **fields)
        for number in used:
            del self._large[number]
        return calls
