"""Answers that calls by Ray come back for, since Ray has a thread for each call that runs and a coroutine has none.

The callee answers `NotRun.RUNS` at once, and keeps the answer when the method has ended. The caller has one request
for all its calls at a callee, which brings the answers that are there.
"""

from __future__ import annotations

import asyncio
import marshal
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial

from dljob.runtime.process.messages import NotRun, Reply
from dljob.runtime.process.wire import LARGE
from dljob.runtime.rpc.call_lines import KEPT_S, LargeAnswers

SOON_S = 0.02
"""Seconds for which a call by Ray keeps its thread, so that a short one is answered at once."""
LOOK_S = 1.0
"""Most seconds that a request for answers keeps its thread."""


class KeptAnswers:
    """The callee's end: answers until their callers fetch them."""

    def __init__(self, large: LargeAnswers) -> None:
        self._large = large
        self._changed = threading.Condition()
        self._kept: dict[str, dict[str, tuple[float, bytes]]] = {}
        """The caller's process -> call id -> when its answer came (monotonic seconds), and the packed answer."""

    def keep(self, call: str, answer: Future[Reply]) -> None:
        """Keep the answer to a call once it is there."""
        answer.add_done_callback(partial(self._add, call))

    def _add(self, call: str, answer: Future[Reply]) -> None:
        reply = answer.result()
        if len(reply.payload) >= LARGE:  # fetched by itself, so that Ray maps it
            self._large.keep(call, reply)
            reply = Reply(refused=NotRun.BY_RAY)
        now, process = time.monotonic(), call.rpartition(":")[0]
        with self._changed:
            self._kept.setdefault(process, {})[call] = now, reply.packed()
            # Their callers have died, or have not waited for them.
            for caller, answers in list(self._kept.items()):
                for old in [id_ for id_, (at, _) in answers.items() if at < now - KEPT_S]:
                    del answers[old]
                if not answers:
                    del self._kept[caller]
            self._changed.notify_all()

    def take(self, process: str) -> bytes:
        """Return the answers for a caller's process, packed, as soon as there is one; none after LOOK_S."""
        with self._changed:
            self._changed.wait_for(lambda: process in self._kept, LOOK_S)
            answers = self._kept.pop(process, {})
        return marshal.dumps([(call, answer) for call, (_, answer) in answers.items()])


class AnswerCollector:
    """The caller's end, on its event loop, for one actor: `fetch` asks it for answers (`KeptAnswers.take`)."""

    def __init__(self, fetch: Callable[[], Awaitable[bytes]]) -> None:
        self._fetch = fetch
        self._waiting: dict[str, asyncio.Future[Reply]] = {}
        self._early: dict[str, tuple[float, Reply]] = {}
        """Answers that have overtaken the callee's word that the call runs."""
        self._task: asyncio.Task[None] | None = None

    async def answer(self, call: str) -> Reply:
        """Wait for the answer of a call that runs; raises Ray's error if its callee is lost."""
        if call in self._early:
            return self._early.pop(call)[1]
        answer = self._waiting[call] = asyncio.get_running_loop().create_future()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._collect())
        try:
            return await answer
        finally:
            self._waiting.pop(call, None)

    async def _collect(self) -> None:
        while self._waiting:
            try:
                packed_answers: list[tuple[str, bytes]] = marshal.loads(await self._fetch())  # noqa: S302 - of the same job
                replies = [(call, Reply.unpacked(packed)) for call, packed in packed_answers]
            except Exception as error:  # noqa: BLE001 - each call has it: whether the callee died, they decide
                for answer in self._waiting.values():
                    if not answer.done():
                        answer.set_exception(error)
                return
            now = time.monotonic()
            for call, reply in replies:
                answer = self._waiting.get(call)
                if answer is None:
                    self._early[call] = now, reply
                elif not answer.done():
                    answer.set_result(reply)
            # Of calls whose callers had given up.
            self._early = {call: early for call, early in self._early.items() if early[0] > now - KEPT_S}
