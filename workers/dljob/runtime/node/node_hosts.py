"""The hosts of one node as its agent sees them: it reads their step counters and writes PrimeMaster's leases into them.

A host connects and hands over the descriptor of its counters (`host_channel`); when the connection breaks, the host is
gone. Hosts that were there before the agent are looked up once, as their code may hold the GIL, and count until their
process connects or ends. The pod's preStop hook (`dljob.runtime.node.prestop`) connects as well: it announces the pod's
end and asks whether the ranks have left.

Each report has a number, and PrimeMaster's next request acknowledges it. Only then are steps marked as delivered and
leases renewed, so a lost answer is repeated and never prolongs a lease.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from dljob.linux.socket_peer import peer
from dljob.runtime.forked_workers import worker_ends
from dljob.runtime.node.host_channel import present_hosts
from dljob.runtime.process import process_end
from dljob.runtime.process.messages import AgentRequest, Heartbeat, NodeHeartbeat
from dljob.runtime.process.step_counters import Count, Renewal, StepCounters, now

HELLO_BYTES = 4096
SILENT_S = 1.0
"""Seconds without a beat of the host's own thread (it runs five times a second) until the host counts as silent."""
PENDING = 4
"""Reports kept until they are acknowledged. Older ones belong to calls that were lost on the way."""
SLACK_S = 0.75
"""Seconds that PrimeMaster's next request may be late before hosts send their own heartbeats."""
BIND_S = 0.5
"""Seconds between attempts to take the socket's name from an agent that is about to end."""
ENDED = 64
"""Ended processes whose wait status can still be asked for; each costs a file descriptor."""
USAGE = -1
"""Stands among the slots of ranks for the host's usage."""
ACTIVITIES = 1 << 20
"""Added to a slot, it stands for what the rank does and waits for."""


@dataclass(slots=True)
class NodeHost:
    """A host with an open connection."""

    role: str
    actor: str
    pid: int
    counters: StepCounters
    pidfd: int
    """Descriptor through which the kernel gives the process's wait status; -1 where it cannot."""
    reported: dict[int, int] = field(default_factory=dict[int, int])
    """Slot -> number of its last count that PrimeMaster has acknowledged."""

    @property
    def silent_s(self) -> float:
        """Seconds since the host's own thread last ran; 0 up to SILENT_S."""
        silence = now() - self.counters.heart()
        return silence if silence > SILENT_S else 0.0

    def kill(self) -> None:
        """Send SIGKILL: a host that is stopped cannot read that PrimeMaster does not know it any more.

        Ray, which was asked to end it, waits 5 s for a process to end by itself (`kill_worker_timeout_milliseconds`),
        and as long its resources are not free for the next one.
        """
        if self.pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def has_ended(self) -> bool:
        """Whether its process has ended; True where the kernel cannot tell."""
        return self.pidfd < 0 or process_end.has_ended(self.pidfd)

    def close(self) -> None:
        """Release the counters and the process descriptor."""
        self.counters.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)

    def incarnations(self) -> tuple[tuple[int, int], ...]:
        """Return (rank, incarnation) of each rank in the host."""
        return tuple((count.rank, count.incarnation) for count in self.counters.ranks())


@dataclass(frozen=True, slots=True)
class _Ended:
    """The remains of a host whose connection has closed."""

    role: str
    pidfd: int
    incarnations: tuple[tuple[int, int], ...]

    def close(self) -> None:
        """Close the process descriptor."""
        if self.pidfd >= 0:
            os.close(self.pidfd)


@dataclass(frozen=True, slots=True)
class HostEnd:
    """How the process of a host ended, as the kernel reports it."""

    role: str
    status: int
    """Wait status, as `os.waitpid` gives it."""
    incarnations: tuple[tuple[int, int], ...]
    """Rank and incarnation of each rank that lived in it."""


@dataclass(frozen=True, slots=True)
class HostLook:
    """The state of one host, seen from outside."""

    role: str
    actor: str
    pid: int
    silent_s: float
    """Seconds since its own thread last ran; 0 while that is normal.

    A silent host is stopped, or C code of a rank in its process holds the GIL.
    """
    counts: tuple[Count, ...]
    """Its ranks' counters. Forked ranks write theirs even while the host is silent."""


@dataclass(frozen=True, slots=True)
class _PendingAnswer:
    """A report that PrimeMaster has not acknowledged yet."""

    at: float
    pause_s: float
    counts: tuple[tuple[NodeHost, Mapping[int, int]], ...]


class NodeHosts:
    """All hosts of the node, served by a thread of its own. `where` is the address of the socket."""

    def __init__(self, agent_address: str) -> None:
        self._address = agent_address
        self._lock = threading.Lock()
        self._hosts: dict[int, NodeHost] = {}
        """By the descriptor of the connection; a host that was looked up and has not connected, by its negative pid."""
        self._ended: dict[int, _Ended] = {}
        """By pid; beyond ENDED the oldest is dropped."""
        self._numbers = count(1)
        self._epoch = 0
        self._pending: dict[int, _PendingAnswer] = {}
        self._leaving, self._reported_leaving, self._may_go = "", False, ""
        # An agent that has just been made was not asked yet, which is no silence of PrimeMaster.
        self._last_request = now()
        self._wake, self._over = socket.socketpair()
        threading.Thread(target=self._serve, name="dljob-hosts", daemon=True).start()

    def close(self) -> None:
        """Stop serving, and close all connections."""
        self._wake.close()

    def observe(self) -> tuple[HostLook, ...]:
        """Return the state of all present hosts, without a question to any of them."""
        with self._lock:
            hosts = self._hosts.values()
            return tuple(HostLook(h.role, h.actor, h.pid, h.silent_s, h.counters.ranks()) for h in hosts)

    def end_of(self, pid: int) -> HostEnd | None:
        """Return how a host's process ended; None where neither the kernel nor who forked it can tell."""
        with self._lock:
            known = self._known(pid)
            # A copy: waiting happens without the lock, and the host's own may be closed meanwhile.
            pidfd = os.dup(known.pidfd) if known is not None and known.pidfd >= 0 else -1
        # A host that is not known ended before it could introduce itself.
        status = worker_ends.wait_status(pid) if pidfd < 0 else _status(pid, pidfd)
        role, incarnations = ("", ()) if known is None else (known.role, known.incarnations)
        return None if status is None else HostEnd(role, status, incarnations)

    def exists(self, pid: int) -> bool:
        """Whether a host's process, whose connection may have closed, has not ended; False for no host of this node."""
        with self._lock:
            known = self._known(pid)
            return known is not None and known.pidfd >= 0 and not process_end.has_ended(known.pidfd)

    def _known(self, pid: int) -> _Ended | None:
        """Return what is known of a host, present or former. The caller has the lock."""
        host = next((host for host in self._hosts.values() if host.pid == pid), None)
        return self._ended.get(pid) if host is None else _Ended(host.role, host.pidfd, host.incarnations())

    # -- requests of PrimeMaster

    def accept_request(self, ask: AgentRequest) -> bool:
        """Take PrimeMaster's acknowledgement of an earlier report.

        False when the request is of an older epoch than an earlier one: it must change nothing.
        """
        with self._lock:
            if ask.epoch < self._epoch:
                return False
            self._last_request, self._may_go = now(), ask.may_go
            if ask.epoch > self._epoch:  # a new master may not have what the old one acknowledged: report all again
                self._epoch = ask.epoch
                self._pending.clear()
                for host in self._hosts.values():
                    host.reported.clear()
            answered_report = self._pending.pop(ask.acked, None)
            if answered_report is not None:
                self._answered(answered_report, ask)
            return True

    def _answered(self, answered_report: _PendingAnswer, ask: AgentRequest) -> None:
        present_ids = {id(host) for host in self._hosts.values()}
        # The lease counts from the report, not from its answer, as with a heartbeat of the host's own. The next renewal
        # is overdue after a quarter of the pause and SLACK_S; then the host sends heartbeats itself.
        until = answered_report.at + 1.25 * max(answered_report.pause_s, ask.pause_s) + SLACK_S
        # A host may have gone since the report; its counters are unmapped, and must not be written.
        for host, numbers in answered_report.counts:
            if id(host) in present_ids:
                host.reported.update(numbers)
                known = host.actor not in ask.unknown
                host.counters.renew(Renewal(ask.epoch, answered_report.at, until, known))
                if not known and host.silent_s:
                    host.kill()

    def has_unreported(self) -> bool:
        """Return whether a rank's step or the announced end of the pod has not reached PrimeMaster yet."""
        with self._lock:
            return (bool(self._leaving) and not self._reported_leaving) or any(
                (number := slot.number()) and number != host.reported.get(index)
                for host in self._hosts.values()
                for index, slot in enumerate(host.counters.slots)
            )

    def report(self, ask: AgentRequest) -> NodeHeartbeat:
        """Return the heartbeats of all hosts. Their steps are repeated until an `AgentRequest` acknowledges them."""
        with self._lock:
            for key in [key for key, host in self._hosts.items() if key < 0 and host.has_ended()]:
                self._remember(self._hosts.pop(key))
            number = next(self._numbers)
            heartbeats = [_heartbeat_of(host, ask.epoch) for host in self._hosts.values()]
            counts = tuple(zip(self._hosts.values(), (numbers for _, numbers in heartbeats), strict=True))
            self._pending[number] = _PendingAnswer(now(), ask.pause_s, counts)
            while len(self._pending) > PENDING:
                del self._pending[min(self._pending)]
            self._reported_leaving = bool(self._leaving)
            return NodeHeartbeat(os.getpid(), number, tuple(heartbeat for heartbeat, _ in heartbeats), self._leaving)

    # -- connections of the hosts

    def _serve(self) -> None:
        server = self._bound()
        self._look_up_hosts()
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
                        # One thread serves all: a host that stops in mid-message must not hold up the others.
                        line.setblocking(False)
                        selector.register(line, selectors.EVENT_READ)
                elif isinstance(key.fileobj, socket.socket) and not self._read_message(key.fileobj):
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

    def _look_up_hosts(self) -> None:
        """Take the hosts that were there before the agent listened; those that start now connect by themselves."""
        for hello, counters in present_hosts(self._address):
            pid = int(hello["pid"])
            with self._lock:
                self._hosts[-pid] = NodeHost(hello["role"], hello["actor"], pid, counters, process_end.opened(pid))

    def _bound(self) -> socket.socket:
        """Bind the socket; an agent that is being ended may hold the name for a moment yet."""
        while True:
            server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with suppress(OSError):
                server.bind(self._address)
                server.listen(128)
                server.setblocking(False)
                return server
            server.close()
            time.sleep(BIND_S)

    def _heard_of_leaving(self, line: socket.socket, reason: str) -> bool:
        """Note the announced end of the pod for the next report, and answer the hook, which polls."""
        with self._lock:
            self._leaving = self._leaving or reason  # several hooks may announce it: the first reason stays
            answer = {"may_go": self._may_go, "asked_s": now() - self._last_request}
        with suppress(OSError):
            line.send(json.dumps(answer).encode())
            return True
        return False

    def _read_message(self, line: socket.socket) -> bool:
        """Read one message of a connection; False closes it."""
        text, fds = b"", list[int]()
        with suppress(OSError):
            text, fds, _, _ = socket.recv_fds(line, HELLO_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        if leaves := _leaves(line, text, fds):
            return self._heard_of_leaving(line, leaves)
        host = _introduced(line, text, fds)
        with self._lock:
            # A host sends its descriptor once; anything later on its connection, an end included, replaces or removes
            # it.
            earlier_host = self._hosts.pop(line.fileno(), None)
            if earlier_host is not None:
                self._remember(earlier_host)
            if host is not None:
                self._hosts[line.fileno()] = host
                if (unconnected := self._hosts.pop(-host.pid, None)) is not None:
                    unconnected.close()
        return host is not None

    def _remember(self, ended_host: NodeHost) -> None:
        if (earlier := self._ended.pop(ended_host.pid, None)) is not None:
            earlier.close()
        # The open pidfd keeps the wait status readable, and the pid cannot be mistaken for another process's.
        self._ended[ended_host.pid] = _Ended(ended_host.role, ended_host.pidfd, ended_host.incarnations())
        # Unmapped at once: `_answered` skips hosts that are gone.
        ended_host.counters.close()
        if len(self._ended) > ENDED:
            self._ended.pop(next(iter(self._ended))).close()


def _status(pid: int, pidfd: int) -> int | None:
    """Return the wait status of a process, and close its descriptor; None where it lives, or nobody can tell."""
    try:
        status = process_end.wait_status(pidfd)
        lives = not process_end.has_ended(pidfd)
    finally:
        os.close(pidfd)
    return worker_ends.wait_status(pid) if status is None and not lives else status


def _leaves(line: socket.socket, text: bytes, fds: list[int]) -> str:
    """Return the reason of an announced end, from a process of this user; else an empty text."""
    with suppress(ValueError, AttributeError):
        if text and not fds and peer(line)[1] == os.getuid():
            return str(json.loads(text).get("leave", ""))
    return ""


def _introduced(line: socket.socket, text: bytes, fds: list[int]) -> NodeHost | None:
    """Return the host that introduces itself; None for any other message, and at the end of a connection."""
    with suppress(ValueError, KeyError):
        pid, uid = peer(line)
        if text and fds and uid == os.getuid():
            hello = json.loads(text)
            return NodeHost(hello["role"], hello["actor"], pid, StepCounters.opened(fds[0]), process_end.opened(pid))
    # Descriptors that come with a message are ours now, also those of a stranger.
    for fd in fds:
        os.close(fd)
    return None


def _heartbeat_of(host: NodeHost, epoch: int) -> tuple[Heartbeat, Mapping[int, int]]:
    steps: dict[int, tuple[int, int, Mapping[str, float]]] = {}
    numbers: dict[int, int] = {}
    for index, slot in enumerate(host.counters.slots):
        last = slot.read() if slot.number() != host.reported.get(index, 0) else None
        # A count without a step is acknowledged, too: it would else be news for ever.
        if last is not None:
            numbers[index] = last.number
            if last.step is not None:
                steps[last.rank] = (last.incarnation, last.step, last.metrics)
    usage: Mapping[str, Any] = {}
    # With the next heartbeat, whenever that is: samples are in no hurry.
    if (number := host.counters.usage_number()) != host.reported.get(USAGE, 0) and (text := host.counters.usage()):
        numbers[USAGE], usage = number, json.loads(text)
    activities: dict[int, tuple[int, float, str]] = {}
    for index, slot in enumerate(host.counters.slots, ACTIVITIES):
        if slot.activities_number() != host.reported.get(index, 0) and (report := slot.activities()) is not None:
            numbers[index] = report.number
            activities[report.rank] = (report.incarnation, now(), report.text)
    return Heartbeat(host.role, host.actor, epoch, steps, host.silent_s, usage, activities), numbers
