"""The context of a rank: its facts, and the transports of its calls and progress.

Scripts import this module in processes without ray and torch, so it imports neither.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from dljob.errors import CallTimeoutError, ErrorOrigin, PeerLostError
from dljob.runtime.process.job_control import JobControl
from dljob.runtime.process.messages import KEEPER, JobInfo, Peer, Reply, StartOrder
from dljob.runtime.process.service_descriptor import ServiceDescriptors
from dljob.runtime.process.step_counters import Count, StepCounter, StepCounters

if TYPE_CHECKING:
    from dljob.master.state.views import Outcome

ASKED = (
    "role",
    "rank",
    "method",
    "timeout_s",
    "started",
    "idempotent",
    "quiet",
    "window",
    "label",
    "ranks",
    "after",
    "only",
    "once",
    "restarts_callee",
    "published",
)
"""The fields of a RankCall that a script rank sends to its host beside the arguments; the host makes the same call."""
FOR_ANSWER = "for its answer"
"""Name of the thing that a sent call waits for, as a part of the error at its deadline."""


class PublishedVersions:
    """The last version of each weight channel that this process has published in its incarnation."""

    def __init__(self) -> None:
        self.versions: Sequence[tuple[str, tuple[int, float]]] = ()
        """Channel, version, and when its keeper took it (unix seconds)."""

    def add(self, channel: str, version: int, taken_at: float) -> None:
        """Note a version: calls that are made from now on carry it."""
        self.versions = tuple({**dict(self.versions), channel: (version, taken_at)}.items())


published_versions = PublishedVersions()


@dataclass(slots=True)
class CallSpan:
    """What is measured of a call for `dljob trace`, in monotonic seconds."""

    level: int
    """The level at which the call was sampled; -1: it was not, and is recorded only if it meets trouble."""
    sends: int = 0
    sent: float = 0.0
    """When it was last sent."""
    parked: float = 0.0
    """How long it waited for its callee to be there."""

    @property
    def is_shown(self) -> bool:
        """Whether the callee records it, too."""
        return self.level >= 0 or self.sends > 1


@dataclass(slots=True, eq=False)
class RankCall:
    """One call to one rank: the caller's request, then the progress of the call.

    `payload` is the pickled `(args, kwargs)`. The transport that carries the call fills in the fields from `id` on;
    `Call` is the message that it sends to one incarnation of the callee.
    """

    role: str
    rank: int
    method: str
    payload: bytes
    timeout_s: float | None
    idempotent: bool
    common: bytes = b""
    """Large arguments that several ranks receive, pickled apart so that they are stored once."""
    quiet: bool = False
    """The caller discards the answer; only the end of the call matters."""
    window: int = 0
    """Streams only: how many items the callee may produce ahead of the caller."""
    label: str = ""
    """The name of the call in errors, where that is not its method."""
    ranks: int = 0
    """Number of ranks of the role as the caller knows it; 0: the call does not depend on it."""
    only: int = 0
    """The one incarnation of the callee that it is for; 0: whichever lives."""
    once: bool = False
    """A lost call is not sent again: its caller decides where it goes next."""
    restarts_callee: bool = False
    """A callee that runs the call past its deadline is to be restarted."""
    published: Sequence[tuple[str, tuple[int, float]]] = field(default_factory=lambda: published_versions.versions)
    """What the caller has published (`PublishedVersions`): a callee that is more than `maxLag` behind lets it wait."""
    id: str = ""
    started: float = field(default_factory=time.monotonic)
    after: int = 0
    """The newest incarnation that ended with this call in it, or before it: the call goes to a later one only."""
    again: bool = False
    """The call was sent before and lost: the callee may run it only if its method is idempotent."""
    waiting: str = FOR_ANSWER
    """Name of the thing that the call waits for, as a part of the error at its deadline."""
    callee_line: tuple[int, str] | None = None
    """Incarnation of the callee, and the line of its code at the deadline; None: it did not say."""
    stored: tuple[Any, ...] = ()
    """References to its large arguments in Ray's store, its own and those that several ranks receive; empty where all
    are small."""
    tried: bool = False
    """An earlier send was lost, and the method may have run there."""
    lost: str = ""
    """Why the answer was lost, where the callee's process did not die."""
    span: CallSpan | None = None
    """What is measured of it; None where it is not traced."""
    died: bool = True
    """Whether a loss means that the callee died with the call: not where it refused the call, or was dead before."""

    @property
    def name(self) -> str:
        """`rollout/1.generate`; of a storage actor's call its label, which says all."""
        return self.label if self.role.startswith(KEEPER) else f"{self.role}/{self.rank}.{self.label or self.method}"

    @property
    def seconds_left(self) -> float | None:
        """Seconds to the deadline, negative after it; None without one."""
        return None if self.timeout_s is None else self.timeout_s - (time.monotonic() - self.started)

    def free(self) -> None:
        """Drop the arguments of a call that is sent no more; its future may be kept for long, and refers to it."""
        self.stored = ()
        # One that is sent `once` belongs to a stream, which may resume elsewhere with the same arguments.
        if not self.once:
            self.payload = self.common = b""

    def fits(self, incarnation: int) -> bool:
        """Whether the call may go to an incarnation of its rank."""
        return incarnation > self.after and self.only in (0, incarnation)

    def late(self, at: float, hint: str) -> CallTimeoutError:
        """Return the caller's error for a deadline that passed at `at`, in seconds of the monotonic clock."""
        before = "; an earlier try may have run" if self.tried else ""
        message = f"{self.name}: no answer within {self.timeout_s:g} s, waited {at - self.started:.1f} s {self.waiting}"
        error = CallTimeoutError(message + before, role=self.role, rank=self.rank, hint=hint)
        if self.callee_line:
            incarnation, line = self.callee_line
            callee_name = f"{self.role}/{self.rank}"
            error.origin = ErrorOrigin(callee_name, incarnation, CallTimeoutError.__name__, error.message, line)
        return error

    def lost_with(self, peer: Peer) -> PeerLostError:
        """Return the caller's error for a call that was lost with an incarnation and is not sent again."""
        callee_text = f"{self.role}/{self.rank} (incarnation {peer.incarnation})"
        died = f"the process of {callee_text} died with the call"
        how = f"the answer of {callee_text} was lost: {self.lost}" if self.lost else died
        return PeerLostError(
            f"{self.name}: {how}: it may have run, or not",
            role=self.role,
            rank=self.rank,
            incarnation=peer.incarnation,
            died=self.died,
            hint="call again if that does no harm, or declare the method @rpc(idempotent=True)",
        )


class CallTransport(Protocol):
    """The transport of calls to other roles: Ray in a thread host, the host's socket in a forked rank."""

    sizes: dict[str, int]
    """Role -> number of its ranks as last heard; that of an elastic role may differ from the planned one."""
    numbers: dict[str, tuple[int, ...]]
    """Role -> numbers of its ranks as last heard; empty where they are 0 to n-1."""
    incarnations: dict[str, int]
    """Role -> incarnation of its rank 0 as last heard."""

    def send(self, call: RankCall) -> Future[Reply]:
        """Start a call; the future gives the callee's reply, or raises a CallError."""
        ...

    def send_all(self, calls: Sequence[RankCall]) -> Sequence[Future[Reply]]:
        """Start the calls of some ranks: all of them, or none where arguments find no room."""
        return [self.send(call) for call in calls]

    def ask(self, method: str, args: Sequence[Any], timeout_s: float) -> Future[Any]:
        """Ask PrimeMaster. The future returns its answer, or raises UnreachableError."""
        ...


class Stopping(threading.Event):
    """An event that is set, and true, when the rank is to end; `reason` says why."""

    def __init__(self) -> None:
        super().__init__()
        self.reason = ""
        self.watched = False
        """Whether user code has ever looked at it: code that has not cannot know that it is to end."""

    def __bool__(self) -> bool:
        return self.is_set()

    def is_set(self) -> bool:
        """Return whether the rank is to end."""
        self.watched = True
        return super().is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds; return whether it is set. A rank that waits here does not count as hung."""
        self.watched = True
        return super().wait(timeout)

    def order(self, reason: str) -> None:
        """Ask user code to end; the first reason stays."""
        if not super().is_set():
            self.reason = reason
            self.set()

    def withdraw(self) -> None:
        """Withdraw the order: the rank goes on in this process after all."""
        self.reason = ""
        self.clear()


HELD, PUBLISHED, DEVICE = "held:", "published:", "device"
"""Names of noted values: the version of a weight channel that the rank holds, or published, and its device's MiB."""
SAVES, SAVING = "saves", "saving"
"""The same: how often this process saved a checkpoint, and for how many milliseconds it waited for that in all."""
WAITED = "waited:"
"""The same, of a role: for how many milliseconds threads of this process stood still for its answers, in all."""
COUNTED = "counted"
"""The same: that this process reports work without a step, and so counts it from 1."""
held_versions: dict[str, int] = {}
"""Weight channel -> the version that this process received last; a restart in process keeps them, as the object."""
DEVICE_S = 10.0
"""Least seconds between two looks at the memory of the device."""


def with_device(
    put: Callable[[int, Mapping[str, float]], None], note: Callable[[str, int], None]
) -> Callable[[int, Mapping[str, float]], None]:
    """Return a `put` of steps that also notes the memory of the rank's device, now and then."""
    next_at = 0.0

    def report(step: int, metrics: Mapping[str, float]) -> None:
        nonlocal next_at
        if (now := time.monotonic()) >= next_at:
            next_at = now + DEVICE_S
            used = device_mib()
            if used is not None:
                note(DEVICE, used)
        put(step, metrics)

    return report


def device_mib() -> int | None:
    """Return the MiB of device memory that torch has reserved in this process; None without torch or a device."""
    torch = sys.modules.get("torch")
    for kind in ("cuda", "npu"):
        device = getattr(torch, kind, None)
        with contextlib.suppress(Exception):  # torch may be half imported, or of another make
            if device is not None and device.is_initialized():
                return int(device.memory_reserved()) >> 20
    return None


class ProgressCounter:
    """The last step of a rank's process and its metrics, in a step counter that the heartbeat reads."""

    def __init__(self, slot: StepCounter | None = None, rank: int = 0, incarnation: int = 1) -> None:
        # A host has no rank until one is ordered: until then the counter is its own, and nobody reads it.
        self._slot = StepCounters.create(1).slots[0] if slot is None else slot
        self._who = rank, incarnation
        self._reported = 0
        self._slot.begin(rank, incarnation)

    def with_last_step(self, outcome: Outcome) -> Outcome:
        """Add the last step to an end, in case no heartbeat has carried it yet."""
        last = self._last()
        if last is None:
            return outcome
        return replace(outcome, step=last.step, metrics=tuple(last.metrics.items()))

    def put(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the rank's progress."""
        self._slot.put(*self._who, step, metrics)

    def note(self, name: str, value: int) -> None:
        """Note a value beside the steps, for the job's samples."""
        self._slot.note(*self._who, name, value)

    def take(self) -> tuple[int, Mapping[str, float]] | None:
        """Return the last step and its metrics if they are new since the last call."""
        # The number is cheap and unchecked; only if it has changed is the value read and verified.
        if self._slot.number() == self._reported:
            return None
        last = self._last()
        # A write that was torn looks like the last one again, until its writer is done.
        if last is None or last.step is None or last.number == self._reported:
            return None
        self._reported = last.number
        return last.step, last.metrics

    def restore(self) -> None:
        """Return it again at the next `take`: its heartbeat was not acknowledged."""
        self._reported = 0

    def _last(self) -> Count | None:
        last = self._slot.read()
        # The slot is shared with the rank's later processes: their steps are not this one's.
        is_own = last is not None and last.step is not None and (last.rank, last.incarnation) == self._who
        return last if is_own else None


@dataclass(frozen=True, slots=True, eq=False)
class WorkerContext:
    """This rank, as `current_worker()` returns it."""

    job_name: str
    job_uid: str
    job_dir: str
    """The job's folder; files here survive restarts, and its path is printed when the job ends."""
    role: str
    rank: int
    local_rank: int
    """The rank's number on its host, from 0."""
    world_size: int
    """The number of ranks of the role."""
    group: int
    """The number of the role group, from 0."""
    incarnation: int
    """The number of this start of the rank, from 1. Each start is another process, except for restarts in process."""
    restart_reason: str
    """Why the rank restarted; empty at its first start."""
    config: Mapping[str, Any]
    """The job's config, overridden by the role's."""
    peers: Mapping[str, int]
    """Role -> number of its ranks when this one started, for all roles of the job."""
    devices: Mapping[str, Sequence[str]]
    """Ray resource (GPU, NPU) -> ids of the devices that this process may see; empty for a role without devices."""
    device_index: int
    """The index of this rank's own device among the visible ones."""
    stopping: Stopping
    """Set, and true, once the rank is to end; `stopping.wait(seconds)` waits for it."""
    log: logging.Logger
    calls: CallTransport = field(repr=False)
    report: Callable[[int, Mapping[str, float]], None] = field(repr=False)
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    attempt: int = 1
    """The number of the job's attempt, from 1; each attempt has a Ray of its own, or the same one restarted."""
    note: Callable[[str, int], None] = field(default=lambda _name, _value: None, repr=False)
    """Notes a value of this rank for the job's samples."""
    saver: Callable[[], Mapping[str, Any]] = field(default=dict[str, Any], repr=False)
    """Asks the host for the address of the node's saver and this rank's name there."""
    descriptors: ServiceDescriptors = field(default_factory=ServiceDescriptors, repr=False)
    """This process's knowledge of the roles that it calls."""

    @property
    def name(self) -> str:
        """The rank's name in targets, logs and errors: `rollout/1`."""
        return f"{self.role}/{self.rank}"

    def suspect(self, why: str, *, rank: int | None = None) -> None:
        """Say that this rank, or another rank of its role, computes wrong results without an error.

        The reason is SilentCorruption: the rank is ended, and its node replaced, unless a rule decides otherwise. It is
        in the job's journal when this returns; the rank may end before.

        Args:
            why: what was found, in a sentence.
            rank: number of the other rank; left out: this one.

        Raises:
            NotFoundError: The role has no such rank.
            UnreachableError: PrimeMaster does not answer within a minute.
        """
        self.job.suspect((self.role, self.rank, self.incarnation), why, rank)

    @property
    def job(self) -> JobControl:
        """The rank's job: its status, and orders to it."""
        return JobControl(self.calls, self.name, self.peers)


def renew(context: WorkerContext, later: WorkerContext) -> None:
    """Update a context that user code may hold to a later incarnation of the same rank in the same process."""
    published_versions.versions = ()
    for context_field in fields(WorkerContext):
        # The class is frozen for user code alone.
        object.__setattr__(context, context_field.name, getattr(later, context_field.name))


def read_only(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a read-only copy of a config."""
    return MappingProxyType(dict(config))


def peers_of(job: JobInfo, order: StartOrder) -> Mapping[str, int]:
    """Return role -> number of ranks, at the start of a rank."""
    # The order's sizes win: an elastic role may have changed since the job was planned.
    return MappingProxyType({**dict(job.roles), **dict(order.sizes)})


def make_log(role: str, rank: int) -> logging.Logger:
    """Return the rank's logger. It writes to stderr, which is the rank's log file."""
    log = logging.getLogger(f"dljob.worker.{role}.{rank}")
    # A rank that restarts in its process comes here again.
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)
        log.setLevel(os.environ.get("LOG_LEVEL", "INFO").upper() if _level_ok() else "INFO")
        # The root logger is user code's: it would print each line a second time.
        log.propagate = False
    return log


def _level_ok() -> bool:
    return os.environ.get("LOG_LEVEL", "INFO").upper() in logging.getLevelNamesMapping()
