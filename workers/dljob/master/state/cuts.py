"""Consistent cuts of a job: the one under way, the last two committed ones, and how often the job went back to one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from immutables import Map

from dljob.master.state.checkpoint_ids import CheckpointId
from dljob.master.state.weight_versions import PublishedWeights

MAX_KEPT_CUTS = 2
"""Number of committed cuts that are kept."""
MAX_QUEUES = 256
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
    saved_checkpoint: CheckpointId | None = None
    """The checkpoint that it saved for the cut; None: not yet."""
    is_consumer: bool = True
    """Whether it has got items of a queue: consumers save first, since they must get nothing from after the cut."""


@dataclass(frozen=True, slots=True)
class OpenCut:
    """The cut under way; `at` in unix seconds."""

    number: int
    at: float
    requested_by: str
    members_by_key: Map[tuple[str, int], CutMember] = field(default_factory=Map[tuple[str, int], CutMember])
    """(role, rank) -> its part. A map: each of 10,000 ranks saves by an event of its own."""
    unsaved_count: int = 0
    """How many of them have not saved yet."""
    queues_have_begun: bool = False
    """Whether all queues have begun it: only then may ranks save."""
    queues_on_disk: bool = False
    """Whether the files of all queues are on disk."""
    queues: tuple[CutQueue, ...] = ()
    place: str = ""
    """The folder of the job's checkpoints and cuts; empty before it is sealed."""
    weight_versions: tuple[tuple[str, PublishedWeights], ...] = ()
    """(role, newest version of its weights when the cut was asked for): all ranks save later than it was published."""

    @property
    def unsaved_members(self) -> tuple[CutMember, ...]:
        """The members that have not saved yet."""
        unsaved = (
            [member for member in self.members_by_key.values() if member.saved_checkpoint is None]
            if self.unsaved_count
            else []
        )
        return tuple(sorted(unsaved, key=attrgetter("role", "rank")))

    @property
    def members_to_save(self) -> tuple[CutMember, ...]:
        """The members that are to save now: the consumers, and once they have saved the others."""
        unsaved = self.unsaved_members if self.queues_have_begun else ()
        return tuple(member for member in unsaved if member.is_consumer) or unsaved


@dataclass(frozen=True, slots=True)
class Cut:
    """A committed cut; `at` in unix seconds."""

    number: int
    at: float
    checkpoints: tuple[tuple[str, CheckpointId], ...]
    """(world, checkpoint)."""
    queues: tuple[CutQueue, ...] = ()
    weight_versions: tuple[tuple[str, PublishedWeights], ...] = ()
    """(role, version of its weights); empty in a cut of an earlier attempt, whose channels are gone."""

    def checkpoint_of(self, world: str) -> CheckpointId | None:
        """Return the checkpoint of a world; None for one that took no part."""
        return dict(self.checkpoints).get(world)


@dataclass(frozen=True, slots=True)
class Cuts:
    """All that is known of cuts."""

    last_number: int = 0
    """The number of the last cut that was begun."""
    committed_count: int = 0
    """How many cuts this attempt has committed."""
    given_up_count: int = 0
    """How many of those that it began it has given up."""
    open_cut: OpenCut | None = None
    kept_cuts: tuple[Cut, ...] = ()
    """Committed, the newest last."""
    refusal: str = ""
    """Why the last request for a cut was refused, or the last cut given up."""
    restore_count: int = 0
    """How often the job went back to a cut."""
    last_restored_number: int = 0
    """The cut that it went back to last; 0: to none, with empty queues."""
    pending_worlds: tuple[str, ...] = ()
    """Worlds that have yet to restore that cut, or to begin anew where it has no checkpoint of theirs."""
    is_last_restored_cut_damaged: bool = False
    """Whether the cut that the job went back to last turned out damaged: nobody goes on before its worlds restart."""
    worlds_beginning_anew: tuple[str, ...] = ()
    """Worlds whose cuts are all damaged: they begin anew at the next restore, with the queues."""
    queue_names: tuple[str, ...] = ()
    """Names of the job's queues."""
    folder_tokens: tuple[tuple[str, str], ...] = ()
    """(queue, token of its folder), of the queues that were opened since the job last went back to a cut."""

    @property
    def restored_cut(self) -> Cut | None:
        """The cut that the job went back to last."""
        return next((cut for cut in self.kept_cuts if cut.number == self.last_restored_number), None)

    @property
    def opened(self) -> tuple[str, ...]:
        """The queues that were opened since the job last went back."""
        opened = dict(self.folder_tokens)
        return tuple(name for name in self.queue_names if name in opened)

    @property
    def unopened(self) -> tuple[CutQueue, ...]:
        """The other queues of the cut that it went back to: they are as they are there."""
        opened, cut = dict(self.folder_tokens), self.restored_cut
        return tuple(queue for queue in cut.queues if queue.name not in opened) if cut is not None else ()


def checkpoints_allowed_by_cuts(cuts: Cuts, world: str) -> tuple[CheckpointId, ...] | None:
    """Return the checkpoints that a new run of a world may restore, the newest first; None: any.

    Empty: it begins anew, since another checkpoint of it would not fit the queues.
    """
    is_pending = world in cuts.pending_worlds
    # A world that follows another one back restores the cut of that one alone.
    allowed_cuts = [
        cut for cut in reversed(cuts.kept_cuts) if not is_pending or cut.number == cuts.last_restored_number
    ]
    checkpoints = tuple(mark for cut in allowed_cuts for mark in (cut.checkpoint_of(world),) if mark is not None)
    return checkpoints if checkpoints or is_pending or world in cuts.worlds_beginning_anew else None


def may_restore(cuts: Cuts, world: str, chosen: CheckpointId | None) -> bool:
    """Return whether a new run of a world may restore a checkpoint, or begin anew, without a mix of two moments."""
    checkpoints = checkpoints_allowed_by_cuts(cuts, world)
    if checkpoints is None:
        return True
    # Who follows others back has no choice; the first to restore decides, also that nothing can be read.
    return chosen in checkpoints if chosen is not None else not checkpoints or world not in cuts.pending_worlds


def has_sole_world_without_queues(cuts: Cuts) -> bool:
    """Return whether one world without queues makes up all cuts: each of its checkpoints is consistent by itself."""
    has_queues = bool(cuts.queue_names) or any(cut.queues for cut in cuts.kept_cuts)
    return len({*worlds_of(cuts.kept_cuts), *cuts.worlds_beginning_anew}) == 1 and not has_queues


def worlds_of(cuts: Iterable[Cut]) -> tuple[str, ...]:
    """Return the worlds with a checkpoint in any of these cuts."""
    return tuple(dict.fromkeys(world for cut in cuts for world, _ in cut.checkpoints))


def checkpoints_in_cuts(cuts: Cuts, world: str) -> tuple[CheckpointId, ...]:
    """Return the checkpoints of a world that cuts need, the one under way included."""
    role, _, rank = world.partition("/")
    members: Iterable[CutMember | None] = ()
    if cuts.open_cut is not None:
        # A rank that is a world of its own is not looked for among 10,000 others.
        members = (
            (cuts.open_cut.members_by_key.get((role, int(rank))),) if rank else cuts.open_cut.members_by_key.values()
        )
    marks = {
        member.saved_checkpoint
        for member in members
        if member and member.world == world and member.saved_checkpoint is not None
    }
    return tuple(sorted({mark for cut in cuts.kept_cuts if (mark := cut.checkpoint_of(world)) is not None} | marks))


def worlds_restored_together(cuts: Cuts, worlds: frozenset[str]) -> tuple[str, ...]:
    """Return the other worlds that go back together with these: one of them alone would not fit the queues."""
    cut_worlds = dict.fromkeys((*worlds_of(cuts.kept_cuts[-1:]), *cuts.worlds_beginning_anew))
    return tuple(world for world in cut_worlds if world not in worlds) if worlds & cut_worlds.keys() else ()
