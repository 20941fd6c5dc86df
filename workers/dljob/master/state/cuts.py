"""Consistent cuts of a job: the one under way, the last two committed ones, and how often the job went back to one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from immutables import Map

from dljob.master.state.checkpoint_ids import CheckpointId
from dljob.master.state.weight_versions import PublishedWeights

KEPT = 2
"""Number of committed cuts that are kept."""
QUEUES = 256
"""Most queues of a job that a cut contains; more of them are refused a part in it."""


@dataclass(frozen=True, slots=True)
class CutQueue:
    """The file of one queue in a cut."""

    name: str
    path: str
    items: int
    bytes: int
    crc: int


@dataclass(frozen=True, slots=True)
class CutMember:
    """One rank that saves its state in a cut."""

    role: str
    rank: int
    incarnation: int
    world: str
    mark: CheckpointId | None = None
    """The checkpoint that it saved for the cut; None: not yet."""
    consumes: bool = True
    """Whether it has got items of a queue: consumers save first, since they must get nothing from after the cut."""


@dataclass(frozen=True, slots=True)
class OpenCut:
    """The cut under way; `at` in unix seconds."""

    number: int
    at: float
    by: str
    ranks: Map[tuple[str, int], CutMember] = field(default_factory=Map[tuple[str, int], CutMember])
    """(role, rank) -> its part. A map: each of 10,000 ranks saves by an event of its own."""
    missing: int = 0
    """How many of them have not saved yet."""
    begun: bool = False
    """Whether all queues have begun it: only then may ranks save."""
    sealed: bool = False
    """Whether the files of all queues are on disk."""
    queues: tuple[CutQueue, ...] = ()
    place: str = ""
    """The folder of the job's checkpoints and cuts; empty before it is sealed."""
    weights: tuple[tuple[str, PublishedWeights], ...] = ()
    """(role, newest version of its weights when the cut was asked for): all ranks save later than it was published."""

    @property
    def late(self) -> tuple[CutMember, ...]:
        """The members that have not saved yet."""
        late = [one for one in self.ranks.values() if one.mark is None] if self.missing else []
        return tuple(sorted(late, key=attrgetter("role", "rank")))

    @property
    def called(self) -> tuple[CutMember, ...]:
        """The members that are to save now: the consumers, and once they have saved the others."""
        late = self.late if self.begun else ()
        return tuple(one for one in late if one.consumes) or late


@dataclass(frozen=True, slots=True)
class Cut:
    """A committed cut; `at` in unix seconds."""

    number: int
    at: float
    marks: tuple[tuple[str, CheckpointId], ...]
    """(world, checkpoint)."""
    queues: tuple[CutQueue, ...] = ()
    weights: tuple[tuple[str, PublishedWeights], ...] = ()
    """(role, version of its weights); empty in a cut of an earlier attempt, whose channels are gone."""

    def mark_of(self, world: str) -> CheckpointId | None:
        """Return the checkpoint of a world; None for one that took no part."""
        return dict(self.marks).get(world)


@dataclass(frozen=True, slots=True)
class Cuts:
    """All that is known of cuts."""

    last: int = 0
    """The number of the last cut that was begun."""
    committed: int = 0
    """How many cuts this attempt has committed."""
    given_up: int = 0
    """How many of those that it began it has given up."""
    open: OpenCut | None = None
    kept: tuple[Cut, ...] = ()
    """Committed, the newest last."""
    refused: str = ""
    """Why the last request for a cut was refused, or the last cut given up."""
    epoch: int = 0
    """How often the job went back to a cut."""
    back: int = 0
    """The cut that it went back to last; 0: to none, with empty queues."""
    pending: tuple[str, ...] = ()
    """Worlds that have yet to restore that cut, or to begin anew where it has no checkpoint of theirs."""
    broken: bool = False
    """Whether the cut that the job went back to last turned out damaged: nobody goes on before its worlds restart."""
    lost: tuple[str, ...] = ()
    """Worlds whose cuts are all damaged: they begin anew at the next restore, with the queues."""
    queues: tuple[str, ...] = ()
    """Names of the job's queues."""
    tokens: tuple[tuple[str, str], ...] = ()
    """(queue, token of its folder), of the queues that were opened since the job last went back to a cut."""

    @property
    def present(self) -> Cut | None:
        """The cut that the job went back to last."""
        return next((one for one in self.kept if one.number == self.back), None)

    @property
    def opened(self) -> tuple[str, ...]:
        """The queues that were opened since the job last went back."""
        known = dict(self.tokens)
        return tuple(name for name in self.queues if name in known)

    @property
    def unopened(self) -> tuple[CutQueue, ...]:
        """The other queues of the cut that it went back to: they are as they are there."""
        known = dict(self.tokens)
        return tuple(one for one in self.present.queues if one.name not in known) if self.present is not None else ()


def choices(cuts: Cuts, world: str) -> tuple[CheckpointId, ...] | None:
    """Return the checkpoints that a new life of a world may restore, the newest first; None: any.

    Empty: it begins anew, since another checkpoint of it would not fit the queues.
    """
    # A world that follows another one back restores the cut of that one alone.
    whole = [one for one in reversed(cuts.kept) if world not in cuts.pending or one.number == cuts.back]
    found = tuple(mark for one in whole for mark in (one.mark_of(world),) if mark is not None)
    return found if found or world in cuts.pending or world in cuts.lost else None


def fits(cuts: Cuts, world: str, chosen: CheckpointId | None) -> bool:
    """Return whether a new life of a world may restore a checkpoint, or begin anew, without a mix of two moments."""
    among = choices(cuts, world)
    if among is None:
        return True
    # Who follows others back has no choice; the first to restore decides, also that nothing can be read.
    return chosen in among if chosen is not None else not among or world not in cuts.pending


def is_alone(cuts: Cuts) -> bool:
    """Return whether one world without queues makes up all cuts: each of its checkpoints is consistent by itself."""
    return len({*worlds_of(cuts.kept), *cuts.lost}) == 1 and not cuts.queues and not any(c.queues for c in cuts.kept)


def worlds_of(cuts: Iterable[Cut]) -> tuple[str, ...]:
    """Return the worlds with a checkpoint in any of these cuts."""
    return tuple(dict.fromkeys(world for one in cuts for world, _ in one.marks))


def pinned(cuts: Cuts, world: str) -> tuple[CheckpointId, ...]:
    """Return the checkpoints of a world that cuts need, the one under way included."""
    role, _, rank = world.partition("/")
    own: Iterable[CutMember | None] = ()
    if cuts.open is not None:
        # A rank that is a world of its own is not looked for among 10,000 others.
        own = (cuts.open.ranks.get((role, int(rank))),) if rank else cuts.open.ranks.values()
    made = {one.mark for one in own if one is not None and one.world == world and one.mark is not None}
    return tuple(sorted({mark for one in cuts.kept if (mark := one.mark_of(world)) is not None} | made))


def partners(cuts: Cuts, worlds: frozenset[str]) -> tuple[str, ...]:
    """Return the other worlds that go back together with these: one of them alone would not fit the queues."""
    together = dict.fromkeys((*worlds_of(cuts.kept[-1:]), *cuts.lost))
    return tuple(world for world in together if world not in worlds) if worlds & together.keys() else ()
