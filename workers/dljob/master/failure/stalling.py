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

_LIVE_PHASES = (RankPhase.STARTING, RankPhase.READY)
"""Phases of ranks that can wait for something: a rank that was asked to end is no longer in a stall."""


def standing_stalls(state: JobState | StateTransaction, stalls: Iterable[Stall]) -> tuple[Stall, ...]:
    """Return the stalls of a report as the state records them; equal to `state.stalls` where the report is no news.

    Ranks that are not there, have ended or are being restarted are left out, and so is a stall without any other. A
    stall that is already known keeps the `since` of its first report, so that its age never jumps.
    """
    known = {stall.name: stall for stall in state.stalls}
    rows: list[Stall] = []
    for stall in stalls:
        old = known.get(stall.name, stall)
        is_hung = old.hung or any(_was_found_hung(state, key, old.since) for key in stall.ranks)
        rows.append(evolve(stall, ranks=_waiting_ranks(state, stall), since=old.since, hung=is_hung))
    return tuple(sorted((row for row in rows if row.ranks), key=lambda row: (row.since, row.name)))


def report_stalls(tx: StateTransaction, event: StallsFound) -> None:
    """Record the stalls that stand now; note each new one, and each that ended without a restart."""
    if not tx.phase.active:
        return
    present, before = standing_stalls(tx, event.stalls), tx.stalls
    if present == before:
        return
    names, known = {stall.name for stall in present}, {stall.name for stall in before}
    _set_stalls(tx, present)
    new_stalls = [stall for stall in present if stall.name not in known]
    # A stall whose root turns out to be another one is reported under a new name: it did not end. A new one has stood
    # for longer than since the last report, and so was there while the old one still stood.
    renamed = stalled_ranks(new_stalls)
    for stall in before:
        if stall.name not in names:
            tx.touched.resumed.update(stall.ranks)
            if not any(key in renamed for key in stall.ranks):
                _note_end(tx, stall)
    for stall in new_stalls:
        tx.note(reasons.STALL_FOUND, stall.whom, describe(stall, tx.now), seconds=tx.now - stall.since)


def blame_root(tx: StateTransaction, key: RankKey, outcome: Outcome) -> Outcome:
    """Return the end of a rank that was kept waiting in a stall as an end by its root, with the stall's sentence.

    Of a circle another one of its ranks stands for all. The outcome of a rank that waits in no stall is returned as it
    is.
    """
    name = _rank_name(key)
    for stall in tx.stalls:
        if key not in stall.ranks or stall.root == name or not (stall.root or stall.is_circle):
            continue
        roots = [rank for rank in stall.ranks if (stall.is_circle and rank != key) or _rank_name(rank) == stall.root]
        root, incarnation = (_rank_name(roots[0]), tx.ranks[roots[0]].incarnation) if roots else (stall.root, 0)
        if root:
            origin = ErrorOrigin(root, incarnation, "", describe(stall, tx.now), "")
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
        with_role = (
            role == key[0]
            and rank_state.restart_reason == Reason.HANG
            and rank_state.incarnation - incarnation in (0, 1)
        )
        if with_role or (fault.rank, fault.incarnation) == (_rank_name(key), incarnation):
            return outcome.message if outcome.origin is None else outcome.origin.message
    return ""


def mark_hung(tx: StateTransaction, key: RankKey) -> None:
    """Mark the stalls of a rank as found to hang, also one that is found later than the hang."""
    tx.set_rank(key, evolve(tx.ranks[key], hung_at=tx.now))
    if key in tx.stalled:
        tx.stalls = tuple(evolve(stall, hung=True) if key in stall.ranks else stall for stall in tx.stalls)


def follow_stalls(tx: StateTransaction) -> None:
    """Take ranks that ended or restart in this transition out of the stalls, and end the stalls that hung on them."""
    if tx.verdict is not None:
        _set_stalls(tx, ())
        return
    touched = [key for key in tx.touched.ranks if _ended_now(tx, key)]
    if not touched:
        return
    ended, present = set(touched), list[Stall]()
    succeeded = {key for key in touched if tx.ranks[key].phase is RankPhase.SUCCEEDED}
    for stall in tx.stalls:
        decisive = set(stall.ranks) if stall.is_circle else {key for key in touched if _rank_name(key) == stall.root}
        if decisive & succeeded:
            # The activity that the others waited for has come to its end, and the rank with it.
            tx.touched.resumed.update(stall.ranks)
            _note_end(tx, stall)
        elif not decisive & ended:
            tx.touched.resumed.update(succeeded.intersection(stall.ranks))
            rest = stall if ended.isdisjoint(stall.ranks) else evolve(stall, ranks=_waiting_ranks(tx, stall))
            present += [rest] if rest.ranks else []
    _set_stalls(tx, tuple(present))


def _set_stalls(tx: StateTransaction, stalls: tuple[Stall, ...]) -> None:
    """Replace the stalls; the ledger looks again at the ranks that came into one, left one, or are in an older one."""
    if stalls == tx.stalls:
        return
    before, after = tx.stalled, stalled_ranks(stalls)
    tx.stalls, tx.stalled = stalls, after
    tx.touched.ranks.update(key for key in {*before, *after} if before.get(key) != after.get(key))


def _note_end(tx: StateTransaction, stall: Stall) -> None:
    waited = tx.now - stall.since
    verb = "go on" if stall.is_circle else "goes on"
    tx.note(reasons.STALL_ENDED, stall.whom, f"{stall.whom} {verb} after {seconds(waited)}", seconds=waited)


def _was_found_hung(state: JobState | StateTransaction, key: RankKey, since: float) -> bool:
    """Whether the present process of a rank was found to hang at a moment or later."""
    rank_state = state.ranks.get(key)
    return rank_state is not None and max(rank_state.since, since) <= rank_state.hung_at


def _waiting_ranks(state: JobState | StateTransaction, stall: Stall) -> tuple[RankKey, ...]:
    """Return the ranks of a stall that exist and can wait, in the order of the report and each once."""
    rows = ((key, state.ranks.get(key)) for key in dict.fromkeys(stall.ranks))
    return tuple(key for key, rank in rows if rank is not None and rank.phase in _LIVE_PHASES)


def _ended_now(tx: StateTransaction, key: RankKey) -> bool:
    """Whether the process that a rank had before this transition has ended in it, or is being ended."""
    old_state, new_state = tx.base.ranks.get(key), tx.ranks[key]
    if old_state is None or old_state.phase not in _LIVE_PHASES:
        return False
    return new_state.phase not in _LIVE_PHASES or new_state.incarnation != old_state.incarnation


def _rank_name(key: RankKey) -> str:
    return f"{key[0]}/{key[1]}"
