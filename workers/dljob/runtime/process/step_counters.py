"""Step counters in shared memory: how far each rank of a host is, and that the host lives, without asking any of them.

One segment per host: a memfd, which has no name, so that nothing is left of it when the last process that holds it is
gone. A rank writes its own counter (`progress()` is a write to memory and no call), the host its heartbeat, and the
agent of the node the lease. How to read, in any process that was handed the descriptor or in the host itself:

    counters = StepCounters.opened(fd)      # in the host: host.counters; in the NodeAgent: one for each host
    for count in counters.ranks():          # count.step is None while the process has told no step
        print(count.rank, count.incarnation, count.step, now() - count.at)
    now() - counters.heart()                # seconds since the host's own thread ran: a host that is stopped, or
                                            # whose C code holds the GIL, is silent; the steps above stay readable

Reading takes no lock and nothing of the writer: neither its GIL nor its life. Every value is kept twice, with a number
and a checksum, and a writer overwrites the older of the two: a reader never sees half of a value, and a writer that
dies between two instructions leaves the value before.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import sys
import threading
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

_HEAD = struct.Struct("=QII")
"""Number, length and checksum of one copy of a value."""
_WHO = struct.Struct("=qqq")
"""Rank, incarnation, nanoseconds of CLOCK_BOOTTIME; what follows is JSON."""
_HEART = struct.Struct("=q")
_LEASE = struct.Struct("=qqq?")
_HEART_AT, _LEASE_AT, _SMALL = 0, 256, 64
_RANKS_AT, ROOM = 4096, 8192
"""Where the counters begin, and how long one copy of a counter may be, in bytes."""
TRIES = 4


def now() -> float:
    """Seconds of CLOCK_BOOTTIME: the same clock in all processes of a machine."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SharedValue:
    """One value in shared memory; one writes at a time, anybody reads."""

    def __init__(self, memory: mmap.mmap, offset: int, room: int) -> None:
        self._memory = memory
        self._offsets = offset, offset + room
        self._room = room - _HEAD.size

    def number(self) -> int:
        """Grows with every write; a look that costs next to nothing, to be trusted only to tell a change."""
        return max(_HEAD.unpack_from(self._memory, at)[0] for at in self._offsets)

    def read(self) -> tuple[int, bytes] | None:
        """The number of the last write and its value, while one is being written of the one before; None: no write."""
        for _ in range(TRIES):
            whole = [copy for at in self._offsets if (copy := self._copy(at)) is not None]
            if whole:
                return max(whole)
        return None

    def write(self, value: bytes) -> None:
        """Put a value over the older copy. Raises ValueError when it is longer than the room."""
        if len(value) > self._room:
            raise ValueError(f"a value of {len(value)} bytes does not fit into {self._room}")
        last = self.read()
        number = 1 if last is None else last[0] + 1
        at = self._offsets[number % 2]
        copy = _HEAD.pack(number, len(value), _checksum(number, value)) + value
        self._memory[at : at + len(copy)] = copy

    def _copy(self, at: int) -> tuple[int, bytes] | None:
        number, length, checksum = _HEAD.unpack_from(self._memory, at)
        if not number or length > self._room:
            return None
        value = self._memory[at + _HEAD.size : at + _HEAD.size + length]
        return (number, value) if _checksum(number, value) == checksum else None


def _checksum(number: int, value: bytes) -> int:
    return zlib.crc32(value, number & 0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class Count:
    """What a rank's process told last."""

    rank: int
    incarnation: int
    step: int | None
    """None: it has told none yet."""
    metrics: Mapping[str, float]
    at: float
    """When it did, by `now`; without a step: when the process was ordered."""
    number: int
    """Grows with every write."""


class StepCounter:
    """The counter of one rank; a later process of the rank goes on in the same one."""

    def __init__(self, cell: SharedValue) -> None:
        self._cell = cell
        self._lock = threading.Lock()
        self._said = False

    def begin(self, rank: int, incarnation: int) -> None:
        """A process of the rank is ordered: what an earlier one told is over."""
        with self._lock:
            self._write(rank, incarnation, None, {})

    def put(self, rank: int, incarnation: int, step: int, metrics: Mapping[str, float]) -> None:
        """The rank's process is so far. One that was followed by another is not heard any more."""
        with self._lock:
            last = self._cell.read()
            if last is None or _WHO.unpack_from(last[1])[1] <= incarnation:
                self._write(rank, incarnation, step, metrics)

    def number(self) -> int:
        """Grows with every write."""
        return self._cell.number()

    def read(self) -> Count | None:
        """What was told last; None while the slot has no rank."""
        found = self._cell.read()
        if found is None:
            return None
        number, value = found
        rank, incarnation, at = _WHO.unpack_from(value)
        step, metrics = json.loads(value[_WHO.size :])
        return Count(rank, incarnation, step, metrics, at / 1e9, number)

    def _write(self, rank: int, incarnation: int, step: int | None, metrics: Mapping[str, float]) -> None:
        who = _WHO.pack(rank, incarnation, time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        text = json.dumps([step, dict(metrics)]).encode()
        room = ROOM - _HEAD.size - _WHO.size
        if len(text) > room:
            text = self._shortened(rank, step, metrics, room)
        self._cell.write(who + text)

    def _shortened(self, rank: int, step: int | None, metrics: Mapping[str, float], room: int) -> bytes:
        """As many of the metrics, in their order, as there is room for; said once."""
        kept: dict[str, float] = {}
        length = len(json.dumps([step, {}]))
        for name, value in metrics.items():
            length += len(json.dumps({name: value}))
            if length > room:
                break
            kept[name] = value
        if not self._said:
            self._said = True
            said = f"[dljob] rank {rank}: progress() takes {room} bytes of metrics; {len(metrics) - len(kept)} of "
            print(f"{said}{len(metrics)} are left out", file=sys.stderr)  # noqa: T201 - into the rank's log
        return json.dumps([step, kept]).encode()


@dataclass(frozen=True, slots=True)
class Renewal:
    """What PrimeMaster said of a host to the agent of its node."""

    epoch: int
    sent_at: float
    """When the agent had sent what was answered, by `now`: from then on the lease counts."""
    until: float
    """How long the host may rely on there being a next one, by `now`."""
    known: bool
    """False: it is nobody's host any more and must end itself."""


class StepCounters:
    """One host's segment."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        """To be handed to ranks and to the agent; closed by `close` alone."""
        size = os.fstat(fd).st_size
        self._memory = mmap.mmap(fd, size)
        self._heart = SharedValue(self._memory, _HEART_AT, _SMALL)
        self._lease = SharedValue(self._memory, _LEASE_AT, _SMALL)
        self.slots = [
            StepCounter(SharedValue(self._memory, at, ROOM)) for at in range(_RANKS_AT, size - ROOM, 2 * ROOM)
        ]
        """One for each rank that the host may hold."""

    @classmethod
    def made(cls, ranks: int) -> StepCounters:
        """A new segment for so many ranks."""
        fd = os.memfd_create("dljob-steps", os.MFD_CLOEXEC)
        os.ftruncate(fd, _RANKS_AT + ranks * 2 * ROOM)
        return cls(fd)

    @classmethod
    def opened(cls, fd: int) -> StepCounters:
        """A segment that another process made; the descriptor is ours now. Raises ValueError when it is none."""
        rest = os.fstat(fd).st_size - _RANKS_AT
        if rest < 0 or rest % (2 * ROOM):
            raise ValueError(f"{rest + _RANKS_AT} bytes are no segment of step counters")
        return cls(fd)

    def ranks(self) -> tuple[Count, ...]:
        """The counters of all ranks that the host was ordered to run."""
        return tuple(count for slot in self.slots if (count := slot.read()) is not None)

    def beat(self) -> None:
        """The host's own thread runs."""
        self._heart.write(_HEART.pack(time.clock_gettime_ns(time.CLOCK_BOOTTIME)))

    def heart(self) -> float:
        """When the host's own thread ran last, by `now`; 0 before the first time."""
        found = self._heart.read()
        return _HEART.unpack(found[1])[0] / 1e9 if found else 0.0

    def renew(self, renewal: Renewal) -> None:
        """Hand PrimeMaster's answer to the host."""
        times = (round(at * 1e9) for at in (renewal.sent_at, renewal.until))
        self._lease.write(_LEASE.pack(renewal.epoch, *times, renewal.known))

    def renewal(self) -> Renewal | None:
        """PrimeMaster's last answer; None before the first one."""
        found = self._lease.read()
        if found is None:
            return None
        epoch, sent_at, until, known = _LEASE.unpack(found[1])
        return Renewal(epoch, sent_at / 1e9, until / 1e9, known)

    def close(self) -> None:
        """Give the descriptor and the memory back."""
        self._memory.close()
        os.close(self.fd)
