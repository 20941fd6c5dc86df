"""Consistent cuts: who takes part, when one is committed or given up, and what the job goes back to.

A cut is committed by the event after which all is there: the files of all queues, and the checkpoints of all ranks
with a state. If any of these ranks ends before, the cut is given up; nothing depended on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

from immutables import Map

from dljob.master.failure.policy import lift
from dljob.master.failure.restart import RestartOrder, begin
from dljob.master.start import shards, weights
from dljob.master.state.checkpoint_ids import CheckpointId, Saves
from dljob.master.state.cuts import KEPT, QUEUES, Cut, CutMember, Cuts, OpenCut, choices, fits, is_alone, worlds_of
from dljob.master.state.events import (
    CheckpointDecided,
    CutAsked,
    CutBegun,
    CutDamaged,
    CutGivenUp,
    CutSealed,
    CutsFound,
    CutTaken,
    QueueOpened,
)
from dljob.master.state.evolve import evolve
from dljob.master.state.state import RankPhase
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Level, Reason
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted

_mark = attrgetter("mark")


def queue_opened(tx: StateTransaction, event: QueueOpened) -> None:
    """Record a queue of the job. A cut under way is given up: what ranks put there before they save is not in it.

    A queue whose folder is another one than before has lost its items: the job goes back to the last cut.
    """
    if event.name not in tx.cuts.queues:
        if len(tx.cuts.queues) >= QUEUES:
            return
        if tx.cuts.open is not None:
            _give_up(tx, f"queue {event.name} was opened during it")
        tx.cuts = evolve(tx.cuts, queues=(*tx.cuts.queues, event.name))
    before = dict(tx.cuts.tokens).get(event.name, "")
    if event.token not in ("", before):
        others = tuple(one for one in tx.cuts.tokens if one[0] != event.name)
        tx.cuts = evolve(tx.cuts, tokens=(*others, (event.name, event.token)))
        if before:
            _items_lost(tx, event.name)


def _items_lost(tx: StateTransaction, name: str) -> None:
    """Restart the ranks of the last cut: their states do not fit a queue without its items.

    Ranks that restart already decide later, and go back then. Without a cut the queue's users get an error.
    """
    why = f"queue {name} lost its items with the machine that held them"
    if tx.cuts.open is not None:
        _give_up(tx, why)
    if not tx.phase.active:
        return
    last = frozenset(worlds_of(tx.cuts.kept[-1:]))
    mine = (key for key in sorted(tx.ranks) if not last.isdisjoint((key[0], f"{key[0]}/{key[1]}")))
    one = next((key for key in mine if tx.ranks[key].phase.live), None)
    if one is not None:  # coupling takes the others along
        role, rank = one
        level = lift(tx.facts(role), Level.PROCESS, host_lost=False)
        begin(tx, RestartOrder(level, role, (rank,), Reason.NODE_LOST.value, why))


def found(tx: StateTransaction, event: CutsFound) -> None:
    """Take over the cuts of an earlier attempt: the first life of each of their worlds goes back to one of them."""
    numbers = [one.number for one in event.cuts] + [number for number, _ in event.damaged]
    if tx.cuts.last > 0 or not numbers:
        return
    tx.cuts = evolve(tx.cuts, last=max(numbers), kept=event.cuts, lost=event.worlds)
    # Those that the last status told of may be older than the cut.
    for name, feed in event.feeds:
        tx.feeds = tx.feeds.set(name, feed)
    tx.because(f"an earlier attempt has left cut {tx.cuts.last}")
    for number, why in event.damaged:
        _pass_over(tx, number, why, _consequence(tx.cuts, ()))


def asked(tx: StateTransaction, event: CutAsked) -> None:
    """Begin a cut, unless one is under way: its number then is the answer to both requests."""
    if tx.cuts.open is not None:
        return
    members, why = _members(tx)
    if why:
        tx.cuts = evolve(tx.cuts, refused=why)
        tx.note(reasons.CUT_GIVEN_UP, "job", f"no cut is begun: {why}")
        return
    number = tx.cuts.last + 1
    ranks = Map(((one.role, one.rank), one) for one in members)
    opened = OpenCut(number, tx.now, event.by, ranks, len(ranks), weights=weights.newest_versions(tx))
    tx.cuts = evolve(tx.cuts, last=number, refused="", open=opened)
    tx.because(f"cut {number} begins, asked for by {event.by}")


def _members(tx: StateTransaction) -> tuple[tuple[CutMember, ...], str]:
    """Return the ranks that save a state in a cut of now, or why there can be none."""
    if not tx.phase.active:
        return (), "the job ends"
    # In a later attempt its ranks may start last: a cut without its state would discard what the others fit.
    late = next((world for world in tx.cuts.pending if _may_go_back(tx, world)), None)
    if late is not None:
        return (), f"{late} has yet to go back to cut {tx.cuts.back}"
    found = list[CutMember]()
    for world in sorted(tx.saves):
        role, _, rank = world.partition("/")
        for number in [int(rank)] if rank else range(tx.facts(role).plan.replicas):
            own = tx.ranks[role, number]
            if own.phase is RankPhase.SUCCEEDED:
                continue
            if own.phase is not RankPhase.READY:
                return (), f"{role}/{number} is {own.phase.value}"
            found.append(CutMember(role, number, own.incarnation, world))
    return tuple(found), "" if found else "no rank of the job uses dljob.checkpoint"


def _may_go_back(tx: StateTransaction, world: str) -> bool:
    """Return whether a world has ranks that may still restore: another attempt may have had others."""
    role, _, rank = world.partition("/")
    if role not in tx.roles:
        return False
    ranks = [int(rank)] if rank else tx.facts(role).ranks
    return any((role, one) in tx.ranks and tx.ranks[role, one].phase is not RankPhase.SUCCEEDED for one in ranks)


def begun(tx: StateTransaction, event: CutBegun) -> None:
    """Let ranks save: all queues have begun the cut."""
    if (cut := _open(tx, event.number)) is None or cut.begun:
        return
    consumers = frozenset(event.consumers)
    ranks = Map({key: evolve(one, consumes=f"{one.role}/{one.rank}" in consumers) for key, one in cut.ranks.items()})
    tx.cuts = evolve(tx.cuts, open=evolve(cut, begun=True, ranks=ranks))


def taken(tx: StateTransaction, event: CutTaken) -> None:
    """Record the checkpoint that a rank saved for the cut."""
    if (cut := _open(tx, event.number)) is None:
        return
    key = (event.role, event.rank)
    one = cut.ranks.get(key)
    if one is None or one.incarnation != event.incarnation:
        return
    ranks = cut.ranks.set(key, evolve(one, mark=event.mark))
    tx.cuts = evolve(tx.cuts, open=evolve(cut, ranks=ranks, missing=cut.missing - (one.mark is None)))


def sealed(tx: StateTransaction, event: CutSealed) -> None:
    """Record the files of the queues."""
    if (cut := _open(tx, event.number)) is not None:
        tx.cuts = evolve(tx.cuts, open=evolve(cut, sealed=True, queues=event.queues, place=event.place))


def given_up(tx: StateTransaction, event: CutGivenUp) -> None:
    """Give a cut up: a queue or a rank could not take part, or not in time."""
    if _open(tx, event.number) is not None:
        _give_up(tx, event.why)


def _open(tx: StateTransaction, number: int) -> OpenCut | None:
    cut = tx.cuts.open
    return cut if cut is not None and cut.number == number else None


def _give_up(tx: StateTransaction, why: str) -> None:
    cut = tx.cuts.open
    assert cut is not None  # noqa: S101 - callers look
    tx.cuts = evolve(tx.cuts, open=None, refused=f"cut {cut.number}: {why}", given_up=tx.cuts.given_up + 1)
    last = tx.cuts.kept[-1].number if tx.cuts.kept else 0
    before = f"cut {last} stays the last one" if last else "there is no earlier one"
    tx.note(reasons.CUT_GIVEN_UP, "job", f"cut {cut.number} is given up: {why}; {before}")


def follow(tx: StateTransaction) -> None:
    """Give the cut up if one of its ranks is gone; commit it once all of it is on disk."""
    cut = tx.cuts.open
    if cut is None:
        return
    if not cut.ranks:  # of a state of another version, which wrote them otherwise
        _give_up(tx, "the version of dljob has changed")
    # Only ranks of this event: it runs at each event of the job, and may have 10,000 members.
    elif lost := [key for key in tx.touched.ranks if key in cut.ranks and _is_lost(tx, cut.ranks[key])]:
        role, rank = min(lost)
        _give_up(tx, f"{role}/{rank} was lost, or ended, before it was complete")
    elif cut.sealed and not cut.missing:
        _complete(tx, cut)


def _is_lost(tx: StateTransaction, one: CutMember) -> bool:
    own = tx.ranks[one.role, one.rank]
    # A rank that ended well after it had saved is no loss: what it saved is whole.
    ended = own.phase is RankPhase.SUCCEEDED and one.mark is not None
    return own.incarnation != one.incarnation or (own.phase is not RankPhase.READY and not ended)


def _complete(tx: StateTransaction, cut: OpenCut) -> None:
    """Commit a cut that all ranks have saved for once their checkpoints are on disk; ranks of a world save one step."""
    # By the event after which all have saved: the next ones change nothing in it.
    if cut is not tx.base.cuts.open:
        steps: dict[str, CheckpointId | None] = {}
        differing = [one.world for one in cut.ranks.values() if steps.setdefault(one.world, one.mark) != one.mark]
        if differing:
            _give_up(tx, f"ranks of {min(differing)} saved different steps")
            return
    # The first whose checkpoint is not on disk ends the search.
    if all(one.mark in map(_mark, tx.saves.get(one.world, Saves()).committed) for one in cut.ranks.values()):
        whole = sorted({(one.world, one.mark) for one in cut.ranks.values() if one.mark is not None})
        _commit(tx, cut, Cut(cut.number, tx.now, tuple(whole), cut.queues, cut.weights))


def _commit(tx: StateTransaction, cut: OpenCut, made: Cut) -> None:
    tx.cuts = evolve(tx.cuts, open=None, committed=tx.cuts.committed + 1, kept=(*tx.cuts.kept, made)[-KEPT:])
    shards.cut_committed(tx, tx.cuts.kept[0].number)
    items, size = sum(one.items for one in made.queues), sum(one.bytes for one in made.queues)
    steps = ", ".join(f"{world} {mark.step}" for world, mark in made.marks)
    told = f"{counted(items, 'item')} ({size / 2**20:.1f} MiB) of {counted(len(made.queues), 'queue')}"
    where = f", in {cut.place}" if cut.place else ""
    tx.note(reasons.CUT_COMMITTED, "job", f"cut {cut.number}: steps {steps}; {told}; in {tx.now - cut.at:.1f} s{where}")


def damaged(tx: StateTransaction, event: CutDamaged) -> None:
    """Pass over a cut with a damaged part, whole: its worlds and queues go back to the one before, or begin anew."""
    _drop(tx, event.number, event.why)


def _drop(tx: StateTransaction, number: int, why: str) -> None:
    cut = next((one for one in tx.cuts.kept if one.number == number), None)
    if cut is None:
        return
    kept = tuple(one for one in tx.cuts.kept if one.number != number)
    # A world that has no part in an older cut must not stay at the moment of this one.
    lost = tuple(dict.fromkeys((*tx.cuts.lost, *worlds_of((cut,)))))
    lost = () if is_alone(tx.cuts) else tuple(world for world in lost if world not in worlds_of(kept))
    # Whoever is on the way back to it restarts with the others, and goes where they go.
    broken = number == tx.cuts.back
    pending = () if broken else tx.cuts.pending
    tx.cuts = evolve(tx.cuts, kept=kept, lost=lost, pending=pending, broken=broken or tx.cuts.broken)
    _pass_over(tx, number, why, _consequence(tx.cuts, (cut,)))


def _pass_over(tx: StateTransaction, number: int, why: str, then: str) -> None:
    tx.note(reasons.CUT_DAMAGED, "job", f"cut {number} is passed over: {why}; {then}")


def _consequence(cuts: Cuts, dropped: Sequence[Cut]) -> str:
    if cuts.kept:
        return f"ranks and queues go back to cut {cuts.kept[-1].number}"
    if not dropped:
        who = f"{', '.join(cuts.lost)} begin anew with empty queues" if cuts.lost else "queues begin empty"
        return f"no cut is left: its items are lost, and {who}"
    one = dropped[-1]
    if not cuts.lost:
        return f"no cut is left: {one.marks[0][0]} restores its last checkpoint, for there is no queue it must fit"
    items = ", ".join(f"{counted(queue.items, 'item')} of {queue.name}" for queue in one.queues) or "no items"
    steps = ", ".join(f"{world} {mark.step}" for world, mark in one.marks)
    return f"no cut is left: {items} and the steps up to {steps} are lost, and all begin anew with empty queues"


def fitting(tx: StateTransaction, event: CheckpointDecided) -> bool:
    """Return whether a decision may stand. A world that cannot follow the others back makes the cut a damaged one.

    It is not recorded then: its rank fails, and all ranks of the cut restart together and decide again.
    """
    alone = _all_unreadable(tx, event)
    if _known(tx.saves, event) or (fits(tx.cuts, event.world, event.chosen) and not alone):
        return True
    for text in event.damaged:
        tx.note(reasons.CHECKPOINT_DAMAGED, event.world, text)
    for cut in reversed(tx.cuts.kept):
        if alone or (event.world in tx.cuts.pending and cut.number == tx.cuts.back):
            _drop(tx, cut.number, f"{event.world} cannot read its checkpoint")
    return False


def _all_unreadable(tx: StateTransaction, event: CheckpointDecided) -> bool:
    """Return whether the only world of a job without queues cannot read a cut: its other checkpoints are as good."""
    return event.chosen is None and choices(tx.cuts, event.world) not in (None, ()) and is_alone(tx.cuts)


def _known(saves: Mapping[str, Saves], event: CheckpointDecided) -> bool:
    return saves.get(event.world, Saves()).decision(event.life) is not None


def decided(tx: StateTransaction, event: CheckpointDecided) -> None:
    """Go back to a cut when a new life of one of its worlds restores it; the worlds that restore it with it follow."""
    if _known(tx.base.saves, event) or not _known(tx.saves, event):
        return
    cuts = tx.cuts
    if event.world in cuts.pending:
        tx.cuts = evolve(cuts, pending=tuple(one for one in cuts.pending if one != event.world))
        return
    if choices(cuts, event.world) is None:
        return
    if cuts.open is not None:
        _give_up(tx, f"{event.world} restores a checkpoint")
    # A world that is lost has no checkpoint in any cut: it begins anew, and the others take the last whole one.
    without = event.world in cuts.lost
    for one in reversed(cuts.kept):
        if not without and one.mark_of(event.world) != event.chosen:
            _drop(tx, one.number, f"{event.world} cannot read its checkpoint")
        else:
            break
    now = tx.cuts
    target = now.kept[-1] if now.kept else None
    follow = tuple(world for world in (*worlds_of(now.kept), *now.lost) if world != event.world)
    back = target.number if target is not None else 0
    ahead = tuple(dict.fromkeys(follow))
    # A queue that is opened from now on goes back first, so that its folder may be a new one.
    tx.cuts = evolve(now, epoch=cuts.epoch + 1, back=back, pending=ahead, broken=False, lost=(), tokens=())
    shards.cut_restored(tx, back)
    weights.cut_restored(tx, back, dict(target.weights) if target is not None else {})
    what = f"cut {back}" if target is not None else "the beginning, with empty queues: no cut can be read"
    tx.note(reasons.CUT_RESTORED, "job", f"{event.world} takes the job back to {what}")
