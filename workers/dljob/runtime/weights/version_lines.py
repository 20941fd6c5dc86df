"""Version lines: a channel's versions between its keeper and the ranks of its machine, over Unix sockets (ADR 52).

Only what a version is travels by them; its buckets are objects in Ray's store. By Ray's calls a reader knew of it two
to four milliseconds later, a third of what it takes to copy 64 MiB.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import secrets
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any

from dljob.ray_private import borrowed_ref, packed_ref
from dljob.runtime.queues.storage_client import LOOK_S
from dljob.runtime.rpc.call_lines import CallLine, connected
from dljob.runtime.rpc.lines import Line, LineListener, LineReader
from dljob.runtime.weights.model import Version
from dljob.tasks import TaskOwner

KEPT_S = 120.0
"""Seconds for which buckets are kept for a keeper whose line broke: a copy by a chain may take so long."""

log = logging.getLogger(__package__)

Answers = Callable[[str, tuple[Any, ...]], Coroutine[Any, Any, Any]]
"""Answers a question: its name, and its arguments."""


class KeeperLines:
    """The keeper's end: it answers in the keeper's event loop, in which it is made."""

    def __init__(self, answers: Answers, tasks: TaskOwner) -> None:
        self._answers = answers
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self.address = f"\0dljob-weights-{secrets.token_hex(16)}"
        LineListener(self.address, LineReader(), self._on_message, "dljob-version-lines")

    def _on_message(self, line: Line, number: int, message: bytes) -> None:
        self._loop.call_soon_threadsafe(self._begin, line, number, message)

    def _begin(self, line: Line, number: int, message: bytes) -> None:
        self._tasks.start("question by a line", self._answer(line, number, message), lambda _: line.shut_down())

    async def _answer(self, line: Line, number: int, message: bytes) -> None:
        name, args = pickle.loads(message)  # noqa: S301 - a process of the same user wrote it
        answer = await self._answers(name, tuple(unpacked(arg) for arg in args))
        with suppress(OSError):  # whoever asked is gone
            line.send(number, pickle.dumps(packed(answer)))


class VersionLine:
    """A rank's end. Once the line is broken, its questions are left to Ray, which knows whether the keeper lives."""

    def __init__(self, address: str) -> None:
        self._line: CallLine = connected(address, _reader())
        self._borrowed: dict[str, Version] = {}
        """By nonce, versions of this process whose buckets the keeper needs still, of which Ray does not know."""

    @property
    def is_closed(self) -> bool:
        """Whether it is broken: its questions get no answer any more."""
        return self._line.is_closed

    def ask(self, name: str, *args: Any, end: float | None) -> tuple[Any] | None:
        """Return the answer in a tuple; None where the line cannot give one.

        Raises:
            TimeoutError: There was none at `end` (of the monotonic clock).
        """
        answer = Future[bytes | None]()
        message = pickle.dumps((name, tuple(packed(arg) for arg in args)))
        if not self._line.send(message, answer.set_result):
            return None
        while True:
            # In slices: a waiting thread can be interrupted between two of them.
            slice_s = LOOK_S if end is None else min(LOOK_S, end - time.monotonic())
            try:
                reply = answer.result(max(0.0, slice_s))
            except TimeoutError:
                if end is not None and time.monotonic() >= end:
                    raise
                continue
            return None if reply is None else (unpacked(pickle.loads(reply)),)  # noqa: S301 - as above

    def offer(self, publisher: Any, version: Version) -> tuple[Any] | None:
        """Offer a version, and keep its buckets until the keeper has copied them; returns as `ask` does."""
        self._borrowed[version.nonce] = version
        reply = None
        try:
            reply = self.ask("offer", publisher, version, end=None)
        finally:
            if reply is None:
                self._give_back(version.nonce)
        message = pickle.dumps(("copied", (version.nonce,)))
        if reply is not None and not self._line.send(message, lambda answer: self._copied(version.nonce, answer)):
            self._copied(version.nonce, None)
        return reply

    def _copied(self, nonce: str, answer: bytes | None) -> None:
        """Give a version back; where the line broke, later: the keeper may live, and copy it still."""
        if answer is not None:
            self._give_back(nonce)
            return
        later = threading.Timer(KEPT_S, self._give_back, (nonce,))
        later.daemon = True
        later.start()

    def _give_back(self, nonce: str) -> None:
        self._borrowed.pop(nonce, None)


def packed(value: Any) -> Any:
    """Return a value as pickle takes it: the references of a version without Ray, which would keep them for good."""
    return replace(value, refs=_Packed(map(packed_ref, value.refs))) if isinstance(value, Version) else value


def unpacked(value: Any) -> Any:
    """Return what was packed; its references keep nothing alive at their owner."""
    is_version = isinstance(value, Version) and isinstance(value.refs, _Packed)
    return replace(value, refs=[borrowed_ref(*ref) for ref in value.refs]) if is_version else value


class _Packed(tuple[Any, ...]):
    """References of a version on their way."""


class _Lines:
    """The lines of this process, one to each keeper, and the thread that reads them all."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.reader: LineReader | None = None
        self.to: dict[str, VersionLine] = {}


_lines = _Lines()


def _reader() -> LineReader:
    _lines.reader = _lines.reader or LineReader()
    return _lines.reader


def line_to(address: str) -> VersionLine | None:
    """Return this process's line to a keeper that listens at an address; None where nobody does."""
    with _lines.lock:
        _lines.to = {line_address: line for line_address, line in _lines.to.items() if not line.is_closed}
        if address not in _lines.to:
            with suppress(OSError):  # on another machine nobody listens there
                _lines.to[address] = VersionLine(address)
        return _lines.to.get(address)
