"""Ends that only report the loss of a peer: held until it is known which rank of the torch world is the cause.

When a rank dies, its peers often report first that their connection to it is closed. Who reports is a witness, and the
cause is another rank: it died and its report is still to come, it ends slowly after its connections have closed, it
ended with code 0 while the others were still in a collective, or it lives and was busy elsewhere until the collective
of the others timed out. So the first such report opens an inquiry, which ends

- when another failure of the world is handled: that one is the cause;
- when no rank of the world is left that could show a cause;
- when the living ranks were looked at, and one of them shows it;
- after `limits.PEER_WAIT_S`, or `limits.EARLY_END_WAIT_S` where a rank has ended with code 0;
- after `limits.LOCAL_PEER_WAIT_S` where the lost connection was within the machine, and none of torch's.

Then the held ends are handled in the order of their arrival. A rank whose end is held keeps its phase until then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from dljob.master.failure import attribution, failover, stalling
from dljob.master.failure.restart import kill_single_rank_hosts
from dljob.master.state import early_end, limits
from dljob.master.state.events import HostLost, PeersSeen, RankEnded
from dljob.master.state.evolve import evolve
from dljob.master.state.faults import HeldEnd, PeerInquiry
from dljob.master.state.hang import SamplePair, Where
from dljob.master.state.job import STORE_HOST_INDEX
from dljob.master.state.state import JobState, RankKey, RankPhase
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Clue, Outcome, PeerSample, Reason
from dljob.telemetry.evidence import Source

MAX_SAMPLED_RANKS = 64
"""Most living ranks of a world that are looked at."""
MAX_DETAILED_HELD_ENDS = 16
"""Number of held ends of a world that keep their log or traceback: thousands would fill the state."""
_TORCH_WORDS = re.compile(r"torch[/.]distributed|process ?group|collective|gloo|[nh]ccl|Dist\w*Error", re.IGNORECASE)
"""Words in the error of a rank that waited for others in a torch group."""
_RUNNING_PHASES = (RankPhase.STARTING, RankPhase.READY)
HeldEvent = RankEnded | HostLost


def hold_end(tx: StateTransaction, key: RankKey, outcome: Outcome, *, ended_host_incarnation: int = 0) -> bool:
    """Hold the end of a live rank if it only reports the loss of a peer, and a cause may still show.

    Args:
        tx: The transaction, of an active job.
        key: The rank.
        outcome: How it ended.
        ended_host_incarnation: That of the host whose process ended; 0: only the rank's user code ended.

    Returns:
        Whether it is held; otherwise it is to be handled now.
    """
    role, rank = key
    role_state, inquiry = tx.roles[role], tx.inquiries.get(role)
    if key in tx.held_ends:
        return True  # a host repeats a report that PrimeMaster has not acknowledged
    # While ranks wait or stop, a restart is under way, whose cause is known.
    if not tx.facts(role).is_torch_world or role_state.waiting_count or role_state.stopping_count:
        return False
    has_peer = role_state.ready_count + role_state.starting_count > 1 or role_state.succeeded_count > 0
    hold_s = attribution.seconds_to_hold_peer_loss(tx, key, outcome) if inquiry or has_peer else 0.0
    if not hold_s:
        return False
    if inquiry is None:
        inquiry = PeerInquiry(tx.now, tx.now + hold_s)
        tx.because(f"{role}/{rank} reports the loss of a peer: its cause is looked for")
    if inquiry.held_end_count >= MAX_DETAILED_HELD_ENDS:
        outcome = evolve(outcome, detail="", clues=())
    held_end = HeldEnd(tx.next_serial(), tx.ranks[key].incarnation, outcome, ended_host_incarnation)
    tx.held_ends = tx.held_ends.set(key, held_end)
    _set_inquiry(tx, role, evolve(inquiry, held_end_count=inquiry.held_end_count + 1))
    if inquiry.held_end_count == 0:
        _rebook_ranks(tx, role)
        shorten_inquiry(tx, role)
    return True


def hold_host_loss(tx: StateTransaction, event: HostLost) -> bool:
    """Hold the loss of a host of one rank, as `hold_end` does; also where the end of its user code is held already."""
    role, index = event.host.role, event.host.index
    if index == STORE_HOST_INDEX or tx.facts(role).ranks_per_host != 1 or not tx.phase.active:
        return False
    key = (role, index)
    held_end = tx.held_ends.get(key)
    if held_end is not None:  # the later death of a process whose code has failed is no other cause
        tx.held_ends = tx.held_ends.set(key, evolve(held_end, ended_host_incarnation=event.incarnation))
        return True
    return tx.ranks[key].phase in _RUNNING_PHASES and hold_end(
        tx, key, event.outcome, ended_host_incarnation=event.incarnation
    )


def shorten_inquiry(tx: StateTransaction, role: str) -> None:
    """Shorten an inquiry about a world of which a rank has ended with code 0, which then is the likely cause."""
    inquiry = tx.inquiries.get(role)
    if inquiry is None:
        return
    _, first_held_end = _held_ends_by_arrival(tx, role)[0]
    if _first_rank_ended_with_code_0(tx, role, first_held_end.outcome) is not None:
        _set_inquiry(tx, role, evolve(inquiry, ends_at=min(inquiry.ends_at, tx.now + limits.EARLY_END_WAIT_S)))


def handle_seen_peers(tx: StateTransaction, event: PeersSeen) -> None:
    """Record the samples of the living ranks of a world."""
    inquiry = tx.inquiries.get(event.role)
    if inquiry is not None:
        _set_inquiry(tx, event.role, evolve(inquiry, rank_samples=event.peers[:MAX_SAMPLED_RANKS]))


def end_inquiries(tx: StateTransaction) -> list[HeldEvent]:
    """End the inquiries that are over, with the restart for their cause; return the held events to be handled now."""
    events: list[HeldEvent] = []
    for role in sorted(tx.inquiries):
        inquiry = tx.inquiries[role]
        is_taken_down = _is_world_taken_down(tx, role)
        if not is_taken_down and not _is_inquiry_over(tx, role, inquiry):
            continue
        held_ends = _held_ends_by_arrival(tx, role)
        outcomes_by_rank = {rank: held_end.outcome for (_, rank), held_end in held_ends}
        culprit = None if is_taken_down else _find_culprit(tx, role, inquiry, outcomes_by_rank)
        for key, _ in held_ends:
            tx.held_ends = tx.held_ends.delete(key)
        tx.inquiries = tx.inquiries.delete(role)
        _rebook_ranks(tx, role)
        if culprit is not None:
            rank, outcome = culprit
            kill_single_rank_hosts(tx, role, (rank,))
            failover.handle_failed_ranks(tx, role, (rank,), outcome, host_lost=False)
        events += [_event_of_held_end(tx, key, held_end) for key, held_end in held_ends]
    return events


def inquiry_deadlines(state: JobState | StateTransaction) -> Iterable[float]:
    """Return when inquiries end at the latest (unix seconds)."""
    return (inquiry.ends_at for inquiry in state.inquiries.values())


def ranks_to_sample(state: JobState, role: str, now: float) -> tuple[int, ...]:
    """Return the living ranks that may be the cause of held ends; empty too early, and once they are sampled."""
    inquiry = state.inquiries.get(role)
    if inquiry is None or inquiry.rank_samples or now < inquiry.since + limits.PEER_SAMPLE_DELAY_S:
        return ()
    ranks = state.job.roles[role].ranks
    return tuple(rank for rank in ranks if _may_be_culprit(state, (role, rank)))[:MAX_SAMPLED_RANKS]


def _may_be_culprit(state: JobState | StateTransaction, key: RankKey) -> bool:
    """Whether a rank runs, and has not reported the loss of a peer itself."""
    return state.ranks[key].phase in _RUNNING_PHASES and key not in state.held_ends


def describe_absence(pair: SamplePair) -> str:
    """Return in words what a rank does outside of a collective; empty where it is in one, or its stack is unknown."""
    if pair.stopped:
        return pair.stopped
    if pair.activity in (Where.UNKNOWN, Where.COLLECTIVE):
        return ""
    verb = "works" if pair.works else "waits"
    location = f" at {pair.second.at_line}" if pair.second.at_line else ""
    return f"it {verb} {pair.activity}{location}"


# -- when an inquiry ends


def _is_world_taken_down(tx: StateTransaction, role: str) -> bool:
    """Whether the world is taken down already: for a failure that is a cause, by a command, or with the job."""
    role_state = tx.roles[role]
    if not tx.phase.active or role_state.waiting_count or role_state.stopping_count:
        return True
    held_keys = [key for key in tx.changes.ranks if key in tx.held_ends and key[0] == role]
    return any(
        tx.ranks[key].phase not in _RUNNING_PHASES or tx.ranks[key].incarnation != tx.held_ends[key].incarnation
        for key in held_keys
    )


def _is_inquiry_over(tx: StateTransaction, role: str, inquiry: PeerInquiry) -> bool:
    """Whether no rank is left that could show a cause, the time is over, or a sample shows the cause."""
    role_state = tx.roles[role]
    all_ended = role_state.ready_count + role_state.starting_count <= inquiry.held_end_count
    return all_ended or inquiry.ends_at <= tx.now or _culprit_by_samples(tx, role, inquiry) is not None


def _held_ends_by_arrival(tx: StateTransaction, role: str) -> list[tuple[RankKey, HeldEnd]]:
    """Return the held ends of a role in the order in which they came: a Map has that of its hashes."""
    held_ends = [(key, held_end) for key, held_end in tx.held_ends.items() if key[0] == role]
    return sorted(held_ends, key=lambda pair: pair[1].arrival_number)


def _rebook_ranks(tx: StateTransaction, role: str) -> None:
    """Have the ledger look again at all ranks of a role: during an inquiry they wait for its end."""
    tx.changes.ranks.update((role, rank) for rank in tx.facts(role).ranks)


def _set_inquiry(tx: StateTransaction, role: str, inquiry: PeerInquiry) -> None:
    """Open or change the inquiry of a role, and ask for a Tick at its end."""
    tx.inquiries = tx.inquiries.set(role, inquiry)
    tx.wake_at(inquiry.ends_at)


def _event_of_held_end(tx: StateTransaction, key: RankKey, held_end: HeldEnd) -> HeldEvent:
    """Return a held end as the event that reported it, so that it can be handled now."""
    role, rank = key
    if held_end.ended_host_incarnation:
        return HostLost(tx.facts(role).host_of(rank), held_end.ended_host_incarnation, held_end.outcome)
    return RankEnded(role, rank, held_end.incarnation, held_end.outcome)


# -- who is the cause


def _find_culprit(
    tx: StateTransaction, role: str, inquiry: PeerInquiry, outcomes_by_rank: Mapping[int, Outcome]
) -> tuple[int, Outcome] | None:
    """Return the rank that is the cause of held ends, and its failure; None: unknown. Ends are in order of arrival."""
    culprit = _culprit_by_samples(tx, role, inquiry)
    if culprit is not None:
        return culprit
    first_outcome = next(iter(outcomes_by_rank.values()))
    early_rank = _first_rank_ended_with_code_0(tx, role, first_outcome)
    if early_rank is None:
        return _culprit_by_stall(tx, role)
    step, collective = tx.ranks[role, early_rank].end_step, early_end.collective_in_traceback(first_outcome.detail)
    message = early_end.describe_early_end(role, step, sorted(outcomes_by_rank), collective)
    return early_rank, early_end.outcome_of_early_end(message, step)


def _culprit_by_samples(tx: StateTransaction, role: str, inquiry: PeerInquiry) -> tuple[int, Outcome] | None:
    """Return the living rank that is the cause by what was seen of it, and its failure."""
    current_samples: list[PeerSample] = []
    for sample in inquiry.rank_samples:
        rank_state = tx.ranks.get((role, sample.rank))
        is_of_present_process = rank_state is not None and rank_state.incarnation == sample.incarnation
        if is_of_present_process and _may_be_culprit(tx, (role, sample.rank)):
            current_samples.append(sample)
    for sample in current_samples:
        if sample.failure is not None:
            return sample.rank, sample.failure
    absent_samples = [sample for sample in current_samples if sample.absence_text]
    # A wait for an asynchronous collective may look like user code: only a minority is blamed.
    waiting_count = len(current_samples) - len(absent_samples) + inquiry.held_end_count
    if not absent_samples or len(absent_samples) > waiting_count:
        return None
    sample = absent_samples[0]
    held_ends = _held_ends_by_arrival(tx, role)
    _, first_held_end = held_ends[0]
    first_outcome = first_held_end.outcome
    if not _TORCH_WORDS.search(f"{first_outcome.error_type} {first_outcome.message} {first_outcome.detail}"):
        return None  # it has lost a connection of its own, for which no other rank of the world has to be anywhere
    collective = early_end.collective_in_traceback(first_outcome.detail) or "a collective"
    peers = early_end.ranks_in_words(role, sorted(rank for (_, rank), _ in held_ends))
    also_absent = [absent_sample.rank for absent_sample in absent_samples[1:]]
    absent_text = f", as does {early_end.ranks_in_words(role, also_absent)}" if also_absent else ""
    message = f"{sample.absence_text}{absent_text}, while {peers} waited for it in {collective}, in vain"
    clues = (Clue(Source.MONITOR, f"hang: {message}"),)
    if sample.stacks:
        clues = (*clues, Clue(Source.STACKS, sample.stacks))
    outcome = Outcome(ok=False, reason=Reason.HANG, message=message, clues=clues)
    return sample.rank, stalling.blame_root(tx, (role, sample.rank), outcome)


def _culprit_by_stall(tx: StateTransaction, role: str) -> tuple[int, Outcome] | None:
    """Return the living rank that another role keeps waiting by a stall, so that its peers waited in vain."""
    for rank in tx.facts(role).ranks:
        if (role, rank) in tx.stalled and _may_be_culprit(tx, (role, rank)):
            outcome = stalling.blame_root(tx, (role, rank), Outcome(ok=False, reason=Reason.HANG))
            if outcome.origin is not None:
                return rank, outcome
    return None


def _first_rank_ended_with_code_0(tx: StateTransaction, role: str, outcome: Outcome) -> int | None:
    """Return the rank of a world that ended with code 0 first, if a rank that failed can have waited for it."""
    if not tx.roles[role].succeeded_count or attribution.reports_lost_local_connection(tx, outcome):
        return None
    succeeded_ranks = [rank for rank in tx.facts(role).ranks if tx.ranks[role, rank].phase is RankPhase.SUCCEEDED]
    first_rank = min(succeeded_ranks, key=lambda rank: tx.ranks[role, rank].ended_at)
    return None if early_end.has_worked_on_after_end_of(tx.ranks[role, first_rank], outcome) else first_rank
