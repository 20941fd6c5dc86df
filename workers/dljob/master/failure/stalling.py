"""Stalls: which of them stand, and whether one that stands no more went on by itself or was ended by a restart.

PrimeMaster's shell finds stalls by asking ranks what they wait for. Its word is a list of all that stand, so a late,
repeated or lost report is put right by the next one.
"""

from __future__ import annotations

from collections.abc import Iterable

from dljob.errors import ErrorOrigin
from dljob.master.state.events import StallsFound
from dljob.master.state.evolve import evolve
from dljob.master.state.stalls import Stall, describe, stalled_ranks
from dljob.master.state.state import JobState, RankKey, RankPhase
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Outcome, Reason
from dljob.telemetry import reasons
from dljob.telemetry.wording import seconds

_RUNNING_PHASES = (RankPhase.STARTING, RankPhase.READY)
"""Phases of ranks that can wait for something: a rank that was asked to end is no longer in a stall."""


def standing_stalls(state: JobState | StateTransaction, stalls: Iterable[Stall]) -> tuple[Stall, ...]:
    """Return the stalls of a report as the state records them; equal to `state.stalls` where the report is no news.

    Ranks that are not there, have ended or are being restarted are left out, and so is a stall without any other. A
    stall that is already known keeps the `since` of its first report, so that its age never jumps.
    """
    known_stalls = {stall.name: stall for stall in state.stalls}
    recorded_stalls: list[Stall] = []
    for stall in stalls:
        known_stall = known_stalls.get(stall.name, stall)
        is_hung = known_stall.hung or any(_was_found_hung(state, key, known_stall.since) for key in stall.ranks)
        recorded_stalls.append(evolve(stall, ranks=_waiting_ranks(state, stall), since=known_stall.since, hung=is_hung))
    standing = (stall for stall in recorded_stalls if stall.ranks)
    return tuple(sorted(standing, key=lambda stall: (stall.since, stall.name)))


def report_stalls(tx: StateTransaction, event: StallsFound) -> None:
    """Record the stalls that stand now; note each new one, and each that ended without a restart."""
    if not tx.phase.active:
        return
    old_stalls, present_stalls = tx.stalls, standing_stalls(tx, event.stalls)
    if present_stalls == old_stalls:
        return
    old_names, present_names = {stall.name for stall in old_stalls}, {stall.name for stall in present_stalls}
    _set_stalls(tx, present_stalls)
    new_stalls = [stall for stall in present_stalls if stall.name not in old_names]
    # A stall whose root turns out to be another one is reported under a new name: it did not end. A new one has stood
    # for longer than since the last report, and so was there while the old one still stood.
    renamed_ranks = stalled_ranks(new_stalls)
    for stall in old_stalls:
        if stall.name not in present_names:
            tx.changes.resumed_ranks.update(stall.ranks)
            if not any(key in renamed_ranks for key in stall.ranks):
                _note_stall_end(tx, stall)
    for stall in new_stalls:
        tx.note(reasons.STALL_FOUND, stall.blocker_text, describe(stall, tx.now), seconds=tx.now - stall.since)


def blame_root(tx: StateTransaction, key: RankKey, outcome: Outcome) -> Outcome:
    """Return the end of a rank that was kept waiting in a stall as an end by its root, with the stall's sentence.

    Of a circle another one of its ranks stands for all. The outcome of a rank that waits in no stall is returned as it
    is.
    """
    for stall in tx.stalls:
        if key not in stall.ranks or stall.root == _rank_name(key):
            continue
        blamed_keys = [other_key for other_key in stall.ranks if other_key != key]
        if not stall.is_circle:
            blamed_keys = [other_key for other_key in blamed_keys if _rank_name(other_key) == stall.root]
        # A root that has ended is not among the ranks of the stall.
        blamed_rank = _rank_name(blamed_keys[0]) if blamed_keys else stall.root
        incarnation = tx.ranks[blamed_keys[0]].incarnation if blamed_keys else 0
        if blamed_rank:
            origin = ErrorOrigin(blamed_rank, incarnation, error_type="", message=describe(stall, tx.now), frame="")
            return evolve(outcome, reason=Reason.HANG, origin=origin)
    return outcome


def hang_sentence(state: JobState, key: RankKey, incarnation: int) -> str:
    """Return the sentence of the hang for which a process of a rank was ended; empty: it was not ended for one.

    A hang of a role, such as a circle, is recorded with one of its ranks, and ends the processes of all.
    """
    rank_state = state.ranks.get(key)
    for fault in reversed(state.faults):
        outcome = fault.outcome
        if rank_state is None or outcome is None or outcome.reason is not Reason.HANG:
            continue
        role = fault.rank.partition("/")[0]
        had_role_hang = role == key[0] and rank_state.restart_reason == Reason.HANG
        ended_with_role = had_role_hang and rank_state.incarnation - incarnation in (0, 1)
        if ended_with_role or (fault.rank, fault.incarnation) == (_rank_name(key), incarnation):
            return outcome.message if outcome.origin is None else outcome.origin.message
    return ""


def mark_hung(tx: StateTransaction, key: RankKey) -> None:
    """Mark the stalls of a rank as found to hang, also one that is found later than the hang."""
    tx.set_rank(key, evolve(tx.ranks[key], hung_at=tx.now))
    if key in tx.stalled:
        tx.stalls = tuple(evolve(stall, hung=True) if key in stall.ranks else stall for stall in tx.stalls)


def drop_ended_ranks_from_stalls(tx: StateTransaction) -> None:
    """Take ranks that ended or restart in this transition out of the stalls, and end the stalls that hung on them."""
    if tx.verdict is not None:
        _set_stalls(tx, ())
        return
    ended_keys = {key for key in tx.changes.ranks if _has_process_ended(tx, key)}
    if not ended_keys:
        return
    succeeded_keys = {key for key in ended_keys if tx.ranks[key].phase is RankPhase.SUCCEEDED}
    remaining_stalls: list[Stall] = []
    for stall in tx.stalls:
        roots = {key for key in ended_keys if _rank_name(key) == stall.root}
        keys_that_end_it = set(stall.ranks) if stall.is_circle else roots
        if keys_that_end_it & succeeded_keys:
            # The activity that the others waited for has come to its end, and the rank with it.
            tx.changes.resumed_ranks.update(stall.ranks)
            _note_stall_end(tx, stall)
        elif not keys_that_end_it & ended_keys:
            tx.changes.resumed_ranks.update(succeeded_keys.intersection(stall.ranks))
            has_lost_ranks = not ended_keys.isdisjoint(stall.ranks)
            remaining_stall = evolve(stall, ranks=_waiting_ranks(tx, stall)) if has_lost_ranks else stall
            if remaining_stall.ranks:
                remaining_stalls.append(remaining_stall)
    _set_stalls(tx, tuple(remaining_stalls))


def _set_stalls(tx: StateTransaction, stalls: tuple[Stall, ...]) -> None:
    """Replace the stalls; the ledger looks again at the ranks whose stall is new, over or older."""
    if stalls == tx.stalls:
        return
    old_stall_starts, new_stall_starts = tx.stalled, stalled_ranks(stalls)
    tx.stalls, tx.stalled = stalls, new_stall_starts
    stalled_keys = {*old_stall_starts, *new_stall_starts}
    tx.changes.ranks.update(key for key in stalled_keys if old_stall_starts.get(key) != new_stall_starts.get(key))


def _note_stall_end(tx: StateTransaction, stall: Stall) -> None:
    duration_s = tx.now - stall.since
    verb = "go on" if stall.is_circle else "goes on"
    message = f"{stall.blocker_text} {verb} after {seconds(duration_s)}"
    tx.note(reasons.STALL_ENDED, stall.blocker_text, message, seconds=duration_s)


def _was_found_hung(state: JobState | StateTransaction, key: RankKey, since: float) -> bool:
    """Whether the present process of a rank was found to hang at a moment or later."""
    rank_state = state.ranks.get(key)
    return rank_state is not None and max(rank_state.process_ordered_at, since) <= rank_state.hung_at


def _waiting_ranks(state: JobState | StateTransaction, stall: Stall) -> tuple[RankKey, ...]:
    """Return the ranks of a stall that exist and can wait, in the order of the report and each once."""
    states = ((key, state.ranks.get(key)) for key in dict.fromkeys(stall.ranks))
    return tuple(key for key, rank_state in states if rank_state is not None and rank_state.phase in _RUNNING_PHASES)


def _has_process_ended(tx: StateTransaction, key: RankKey) -> bool:
    """Whether the process that a rank had before this transition has ended in it, or is being ended."""
    old_state, new_state = tx.base.ranks.get(key), tx.ranks[key]
    if old_state is None or old_state.phase not in _RUNNING_PHASES:
        return False
    return new_state.phase not in _RUNNING_PHASES or new_state.incarnation != old_state.incarnation


def _rank_name(key: RankKey) -> str:
    return f"{key[0]}/{key[1]}"
