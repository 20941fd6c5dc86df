"""A forked rank's connection to its host: `current_worker()`, `progress()` and `RoleGroup` of scripts use it."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import dljob.errors
from dljob.errors import CallError, CallTimeoutError, CheckpointError, ErrorOrigin, UnreachableError
from dljob.linux.socket_peer import connect_to_own
from dljob.runtime.process import activities
from dljob.runtime.process.frames import Frames, abstract, call_frames
from dljob.runtime.process.messages import NotRun, Reply
from dljob.runtime.process.step_counters import StepCounters
from dljob.runtime.process.worker_context import (
    CallTransport,
    RankCall,
    Stopping,
    WorkerContext,
    make_log,
    read_only,
    with_device,
)

HELLO_S = 60.0
"""Seconds for the host to say who this rank is; it does so at once, unless it is stopped or has no descriptor left."""
SAVER_S = 90.0
"""Seconds for the node's saver to start."""
NOTICES = ("stopping", "sizes")
"""What the host tells ranks unasked: an order to stop, and the sizes of roles."""

log = logging.getLogger(__package__)


class RankLink(CallTransport):
    """One connection to the host; a thread reads what arrives.

    A forked child that has inherited the object sends through a connection of its own: nobody in the child reads this
    one, and parent and child would give different calls the same numbers.
    """

    def __init__(self, path: str, current: Callable[[], WorkerContext]) -> None:
        self._path = path
        self._current = current
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._waiting: dict[int, tuple[RankCall, Future[Reply]]] = {}
        self._places: list[Future[Mapping[str, Any]]] = []
        self._open_questions: dict[int, Future[Any]] = {}
        self.sizes: dict[str, int] = {}
        self.numbers: dict[str, tuple[int, ...]] = {}
        self.incarnations: dict[str, int] = {}
        self.stopping = Stopping()
        self.report: Callable[[int, Mapping[str, float]], None]
        """Records the rank's progress, set by `hello`: a write to shared memory, which needs nothing of the host."""
        self.pid = os.getpid()
        connection = socket.socket(socket.AF_UNIX)
        try:
            connect_to_own(connection, abstract(path))
        except OSError as error:
            connection.close()
            raise UnreachableError(f"the host of this rank does not answer at {path}: {error.strerror}") from None
        self._frames = Frames(connection)

    def hello(self, rank: int, incarnation: int) -> dict[str, Any]:
        """Identify this rank to the host; return the rank's facts.

        Raises:
            UnreachableError: The host is gone, does not answer, or has a later incarnation of the rank.
        """
        answer = None
        begun = time.monotonic()
        self._frames.wait_at_most(HELLO_S)
        with contextlib.suppress(OSError):  # the host is closing its socket
            self._frames.send({"op": "hello", "rank": rank, "incarnation": incarnation})
            answer = self._receive_answer()
        if answer is None:
            self._frames.close()
            if time.monotonic() - begun >= HELLO_S:
                raise UnreachableError(f"the host of this rank at {self._path} did not answer within {HELLO_S:g} s")
            # The host closes the connection of a rank that it does not know in this incarnation.
            raise UnreachableError(f"the host has no rank {rank} in incarnation {incarnation} (any more)")
        self._frames.wait_at_most(None)
        facts, fd = answer
        slot = StepCounters.opened(fd).slots[facts["slot"]]
        # The mapping keeps the memory alive.
        os.close(fd)
        self.note = functools.partial(slot.note, rank, incarnation)
        activities.report_to(slot, rank, incarnation)
        activities.begin_main(threading.main_thread().ident)
        self.report = with_device(functools.partial(slot.put, rank, incarnation), self.note)
        threading.Thread(target=self._read, name="dljob-link", daemon=True).start()
        return facts

    @property
    def _child_context(self) -> WorkerContext | None:
        """The context of a forked child, with its own connection; None in the process that made this link."""
        return None if os.getpid() == self.pid else self._current()

    def _receive_answer(self) -> tuple[dict[str, Any], int] | None:
        """Return the host's answer and its descriptor, which alone the answer has; None when the host is gone.

        Notices to all ranks may come before it: the host knows of this connection before it answers.
        """
        while True:
            # Before the frame itself: the kernel delivers descriptors with its first byte.
            fds = self._frames.receive_fds(1)
            frame = self._frames.receive()
            if frame is None:
                return None
            if fds:
                return frame[0], fds[0]
            self._take_notice(frame[0])

    def saver(self) -> Mapping[str, Any]:
        """Return the address of the node's saver and this rank's name there; the saver is started if there is none."""
        if child_context := self._child_context:
            return child_context.saver()
        future: Future[Mapping[str, Any]] = Future()
        with self._lock:
            self._places.append(future)
        try:
            self._frames.send({"op": "saver"})
        except OSError:
            self._fail_all()
        return future.result(SAVER_S)

    def send(self, call: RankCall) -> Future[Reply]:
        """Start a call, which the host sends on."""
        return self.send_all((call,))[0]

    def send_all(self, calls: Sequence[RankCall]) -> Sequence[Future[Reply]]:
        """Start the calls of some ranks, which the host sends on: all, or none where arguments find no room."""
        if child_context := self._child_context:
            return child_context.calls.send_all(calls)
        numbered = {next(self._ids): call for call in calls}
        futures = [Future[Reply]() for _ in calls]
        for future in futures:
            # Running: a future that is cancelled would break the thread that sets its answer.
            future.set_running_or_notify_cancel()
        with self._lock:
            # Before the send: the answer may arrive before `send` returns.
            self._waiting.update(zip(numbered, zip(calls, futures, strict=True), strict=True))
        try:
            for head, body in call_frames(numbered, self._ids):
                self._frames.send(head, body)
            for call in calls:
                call.free()
        except OSError:
            self._fail_all()
        return futures

    def ask(self, method: str, args: Sequence[Any], timeout_s: float) -> Future[Any]:
        """Ask PrimeMaster, through the host."""
        if child_context := self._child_context:
            return child_context.calls.ask(method, args, timeout_s)
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        number = next(self._ids)
        with self._lock:
            self._open_questions[number] = future
        try:
            self._frames.send({"op": "ask", "id": number, "what": method, "args": list(args), "timeout_s": timeout_s})
        except OSError:
            self._fail_all()
        return future

    def _complete(self, head: Mapping[str, Any]) -> None:
        with self._lock:
            future = self._open_questions.pop(head["id"], None)
        if future is None:
            log.warning("an answer of PrimeMaster is dropped, as nobody waits for it (number %s)", head["id"])
        elif "why" in head:
            future.set_exception(UnreachableError(head["why"]))
        else:
            future.set_result(head["said"])

    def _learn_sizes(self, head: Mapping[str, Any]) -> None:
        # JSON has no tuples.
        self.numbers.update({role: tuple(ranks) for role, ranks in head.get("numbers", {}).items()})
        self.sizes.update(head["sizes"])

    def _take_notice(self, head: Mapping[str, Any]) -> None:
        if head["op"] == "stopping":
            self.stopping.order(head["reason"])
        else:
            self._learn_sizes(head)

    def _read(self) -> None:
        while (frame := self._frames.receive()) is not None:
            head, body = frame
            # Frames of four kinds: a notice, the saver's address, PrimeMaster's answer, and the answer to a call.
            if head["op"] in NOTICES:
                self._take_notice(head)
            elif head["op"] == "saver":
                self._place(head)
            elif head["op"] == "said":
                self._complete(head)
            else:
                self._answer(head, body)
        self._frames.close()
        self._fail_all()

    def _answer(self, head: Mapping[str, Any], body: bytes) -> None:
        """Take the answer to a call."""
        # With each answer, so that a script knows of a resize without asking.
        self._learn_sizes(head)
        self.incarnations.update(head["incarnations"])
        with self._lock:
            call, future = self._waiting.pop(head["id"], (None, None))
        if call is None or future is None:
            # An exception would end the only thread that reads answers and notices.
            log.warning("the answer to a call is dropped, as nobody waits for it (number %s)", head["id"])
        elif head["op"] == "error":
            future.set_exception(_error(head, call))
        else:
            refused = NotRun(head["refused"]) if head["refused"] else None
            origin = tuple(head["origin"]) if head["origin"] else None
            future.set_result(
                Reply(body, head["error_type"], head["message"], head["traceback"], refused, origin=origin)
            )

    def _place(self, head: Mapping[str, Any]) -> None:
        # The host answers such requests in their order, and they carry no number.
        with self._lock:
            future = self._places.pop(0) if self._places else None
        if future is None:
            log.warning("an address of the saver is dropped, as nobody waits for it")
        elif "place" in head:
            future.set_result(head["place"])
        else:
            future.set_exception(CheckpointError(f"no saver for the checkpoints of this node: {head['why']}"))

    def _fail_all(self) -> None:
        """Fail everything that waits: the host is gone, and no answer will come."""
        with self._lock:
            # Taken under the lock, failed outside of it: callbacks of a future may start other calls.
            waiting, self._waiting = self._waiting, {}
            places, self._places = [*self._places, *self._open_questions.values()], []
            self._open_questions = {}
        for place in places:
            place.set_exception(UnreachableError("the host of this rank is gone"))
        for call, future in waiting.values():
            message = f"{call.name}: the host of this rank is gone"
            future.set_exception(CallError(message, role=call.role, rank=call.rank))


def _error(head: Mapping[str, Any], call: RankCall) -> CallError:
    """Return the host's error as an exception of the same class in this process."""
    kind = getattr(dljob.errors, head["kind"], CallError)
    # What only some kinds have, as whether the callee died.
    more = {name: head[name] for name in ("incarnation", "died") if name in head}
    error = kind(head["message"], role=call.role, rank=call.rank, hint=head["hint"], **more)
    if isinstance(error, CallTimeoutError) and head.get("origin"):
        error.origin = ErrorOrigin(*head["origin"])
    return error


def connect(path: str, current: Callable[[], WorkerContext]) -> WorkerContext:
    """Connect this process to its host as a rank; return its context for `current`, which a forked child asks too."""
    link = RankLink(path, current)
    hello = link.hello(int(os.environ["DLJOB_RANK"]), int(os.environ["DLJOB_INCARNATION"]))
    # The order to stop may have come before this process connected.
    if hello["stopping"]:
        link.stopping.order(hello["stopping"])
    return WorkerContext(
        **hello["facts"],
        config=read_only(hello["config"]),
        peers=read_only(hello["peers"]),
        stopping=link.stopping,
        log=make_log(hello["facts"]["role"], hello["facts"]["rank"]),
        calls=link,
        report=link.report,
        note=link.note,
        saver=link.saver,
    )
