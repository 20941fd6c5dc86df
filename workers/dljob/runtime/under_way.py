"""A call on its way: what the router knows of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from ray import exceptions as rx

from dljob.errors import PeerLostError
from dljob.runtime.context import Outgoing
from dljob.runtime.messages import Peer

LOSSES = (
    *(rx.RayActorError, rx.ObjectLostError, rx.WorkerCrashedError),
    *(rx.OutOfMemoryError, rx.NodeDiedError, rx.LocalRayletDiedError),
)
"""How Ray says that a process is gone, or what it answered."""


class LateError(Exception):
    """The call's deadline passed."""


@dataclass(slots=True)
class Sending:
    """A call on its way: how long it may still take, what it waits for, which incarnations it will not go to."""

    call: Outgoing
    id: str
    started: float = field(default_factory=time.monotonic)
    after: int = 0
    again: bool = False
    waiting_for: str = "its answer"
    stored: list[Any] = field(default_factory=list[Any])
    """Its large arguments, which are in the object store for as long as this is here."""
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
