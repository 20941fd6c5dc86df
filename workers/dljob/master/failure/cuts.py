"""Consistent cuts: who takes part, when one is committed or given up, and what the job goes back to.

A cut is committed by the event after which all is there: the files of all queues, and the checkpoints of all ranks
with a state. If any of these ranks ends before, the cut is given up; nothing depended on it.
"""

from __future__ import annotations

from collections.abc import Mapping

from immutables import Map

from dljob.master.failure.policy import raise_to_allowed_level
from dljob.master.failure.restart import RestartOrder, begin_restart
from dljob.master.start import shards, weights
from dljob.master.state import events
from dljob.master.state.checkpoint_ids import CheckpointId, Saves
from dljob.master.state.cuts import (
    MAX_KEPT_CUTS,
    MAX_QUEUES,
    Cut,
    CutMember,
    OpenCut,
    checkpoints_allowed_by_cuts,
    has_sole_world_without_queues,
    may_restore,
    worlds_of,
)
from dljob.master.state.evolve import evolve
from dljob.master.state.state import RankPhase
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Level, Reason
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted


def handle_opened_queue(tx: StateTransaction, event: events.QueueOpened) -> None:
    """Record a queue of the job. A cut under way is given up: what ranks put there before they save is not in it.

    A queue whose folder is another one than before has lost its items: the job goes back to the last cut.
    """
    if event.name not in tx.cuts.queue_names:
        if len(tx.cuts.queue_names) >= MAX_QUEUES:
            return
        if tx.cuts.open_cut is not None:
            _give_up_cut(tx, f"queue {event.name} was opened during it")
        tx.cuts = evolve(tx.cuts, queue_names=(*tx.cuts.queue_names, event.name))
    old_token = dict(tx.cuts.folder_tokens).get(event.name, "")
    if event.token not in ("", old_token):
        other_tokens = tuple(entry for entry in tx.cuts.folder_tokens if entry[0] != event.name)
        tx.cuts = evolve(tx.cuts, folder_tokens=(*other_tokens, (event.name, event.token)))
        if old_token:
            _restart_after_lost_items(tx, event.name)


def _restart_after_lost_items(tx: StateTransaction, queue: str) -> None:
    """Restart the ranks of the last cut: their states do not fit a queue without its items.

    Ranks that restart already decide later, and go back then. Without a cut the queue's users get an error.
    """
    cause = f"queue {queue} lost its items with the machine that held them"
    if tx.cuts.open_cut is not None:
        _give_up_cut(tx, cause)
    if not tx.phase.active:
        return
    cut_worlds = worlds_of(tx.cuts.kept_cuts[-1:])
    for role, rank in sorted(tx.ranks):
        is_in_cut = role in cut_worlds or f"{role}/{rank}" in cut_worlds
        if is_in_cut and tx.ranks[role, rank].phase.live:
            level = raise_to_allowed_level(tx.facts(role), Level.PROCESS, host_lost=False)
            begin_restart(tx, RestartOrder(level, role, (rank,), Reason.NODE_LOST.value, cause))
            return  # that restart takes the other ranks of the cut along


def handle_found_cuts(tx: StateTransaction, event: events.CutsFound) -> None:
    """Take over the cuts of an earlier attempt: the first run of each of their worlds goes back to one of them."""
    cut_numbers = [cut.number for cut in event.cuts] + [cut_number for cut_number, _ in event.damaged]
    if tx.cuts.last_number > 0 or not cut_numbers:
        return
    tx.cuts = evolve(tx.cuts, last_number=max(cut_numbers), kept_cuts=event.cuts, worlds_beginning_anew=event.worlds)
    # Shard tables from the last status may be older than the cut.
    for name, feed in event.feeds:
        tx.feeds = tx.feeds.set(name, feed)
    tx.because(f"an earlier attempt has left cut {tx.cuts.last_number}")
    for cut_number, damage in event.damaged:
        _note_damaged_cut(tx, cut_number, damage, None)


def handle_cut_request(tx: StateTransaction, event: events.CutAsked) -> None:
    """Begin a cut, unless one is under way: its number then is the answer to both requests."""
    if tx.cuts.open_cut is not None:
        return
    members, refusal = _find_members_or_refusal(tx)
    if refusal:
        tx.cuts = evolve(tx.cuts, refusal=refusal)
        tx.note(reasons.CUT_GIVEN_UP, "job", f"no cut is begun: {refusal}")
        return
    cut_number = tx.cuts.last_number + 1
    members_by_key, versions = (
        Map(((member.role, member.rank), member) for member in members),
        weights.newest_versions(tx),
    )
    new_cut = OpenCut(
        cut_number, tx.now, event.by, members_by_key, unsaved_count=len(members_by_key), weight_versions=versions
    )
    tx.cuts = evolve(tx.cuts, last_number=cut_number, refusal="", open_cut=new_cut)
    tx.because(f"cut {cut_number} begins, asked for by {event.by}")


def _find_members_or_refusal(tx: StateTransaction) -> tuple[tuple[CutMember, ...], str]:
    """Return the ranks that would save a state in a cut that begins now, or why there can be none."""
    if not tx.phase.active:
        return (), "the job ends"
    # A world that has yet to go back may start last: a cut without its state would not fit the others' states.
    late_world = next((world for world in tx.cuts.pending_worlds if _has_rank_yet_to_restore(tx, world)), None)
    if late_world is not None:
        return (), f"{late_world} has yet to go back to cut {tx.cuts.last_restored_number}"
    members = list[CutMember]()
    for world in sorted(tx.saves):
        role, _, rank_text = world.partition("/")
        # Carried over from an attempt in which the role was of the other type, nobody saves for it any more.
        if bool(rank_text) == tx.facts(role).plan.elastic:
            continue
        for rank in [int(rank_text)] if rank_text else tx.facts(role).ranks:
            rank_state = tx.ranks.get((role, rank))
            if rank_state is None or rank_state.phase is RankPhase.SUCCEEDED:
                continue
            if rank_state.phase is not RankPhase.READY:
                return (), f"{role}/{rank} is {rank_state.phase.value}"
            members.append(CutMember(role, rank, rank_state.incarnation, world))
    return tuple(members), "" if members else "no rank of the job uses dljob.checkpoint"


def _has_rank_yet_to_restore(tx: StateTransaction, world: str) -> bool:
    """Return whether a world has ranks that may still restore: another attempt may have had others."""
    role, _, rank_text = world.partition("/")
    if role not in tx.roles:
        return False
    keys = [(role, rank) for rank in ([int(rank_text)] if rank_text else tx.facts(role).ranks)]
    return any(key in tx.ranks and tx.ranks[key].phase is not RankPhase.SUCCEEDED for key in keys)


def handle_begun_cut(tx: StateTransaction, event: events.CutBegun) -> None:
    """Let ranks save: all queues have begun the cut."""
    cut = _open_cut_of_number(tx, event.number)
    if cut is None or cut.queues_have_begun:
        return
    consumers, members = frozenset(event.consumers), cut.members_by_key.items()
    new_members = Map({key: evolve(member, is_consumer=f"{key[0]}/{key[1]}" in consumers) for key, member in members})
    tx.cuts = evolve(tx.cuts, open_cut=evolve(cut, queues_have_begun=True, members_by_key=new_members))


def handle_saved_checkpoint(tx: StateTransaction, event: events.CutTaken) -> None:
    """Record the checkpoint that a rank saved for the cut."""
    cut, key = _open_cut_of_number(tx, event.number), (event.role, event.rank)
    member = cut.members_by_key.get(key) if cut is not None else None
    if cut is None or member is None or member.incarnation != event.incarnation:
        return
    unsaved_count = cut.unsaved_count - 1 if member.saved_checkpoint is None else cut.unsaved_count
    members_by_key = cut.members_by_key.set(key, evolve(member, saved_checkpoint=event.mark))
    tx.cuts = evolve(tx.cuts, open_cut=evolve(cut, members_by_key=members_by_key, unsaved_count=unsaved_count))


def handle_sealed_cut(tx: StateTransaction, event: events.CutSealed) -> None:
    """Record the files of the queues."""
    cut = _open_cut_of_number(tx, event.number)
    if cut is not None:
        tx.cuts = evolve(tx.cuts, open_cut=evolve(cut, queues_on_disk=True, queues=event.queues, place=event.place))


def handle_given_up_cut(tx: StateTransaction, event: events.CutGivenUp) -> None:
    """Give a cut up: a queue or a rank could not take part, or not in time."""
    if _open_cut_of_number(tx, event.number) is not None:
        _give_up_cut(tx, event.why)


def _open_cut_of_number(tx: StateTransaction, cut_number: int) -> OpenCut | None:
    """Return the cut under way if it has this number; None: the number is that of an earlier cut, or none is open."""
    cut = tx.cuts.open_cut
    return cut if cut is not None and cut.number == cut_number else None


def _give_up_cut(tx: StateTransaction, explanation: str) -> None:
    """Give up the cut (checkpoints and queues of one moment) that is under way; the last committed one stays."""
    cut, given_up_count = tx.cuts.open_cut, tx.cuts.given_up_count + 1
    assert cut is not None  # noqa: S101 - callers look
    refusal = f"cut {cut.number}: {explanation}"
    tx.cuts = evolve(tx.cuts, open_cut=None, refusal=refusal, given_up_count=given_up_count)
    last_number = tx.cuts.kept_cuts[-1].number if tx.cuts.kept_cuts else 0
    fallback = f"cut {last_number} stays the last one" if last_number else "there is no earlier one"
    tx.note(reasons.CUT_GIVEN_UP, "job", f"cut {cut.number} is given up: {explanation}; {fallback}")


def commit_or_give_up_cut(tx: StateTransaction) -> None:
    """Give the cut up if one of its ranks is gone; commit it once all of it is on disk."""
    cut = tx.cuts.open_cut
    if cut is None:
        return
    # Only ranks that this event has changed: it runs at each event of the job, and a cut may have 10,000 members.
    changed_members = [cut.members_by_key[key] for key in tx.changes.ranks if key in cut.members_by_key]
    lost_members = [(member.role, member.rank) for member in changed_members if _is_member_lost(tx, member)]
    if not cut.members_by_key:  # of a state of another version, which wrote them otherwise
        _give_up_cut(tx, "the version of dljob has changed")
    elif lost_members:
        role, rank = min(lost_members)
        _give_up_cut(tx, f"{role}/{rank} was lost, or ended, before it was complete")
    elif cut.queues_on_disk and not cut.unsaved_count:
        _commit_if_on_disk(tx, cut)


def _is_member_lost(tx: StateTransaction, member: CutMember) -> bool:
    rank_state = tx.ranks[member.role, member.rank]
    # A rank that ended well after it had saved is no loss: what it saved is whole.
    has_saved_and_ended = rank_state.phase is RankPhase.SUCCEEDED and member.saved_checkpoint is not None
    is_present = rank_state.phase is RankPhase.READY or has_saved_and_ended
    return rank_state.incarnation != member.incarnation or not is_present


def _commit_if_on_disk(tx: StateTransaction, cut: OpenCut) -> None:
    """Commit a cut that all ranks have saved for once their checkpoints are on disk; ranks of a world save one step."""
    members = cut.members_by_key.values()
    # Only the event after which all have saved can find different steps: later ones do not change the cut.
    if cut is not tx.base.cuts.open_cut:
        saved_by_world = {member.world: member.saved_checkpoint for member in members}
        differing = [member.world for member in members if member.saved_checkpoint != saved_by_world[member.world]]
        if differing:
            _give_up_cut(tx, f"ranks of {min(differing)} saved different steps")
            return
    checkpoints: set[tuple[str, CheckpointId]] = set()
    for member in members:
        checkpoint, committed_saves = member.saved_checkpoint, tx.saves.get(member.world, Saves()).committed
        if checkpoint is None or checkpoint not in [saved.mark for saved in committed_saves]:
            return  # a later event commits the cut, once this checkpoint is on disk
        checkpoints.add((member.world, checkpoint))
    _commit_cut(tx, cut, Cut(cut.number, tx.now, tuple(sorted(checkpoints)), cut.queues, cut.weight_versions))


def _commit_cut(tx: StateTransaction, open_cut: OpenCut, cut: Cut) -> None:
    """Keep a cut that is complete on disk as the newest one, and note it."""
    kept_cuts, committed_count = (*tx.cuts.kept_cuts, cut)[-MAX_KEPT_CUTS:], tx.cuts.committed_count + 1
    tx.cuts = evolve(tx.cuts, open_cut=None, committed_count=committed_count, kept_cuts=kept_cuts)
    shards.settle_oldest_cut(tx, tx.cuts.kept_cuts[0].number)
    items, size = sum(queue.items for queue in cut.queues), sum(queue.bytes for queue in cut.queues)
    steps = ", ".join(f"{world} {checkpoint.step}" for world, checkpoint in cut.checkpoints)
    contents = f"{counted(items, 'item')} ({size / 2**20:.1f} MiB) of {counted(len(cut.queues), 'queue')}"
    location = f", in {open_cut.place}" if open_cut.place else ""
    duration = f"in {tx.now - open_cut.at:.1f} s{location}"
    tx.note(reasons.CUT_COMMITTED, "job", f"cut {open_cut.number}: steps {steps}; {contents}; {duration}")


def handle_damaged_cut(tx: StateTransaction, event: events.CutDamaged) -> None:
    """Pass over a cut with a damaged part, whole: its worlds and queues go back to the one before, or begin anew."""
    _drop_cut(tx, event.number, event.why)


def _drop_cut(tx: StateTransaction, cut_number: int, damage: str) -> None:
    """Forget a damaged cut, and note what its worlds and queues go back to instead."""
    cut = next((old_cut for old_cut in tx.cuts.kept_cuts if old_cut.number == cut_number), None)
    if cut is None:
        return
    remaining_cuts = tuple(old_cut for old_cut in tx.cuts.kept_cuts if old_cut.number != cut_number)
    remaining_worlds = frozenset(worlds_of(remaining_cuts))
    # A world without a part in an older cut begins anew: it must not stay at the moment of this one.
    affected_worlds = (
        () if has_sole_world_without_queues(tx.cuts) else (*tx.cuts.worlds_beginning_anew, *worlds_of((cut,)))
    )
    worlds_beginning_anew = tuple(world for world in dict.fromkeys(affected_worlds) if world not in remaining_worlds)
    tx.cuts = evolve(tx.cuts, kept_cuts=remaining_cuts, worlds_beginning_anew=worlds_beginning_anew)
    # Worlds on the way back to this cut restart with the others, and go where those go.
    if cut_number == tx.cuts.last_restored_number:
        tx.cuts = evolve(tx.cuts, pending_worlds=(), is_last_restored_cut_damaged=True)
    # A sole world without a cut restores any checkpoint: no later restore of a cut would end its wait.
    if not remaining_cuts and not worlds_beginning_anew:
        tx.cuts = evolve(tx.cuts, is_last_restored_cut_damaged=False)
    _note_damaged_cut(tx, cut_number, damage, cut)


def _note_damaged_cut(tx: StateTransaction, cut_number: int, damage: str, dropped_cut: Cut | None) -> None:
    """Note that a cut is passed over, and what follows. `dropped_cut`: the cut, if its content is known."""
    cuts, worlds_text = tx.cuts, ", ".join(tx.cuts.worlds_beginning_anew)
    if cuts.kept_cuts:
        new_start = f", but these begin anew and lose their steps: {worlds_text}" if worlds_text else ""
        consequence = f"ranks and queues go back to cut {cuts.kept_cuts[-1].number}{new_start}"
    elif dropped_cut is None:
        new_start = f"{worlds_text} begin anew with empty queues" if worlds_text else "queues begin empty"
        consequence = f"no cut is left: its items are lost, and {new_start}"
    elif not cuts.worlds_beginning_anew:
        sole_world = worlds_of((dropped_cut,))[0]
        consequence = f"no cut is left: {sole_world} restores its last checkpoint, for there is no queue it must fit"
    else:
        items = ", ".join(f"{counted(queue.items, 'item')} of {queue.name}" for queue in dropped_cut.queues)
        steps = ", ".join(f"{world} {checkpoint.step}" for world, checkpoint in dropped_cut.checkpoints)
        losses = f"{items or 'no items'} and the steps up to {steps} are lost"
        consequence = f"no cut is left: {losses}, and all begin anew with empty queues"
    tx.note(reasons.CUT_DAMAGED, "job", f"cut {cut_number} is passed over: {damage}; {consequence}")


def accept_decision(tx: StateTransaction, event: events.CheckpointDecided) -> bool:
    """Return whether a decision may stand. A world that cannot follow the others back makes the cut a damaged one.

    It is not recorded then: its rank fails, and all ranks of the cut restart together and decide again.
    """
    # The only world of a job without queues may go back to any other of its checkpoints: they are as good.
    has_choice = checkpoints_allowed_by_cuts(tx.cuts, event.world) not in (None, ())
    is_sole_world_unreadable = event.chosen is None and has_choice and has_sole_world_without_queues(tx.cuts)
    can_restore = may_restore(tx.cuts, event.world, event.chosen) and not is_sole_world_unreadable
    if _is_run_decided(tx.saves, event) or can_restore:
        return True
    for damage in event.damaged:
        tx.note(reasons.CHECKPOINT_DAMAGED, event.world, damage)
    for cut in reversed(tx.cuts.kept_cuts):
        is_restored = event.world in tx.cuts.pending_worlds and cut.number == tx.cuts.last_restored_number
        if is_sole_world_unreadable or is_restored:
            _drop_cut(tx, cut.number, f"{event.world} cannot read its checkpoint")
    return False


def _is_run_decided(saves: Mapping[str, Saves], event: events.CheckpointDecided) -> bool:
    """Whether it is recorded which checkpoint that run of the world restores."""
    return saves.get(event.world, Saves()).decision(event.run_id) is not None


def handle_decided_checkpoint(tx: StateTransaction, event: events.CheckpointDecided) -> None:
    """Go back to a cut when a new run of one of its worlds restores it; the worlds that restore it with it follow."""
    if _is_run_decided(tx.base.saves, event) or not _is_run_decided(tx.saves, event):
        return  # this event has not decided it
    cuts = tx.cuts
    if event.world in cuts.pending_worlds:
        tx.cuts = evolve(cuts, pending_worlds=tuple(world for world in cuts.pending_worlds if world != event.world))
        return
    if checkpoints_allowed_by_cuts(cuts, event.world) is None:
        return
    if cuts.open_cut is not None:
        _give_up_cut(tx, f"{event.world} restores a checkpoint")
    # A lost world has no checkpoint in any cut: it begins anew, and the others take the last whole one.
    candidate_cuts = () if event.world in cuts.worlds_beginning_anew else cuts.kept_cuts
    for cut in reversed(candidate_cuts):
        if cut.checkpoint_of(event.world) == event.chosen:
            break
        _drop_cut(tx, cut.number, f"{event.world} cannot read its checkpoint")
    restored_cut = tx.cuts.kept_cuts[-1] if tx.cuts.kept_cuts else None
    cut_number = restored_cut.number if restored_cut else 0
    cut_weights = dict(restored_cut.weight_versions) if restored_cut else {}
    worlds = dict.fromkeys((*worlds_of(tx.cuts.kept_cuts), *tx.cuts.worlds_beginning_anew))
    pending_worlds = tuple(world for world in worlds if world != event.world)
    restore_count = cuts.restore_count + 1
    tx.cuts = evolve(
        tx.cuts, restore_count=restore_count, last_restored_number=cut_number, pending_worlds=pending_worlds
    )
    # A queue that is opened from now on goes back first, so that its folder may be a new one.
    tx.cuts = evolve(tx.cuts, is_last_restored_cut_damaged=False, worlds_beginning_anew=(), folder_tokens=())
    shards.return_work_after_cut(tx, cut_number)
    weights.leave_versions_after_cut(tx, cut_number, cut_weights)
    destination = "the beginning, with empty queues: no cut can be read"
    if restored_cut:
        items = ", ".join(f"{counted(queue.items, 'item')} of {queue.name}" for queue in restored_cut.queues)
        destination = f"cut {cut_number}{f', with {items}' if items else ''}"
    tx.note(reasons.CUT_RESTORED, "job", f"{event.world} takes the job back to {destination}")
