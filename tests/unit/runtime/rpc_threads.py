"""Carries calls of a rank to callees of this process, as between ranks; each callee runs in a thread."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from dljob.runtime.process.messages import Call, Reply
from dljob.runtime.process.worker_context import CallTransport, RankCall
from dljob.runtime.rpc.server import RpcServer


class Threads(CallTransport):
    """The ranks of the role `talker`: `objects` are their workers."""

    def __init__(self, objects: Sequence[Any]) -> None:
        self.sizes: dict[str, int] = {}
        self.numbers: dict[str, tuple[int, ...]] = {}
        self.incarnations: dict[str, int] = {}
        self.sent: list[RankCall] = []
        self.objects = list(objects)
        self.callees = [RpcServer("talker") for _ in objects]
        self.pool = ThreadPoolExecutor(32)
        self.lock = threading.Lock()
        self._ids = itertools.count()

    def open(self) -> None:
        for callee, instance in zip(self.callees, self.objects, strict=True):
            callee.open(instance)

    def send(self, call: RankCall) -> Future[Reply]:
        self.sent.append(call)
        said = Call(
            str(next(self._ids)), call.rank, 1, call.method, call.seconds_left, "me", False, call.quiet, call.window
        )
        with self.lock:
            return self.pool.submit(self.callees[call.rank].answer, said, call.payload, call.common)

    def ask(self, what: object, args: object, timeout_s: object) -> Future[Any]:
        raise AssertionError(what)
