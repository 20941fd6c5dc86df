"""Records of failures: the rank, the evidence, and which failure follows from which."""

from __future__ import annotations

from dataclasses import dataclass

from dljob.master.state.views import Clue, Outcome, PeerSample


@dataclass(frozen=True, slots=True)
class Consequence:
    """A failure that is listed under the fault that caused it."""

    rank: str
    incarnation: int
    cause: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A classified failure of a rank."""

    role: str
    rank: int
    incarnation: int
    node: str
    outcome: Outcome
    reports_lost_peer: bool
    """Whether it only reports that a peer is gone."""
    ended_by_master: bool
    """Whether PrimeMaster itself ended the process."""
    rule: str = ""
    """Name of the rule of `telemetry.causes`, or of the user's, that classified it; empty: none did."""

    @property
    def name(self) -> str:
        """The rank as users write it, "<role>/<rank>"."""
        return f"{self.role}/{self.rank}"


@dataclass(frozen=True, slots=True)
class HeldEnd:
    """An end of a rank that only reports the loss of a peer, held back until the cause is known or the wait is over."""

    arrival_number: int
    """Its place in the order of arrival."""
    incarnation: int
    outcome: Outcome
    ended_host_incarnation: int = 0
    """Incarnation of the host where its process ended; 0: the rank's user code ended, and its host lives."""


@dataclass(frozen=True, slots=True)
class PeerInquiry:
    """The search among the living ranks of a torch world for the cause of ends that are held. Times: unix seconds."""

    since: float
    ends_at: float
    """When the ends are handled, whether their cause is known or not."""
    held_end_count: int = 0
    """Number of held ends."""
    rank_samples: tuple[PeerSample, ...] = ()
    """What was seen of the ranks that live."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Evidence that arrived before the failure of a node or process, with the time of the last piece (unix seconds)."""

    at: float
    clues: tuple[Clue, ...]


@dataclass(frozen=True, slots=True)
class Departure:
    """A node that is announced to go and is still there. Times are unix seconds."""

    announcement: str
    """The announcement, in the words of its source."""
    since: float
    """When the announcement arrived."""
    gone_at: float
    """When the node will be gone: the announced deadline, or a default."""
    save_by: float
    """Deadline for the copies of its ranks to come to disk."""
    saved: bool = False
    """Whether the copies are on disk or the deadline passed: the ranks may leave."""
    stays: str = ""
    """Why its ranks stay until the node goes; empty: they leave as soon as they can."""
    drain_by: float | None = None
    """Until when its servers may finish their requests, out of the endpoints; None: none does."""
    drain_at: float | None = None
    """When its servers begin to finish, if they are still there; None: they have begun, or its end has no time."""
    drained: bool = False
    """Whether its servers have finished: they start again elsewhere, or if the node stays after all."""


@dataclass(frozen=True, slots=True)
class DomainMove:
    """Units that go to another topology domain once their servers have finished their requests."""

    units: tuple[str, ...]
    finish_by: float | None
    """When their servers are ended that have not finished (unix seconds); None: that time is over."""


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """A fault: what failed, why, and when it was recovered. Times are unix seconds."""

    id: int
    level: str
    reason: str
    target: str
    cause: str
    detected_at: float
    recovered_at: float | None = None
    rank: str = ""
    """The rank that failed, "<role>/<rank>"; empty where none did, as in an ordered restart."""
    incarnation: int = 0
    node: str = ""
    outcome: Outcome | None = None
    """Outcome of that rank, with the evidence."""
    reports_lost_peer: bool = False
    """Whether it only reports that a peer was gone."""
    rule: str = ""
    """Name of the rule that classified the failure; empty: none did."""
    root_number: int = 0
    """Number of the fault that it follows from; 0: none is known."""
    consequences: tuple[Consequence, ...] = ()
    """Failures that follow from it, in the order of their arrival."""
    lost: int | None = None
    """Steps that were lost: the last reached step minus that of the restored checkpoint; None: unknown."""
