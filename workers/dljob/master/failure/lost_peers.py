"""Ends that only report the loss of a peer: held until it is known which rank of the torch world is the cause.

When a rank dies, its peers often report first that their connection to it is closed. Who reports is a witness, and the
cause is another rank: it died and its report is still to come, it ends slowly after its connections have closed, it
ended with code 0 while the others were still in a collective, or it lives and was busy elsewhere until the collective
of the others timed out. So the first such report opens an inquiry, which ends

- when another failure of the world is handled: that one is the cause;
- when no rank of the world is left that could show a cause;
- when the living ranks were looked at, and one of them shows it;
- after `limits.PEER_WAIT_S`, or `limits.EARLY_END_S` where a rank has ended with code 0;
- after `limits.LOCAL_PEER_WAIT_S` where the lost connection was within the machine, and none of torch's.

Then the held ends are handled in the order of their arrival. A rank whose end is held keeps its phase until then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from dljob.master.failure import attribution, ending, failover, stalling
from dljob.master.failure.restart import kill_host
from dljob.master.state import early_end, limits
from dljob.master.state.events import HostLost, PeersSeen, RankEnded
from dljob.master.state.evolve import evolve
from dljob.master.state.faults import HeldEnd, PeerInquiry
from dljob.master.state.hang import SamplePair, Where
from dljob.master.state.job import STORE
from dljob.master.state.state import JobState, RankKey, RankPhase
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Clue, Outcome, Reason
from dljob.telemetry.evidence import Source

LOOKED_AT = 64
"""Most living ranks of a world that are looked at."""
_OF_TORCH = re.compile(r"torch[/.]distributed|process ?group|collective|gloo|[nh]ccl|Dist\w*Error", re.IGNORECASE)
"""Words in the error of a rank that waited for others in a torch group."""
HeldEvent = RankEnded | HostLost


def hold(tx: StateTransaction, key: RankKey, outcome: Outcome, *, host_life: int = 0) -> bool:
    """Hold the end of a live rank if it only reports the loss of a peer, and a cause may still show.

    Args:
        tx: The transaction, of an active job.
        key: The rank.
        outcome: How it ended.
        host_life: Life of the host if its process ended; 0: its user code ended.

    Returns:
        Whether it is held; otherwise it is to be handled now.
    """
    role, state = key[0], tx.roles[key[0]]
    if key in tx.held_ends:
        return True  # a host repeats a report that PrimeMaster has not acknowledged
    # While ranks wait or stop, a restart is under way, whose cause is known.
    if not tx.facts(role).world or state.waiting or state.stopping:
        return False
    inquiry = tx.inquiries.get(role)
    has_peer = state.ready + state.starting > 1 or state.succeeded > 0
    hold_s = attribution.seconds_to_hold(tx, key, outcome) if inquiry or has_peer else 0.0
    if not hold_s:
        return False
    if inquiry is None:
        inquiry = PeerInquiry(tx.now, tx.now + hold_s)
        tx.because(f"{role}/{key[1]} reports the loss of a peer: its cause is looked for")
    kept = outcome if inquiry.count < attribution.MAX_CONSEQUENCES else evolve(outcome, detail="", clues=())
    end = HeldEnd(tx.next_serial(), tx.ranks[key].incarnation, kept, host_life)
    tx.held_ends = tx.held_ends.set(key, end)
    _set_inquiry(tx, role, evolve(inquiry, count=inquiry.count + 1))
    if inquiry.count == 0:
        tx.touched.ranks.update((role, rank) for rank in tx.facts(role).ranks)  # all wait: the ledger books it
        _wait_less(tx, role)
    return True


def hold_host(tx: StateTransaction, event: HostLost) -> bool:
    """Hold the loss of the host of one rank, as `hold` does; also where the end of its user code is held already."""
    role, index = event.host.role, event.host.index
    if index == STORE or tx.facts(role).ranks_per_host != 1 or not tx.phase.active:
        return False
    key = (role, index)
    end = tx.held_ends.get(key)
    if end is not None:  # the later death of a process whose code has failed is no other cause
        tx.held_ends = tx.held_ends.set(key, evolve(end, host_life=event.life))
        return True
    return tx.ranks[key].phase in _RUNNING and hold(tx, key, event.outcome, host_life=event.life)


_RUNNING = (RankPhase.STARTING, RankPhase.READY)


def note_early_end(tx: StateTransaction, role: str) -> None:
    """Shorten the wait of an inquiry once a rank of its world has ended with code 0."""
    if role in tx.inquiries:
        _wait_less(tx, role)


def seen(tx: StateTransaction, event: PeersSeen) -> None:
    """Take in what was seen of the living ranks of a world."""
    inquiry = tx.inquiries.get(event.role)
    if inquiry is not None:
        _set_inquiry(tx, event.role, evolve(inquiry, samples=event.peers[:LOOKED_AT]))


def end_inquiries(tx: StateTransaction) -> list[HeldEvent]:
    """End the inquiries that are over, with the restart for their cause; return the held events to be handled now."""
    events: list[HeldEvent] = []
    for role in sorted(tx.inquiries):
        inquiry = tx.inquiries[role]
        is_handled = _is_handled(tx, role)
        if not is_handled and not _is_over(tx, role, inquiry):
            continue
        ends = sorted(
            ((key, end) for key, end in tx.held_ends.items() if key[0] == role), key=lambda item: item[1].number
        )
        culprit = None if is_handled else _find_culprit(tx, role, inquiry, [(key[1], end.outcome) for key, end in ends])
        for key, _ in ends:
            tx.held_ends = tx.held_ends.delete(key)
        tx.inquiries = tx.inquiries.delete(role)
        tx.touched.ranks.update((role, rank) for rank in tx.facts(role).ranks)
        if culprit is not None:
            _fail(tx, role, *culprit)
        events += [_event(tx, key, end) for key, end in ends]
    return events


def deadlines(state: JobState | StateTransaction) -> Iterable[float]:
    """Return when inquiries end at the latest (unix seconds)."""
    return (inquiry.until for inquiry in state.inquiries.values())


def ranks_to_look_at(state: JobState, role: str, now: float) -> tuple[int, ...]:
    """Return the living ranks that may be the cause of held ends; empty while it is too early, and after the answer."""
    inquiry = state.inquiries.get(role)
    if inquiry is None or inquiry.samples or now < inquiry.since + limits.PEER_LOOK_S:
        return ()
    facts = state.job.roles[role]
    living = (r for r in facts.ranks if state.ranks[role, r].phase in _RUNNING and (role, r) not in state.held_ends)
    return tuple(living)[:LOOKED_AT]


def away_from_collective(seen: SamplePair) -> str:
    """Return in words what a rank does outside of a collective; empty where it is in one, or its stack is unknown."""
    if seen.stopped:
        return seen.stopped
    if seen.activity in (Where.UNKNOWN, Where.COLLECTIVE):
        return ""
    what = "works" if seen.works else "waits"
    line = f" at {seen.second.at_line}" if seen.second.at_line else ""
    return f"it {what} {seen.activity}{line}"


# -- when an inquiry ends


def _is_handled(tx: StateTransaction, role: str) -> bool:
    """Whether the world is taken down already: for a failure that is a cause, by a command, or with the job."""
    state = tx.roles[role]
    if not tx.phase.active or state.waiting or state.stopping:
        return True
    changed = (key for key in tx.touched.ranks if key in tx.held_ends and key[0] == role)
    return any(
        tx.ranks[key].phase not in _RUNNING or tx.ranks[key].incarnation != tx.held_ends[key].incarnation
        for key in changed
    )


def _is_over(tx: StateTransaction, role: str, inquiry: PeerInquiry) -> bool:
    state = tx.roles[role]
    nobody_left = state.ready + state.starting <= inquiry.count
    return nobody_left or inquiry.until <= tx.now or _shown_by_sample(tx, role, inquiry) is not None


def _wait_less(tx: StateTransaction, role: str) -> None:
    """Shorten the wait where a rank of the world has ended with code 0, which then is the likely cause."""
    inquiry = tx.inquiries[role]
    outcomes = (end.outcome for key, end in tx.held_ends.items() if key[0] == role)
    if _ended_early(tx, role, next(outcomes)) is not None:
        _set_inquiry(tx, role, evolve(inquiry, until=min(inquiry.until, tx.now + limits.EARLY_END_S)))


def _set_inquiry(tx: StateTransaction, role: str, inquiry: PeerInquiry) -> None:
    tx.inquiries = tx.inquiries.set(role, inquiry)
    tx.wake_at(inquiry.until)


def _event(tx: StateTransaction, key: RankKey, end: HeldEnd) -> HeldEvent:
    if end.host_life:
        return HostLost(tx.facts(key[0]).host_of(key[1]), end.host_life, end.outcome)
    return RankEnded(*key, end.incarnation, end.outcome)


# -- who is the cause


def _find_culprit(
    tx: StateTransaction, role: str, inquiry: PeerInquiry, ends: Sequence[tuple[int, Outcome]]
) -> tuple[int, Outcome] | None:
    """Return the rank that is the cause of held ends, and its failure; None: it is unknown. `ends`: (rank, outcome)."""
    shown = _shown_by_sample(tx, role, inquiry)
    first_outcome = ends[0][1]
    ended = None if shown is not None else _ended_early(tx, role, first_outcome)
    if ended is None:
        return shown or _kept_waiting(tx, role)
    step, call = tx.ranks[role, ended].end_step, early_end.collective_of(first_outcome.detail)
    message = early_end.early_end(role, step, sorted(rank for rank, _ in ends), call)
    return ended, early_end.as_failure(message, step)


def _fail(tx: StateTransaction, role: str, rank: int, outcome: Outcome) -> None:
    """Handle the failure of the rank that is the cause. Its process may live."""
    facts = tx.facts(role)
    if facts.ranks_per_host == 1 and tx.ranks[role, rank].phase.live:
        # Its peers can leave their group only when it is gone.
        kill_host(tx, facts.host_of(rank))
        ending.drop_process(tx, (role, rank))
    failover.handle_failed_ranks(tx, role, (rank,), outcome, host_lost=False)


def _shown_by_sample(tx: StateTransaction, role: str, inquiry: PeerInquiry) -> tuple[int, Outcome] | None:
    """Return the living rank that is the cause by what was seen of it, and its failure."""
    present = [
        sample
        for sample in inquiry.samples
        if (own := tx.ranks.get((role, sample.rank))) is not None
        and own.incarnation == sample.incarnation
        and own.phase in _RUNNING
        and (role, sample.rank) not in tx.held_ends
    ]
    failing = next((sample for sample in present if sample.failure is not None), None)
    if failing is not None and failing.failure is not None:
        return failing.rank, failing.failure
    absent = [sample for sample in present if sample.away]
    # A wait for an asynchronous collective may look like user code: only a minority is blamed.
    if not absent or len(absent) > len(present) - len(absent) + inquiry.count:
        return None
    sample = absent[0]
    held = sorted((end.number, key[1], end.outcome) for key, end in tx.held_ends.items() if key[0] == role)
    if not _OF_TORCH.search(f"{held[0][2].error_type} {held[0][2].message} {held[0][2].detail}"):
        return None  # it has lost a connection of its own, for which no other rank of the world has to be anywhere
    call = early_end.collective_of(held[0][2].detail) or "a collective"
    peers = early_end.ranks_in_words(role, sorted(rank for _, rank, _ in held))
    others = f", as does {early_end.ranks_in_words(role, [other.rank for other in absent[1:]])}" if absent[1:] else ""
    why = f"{sample.away}{others}, while {peers} waited for it in {call}, in vain"
    clues = (Clue(Source.MONITOR, f"hang: {why}"), *([Clue(Source.STACKS, sample.stacks)] if sample.stacks else []))
    outcome = Outcome(ok=False, reason=Reason.HANG, message=why, clues=clues)
    return sample.rank, stalling.blame_root(tx, (role, sample.rank), outcome)


def _kept_waiting(tx: StateTransaction, role: str) -> tuple[int, Outcome] | None:
    """Return the living rank that another role keeps waiting by a stall, so that its peers waited in vain."""
    for rank in tx.facts(role).ranks:
        if (role, rank) in tx.stalled and (role, rank) not in tx.held_ends and tx.ranks[role, rank].phase in _RUNNING:
            outcome = stalling.blame_root(tx, (role, rank), Outcome(ok=False, reason=Reason.HANG))
            if outcome.origin is not None:
                return rank, outcome
    return None


def _ended_early(tx: StateTransaction, role: str, outcome: Outcome) -> int | None:
    """Return the rank of a world that ended with code 0 first, if a rank that failed can have waited for it."""
    if not tx.roles[role].succeeded or attribution.is_local_connection(tx, outcome):
        return None
    ended = [rank for rank in tx.facts(role).ranks if tx.ranks[role, rank].phase is RankPhase.SUCCEEDED]
    first = min(ended, key=lambda rank: tx.ranks[role, rank].ended_at)
    return None if early_end.went_on(tx.ranks[role, first], outcome) else first
