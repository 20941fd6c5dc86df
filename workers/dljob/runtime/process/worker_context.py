"""What a rank knows of itself, and what carries its calls and its progress.

Light on purpose: scripts import it in processes that have neither ray nor torch.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from dljob.errors import CallTimeoutError, PeerLostError
from dljob.runtime.process.job_control import JobControl
from dljob.runtime.process.messages import KEEPER, JobInfo, Peer, Reply, StartOrder
from dljob.runtime.process.service_descriptor import Cards
from dljob.runtime.process.step_counters import Count, StepCounter, StepCounters

if TYPE_CHECKING:
    from dljob.master.state.views import Outcome

FOR_ANSWER = "for its answer"
"""What a call waits for once it was sent; a fragment of the error at its deadline."""


@dataclass(slots=True, eq=False)
class RankCall:
    """One call to one rank: what the caller asked for, then how far the call has come.

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
    id: str = ""
    started: float = field(default_factory=time.monotonic)
    after: int = 0
    """The newest incarnation that ended with this call in it, or before it: the call goes to a later one only."""
    again: bool = False
    """The call was sent before and lost: the callee may run it only if its method is idempotent."""
    waiting: str = FOR_ANSWER
    """What the call waits for, as the error at its deadline says."""
    stored: list[Any] = field(default_factory=list[Any])
    """Object-store references of its large arguments; they live as long as the call."""
    tried: bool = False
    """An earlier send was lost, and the method may have run there."""
    lost: str = ""
    """Why the answer was lost, where the callee's process did not die."""

    @property
    def name(self) -> str:
        """`rollout/1.generate`; of a storage actor's call its label, which says all."""
        return self.label if self.role.startswith(KEEPER) else f"{self.role}/{self.rank}.{self.label or self.method}"

    @property
    def left(self) -> float | None:
        """Seconds to the deadline, negative after it; None without one."""
        return None if self.timeout_s is None else self.timeout_s - (time.monotonic() - self.started)

    def late(self, at: float, hint: str) -> CallTimeoutError:
        """The caller's error for a deadline that passed at `at`, in seconds of the monotonic clock."""
        before = "; an earlier try may have run" if self.tried else ""
        said = f"{self.name}: no answer within {self.timeout_s:g} s, waited {at - self.started:.1f} s {self.waiting}"
        return CallTimeoutError(said + before, role=self.role, rank=self.rank, hint=hint)

    def lost_with(self, peer: Peer) -> PeerLostError:
        """The caller's error for a call that was lost with an incarnation and is not sent again."""
        who = f"{self.role}/{self.rank} (incarnation {peer.incarnation})"
        died = f"the process of {who} died with the call"
        how = f"the answer of {who} was lost: {self.lost}" if self.lost else died
        return PeerLostError(
            f"{self.name}: {how}: it may have run, or not",
            role=self.role,
            rank=self.rank,
            hint="call again if that does no harm, or declare the method @rpc(idempotent=True)",
        )


class CallTransport(Protocol):
    """What carries calls to other roles: Ray in a thread host, the host's socket in a forked rank."""

    sizes: dict[str, int]
    """How many ranks roles have, where that was heard: an elastic one has not always as many as at first."""
    lives: dict[str, int]
    """Which incarnation the rank 0 of roles is, where that was heard."""

    def send(self, call: RankCall) -> Future[Reply]:
        """Start a call; the future gives the callee's reply, or raises a CallError."""
        ...

    def ask(self, what: str, args: Sequence[Any], timeout_s: float) -> Future[Any]:
        """Ask PrimeMaster something; the future gives its answer, or raises UnreachableError."""
        ...


class Stopping(threading.Event):
    """Set when the rank is to end; true then. `reason` says why. `wait(timeout)` waits for it, in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.reason = ""

    def __bool__(self) -> bool:
        return self.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for it, for so many seconds at most; whether it is set. Whoever waits here is seen not to hang."""
        return super().wait(timeout)

    def order(self, reason: str) -> None:
        """Tell user code to end; the first reason stays."""
        if not self.is_set():
            self.reason = reason
            self.set()

    def withdraw(self) -> None:
        """The rank goes on in this process after all."""
        self.reason = ""
        self.clear()


class ProgressCounter:
    """The last step of a rank's process and its metrics, kept in a step counter; the beacon takes what is new."""

    def __init__(self, slot: StepCounter | None = None, rank: int = 0, incarnation: int = 1) -> None:
        self._slot = StepCounters.made(1).slots[0] if slot is None else slot
        self._who = rank, incarnation
        self._taken = 0
        self._slot.begin(rank, incarnation)

    def told_by(self, outcome: Outcome) -> Outcome:
        """An end with the last step in it, which no beacon may have told yet."""
        last = self._last()
        if last is None:
            return outcome
        return replace(outcome, step=last.step, metrics=tuple(last.metrics.items()))

    def put(self, step: int, metrics: Mapping[str, float]) -> None:
        """Say how far the rank is."""
        self._slot.put(*self._who, step, metrics)

    def take(self) -> tuple[int, Mapping[str, float]] | None:
        """What was put since the last call, None when nothing was."""
        if self._slot.number() == self._taken:
            return None
        last = self._last()
        if last is None or last.step is None or last.number == self._taken:
            return None
        self._taken = last.number
        return last.step, last.metrics

    def again(self) -> None:
        """The beacon that took it was not heard: take it once more."""
        self._taken = 0

    def _last(self) -> Count | None:
        last = self._slot.read()
        told = last is not None and last.step is not None and (last.rank, last.incarnation) == self._who
        return last if told else None


@dataclass(frozen=True, slots=True, eq=False)
class WorkerContext:
    """This rank, as `current_worker()` gives it."""

    job_name: str
    job_uid: str
    job_dir: str
    """The job's folder: what is written here survives restarts and is named when the job ends."""
    role: str
    rank: int
    local_rank: int
    """Counts on the host."""
    world_size: int
    """How many ranks the role has."""
    group: int
    """The role group, counted from 0."""
    incarnation: int
    """Counts the starts of this rank, from 1. Each is another process, but for restarts in process."""
    restart_reason: str
    """Why the rank was started again; empty at the first start."""
    config: Mapping[str, Any]
    """The job's config with the role's own laid over it."""
    peers: Mapping[str, int]
    """Role -> number of its ranks when this one was started, for all roles of the job."""
    devices: Mapping[str, Sequence[str]]
    """Ray resource (GPU, NPU) -> ids of the devices that this process may see; empty for a role without."""
    device_index: int
    """Which of the visible devices is this rank's own."""
    stopping: Stopping
    """True, and set, once the rank is to end; `stopping.wait(seconds)` waits for it."""
    log: logging.Logger
    calls: CallTransport = field(repr=False)
    report: Callable[[int, Mapping[str, float]], None] = field(repr=False)
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    attempt: int = 1
    """Which attempt of the job this is, counted from 1: each has a Ray of its own, or the same one anew."""
    saver: Callable[[], Mapping[str, Any]] = field(default=dict[str, Any], repr=False)
    """Asks the host where the saver of this node is, and what this rank is called there."""
    cards: Cards = field(default_factory=Cards, repr=False)
    """What this process knows of the roles that it calls."""

    @property
    def name(self) -> str:
        """How targets, logs and errors call this rank: `rollout/1`."""
        return f"{self.role}/{self.rank}"

    @property
    def job(self) -> JobControl:
        """The job this rank is of: its status, and orders to it."""
        return JobControl(self.calls, self.name, self.peers)


def renew(context: WorkerContext, later: WorkerContext) -> None:
    """Make a context, which user code may hold, say what a later one of the same rank and process says."""
    for each in fields(WorkerContext):
        object.__setattr__(context, each.name, getattr(later, each.name))


def read_only(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A view of a config that cannot be written to."""
    return MappingProxyType(dict(config))


def peers_of(job: JobInfo, order: StartOrder) -> Mapping[str, int]:
    """Role -> number of ranks, as they are when a rank is started."""
    return MappingProxyType({**dict(job.roles), **dict(order.sizes)})


def make_log(role: str, rank: int) -> logging.Logger:
    """The rank's logger: to stderr, which goes into the rank's log file."""
    log = logging.getLogger(f"dljob.worker.{role}.{rank}")
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        log.addHandler(handler)
        log.setLevel(os.environ.get("LOG_LEVEL", "INFO").upper() if _level_ok() else "INFO")
        log.propagate = False
    return log


def _level_ok() -> bool:
    return os.environ.get("LOG_LEVEL", "INFO").upper() in logging.getLevelNamesMapping()
