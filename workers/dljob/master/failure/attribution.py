"""Attribution: which of several failures was the first cause, by their kind first, then by time.

When one rank of a world dies, its peers fail within milliseconds with errors about it, and often they are reported
first. Such a secondary failure (a peer is gone) is listed under a primary one as soon as one is known that it can
follow from. Evidence that arrives too late to act upon (the rank was already taken down, or the kernel or the pod
reported after the restart) still corrects the recorded cause, and ends the job if that cause would repeat.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from dljob.master.failure import ending, policy, repeats, stalling
from dljob.master.state import causes, limits
from dljob.master.state.events import CauseLearned
from dljob.master.state.evolve import evolve
from dljob.master.state.faults import Consequence, Failure, FaultRecord, Notice
from dljob.master.state.job import STORE_HOST_INDEX
from dljob.master.state.state import RankKey, RankPhase
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Clue, HostId, Outcome, Reason
from dljob.telemetry import reasons
from dljob.telemetry.causes import LOST_LOCAL_CONNECTION_RULE

MAX_CONSEQUENCES = 16
"""Largest number of failures listed under one cause: a world of thousands would fill the state with echoes."""
MAX_DETAIL_CHARS = 2048
"""Last characters of a log or traceback that are kept with a fault."""
# Reasons that say that a process or connection is gone, but not why.
_VAGUE_REASONS = frozenset({Reason.UNKNOWN.value, Reason.KILLED.value, Reason.NODE_LOST.value, Reason.NETWORK.value})
_REASONS_NODE_NEWS_EXPLAINS = _VAGUE_REASONS | {Reason.PREEMPTED.value}
"""Reasons that later news about the node may explain: a pod reports its end, Kubernetes who deleted or evicted it."""
MAX_NOTICE_CLUES = 16
"""Last pieces of evidence that are kept for a failure that is still to come."""
_RANK_NAME_PATTERN = re.compile(r"[a-z][-a-z0-9]{0,23}/\d{1,6}\b")
"""A rank in the message of a failure, such as `worker/3`: a failure of that rank can be the cause."""


def attribute_failure(tx: StateTransaction, role: str, rank: int, outcome: Outcome) -> Failure:
    """Classify a failure, with the evidence that was announced for its rank or node before."""
    node, rank_name = _node_of_rank(tx, role, rank), f"{role}/{rank}"
    outcome = _with_announced_clues(tx, outcome, node, rank_name)
    # A notice about a rank concerns one process; one about a node concerns every process that dies there.
    if rank_name in tx.notices:
        tx.notices = tx.notices.delete(rank_name)
    failure = _classify_failure(tx, (role, rank), tx.ranks[role, rank].incarnation, outcome, node)
    if failure.reports_lost_peer and causes.is_time_out(failure.outcome):
        failure = evolve(failure, outcome=stalling.blame_root(tx, (role, rank), failure.outcome))
    return failure


def seconds_to_hold_peer_loss(tx: StateTransaction, key: RankKey, outcome: Outcome) -> float:
    """Return for how long an end may be held that only reports the loss of a peer of its own role.

    0: it says more than that, or follows from a known failure. A failure from before the process began does not
    explain its end.
    """
    role, rank = key
    rank_state, node, rank_name = tx.ranks[key], _node_of_rank(tx, role, rank), f"{role}/{rank}"
    outcome = _with_announced_clues(tx, outcome, node, rank_name)
    failure = _classify_failure(tx, key, rank_state.incarnation, outcome, node)
    lost_local_connection = failure.rule == LOST_LOCAL_CONNECTION_RULE
    if failure.ended_by_master or not (failure.reports_lost_peer or lost_local_connection):
        return 0.0
    cause = _describe_failure(failure)
    if any(peer_name.rpartition("/")[0] != role for peer_name in _peers_named_in(cause)):
        return 0.0  # it reports the loss of a rank that it had called
    reason = _reason_text(outcome)
    fault = FaultRecord(0, "", reason, rank_name, cause, tx.now, rank=rank_name, node=node, reports_lost_peer=True)
    root_fault = _find_root_fault(tx, fault)
    hold_s = limits.LOCAL_PEER_WAIT_S if lost_local_connection else limits.PEER_WAIT_S
    is_explained = root_fault is not None and root_fault.detected_at > rank_state.process_ordered_at
    return 0.0 if is_explained else hold_s


def reports_lost_local_connection(tx: StateTransaction, outcome: Outcome) -> bool:
    """Whether an end reports a broken connection to an address of its own machine."""
    return causes.classify(outcome, tx.job.fault_tolerance.causes).rule == LOST_LOCAL_CONNECTION_RULE


def _describe_failure(failure: Failure) -> str:
    """Return a rank's failure in one line, as the cause of a fault."""
    return policy.describe_failure(failure.name, failure.outcome, lost_peer=failure.reports_lost_peer)


def record_fault(tx: StateTransaction, fault_number: int, failure: Failure | None, root_number: int = 0) -> str:
    """Record the failed rank in a fault, and link the fault to its cause. Return what the timeline adds about that.

    `root_number`: number of the fault that caused a fault without a failure of its own; 0: none.
    """
    fault = _fault_by_number(tx, fault_number)
    if failure is None:
        if root_number:
            _replace_fault(tx, evolve(fault, root_number=root_number))
        return ""
    fault = _with_failure(fault, failure)
    _replace_fault(tx, fault)
    root_fault = _find_root_fault(tx, fault)
    # A fault without a root collects the echoes that were recorded before it.
    if root_fault is None:
        _list_echoes_under(tx, fault)
        return ""
    _replace_fault(tx, evolve(fault, root_number=root_fault.id))
    _add_consequences(tx, root_fault, (Consequence(fault.rank, fault.incarnation, fault.cause),))
    return f" (follows from {root_fault.cause})"


def _with_failure(fault: FaultRecord, failure: Failure) -> FaultRecord:
    """Return a fault with the rank, the outcome and the classification of a failure."""
    fault = evolve(fault, rank=failure.name, incarnation=failure.incarnation, node=failure.node)
    fault = evolve(fault, reports_lost_peer=failure.reports_lost_peer, rule=failure.rule)
    return _with_outcome(fault, failure.outcome)


def _with_outcome(fault: FaultRecord, outcome: Outcome) -> FaultRecord:
    """Return a fault with an outcome, of whose log or traceback it keeps the end."""
    bounded_outcome = evolve(outcome, detail=outcome.detail[-MAX_DETAIL_CHARS:])
    return evolve(fault, outcome=bounded_outcome, reason=_reason_text(outcome))


def failure_of_leaving_rank(tx: StateTransaction, culprit: Failure, role: str, rank: int) -> Failure:
    """Return the failure for which a rank has to leave its node: the culprit's, also where it is of another role."""
    if role == culprit.role:
        return culprit
    incarnation, node = tx.ranks[role, rank].incarnation, _node_of_rank(tx, role, rank)
    return evolve(culprit, role=role, rank=rank, incarnation=incarnation, node=node)


def recorded_fault_number(tx: StateTransaction, failure: Failure) -> int:
    """Return the number of the fault that a failure is recorded in, or follows from; 0: it is not recorded."""
    key = (failure.name, failure.incarnation)
    faults = (fault for fault in reversed(tx.faults) if (fault.rank, fault.incarnation) == key)
    return next((fault.root_number or fault.id for fault in faults), 0)


def record_final_fault(tx: StateTransaction, failure: Failure, cause: str, root_number: int = 0) -> None:
    """Record the failure that ends the job as a fault. `root_number`: the fault in which it is recorded; 0: none."""
    fault_number = tx.next_serial()
    tx.append_fault(FaultRecord(fault_number, "Fail", _reason_text(failure.outcome), failure.name, cause, tx.now))
    record_fault(tx, fault_number, None if root_number else failure, root_number)


def handle_late_end(tx: StateTransaction, role: str, rank: int, incarnation: int, outcome: Outcome) -> None:
    """Handle the end of a rank that was already taken down: it may be the first cause of that restart."""
    rank_name, current_incarnation = f"{role}/{rank}", tx.ranks[role, rank].incarnation
    # Only the present process and the one before it can have caused the latest fault.
    if outcome.ok or current_incarnation - incarnation not in (0, 1) or _is_end_recorded(tx, rank_name, incarnation):
        return
    # An echo of this rank's failure may have restarted another role first, which took this one along.
    roles_that_take_this_along = {name for name, facts in tx.job.roles.items() if role in facts.roles_taken_along}
    possible_roles = {role, *roles_that_take_this_along}
    faults = [fault for fault in tx.faults if fault.rank.rpartition("/")[0] in possible_roles]
    faults = [fault for fault in faults if tx.now - fault.detected_at <= limits.SAME_FAILURE_WINDOW_S]
    if not faults:
        return
    failure = _classify_failure(tx, (role, rank), incarnation, outcome, _node_of_rank(tx, role, rank))
    if failure.ended_by_master:
        return
    fault, cause = root_fault_of(tx.faults, faults[-1]), _describe_failure(failure)
    # A late failure is only listed if it is secondary itself, or if the fault's primary cause is known: that one stays.
    if failure.reports_lost_peer or not (fault.reports_lost_peer or fault.rule == LOST_LOCAL_CONNECTION_RULE):
        _add_consequences(tx, fault, (Consequence(rank_name, incarnation, cause),))
        return
    # Otherwise they change places: the late failure is the cause, and the recorded one follows from it.
    _replace_fault(tx, evolve(_with_failure(fault, failure), cause=cause))
    consequence = Consequence(fault.rank, fault.incarnation, fault.cause)
    _add_consequences(tx, _fault_by_number(tx, fault.id), (consequence,))
    _report_corrected_cause(tx, fault, cause)
    # The restart stays as decided; only a cause that would repeat still changes the outcome.
    if not tx.ending:
        repetition = repeats.check_repetition(tx, failure, is_late=incarnation != current_incarnation)
        decision = policy.decide_about_failure(tx, failure, repetition)
        if isinstance(decision, policy.FailJob):
            ending.fail_job(tx, decision.reason, f"{cause}; {decision.explanation}")


def record_late_loss(tx: StateTransaction, role: str, ranks: Iterable[int], outcome: Outcome) -> None:
    """Handle the loss of a host that was already taken down, which may have died before it was killed.

    Without Ray's words or other evidence the death looks like PrimeMaster's own kill, so it is ignored.
    """
    if not outcome.detail and not outcome.clues:
        return
    for rank in ranks:
        rank_state = tx.ranks[role, rank]
        # A rank that waits or stops still has the number of the process that died; another one has a newer process.
        has_newer_process = rank_state.phase not in (RankPhase.WAITING, RankPhase.STOPPING)
        dead_incarnation = rank_state.incarnation - 1 if has_newer_process else rank_state.incarnation
        handle_late_end(tx, role, rank, dead_incarnation, outcome)


def handle_learned_cause(tx: StateTransaction, event: CauseLearned) -> None:
    """Add evidence about a rank or a node: to recorded faults, and to a notice for failures that are still to come."""
    target_kind, _, node = event.target.partition("/")  # "node/<id>", or "<role>/<rank>"
    if target_kind == "node":
        _add_clues_to_notice(tx, node, event.clues)
        faults = [fault for fault in tx.faults if fault.node == node and fault.reason in _REASONS_NODE_NEWS_EXPLAINS]
        faults = [fault for fault in faults if tx.now - fault.detected_at <= limits.LATE_CAUSE_WINDOW_S]
    elif event.host is not None:
        faults = _recent_faults_of_host(tx, event.host)[-1:]
    else:
        faults = [fault for fault in tx.faults if fault.rank == event.target]
        faults = [fault for fault in faults if event.incarnation in (0, fault.incarnation)][-1:]  # 0: of any process
        if not faults and _is_about_live_process(tx, event):
            _add_clues_to_notice(tx, event.target, event.clues)
    for fault in faults:
        # Without an outcome the restart was ordered: how the process ended is no cause then.
        outcome = causes.with_late_end(fault.outcome, event.end) if fault.outcome else Outcome(ok=False)
        _reclassify(tx, fault, causes.add_clues(outcome, event.clues))


def _recent_faults_of_host(tx: StateTransaction, host: HostId) -> list[FaultRecord]:
    """Return the faults of a host's ranks, or of a torch store, that are recent enough for news about its end."""
    ranks = tx.facts(host.role).ranks_of(host.index)
    target_names = {str(host)} if host.index == STORE_HOST_INDEX else {f"{host.role}/{rank}" for rank in ranks}
    faults = (fault for fault in tx.faults if fault.rank and tx.now - fault.detected_at <= limits.LATE_CAUSE_WINDOW_S)
    return [fault for fault in faults if _name_of_failed_rank_or_store(fault) in target_names]


def _name_of_failed_rank_or_store(fault: FaultRecord) -> str:
    """Return the name of what failed: the fault's rank, or its world's torch store, as its cause begins."""
    if fault.outcome is not None and fault.outcome.origin is not None:
        return fault.rank
    return fault.cause.partition(": ")[0]


def _recent_announced_clues(tx: StateTransaction, target: str) -> tuple[Clue, ...]:
    """Return the evidence announced for a node or a rank, if it is recent enough to explain an end now.

    For a node that is announced to go, its deadline counts instead of the time of the announcement.
    """
    notice, departure = tx.notices.get(target), tx.departures.get(target)
    if notice is None:
        return ()
    expected_end_at = notice.at if departure is None else departure.gone_at
    return notice.clues if tx.now - expected_end_at <= limits.ANNOUNCED_END_WINDOW_S else ()


def _with_announced_clues(tx: StateTransaction, outcome: Outcome, node: str, rank_name: str) -> Outcome:
    """Return the outcome with the evidence that was announced for the rank's node, and then for the rank."""
    for target in (node, rank_name):
        outcome = causes.add_clues(outcome, _recent_announced_clues(tx, target))
    return outcome


def _add_clues_to_notice(tx: StateTransaction, target: str, clues: tuple[Clue, ...]) -> None:
    """Add evidence to the notice of a node or a rank: the pod and Kubernetes both report, in any order."""
    known_clues = _recent_announced_clues(tx, target)
    new_clues = tuple(clue for clue in clues if clue not in known_clues)
    tx.notices = tx.notices.set(target, Notice(tx.now, (*known_clues, *new_clues)[-MAX_NOTICE_CLUES:]))


def _is_about_live_process(tx: StateTransaction, event: CauseLearned) -> bool:
    """Whether the evidence is about a rank's live process, whose end is still to be reported."""
    role, _, rank = event.target.partition("/")
    rank_state = tx.ranks.get((role, int(rank))) if rank.isdecimal() else None
    return rank_state is not None and rank_state.phase.live and rank_state.incarnation == event.incarnation


def root_fault_of(faults: Iterable[FaultRecord], fault: FaultRecord) -> FaultRecord:
    """Return the fault that another one follows from, or the fault itself if that one is unknown or forgotten."""
    return next((candidate for candidate in faults if candidate.id == fault.root_number), fault)


def _classify_failure(tx: StateTransaction, key: RankKey, incarnation: int, outcome: Outcome, node: str) -> Failure:
    """Return the failure of a rank's process, with its reason by the job's own rules and by those of dljob."""
    cause = causes.classify(outcome, tx.job.fault_tolerance.causes)
    outcome = causes.outcome_of_cause(outcome, cause)
    return Failure(*key, incarnation, node, outcome, cause.reports_lost_peer, cause.ended_by_master, cause.rule)


def _reclassify(tx: StateTransaction, fault: FaultRecord, outcome: Outcome) -> None:
    """Classify a fault again with more evidence; if its reason changed, correct the timeline and the verdict."""
    if outcome is fault.outcome:
        return
    classification = causes.classify(outcome, tx.job.fault_tolerance.causes)
    new_outcome = causes.outcome_of_cause(outcome, classification)
    cause = policy.describe_failure(
        _name_of_failed_rank_or_store(fault), new_outcome, lost_peer=classification.reports_lost_peer
    )
    new_fault = evolve(_with_outcome(fault, new_outcome), cause=cause)
    _replace_fault(tx, evolve(new_fault, reports_lost_peer=classification.reports_lost_peer, rule=classification.rule))
    if new_outcome.reason is not outcome.reason:
        _report_corrected_cause(tx, fault, cause)
    if not fault.root_number:
        _list_echoes_under(tx, _fault_by_number(tx, fault.id))


def _report_corrected_cause(tx: StateTransaction, old_fault: FaultRecord, cause: str) -> None:
    """Report the corrected cause, and mend the message of the verdict if the job ended with the old one."""
    tx.note(reasons.CAUSE_LEARNED, old_fault.target, f"cause: {cause}; before: {old_fault.cause}")
    if tx.verdict is not None and tx.verdict.message.startswith(old_fault.cause):
        tx.verdict = evolve(tx.verdict, message=cause + tx.verdict.message[len(old_fault.cause) :])


def _find_root_fault(tx: StateTransaction, fault: FaultRecord) -> FaultRecord | None:
    """Return the recent fault that a new one follows from; None: it is a cause of its own."""
    for earlier_fault in reversed(_faults_of_last_seconds(tx, fault)):
        root_fault = root_fault_of(tx.faults, earlier_fault)
        # A report of a lost peer causes no failure of another kind.
        can_be_root = root_fault.id != fault.id and (fault.reports_lost_peer or not root_fault.reports_lost_peer)
        if can_be_root and _can_be_consequence(fault, earlier_fault):
            return root_fault
    return None


def _list_echoes_under(tx: StateTransaction, fault: FaultRecord) -> None:
    """List under a newly known cause the recent faults that were taken for causes before."""
    if fault.reports_lost_peer:
        return
    for echo in _faults_of_last_seconds(tx, fault):
        has_vague_reason = echo.reason in (Reason.UNKNOWN.value, Reason.KILLED.value)
        died_with_node = has_vague_reason and _are_on_same_lost_node(fault, echo)
        follows_from_fault = echo.reports_lost_peer and _can_be_consequence(echo, fault)
        has_other_root = echo.root_number != 0
        if has_other_root or not (died_with_node or follows_from_fault):
            continue
        _replace_fault(tx, evolve(echo, root_number=fault.id, consequences=()))
        consequences = () if echo.rank == fault.rank else (Consequence(echo.rank, echo.incarnation, echo.cause),)
        _add_consequences(tx, _fault_by_number(tx, fault.id), (*consequences, *echo.consequences))
        _report_corrected_cause(tx, echo, fault.cause)


def _peers_named_in(cause: str) -> list[str]:
    """Return the ranks that the cause of a rank's failure names, without that rank: the cause begins with its name."""
    return _RANK_NAME_PATTERN.findall(cause)[1:]


def _can_be_consequence(fault: FaultRecord, earlier_fault: FaultRecord) -> bool:
    """Whether a fault can follow from another one.

    A primary fault can if both lost the same node for the same reason. A secondary one can if it names the other rank,
    or if it names none and both are of one role.
    """
    if not fault.reports_lost_peer:
        return fault.reason == earlier_fault.reason and _are_on_same_lost_node(fault, earlier_fault)
    origin = fault.outcome.origin if fault.outcome else None
    rank = fault.rank if origin is None else origin.rank
    # A callee's error has its caller behind it, which is no cause: only the callee's own words count.
    named_ranks = _peers_named_in(fault.cause) if origin is None else _RANK_NAME_PATTERN.findall(origin.message)
    same_role = rank.rpartition("/")[0] == earlier_fault.rank.rpartition("/")[0]
    return earlier_fault.rank in named_ranks or (same_role and not named_ranks)


def _are_on_same_lost_node(fault: FaultRecord, earlier_fault: FaultRecord) -> bool:
    """Whether both faults are of one node, and at least one of them says that the node is lost."""
    node_lost = Reason.NODE_LOST.value
    return bool(fault.node) and fault.node == earlier_fault.node and node_lost in (fault.reason, earlier_fault.reason)


def _faults_of_last_seconds(tx: StateTransaction, fault: FaultRecord) -> list[FaultRecord]:
    """Return the faults of failed ranks, but the given one, that are recent enough to belong to one failure."""
    faults = (candidate for candidate in tx.faults if candidate.id != fault.id and candidate.rank)
    return [candidate for candidate in faults if tx.now - candidate.detected_at <= limits.SAME_FAILURE_WINDOW_S]


def _is_end_recorded(tx: StateTransaction, rank_name: str, incarnation: int) -> bool:
    """Whether the end of a process is already recorded, as a fault or as a consequence of one."""
    records = (record for fault in tx.faults for record in (fault, *fault.consequences))
    return any((record.rank, record.incarnation) == (rank_name, incarnation) for record in records)


def _add_consequences(tx: StateTransaction, fault: FaultRecord, consequences: tuple[Consequence, ...]) -> None:
    """List failures under the recorded fault that caused them, as far as there is room."""
    if consequences:
        _replace_fault(tx, evolve(fault, consequences=(*fault.consequences, *consequences)[:MAX_CONSEQUENCES]))


def _replace_fault(tx: StateTransaction, fault: FaultRecord) -> None:
    """Put a changed fault in the place of the recorded one with its number."""
    tx.faults = tuple(fault if old_fault.id == fault.id else old_fault for old_fault in tx.faults)


def _fault_by_number(tx: StateTransaction, fault_number: int) -> FaultRecord:
    return next(fault for fault in tx.faults if fault.id == fault_number)


def _node_of_rank(tx: StateTransaction, role: str, rank: int) -> str:
    """Return the node of a rank's process, else the one that its unit is reserved on."""
    host = tx.facts(role).host_of(rank)
    return tx.hosts[host].node or tx.units[tx.facts(role).unit_of(host)].node


def _reason_text(outcome: Outcome) -> str:
    return (outcome.reason or Reason.UNKNOWN).value
