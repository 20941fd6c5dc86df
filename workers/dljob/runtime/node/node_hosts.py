"""The hosts of one node as its agent knows them: it reads their step counters, and hands PrimeMaster's answers back.

A host connects and gives the descriptor of its counters (`host_channel`); when the line breaks it is gone.
Whoever ends the node's pod connects as well (`dljob.runtime.leave`), says so, and is told what becomes of the hosts.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

from dljob.runtime.node.host_channel import peer
from dljob.runtime.process import process_end
from dljob.runtime.process.messages import AgentRequest, Heartbeat, Pulse
from dljob.runtime.process.step_counters import Count, Renewal, StepCounters, now

HELLO_BYTES = 4096
SILENT_S = 1.0
"""A host whose own thread has not run for so long is silent; it does so five times a second."""
PENDING = 4
"""So many answers may wait for theirs: those of calls that were lost on the way are of no use."""
SLACK_S = 0.75
"""How much later than expected PrimeMaster may ask again before hosts speak for themselves."""
BIND_S = 0.5
ENDED = 64
"""So many processes that ended can still be asked about."""
NEVER_S = 1e6


@dataclass(slots=True)
class NodeHost:
    """One host."""

    role: str
    actor: str
    pid: int
    counters: StepCounters
    pidfd: int
    """By which the kernel tells how the process ended; -1: nothing does."""
    told: dict[int, int] = field(default_factory=dict[int, int])
    """Slot -> number of the last count that PrimeMaster has."""

    @property
    def silent_s(self) -> float:
        """How long the host's own thread has not run, when that is longer than it should be; else 0."""
        silence = now() - self.counters.heart()
        return silence if silence > SILENT_S else 0.0

    def lives(self) -> tuple[tuple[int, int], ...]:
        """Rank and incarnation of who lives in it."""
        return tuple((count.rank, count.incarnation) for count in self.counters.ranks())


@dataclass(frozen=True, slots=True)
class _Ended:
    """What is kept of a host whose line is over."""

    role: str
    pidfd: int
    lives: tuple[tuple[int, int], ...]

    def close(self) -> None:
        """Give the descriptor back."""
        if self.pidfd >= 0:
            os.close(self.pidfd)


@dataclass(frozen=True, slots=True)
class HostEnd:
    """How the process of a host ended, as the kernel tells it."""

    role: str
    status: int
    """As `os.waitpid` gives it."""
    lives: tuple[tuple[int, int], ...]
    """Rank and incarnation of who lived in it."""


@dataclass(frozen=True, slots=True)
class HostLook:
    """What can be seen of one host."""

    role: str
    actor: str
    pid: int
    silent_s: float
    """How long its own thread has not run, when that is longer than it should be: it is stopped, or C code of a rank
    in its process holds the GIL. Else 0.
    """
    counts: tuple[Count, ...]
    """Its ranks' counters; those of forked ranks go on while the host is silent."""


@dataclass(frozen=True, slots=True)
class _PendingAnswer:
    """An answer that waits for its own."""

    at: float
    pause_s: float
    counts: tuple[tuple[NodeHost, Mapping[int, int]], ...]


class NodeHosts:
    """All hosts of the node. `where` is the socket's address."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._lock = threading.Lock()
        self._hosts: dict[int, NodeHost] = {}
        self._ended: dict[int, _Ended] = {}
        """By pid; the oldest are forgotten."""
        self._numbers = count(1)
        self._epoch = 0
        self._pending: dict[int, _PendingAnswer] = {}
        self._leaving, self._told_leaving, self._may_go = "", False, ""
        self._asked = -math.inf
        self._wake, self._over = socket.socketpair()
        threading.Thread(target=self._serve, name="dljob-hosts", daemon=True).start()

    def close(self) -> None:
        """Hear nobody any more."""
        self._wake.close()

    def look(self) -> tuple[HostLook, ...]:
        """What can be seen of the hosts that live now, without asking any of them."""
        with self._lock:
            hosts = self._hosts.values()
            return tuple(HostLook(h.role, h.actor, h.pid, h.silent_s, h.counters.ranks()) for h in hosts)

    def end_of(self, pid: int) -> HostEnd | None:
        """How a host's process ended; None where the kernel does not tell, or it was none of the hosts here."""
        with self._lock:
            host = next((host for host in self._hosts.values() if host.pid == pid), None)
            known = self._ended.get(pid) if host is None else _Ended(host.role, host.pidfd, host.lives())
            if known is None or known.pidfd < 0:
                return None
            pidfd = os.dup(known.pidfd)
        try:
            status = process_end.wait_status(pidfd)
        finally:
            os.close(pidfd)
        return None if status is None else HostEnd(known.role, status, known.lives)

    # -- what PrimeMaster asks

    def heard(self, ask: AgentRequest) -> bool:
        """Take PrimeMaster's answer to an earlier report; False: a newer master was heard before."""
        with self._lock:
            if ask.epoch < self._epoch:
                return False
            self._asked, self._may_go = now(), ask.may_go
            if ask.epoch > self._epoch:  # it may know nothing of what its predecessor was told
                self._epoch = ask.epoch
                self._pending.clear()
                for host in self._hosts.values():
                    host.told.clear()
            told = self._pending.pop(ask.acked, None)
            if told is not None:
                self._answered(told, ask)
            return True

    def _answered(self, told: _PendingAnswer, ask: AgentRequest) -> None:
        there = {id(host) for host in self._hosts.values()}
        until = told.at + 1.25 * max(told.pause_s, ask.pause_s) + SLACK_S
        for host, numbers in told.counts:
            if id(host) in there:
                host.told.update(numbers)
                host.counters.renew(Renewal(ask.epoch, told.at, until, host.actor not in ask.unknown))

    def news(self) -> bool:
        """Whether a rank, or whoever ends the node, told something that PrimeMaster does not have."""
        with self._lock:
            return (bool(self._leaving) and not self._told_leaving) or any(
                (number := slot.number()) and number != host.told.get(index)
                for host in self._hosts.values()
                for index, slot in enumerate(host.counters.slots)
            )

    def report(self, ask: AgentRequest) -> Pulse:
        """What all hosts have to say; it is said again until an `AgentRequest` takes it."""
        with self._lock:
            number = next(self._numbers)
            told = [_news(host, ask.epoch) for host in self._hosts.values()]
            counts = tuple(zip(self._hosts.values(), (numbers for _, numbers in told), strict=True))
            self._pending[number] = _PendingAnswer(now(), ask.pause_s, counts)
            while len(self._pending) > PENDING:
                del self._pending[min(self._pending)]
            self._told_leaving = bool(self._leaving)
            return Pulse(os.getpid(), number, tuple(beacon for beacon, _ in told), self._leaving)

    # -- the lines of the hosts

    def _serve(self) -> None:
        server = self._bound()
        selector = selectors.DefaultSelector()
        selector.register(server, selectors.EVENT_READ)
        selector.register(self._over, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is self._over:
                    self._let_go(selector)
                    return
                if key.fileobj is server:
                    with suppress(OSError):
                        line, _ = server.accept()
                        line.setblocking(False)
                        selector.register(line, selectors.EVENT_READ)
                elif isinstance(key.fileobj, socket.socket) and not self._one(key.fileobj):
                    selector.unregister(key.fileobj)
                    key.fileobj.close()

    def _let_go(self, selector: selectors.BaseSelector) -> None:
        for key in list(selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        selector.close()
        with self._lock:
            for host in list(self._hosts.values()):
                self._remember(host)
            for ended in self._ended.values():
                ended.close()
            self._hosts.clear()
            self._ended.clear()

    def _bound(self) -> socket.socket:
        """The name may be held for a moment yet by an agent that is being ended."""
        while True:
            server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with suppress(OSError):
                server.bind(self._where)
                server.listen(128)
                server.setblocking(False)
                return server
            server.close()
            time.sleep(BIND_S)

    def _heard_of_leaving(self, line: socket.socket, why: str) -> bool:
        """Pass it on with the next answer to PrimeMaster, and say how things stand; it is asked again and again."""
        with self._lock:
            self._leaving = self._leaving or why
            said = {"may_go": self._may_go, "asked_s": min(now() - self._asked, NEVER_S)}
        with suppress(OSError):
            line.send(json.dumps(said).encode())
            return True
        return False

    def _one(self, line: socket.socket) -> bool:
        """Read what came on a line; False when it is over."""
        text, fds = b"", list[int]()
        with suppress(OSError):
            text, fds, _, _ = socket.recv_fds(line, HELLO_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        if leaves := _leaves(line, text, fds):
            return self._heard_of_leaving(line, leaves)
        host = _introduced(line, text, fds)
        with self._lock:
            gone = self._hosts.pop(line.fileno(), None)
            if gone is not None:
                self._remember(gone)
            if host is not None:
                self._hosts[line.fileno()] = host
        return host is not None

    def _remember(self, gone: NodeHost) -> None:
        if (earlier := self._ended.pop(gone.pid, None)) is not None:
            earlier.close()
        self._ended[gone.pid] = _Ended(gone.role, gone.pidfd, gone.lives())
        gone.counters.close()
        if len(self._ended) > ENDED:
            self._ended.pop(next(iter(self._ended))).close()


def _leaves(line: socket.socket, text: bytes, fds: list[int]) -> str:
    """Why the node is to go, from somebody who may say so; else empty."""
    with suppress(ValueError, AttributeError):
        if text and not fds and peer(line)[1] == os.getuid():
            return str(json.loads(text).get("leave", ""))
    return ""


def _introduced(line: socket.socket, text: bytes, fds: list[int]) -> NodeHost | None:
    """The host that says who it is; None for anybody else, and at the end of a line."""
    with suppress(ValueError, KeyError):
        pid, uid = peer(line)
        if text and fds and uid == os.getuid():
            hello = json.loads(text)
            return NodeHost(hello["role"], hello["actor"], pid, StepCounters.opened(fds[0]), process_end.opened(pid))
    for fd in fds:
        os.close(fd)
    return None


def _news(host: NodeHost, epoch: int) -> tuple[Heartbeat, Mapping[int, int]]:
    steps: dict[int, tuple[int, int, Mapping[str, float]]] = {}
    numbers: dict[int, int] = {}
    for index, slot in enumerate(host.counters.slots):
        last = slot.read() if slot.number() != host.told.get(index, 0) else None
        if last is not None:
            numbers[index] = last.number
            if last.step is not None:
                steps[last.rank] = (last.incarnation, last.step, last.metrics)
    return Heartbeat(host.role, host.actor, epoch, steps, host.silent_s), numbers
