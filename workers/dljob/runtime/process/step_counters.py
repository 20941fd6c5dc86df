"""Step counters in shared memory: the progress of each rank of a host, and the host's heartbeat, readable by others.

One segment per host: a memfd, which is no file, so nothing is left of it once the last process that holds it is gone.
A rank writes its own counter (`progress()` is a write to memory and no call), the host its heartbeat, and the node's
agent the lease. Any process that was handed the descriptor can read it:

    counters = StepCounters.opened(fd)      # in the host: host.counters; in the NodeAgent: one for each host
    for count in counters.ranks():          # count.step is None while the process has told no step
        print(count.rank, count.incarnation, count.step, now() - count.at)
    now() - counters.heart()                # seconds since the host's own thread ran: a host that is stopped, or
                                            # whose C code holds the GIL, is silent; the steps above stay readable

Reading takes no lock and needs nothing of the writer, neither its GIL nor its life. Every value is kept twice, each
with a number and a checksum, and a writer overwrites the older copy. So a reader never sees half of a value, and a
writer that dies between two instructions leaves the value before. No memory barriers are needed; Python has none.
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
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

_HEAD = struct.Struct("=QII")
"""The head of one copy of a value: number, length and checksum."""
_RANK_RECORD = struct.Struct("=qqq")
"""Rank, incarnation, nanoseconds of CLOCK_BOOTTIME. JSON follows: [step, metrics], and what stands beside."""
_HEART = struct.Struct("=q")
"""Nanoseconds of CLOCK_BOOTTIME at the host's last heartbeat."""
_LEASE = struct.Struct("=qqq?")
"""Epoch, sent_at and until in nanoseconds, known; see Renewal."""
# Heartbeat, lease and hello have fixed places in the first page, apart from each other: each has a writer of its own.
_HEART_AT, _LEASE_AT, _SMALL = 0, 256, 64
_HELLO_AT, _HELLO_ROOM = 512, 1536
MEMORY_NAME = "dljob-steps"
"""Name of the memory, as /proc/PID/fd shows it."""
_USAGE_AT, ROOM = 4096, 8192
"""Where the host's usage stands, and the length of one copy of it or of a rank's counter, in bytes."""
_RANKS_AT = _USAGE_AT + 2 * ROOM
"""Where the rank counters begin."""
_RANK_ROOM = 4 * ROOM + 2 * _SMALL
"""Bytes of a rank: its counter, what it does and waits for, and when it last looked at that, two copies of each."""
_PLACES = (0, ROOM), (2 * ROOM, ROOM), (4 * ROOM, _SMALL)
"""Of these, where each begins, and the length of one copy."""
SILENT_S = 6.0
"""Seconds without a look after which a process is told to be silent: it looks every 2 s, and may be short of a CPU."""
TRIES = 4
"""Number of attempts at a read while both copies are being overwritten."""


def now() -> float:
    """Return the seconds of CLOCK_BOOTTIME, the same clock in all processes of a machine."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SharedValue:
    """One value in shared memory: one writer at a time, any number of readers."""

    def __init__(self, memory: mmap.mmap, offset: int, room: int) -> None:
        self._memory = memory
        self._offsets = offset, offset + room
        self._room = room - _HEAD.size

    def number(self) -> int:
        """Return a number that grows with every write. Cheap but unchecked: use it only to notice a change."""
        return max(_HEAD.unpack_from(self._memory, at)[0] for at in self._offsets)

    def read(self) -> tuple[int, bytes] | None:
        """Return the number of the last complete write and its value; None before the first write."""
        for _ in range(TRIES):
            # Both copies are torn only if a writer overtook the reader twice, so a few tries are enough.
            whole_copies = [copy for at in self._offsets if (copy := self._copy(at)) is not None]
            if whole_copies:
                return max(whole_copies)
        return None

    def write(self, value: bytes) -> None:
        """Write a value over the older copy. Raises ValueError when it is longer than the room."""
        if len(value) > self._room:
            raise ValueError(f"a value of {len(value)} bytes does not fit into {self._room}")
        # The older copy is overwritten: the newer one stays readable until this one is complete.
        last = self.read()
        number = 1 if last is None else last[0] + 1
        at = self._offsets[number % 2]
        copy = _HEAD.pack(number, len(value), _checksum(number, value)) + value
        self._memory[at : at + len(copy)] = copy

    def _copy(self, at: int) -> tuple[int, bytes] | None:
        number, length, checksum = _HEAD.unpack_from(self._memory, at)
        # Checked before the length is used: the memory may hold half of a write, or nonsense.
        if not number or length > self._room:
            return None
        value = self._memory[at + _HEAD.size : at + _HEAD.size + length]
        return (number, value) if _checksum(number, value) == checksum else None


def _checksum(number: int, value: bytes) -> int:
    # The number is part of it: an old value below a new number would else pass for the newer one.
    return zlib.crc32(value, number & 0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class Count:
    """The last progress of a rank's process."""

    rank: int
    incarnation: int
    step: int | None
    """None until the process has reported a step."""
    metrics: Mapping[str, float]
    at: float
    """When it was written, by `now`; without a step: when the process was ordered."""
    number: int
    """Grows with every write."""
    beside: Mapping[str, int] = field(default_factory=dict[str, int])
    """Values that the process noted beside its steps, for the job's samples: name -> the last one."""


@dataclass(frozen=True, slots=True)
class ActivityReport:
    """What a rank's process does and waits for, as JSON (`activities.report`); times are by `now`."""

    rank: int
    incarnation: int
    text: str
    number: int
    """Another one for each report, and where the process falls silent or is heard again."""


class StepCounter:
    """The counter of one rank; the rank's next process uses the same one."""

    def __init__(self, progress: SharedValue, activities: SharedValue, looked_at: SharedValue) -> None:
        self._progress = progress
        self._activities = activities
        self._looked_at = looked_at
        self._lock = threading.Lock()
        self._has_warned = False
        """Whether the log says already that metrics are left out."""
        self._noted: dict[str, int] = {}
        """Name -> the last value that was noted beside the steps."""

    def begin(self, rank: int, incarnation: int) -> None:
        """Start over for a new process of the rank: the steps of an earlier one are void."""
        with self._lock:
            self._noted = {}
            self._write(rank, incarnation, None, {})

    def note(self, rank: int, incarnation: int, name: str, value: int) -> None:
        """Note a value beside the steps, which stay as they are."""
        with self._lock:
            last = self.read()
            if last is not None and last.incarnation <= incarnation and self._noted.get(name) != value:
                self._noted[name] = value
                self._write(rank, incarnation, last.step, last.metrics)

    def put(self, rank: int, incarnation: int, step: int, metrics: Mapping[str, float]) -> None:
        """Record a step of the rank's process; ignored when a later incarnation has begun."""
        with self._lock:
            last = self._progress.read()
            # A process that is being replaced may still run for a while.
            if last is None or _RANK_RECORD.unpack_from(last[1])[1] <= incarnation:
                self._write(rank, incarnation, step, metrics)

    def put_activities(self, rank: int, incarnation: int, report: Mapping[str, Any]) -> bool:
        """Record what the rank's process does and waits for (`activities.report`); False where it is too long."""
        head = _RANK_RECORD.pack(rank, incarnation, time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        text = json.dumps(report, separators=(",", ":")).encode()
        if len(head) + len(text) > ROOM - _HEAD.size:
            return False
        self._activities.write(head + text)
        return True

    def activities(self) -> ActivityReport | None:
        """Return the last report, with the time since which the process is silent; None before the first."""
        silent_since = self._silent_since()
        written = self._activities.read()
        if written is None:
            return None
        number, record = written
        rank, incarnation, _written_at = _RANK_RECORD.unpack_from(record)
        text = record[_RANK_RECORD.size :].decode()
        if silent_since is not None:
            text = json.dumps({**json.loads(text), "silent": round(silent_since, 1)}, separators=(",", ":"))
        return ActivityReport(rank, incarnation, text, 2 * number + (silent_since is not None))

    def activities_number(self) -> int:
        """Return the number of the present report; cheap but unchecked, 0 before the first."""
        number = self._activities.number()
        return number and 2 * number + (self._silent_since() is not None)

    def count_report(self) -> None:
        """Record that the process looks at what it does: one that is stopped, or holds the GIL in C code, does not."""
        self._looked_at.write(_HEART.pack(time.clock_gettime_ns(time.CLOCK_BOOTTIME)))

    def _silent_since(self) -> float | None:
        last = self._looked_at.read()
        looked = _HEART.unpack(last[1])[0] / 1e9 if last is not None else None
        return looked if looked is not None and now() - looked > SILENT_S else None

    def number(self) -> int:
        """Return a number that grows with every write."""
        return self._progress.number()

    def read(self) -> Count | None:
        """Return the last progress; None while the slot has no rank."""
        record = self._progress.read()
        if record is None:
            return None
        number, value = record
        rank, incarnation, at = _RANK_RECORD.unpack_from(value)
        step, metrics, *beside = json.loads(value[_RANK_RECORD.size :])
        return Count(rank, incarnation, step, metrics, at / 1e9, number, *beside)

    def _write(self, rank: int, incarnation: int, step: int | None, metrics: Mapping[str, float]) -> None:
        rank_record = _RANK_RECORD.pack(rank, incarnation, time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        beside = [self._noted] if self._noted else []
        text = json.dumps([step, dict(metrics), *beside]).encode()
        # `progress()` must not fail because of metrics: metrics that do not fit are left out.
        room = ROOM - _HEAD.size - _RANK_RECORD.size
        if len(text) > room:
            text = self._shortened(rank, step, metrics, room)
        self._progress.write(rank_record + text)

    def _shortened(self, rank: int, step: int | None, metrics: Mapping[str, float], room: int) -> bytes:
        """Encode as many metrics, in their order, as there is room for; warns in the log the first time."""
        fitting_metrics: dict[str, float] = {}
        length = len(json.dumps([step, {}]))
        for name, value in metrics.items():
            length += len(json.dumps({name: value}))
            if length > room:
                break
            fitting_metrics[name] = value
        if not self._has_warned:
            self._has_warned = True
            left_out = f"{len(metrics) - len(fitting_metrics)} of {len(metrics)} are left out"
            warning = f"[dljob] rank {rank}: progress() takes {room} bytes of metrics; {left_out}"
            print(warning, file=sys.stderr)  # noqa: T201 - into the rank's log
        return json.dumps([step, fitting_metrics]).encode()


@dataclass(frozen=True, slots=True)
class Renewal:
    """PrimeMaster's answer about a host, as the agent of its node passes it on."""

    epoch: int
    sent_at: float
    """When the agent sent the heartbeat that was answered, by `now`: the lease counts from then."""
    until: float
    """Until when the host may expect the next renewal, by `now`; after that it sends heartbeats itself."""
    known: bool
    """False: PrimeMaster has replaced the actor, which must end itself."""


class StepCounters:
    """One host's segment of shared memory."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        """The descriptor for ranks and the agent; only `close` closes it."""
        size = os.fstat(fd).st_size
        self._memory = mmap.mmap(fd, size)
        self._heartbeat = SharedValue(self._memory, _HEART_AT, _SMALL)
        self._lease = SharedValue(self._memory, _LEASE_AT, _SMALL)
        self._hello = SharedValue(self._memory, _HELLO_AT, _HELLO_ROOM)
        self._usage = SharedValue(self._memory, _USAGE_AT, ROOM)
        self.slots = [
            StepCounter(*(SharedValue(self._memory, at + place, room) for place, room in _PLACES))
            for at in range(_RANKS_AT, size - ROOM, _RANK_ROOM)
        ]
        """The counters of the host's ranks, one for each that it may hold."""

    @classmethod
    def create(cls, ranks: int) -> StepCounters:
        """Create a segment for so many ranks."""
        fd = os.memfd_create(MEMORY_NAME, os.MFD_CLOEXEC)
        os.ftruncate(fd, _RANKS_AT + ranks * _RANK_ROOM)
        return cls(fd)

    @classmethod
    def opened(cls, fd: int) -> StepCounters:
        """Open a segment of another process and take over the descriptor. Raises ValueError when it is none."""
        # The descriptor came from another process: a file of another length is no segment, and must not be mapped.
        rest = os.fstat(fd).st_size - _RANKS_AT
        if rest < 0 or rest % _RANK_ROOM:
            raise ValueError(f"{rest + _RANKS_AT} bytes are no segment of step counters")
        return cls(fd)

    def introduce(self, hello: bytes) -> None:
        """Write down whose counters these are, for an agent that starts while this process holds its GIL."""
        self._hello.write(hello)

    def hello(self) -> bytes:
        """Return whose counters these are; empty while nobody has introduced itself."""
        written = self._hello.read()
        return written[1] if written else b""

    def ranks(self) -> tuple[Count, ...]:
        """Return the counters of all ranks that the host was ordered to run."""
        return tuple(count for slot in self.slots if (count := slot.read()) is not None)

    def put_usage(self, usage: bytes) -> None:
        """Record the host's usage, for the node's agent; one that is too long is left out."""
        with suppress(ValueError):
            self._usage.write(usage)

    def usage_number(self) -> int:
        """Return a number that grows with every write of the usage."""
        return self._usage.number()

    def usage(self) -> bytes:
        """Return the host's usage; empty before the first time."""
        record = self._usage.read()
        return record[1] if record else b""

    def count_heartbeat(self) -> None:
        """Record that the host's own thread runs."""
        self._heartbeat.write(_HEART.pack(time.clock_gettime_ns(time.CLOCK_BOOTTIME)))

    def heart(self) -> float:
        """Return when the host's own thread last ran, by `now`; 0 before the first time."""
        record = self._heartbeat.read()
        return _HEART.unpack(record[1])[0] / 1e9 if record else 0.0

    def renew(self, renewal: Renewal) -> None:
        """Pass PrimeMaster's answer on to the host."""
        times = (round(at * 1e9) for at in (renewal.sent_at, renewal.until))
        self._lease.write(_LEASE.pack(renewal.epoch, *times, renewal.known))

    def renewal(self) -> Renewal | None:
        """Return PrimeMaster's last answer; None before the first one."""
        record = self._lease.read()
        if record is None:
            return None
        epoch, sent_at, until, known = _LEASE.unpack(record[1])
        return Renewal(epoch, sent_at / 1e9, until / 1e9, known)

    def close(self) -> None:
        """Release the descriptor and the memory."""
        self._memory.close()
        os.close(self.fd)
