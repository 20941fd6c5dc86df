"""Savers without Ray that are each other's peers: processes with agents in the test, or in-process objects."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dljob.runtime.checkpoint.carrying import AWAY, Inbox, carry
from dljob.runtime.checkpoint.peers import Offer
from dljob.runtime.checkpoint.saver import Saver
from dljob.runtime.checkpoint.wire import Wire

WITHIN_S = 60.0


class Node:
    """A saver's process and its agent. `peer` receives its copies; `others` flush before a world decides."""

    def __init__(self) -> None:
        self.address = f"@dljob-test-{secrets.token_hex(6)}"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "dljob.runtime.checkpoint.process", str(theirs.fileno()), self.address, "20"]
        subprocess.run(command, pass_fds=[theirs.fileno()], check=True)
        theirs.close()
        self.peer: Node | None = None
        self.others: list[Node] = []
        self.inbox = Inbox(self.order)
        self.changed = threading.Condition()
        self.arrived: list[tuple[str, int]] = []
        """(rank name, step) of the copies that arrived here and are kept."""
        self._wire = Wire(ours)
        self._ids = itertools.count(1)
        self._answers: dict[int, tuple[dict[str, Any], list[int]]] = {}
        up = self._wire.receive()
        assert up is not None
        self.pid = up[0]["pid"]
        self._server = threading.Thread(target=self._serve, daemon=True)
        self._server.start()

    def order(self, order: dict[str, Any]) -> tuple[dict[str, Any], Sequence[int]] | None:
        """Send an order to the saver; returns its answer."""
        number = next(self._ids)
        self._wire.send({**order, "id": number})
        with self.changed:
            assert self.changed.wait_for(lambda: number in self._answers, WITHIN_S), order
            return self._answers.pop(number)

    def has(self, name: str, step: int) -> None:
        """Wait until a copy is kept here."""
        with self.changed:
            assert self.changed.wait_for(lambda: (name, step) in self.arrived, WITHIN_S), self.arrived

    def vanishes(self) -> None:
        """Kill the saver as if with its machine: nothing is flushed to disk."""
        process = os.pidfd_open(self.pid)
        os.kill(self.pid, signal.SIGKILL)
        poll = select.poll()
        poll.register(process, select.POLLIN)
        assert poll.poll(WITHIN_S * 1000)
        os.close(process)
        self.ends()

    def ends(self) -> None:
        """End its agent."""
        with suppress(OSError):
            self._wire.socket.shutdown(socket.SHUT_RDWR)
        self._server.join(WITHIN_S)
        self._wire.close()

    def _serve(self) -> None:
        while (got := self._wire.receive()) is not None:
            message, fds = got
            if message["op"] == "done":
                with self.changed:
                    self._answers[message["id"]] = message, fds
                    self.changed.notify_all()
            elif "id" in message:
                threading.Thread(target=self._asked, args=(message, fds), daemon=True).start()

    def _asked(self, message: dict[str, Any], fds: list[int]) -> None:
        answer: dict[str, Any] = {}
        match message["op"]:
            case "ask":
                said = message["question"]
                answer = {"why": "", "yours": said["what"] == "turn", "chosen": said.get("chosen")}
            case "others":
                for other in self.others:
                    other.order({"op": "flush", "timeout_s": WITHIN_S, "alive": False})
                for other in self.others:
                    other.order({"op": "bring", "timeout_s": WITHIN_S, "folder": message["folder"]})
            case _:
                answer = {"failed": self._copy(message["offer"], fds[0])}
        with suppress(OSError):
            self._wire.send({"op": "done", "id": message["id"], "answer": answer})

    def _copy(self, offer: dict[str, Any], fd: int) -> str:
        try:
            if self.peer is None:
                return AWAY
            said = carry(fd, offer, self.peer.inbox)
            if not said:
                with self.peer.changed:
                    self.peer.arrived.append((offer["place"]["name"], offer["head"]["step"]))
                    self.peer.changed.notify_all()
            return said
        finally:
            os.close(fd)


@dataclass(eq=False)
class Straight:
    """A connection to a peer saver in this process. `said` records the result of each copy with its step."""

    peer: Saver
    between: Callable[[Mapping[str, Any], int, bytes], bytes] = lambda _offer, _at, data: data
    """Function applied to each piece in transit."""
    said: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    forgotten: list[int] = field(default_factory=list[int])
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self._inbox = Inbox(self._order)

    def carry(self, offer: Mapping[str, Any], fd: int) -> str:
        said = carry(fd, json.loads(json.dumps(offer)), self)
        with self.changed:
            self.said.append((offer["head"]["step"], said))
            self.changed.notify_all()
        return said

    def forget(self, rows: list[dict[str, Any]]) -> None:
        self.peer.keeper.forget(rows)
        with self.changed:
            self.forgotten += [row["step"] for row in rows]
            self.changed.notify_all()

    def until(self, check: Callable[[], bool]) -> None:
        """Wait until a check of the records holds."""
        with self.changed:
            assert self.changed.wait_for(check, WITHIN_S), (self.said, self.forgotten)

    def begin(self, offer: Mapping[str, Any]) -> str:
        return self._inbox.begin(offer)

    def piece(self, offer: Mapping[str, Any], at: int, data: bytes) -> None:
        self._inbox.piece(offer, at, self.between(offer, at, data))

    def finish(self, offer: Mapping[str, Any], crc: int | None) -> str:
        return self._inbox.finish(offer, crc)

    def _order(self, order: dict[str, Any]) -> tuple[dict[str, Any], Sequence[int]]:
        offer = Offer.of(order["offer"])
        if order["op"] == "came":
            return {"failed": self.peer.keeper.accept(offer, order["crc"])}, ()
        failed, fd = self.peer.keeper.allocate(offer)
        return {"failed": failed}, [fd] if fd >= 0 else ()
