"""The saver's process: started by its node's agent, it ends after the agent, once everything is on disk.

    python -m dljob.runtime.checkpoint.process FD ADDRESS [GRACE]

Double fork: the started process exits at once, so the saver is re-parented and survives its parent.
Over FD, a SEQPACKET socket, it says {"op": "up"}, then {"op": "told", kind, text} and {"op": "forget", rows}, and asks
{"op": "others", id, folder}, {"op": "ask", id, question} and {"op": "copy", id, offer} with the copy's descriptor. The
agent orders {"op": "flush", id, timeout_s, alive}, {"op": "last", id, timeout_s}, {"op": "bring", id, timeout_s,
folder}, {"op": "coming", id, offer}, {"op": "came", id, offer, crc} and {"op": "forget", id, rows}. Both answer {"op":
"done", id, ...}.

When the agent's end of the socket closes, however the agent ended, the saver writes its copies to disk within GRACE
seconds, and exits.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dljob.runtime.checkpoint.book import JournalBook
from dljob.runtime.checkpoint.carrying import AWAY
from dljob.runtime.checkpoint.peers import Offer
from dljob.runtime.checkpoint.saver import Saver
from dljob.runtime.checkpoint.wire import Wire

OTHERS_S = 130.0
"""Seconds for the savers of other nodes to flush, and to write the copies that they keep, before a world decides."""
GRACE_S = 120.0
LOOK_S = 0.5


@dataclass(eq=False, slots=True)
class OpenQuestion:
    """A question to the agent that waits for its answer."""

    answer_event: threading.Event = field(default_factory=threading.Event)
    answer: dict[str, Any] | None = None


class SaverProcess:
    """One saver and the socket to its agent. It implements `peers.Post` by asking the agent."""

    def __init__(self, link: socket.socket, address: str, grace_s: float) -> None:
        self._wire = Wire(link)
        self._grace_s = grace_s
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._open_questions: dict[int, OpenQuestion] = {}
        self._gone = False
        book = JournalBook(self._question)
        self._saver = Saver(address, self._report_problem, self._others, book, self)

    def serve(self) -> None:
        """Serve until the agent is gone, then flush."""
        self._say({"op": "up", "pid": os.getpid()})
        while (received := self._wire.receive()) is not None:
            message, _ = received
            if message["op"] == "done":
                with self._lock:
                    question = self._open_questions.pop(message["id"], None)
                if question is not None:
                    question.answer = message.get("answer")
                    question.answer_event.set()
            else:
                # A thread each: an order takes up to minutes, and answers to our own questions come on the same socket.
                threading.Thread(target=self._do, args=(message,), daemon=True).start()
        with self._lock:
            # Wakes all questions: a writer that waits for PrimeMaster would hold the flush below until the grace is
            # over.
            self._gone = True
            for question in self._open_questions.values():
                question.answer_event.set()
        # The ranks' own copies only: those that are kept for other nodes have owners, or are brought when a world
        # decides.
        self._saver.flush(self._grace_s, alive=True)
        self._saver.close()

    def _do(self, order: dict[str, Any]) -> None:
        """Carry out an order of the agent, and answer it."""
        failed, fds, keeper = "", list[int](), self._saver.keeper
        match order["op"]:
            case "flush":
                failed = self._saver.flush(order["timeout_s"], alive=order["alive"])
            case "last":
                failed = self._saver.final_save.save_all(order["timeout_s"])
            case "bring":
                failed = self._saver.bring(order["folder"], order["timeout_s"])
            case "coming":
                failed, fd = keeper.allocate(Offer.of(order["offer"]))
                fds = [fd] if fd >= 0 else []
            case "came":
                failed = keeper.accept(Offer.of(order["offer"]), order["crc"])
            case _:
                keeper.forget(order["rows"])
        self._say({"op": "done", "id": order["id"], "failed": failed}, fds)
        for fd in fds:
            os.close(fd)

    # -- requests to the agent

    def carry(self, offer: Mapping[str, Any], fd: int) -> str:
        """Implement `peers.Post.carry`."""
        return (self._wait(None, {"op": "copy", "offer": offer}, fds=[fd]) or {"failed": AWAY})["failed"]

    def forget(self, rows: list[dict[str, Any]]) -> None:
        """Implement `peers.Post.forget`."""
        self._say({"op": "forget", "rows": rows})

    def _report_problem(self, kind: str, text: str) -> None:
        self._say({"op": "told", "kind": kind, "text": text})

    def _others(self, folder: str) -> None:
        self._wait(OTHERS_S, {"op": "others", "folder": folder})

    def _question(self, question: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return PrimeMaster's answer, however long it is away.

        None when the agent is gone, or the node is being drained.
        """
        return self._wait(None, {"op": "ask", "question": question}, self._saver.final_save.impatient)

    def _wait(
        self,
        seconds: float | None,
        message: dict[str, Any],
        given_up: Callable[[], bool] = lambda: False,
        fds: Sequence[int] = (),
    ) -> dict[str, Any] | None:
        number, question = next(self._ids), OpenQuestion()
        with self._lock:
            if self._gone:
                return None
            self._open_questions[number] = question
        # After it is registered: the answer may come before `_say` returns.
        self._say({"id": number, **message}, fds)
        end = math.inf if seconds is None else time.monotonic() + seconds
        while not question.answer_event.wait(min(LOOK_S, max(0.0, end - time.monotonic()))):
            if time.monotonic() >= end or given_up():
                break
        with self._lock:  # a late answer finds nobody who waits
            self._open_questions.pop(number, None)
        return question.answer

    def _say(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        with contextlib.suppress(OSError):  # the agent is gone; `serve` sees it
            self._wire.send(message, fds)


def main(fd: int, address: str, grace_s: float = GRACE_S) -> None:
    """Serve on an inherited socket, re-parented by a second fork. Signals are ignored: the agent handles them."""
    if os.fork():
        os._exit(0)
    # The kubelet and Ray signal whole groups; the saver ends with its socket, after the flush.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    link = socket.socket(fileno=fd)
    link.set_inheritable(False)
    SaverProcess(link, address, grace_s).serve()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], *map(float, sys.argv[3:]))
