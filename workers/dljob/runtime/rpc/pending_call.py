"""A call on its way: what the router knows of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from ray import exceptions as rx

from dljob.calls.pending import Fate
from dljob.errors import CallTimeoutError, PeerLostError
from dljob.runtime.process.messages import Peer
from dljob.runtime.process.worker_context import Outgoing

LOSSES = (
    *(rx.RayActorError, rx.ObjectLostError, rx.WorkerCrashedError),
    *(rx.OutOfMemoryError, rx.NodeDiedError, rx.LocalRayletDiedError),
)
"""How Ray says that a process is gone, or what it answered."""
ANSWER = "for its answer"


def told(who: str, fate: bytes) -> str:
    """What a caller that gave up is told of its call; `fate`: what the callee answered, empty where it is another."""
    match fate.decode():
        case Fate.NOT_RUN:
            return f"in the queue of {who}, not run"
        case Fate.BEGUN:
            return f"{ANSWER}; {who} runs it to its end"
        case _:
            return f"{ANSWER}; it may have run"


class LateError(Exception):
    """The call's deadline passed, at this time."""

    def __init__(self) -> None:
        super().__init__()
        self.at = time.monotonic()


@dataclass(slots=True)
class PendingCall:
    """A call on its way: how long it may still take, what it waits for, which incarnations it will not go to."""

    call: Outgoing
    id: str
    started: float = field(default_factory=time.monotonic)
    after: int = 0
    again: bool = False
    waiting: str = ANSWER
    """What it waits for, as its caller is told at the deadline."""
    stored: list[Any] = field(default_factory=list[Any])
    """Its large arguments, which are in the object store for as long as this is here."""
    tried: bool = False
    """An earlier process of the callee, or this one, was lost with it: it may have run there."""
    lost: str = ""
    """Why its answer was lost, where the callee's process did not die with it."""

    @property
    def left(self) -> float | None:
        """Seconds to the deadline; None without one."""
        if self.call.timeout_s is None:
            return None
        return self.call.timeout_s - (time.monotonic() - self.started)

    @property
    def name(self) -> str:
        """As in `rollout/1.generate`."""
        return self.call.name

    def late(self, error: LateError, hint: str) -> CallTimeoutError:
        """What its caller is told after its deadline."""
        call = self.call
        waited = f"waited {error.at - self.started:.1f} s {self.waiting}"
        before = "; an earlier try may have run" if self.tried else ""
        said = f"{self.name}: no answer within {call.timeout_s:g} s, {waited}{before}"
        return CallTimeoutError(said, role=call.role, rank=call.rank, hint=hint)

    def lost_with(self, peer: Peer) -> PeerLostError:
        """What its caller is told when it is not sent again."""
        who = f"{self.call.role}/{self.call.rank} (incarnation {peer.incarnation})"
        died = f"the process of {who} died with the call"
        how = f"the answer of {who} was lost: {self.lost}" if self.lost else died
        return PeerLostError(
            f"{self.name}: {how}: it may have run, or not",
            role=self.call.role,
            rank=self.call.rank,
            hint="call again if that does no harm, or declare the method @rpc(idempotent=True)",
        )
