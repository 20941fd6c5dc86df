"""The saver's process: started by its node's agent, it ends when the agent does, once all is on disk.

    python -m dljob.runtime.checkpoint.process FD ADDRESS [GRACE]

The process that was started ends at once; the saver is its child, which nobody has.
Over FD, a SEQPACKET socket, it says {"op": "up"}, then {"op": "told", kind, text}, {"op": "others", id} and {"op":
"ask", id, question}; the agent orders {"op": "flush", id, timeout_s, alive} and answers {"op": "done", id, answer}, as
the saver does. When the agent's end of the socket closes, however the agent ended, the saver brings what it holds to
disk within GRACE seconds, and leaves.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dljob.runtime.checkpoint.book import JournalBook
from dljob.runtime.checkpoint.saver import Saver

OTHERS_S = 60.0
"""How long the savers of other nodes may take to flush before a world decides without them."""
GRACE_S = 120.0


@dataclass(eq=False, slots=True)
class Asked:
    """Something that was asked of the agent."""

    heard: threading.Event = field(default_factory=threading.Event)
    answer: dict[str, Any] | None = None


class Process:
    """One saver and the line to its agent."""

    def __init__(self, link: socket.socket, address: str, grace_s: float) -> None:
        self._link = link
        self._grace_s = grace_s
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._asked: dict[int, Asked] = {}
        self._gone = False
        book = JournalBook(self._question)
        self._saver = Saver(address, lambda kind, text: self._say(op="told", kind=kind, text=text), self._others, book)

    def serve(self) -> None:
        """Serve until the agent is gone."""
        self._say(op="up", pid=os.getpid())
        while message := self._next():
            if message["op"] == "done":
                with self._lock:
                    asked = self._asked.pop(message["id"], None)
                if asked is not None:
                    asked.answer = message.get("answer")
                    asked.heard.set()
            else:
                threading.Thread(target=self._flush, args=(message,), daemon=True).start()
        with self._lock:
            self._gone = True
            for asked in self._asked.values():
                asked.heard.set()
        self._saver.flush(self._grace_s, alive=True)
        self._saver.close()

    def _next(self) -> dict[str, Any] | None:
        try:
            text = self._link.recv(64 << 10)
        except OSError:
            return None
        return json.loads(text) if text else None

    def _flush(self, order: dict[str, Any]) -> None:
        self._say(op="done", id=order["id"], failed=self._saver.flush(order["timeout_s"], alive=order["alive"]))

    def _others(self) -> None:
        self._wait(OTHERS_S, op="others")

    def _question(self, question: Mapping[str, Any]) -> dict[str, Any] | None:
        """PrimeMaster's answer, however long it is away; None when the agent is gone."""
        return self._wait(None, op="ask", question=question)

    def _wait(self, seconds: float | None, **message: Any) -> dict[str, Any] | None:
        number, asked = next(self._ids), Asked()
        with self._lock:
            if self._gone:
                return None
            self._asked[number] = asked
        self._say(id=number, **message)
        asked.heard.wait(seconds)
        return asked.answer

    def _say(self, **message: Any) -> None:
        try:
            self._link.send(json.dumps(message).encode())
        except OSError:  # the agent is gone; `serve` sees it
            return


def main(fd: int, address: str, grace_s: float = GRACE_S) -> None:
    """Serve on an inherited socket, in a process below nobody. Signals are the agent's business, not ours."""
    if os.fork():
        os._exit(0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    link = socket.socket(fileno=fd)
    link.set_inheritable(False)
    Process(link, address, grace_s).serve()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], *map(float, sys.argv[3:]))
