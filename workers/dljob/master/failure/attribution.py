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
from dljob.master.state.job import STORE
from dljob.master.state.state import RankKey, RankPhase
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Clue, HostId, Outcome, Reason
from dljob.telemetry import reasons
from dljob.telemetry.causes import LOCAL_CONNECTION

MAX_CONSEQUENCES = 16
"""Largest number of failures listed under one cause: a world of thousands would fill the state with echoes."""
MAX_DETAIL = 2048
"""Last characters of a log or traceback that are kept with a fault."""
# Reasons that say that a process or connection is gone, but not why.
_VAGUE_REASONS = frozenset({Reason.UNKNOWN.value, Reason.KILLED.value, Reason.NODE_LOST.value, Reason.NETWORK.value})
_EXPLAINABLE_REASONS = _VAGUE_REASONS | {Reason.PREEMPTED.value}
"""Reasons that later news about the node may explain: a pod reports its end, Kubernetes who deleted or evicted it."""
# Ranks in the message of a failure: a failure of one of them can be its cause.
_RANK_NAME = re.compile(r"[a-z][-a-z0-9]{0,23}/\d{1,6}\b")


def attribute_failure(tx: StateTransaction, role: str, rank: int, outcome: Outcome) -> Failure:
    """Classify a failure, with the evidence that was announced for its rank or node before."""
    node, rank_name = _node_of_rank(tx, role, rank), f"{role}/{rank}"
    for target in (node, rank_name):
        outcome = causes.add_clues(outcome, _announced_clues(tx, target))
    # A notice about a rank concerns one process; one about a node holds for all that dies there.
    if rank_name in tx.notices:
        tx.notices = tx.notices.delete(rank_name)
    failure = _classify_failure(tx, (role, rank), tx.ranks[role, rank].incarnation, outcome, node)
    if failure.secondary and causes.is_time_out(failure.outcome):
        failure = evolve(failure, outcome=stalling.blame_root(tx, (role, rank), failure.outcome))
    return failure


def seconds_to_hold(tx: StateTransaction, key: RankKey, outcome: Outcome) -> float:
    """Return for how long an end may be held that only reports the loss of a peer of its own role.

    0: it says more than that, or follows from a failure that is known. A failure of before the process began explains
    nothing of its end.
    """
    role, rank = key
    rank_state, node, rank_name = tx.ranks[key], _node_of_rank(tx, role, rank), f"{role}/{rank}"
    for target in (node, rank_name):
        outcome = causes.add_clues(outcome, _announced_clues(tx, target))
    failure = _classify_failure(tx, key, rank_state.incarnation, outcome, node)
    is_local = failure.rule == LOCAL_CONNECTION
    if failure.ordered or not (failure.secondary or is_local):
        return 0.0
    cause_text = _describe_failure(failure, rank_name)
    if any(mentioned_rank.rpartition("/")[0] != role for mentioned_rank in _RANK_NAME.findall(cause_text)[1:]):
        return 0.0  # it reports the loss of a rank that it had called
    root_fault = _find_root_fault(
        tx,
        FaultRecord(
            0, "", _reason_value(outcome), rank_name, cause_text, tx.now, rank=rank_name, node=node, secondary=True
        ),
    )
    hold_s = limits.LOCAL_PEER_WAIT_S if is_local else limits.PEER_WAIT_S
    return hold_s if root_fault is None or root_fault.detected <= rank_state.since else 0.0


def is_local_connection(tx: StateTransaction, outcome: Outcome) -> bool:
    """Whether an end tells of a broken connection to an address of its own machine."""
    return causes.classify(outcome, tx.job.fault_tolerance.causes).rule == LOCAL_CONNECTION


def _describe_failure(failure: Failure, rank_name: str) -> str:
    return policy.describe_failure(rank_name, failure.outcome, lost_peer=failure.secondary)


def record_fault(tx: StateTransaction, fault_number: int, failure: Failure | None, root_number: int = 0) -> str:
    """Record the failed rank in a fault, and link the fault to its cause. Return the words for the timeline.

    `root`: the known cause of a fault without a failure of its own.
    """
    if failure is None:
        if root_number:
            _replace_fault(tx, evolve(_fault_by_number(tx, fault_number), root=root_number))
        return ""
    fault = _fault_by_number(tx, fault_number)
    shortened_outcome = evolve(failure.outcome, detail=failure.outcome.detail[-MAX_DETAIL:])
    fault = evolve(
        fault, rank=failure.name, incarnation=failure.incarnation, node=failure.node, outcome=shortened_outcome
    )
    fault = evolve(fault, reason=_reason_value(failure.outcome), secondary=failure.secondary, rule=failure.rule)
    _replace_fault(tx, fault)
    root_fault = _find_root_fault(tx, fault)
    # A cause of its own collects the echoes that were recorded before it.
    if root_fault is None:
        _collect_echoes(tx, fault)
        return ""
    _replace_fault(tx, evolve(fault, root=root_fault.id))
    _add_consequences(tx, root_fault, (Consequence(fault.rank, fault.incarnation, fault.cause),))
    return f" (follows from {root_fault.cause})"


def failure_of_leaving_rank(tx: StateTransaction, culprit_failure: Failure, role: str, rank: int) -> Failure:
    """Return the failure for which a rank has to leave its node: the culprit's, also where it is of another role."""
    if role == culprit_failure.role:
        return culprit_failure
    return evolve(
        culprit_failure,
        role=role,
        rank=rank,
        incarnation=tx.ranks[role, rank].incarnation,
        node=_node_of_rank(tx, role, rank),
    )


def fault_number_of(tx: StateTransaction, failure: Failure) -> int:
    """Return the number of the fault that a failure is recorded in, or follows from; 0: it is not recorded."""
    key = (failure.name, failure.incarnation)
    return next((fault.root or fault.id for fault in reversed(tx.faults) if (fault.rank, fault.incarnation) == key), 0)


def record_final_fault(tx: StateTransaction, failure: Failure, cause_text: str, root_number: int = 0) -> None:
    """Record the failure that ends the job as a fault. `root`: the fault in which it is recorded already."""
    fault_number = tx.next_serial()
    tx.append_fault(FaultRecord(fault_number, "Fail", _reason_value(failure.outcome), failure.name, cause_text, tx.now))
    record_fault(tx, fault_number, None if root_number else failure, root_number)


def handle_late_end(tx: StateTransaction, role: str, rank: int, incarnation: int, outcome: Outcome) -> None:
    """Handle the end of a rank that was already taken down: it may be the first cause of that restart."""
    name, current_incarnation = f"{role}/{rank}", tx.ranks[role, rank].incarnation
    # Only the present process and the one before it can have caused the latest fault.
    if (
        outcome.ok
        or not current_incarnation - 1 <= incarnation <= current_incarnation
        or _is_recorded(tx, name, incarnation)
    ):
        return
    # A coupled role may have been taken down for the echo of a failure that was its own.
    roles = {role, *(name for name, facts in tx.job.roles.items() if role in facts.coupled)}
    recent_faults = [
        fault
        for fault in tx.faults
        if fault.rank.rpartition("/")[0] in roles and tx.now - fault.detected <= limits.JOIN_S
    ]
    if not recent_faults:
        return
    failure = _classify_failure(tx, (role, rank), incarnation, outcome, _node_of_rank(tx, role, rank))
    if failure.ordered:  # it ended because PrimeMaster ended it
        return
    fault, cause_text = _root(tx, recent_faults[-1]), _describe_failure(failure, name)
    # A late failure is only listed if it is secondary itself, or if the fault's primary cause is known: that one stays.
    if failure.secondary or not (fault.secondary or fault.rule == LOCAL_CONNECTION):
        _add_consequences(tx, fault, (Consequence(name, incarnation, cause_text),))
        return
    # Otherwise they change places: the late failure is the cause, and the recorded one follows from it.
    old_consequence = Consequence(fault.rank, fault.incarnation, fault.cause)
    corrected_fault = evolve(
        fault, rank=name, incarnation=incarnation, node=failure.node, outcome=failure.outcome, cause=cause_text
    )
    _replace_fault(
        tx, evolve(corrected_fault, reason=_reason_value(failure.outcome), secondary=False, rule=failure.rule)
    )
    _add_consequences(tx, _fault_by_number(tx, fault.id), (old_consequence,))
    _report_corrected_cause(tx, fault, cause_text)
    # The restart stays as decided; only a cause that would repeat still changes the outcome.
    if not tx.ending:
        decision = policy.decide_about_failure(
            tx, failure, repeats.check_repetition(tx, failure, is_late=incarnation != current_incarnation)
        )
        if isinstance(decision, policy.Fail):
            ending.fail_job(tx, decision.reason, f"{cause_text}; {decision.explanation}")


def record_late_loss(tx: StateTransaction, role: str, ranks: Iterable[int], outcome: Outcome) -> None:
    """Handle the loss of a host that was already taken down, which may have died before it was killed.

    Without Ray's words or other evidence the death cannot be told from PrimeMaster's own kill, so it is ignored.
    """
    for rank in ranks:
        rank_state = tx.ranks[role, rank]
        is_down = rank_state.phase in (RankPhase.WAITING, RankPhase.STOPPING)
        if outcome.detail or outcome.clues:
            handle_late_end(tx, role, rank, rank_state.incarnation if is_down else rank_state.incarnation - 1, outcome)


def handle_learned_cause(tx: StateTransaction, event: CauseLearned) -> None:
    """Add evidence about a rank or a node: to recorded faults, and to a notice for failures that are still to come."""
    target_kind, _, name = event.target.partition("/")
    if target_kind == "node":
        _add_notice(tx, name, event.clues)
        faults = [
            fault
            for fault in tx.faults
            if fault.node == name and fault.reason in _EXPLAINABLE_REASONS and tx.now - fault.detected <= limits.LEARN_S
        ]
    elif event.host is not None:
        faults = _recent_faults_of_host(tx, event.host)[-1:]
    else:
        faults = [
            fault for fault in tx.faults if fault.rank == event.target and event.incarnation in (0, fault.incarnation)
        ][-1:]
        if not faults and _is_about_live_process(tx, event):
            _add_notice(tx, event.target, event.clues)
    for fault in faults:
        # Without an outcome somebody ordered the restart: how the process ended is no cause then.
        known_outcome = causes.with_end(fault.outcome, event.end) if fault.outcome else Outcome(ok=False)
        _reclassify(tx, fault, causes.add_clues(known_outcome, event.clues))


def _recent_faults_of_host(tx: StateTransaction, host: HostId) -> list[FaultRecord]:
    """Return the faults of a host's ranks, or of a torch store, that are recent enough for news about its end."""
    ranks = tx.facts(host.role).ranks_of(host.index)
    target_names = {str(host)} if host.index == STORE else {f"{host.role}/{rank}" for rank in ranks}
    return [
        fault
        for fault in tx.faults
        if fault.rank and _failed_name(fault) in target_names and tx.now - fault.detected <= limits.LEARN_S
    ]


def _failed_name(fault: FaultRecord) -> str:
    """Return the name of what failed: the fault's rank, or its world's torch store, as its cause begins."""
    if fault.outcome is not None and fault.outcome.origin is not None:
        return fault.rank
    return fault.cause.partition(": ")[0]


def _announced_clues(tx: StateTransaction, target: str) -> tuple[Clue, ...]:
    """Return the evidence announced for a node or a rank, if it is recent enough to explain an end now.

    For a node that is announced to go, its deadline counts instead of the time of the announcement.
    """
    notice, departure = tx.notices.get(target), tx.departures.get(target)
    is_recent = notice is not None and tx.now - (departure.by if departure else notice.at) <= limits.NOTICE_S
    return notice.clues if notice is not None and is_recent else ()


def _add_notice(tx: StateTransaction, target: str, clues: tuple[Clue, ...]) -> None:
    """Add evidence to the notice of a node or a rank: the pod and Kubernetes both report, in any order."""
    known_clues = _announced_clues(tx, target)
    new_clues = tuple(clue for clue in clues if clue not in known_clues)
    tx.notices = tx.notices.set(target, Notice(tx.now, (*known_clues, *new_clues)[-MAX_CONSEQUENCES:]))


def _is_about_live_process(tx: StateTransaction, event: CauseLearned) -> bool:
    """Whether the evidence is about a rank's live process, whose end is still to be reported."""
    role, _, rank = event.target.partition("/")
    rank_state = tx.ranks.get((role, int(rank))) if rank.isdecimal() else None
    return rank_state is not None and rank_state.phase.live and rank_state.incarnation == event.incarnation


def root_of(faults: Iterable[FaultRecord], fault: FaultRecord) -> FaultRecord:
    """Return the fault that another one follows from, or the fault itself if that one is unknown or forgotten."""
    return next((candidate for candidate in faults if candidate.id == fault.root), fault)


def _classify_failure(tx: StateTransaction, key: RankKey, incarnation: int, outcome: Outcome, node: str) -> Failure:
    cause = causes.classify(outcome, tx.job.fault_tolerance.causes)
    judged = causes.judged(outcome, cause)
    return Failure(*key, incarnation, node, judged, cause.secondary, cause.ordered, cause.rule)


def _reclassify(tx: StateTransaction, fault: FaultRecord, outcome: Outcome) -> None:
    """Classify a fault again with more evidence; if its reason changed, correct the timeline and the verdict."""
    if outcome is fault.outcome:
        return
    cause = causes.classify(outcome, tx.job.fault_tolerance.causes)
    new_outcome = causes.judged(outcome, cause)
    cause_text = policy.describe_failure(_failed_name(fault), new_outcome, lost_peer=cause.secondary)
    new_fault = evolve(
        fault,
        outcome=new_outcome,
        reason=_reason_value(new_outcome),
        secondary=cause.secondary,
        rule=cause.rule,
        cause=cause_text,
    )
    _replace_fault(tx, new_fault)
    if new_outcome.reason is not outcome.reason:
        _report_corrected_cause(tx, fault, cause_text)
    if not fault.root:
        _collect_echoes(tx, _fault_by_number(tx, fault.id))


def _report_corrected_cause(tx: StateTransaction, old_fault: FaultRecord, cause_text: str) -> None:
    """Report the corrected first cause, and mend the message of the verdict if the job ended with the old one."""
    tx.note(reasons.CAUSE_LEARNED, old_fault.target, f"first cause: {cause_text}; before: {old_fault.cause}")
    if tx.verdict is not None and tx.verdict.message.startswith(old_fault.cause):
        tx.verdict = evolve(tx.verdict, message=cause_text + tx.verdict.message[len(old_fault.cause) :])


def _find_root_fault(tx: StateTransaction, fault: FaultRecord) -> FaultRecord | None:
    """Return the recent fault that a new one follows from; None: it is a cause of its own."""
    for earlier_fault in reversed(_recent_faults(tx, fault)):
        root_fault = _root(tx, earlier_fault)
        if (
            root_fault.id != fault.id
            and _can_follow_from(fault, earlier_fault)
            and (not root_fault.secondary or fault.secondary)
        ):
            return root_fault
    return None


def _collect_echoes(tx: StateTransaction, fault: FaultRecord) -> None:
    """List under a newly known cause the recent faults that were taken for causes before."""
    if fault.secondary:
        return
    for echo in _recent_faults(tx, fault):
        is_vague = echo.reason in (Reason.UNKNOWN.value, Reason.KILLED.value) and _share_lost_node(fault, echo)
        if echo.root or not (is_vague or (echo.secondary and _can_follow_from(echo, fault))):
            continue
        _replace_fault(tx, evolve(echo, root=fault.id, followed=()))
        echo_consequence = () if echo.rank == fault.rank else (Consequence(echo.rank, echo.incarnation, echo.cause),)
        _add_consequences(tx, _fault_by_number(tx, fault.id), (*echo_consequence, *echo.followed))
        _report_corrected_cause(tx, echo, fault.cause)


def _can_follow_from(fault: FaultRecord, earlier_fault: FaultRecord) -> bool:
    """Whether a fault can follow from another one.

    A primary fault can if both lost the same node for the same reason. A secondary one can if it names the other rank,
    or if it names none and both are of one role.
    """
    if not fault.secondary:
        return fault.reason == earlier_fault.reason and _share_lost_node(fault, earlier_fault)
    origin = fault.outcome.origin if fault.outcome else None
    rank = fault.rank if origin is None else origin.rank
    # The first name in a cause is that of its own rank; a callee's error has its caller behind it, which is no cause.
    named_ranks = _RANK_NAME.findall(fault.cause)[1:] if origin is None else _RANK_NAME.findall(origin.message)
    same_role = rank.rpartition("/")[0] == earlier_fault.rank.rpartition("/")[0]
    return earlier_fault.rank in named_ranks or (same_role and not named_ranks)


def _share_lost_node(fault: FaultRecord, earlier_fault: FaultRecord) -> bool:
    """Whether both faults are of one node, and at least one of them says that the node is lost."""
    node_lost = Reason.NODE_LOST.value
    return bool(fault.node) and fault.node == earlier_fault.node and node_lost in (fault.reason, earlier_fault.reason)


def _recent_faults(tx: StateTransaction, fault: FaultRecord) -> list[FaultRecord]:
    return [
        candidate
        for candidate in tx.faults
        if candidate.id != fault.id and candidate.rank and tx.now - candidate.detected <= limits.JOIN_S
    ]


def _is_recorded(tx: StateTransaction, rank_name: str, incarnation: int) -> bool:
    """Whether the end of a process is already recorded, as a fault or as a consequence of one."""
    key = (rank_name, incarnation)
    return any(
        (fault.rank, fault.incarnation) == key
        or any((consequence.rank, consequence.incarnation) == key for consequence in fault.followed)
        for fault in tx.faults
    )


def _add_consequences(tx: StateTransaction, fault: FaultRecord, consequences: tuple[Consequence, ...]) -> None:
    if consequences:
        _replace_fault(tx, evolve(fault, followed=(*fault.followed, *consequences)[:MAX_CONSEQUENCES]))


def _replace_fault(tx: StateTransaction, fault: FaultRecord) -> None:
    tx.faults = tuple(fault if old_fault.id == fault.id else old_fault for old_fault in tx.faults)


def _fault_by_number(tx: StateTransaction, fault_number: int) -> FaultRecord:
    return next(fault for fault in tx.faults if fault.id == fault_number)


def _root(tx: StateTransaction, fault: FaultRecord) -> FaultRecord:
    return root_of(tx.faults, fault)


def _node_of_rank(tx: StateTransaction, role: str, rank: int) -> str:
    facts = tx.facts(role)
    host = facts.host_of(rank)
    return tx.hosts[host].node or tx.units[facts.unit_of(host)].node


def _reason_value(outcome: Outcome) -> str:
    return (outcome.reason or Reason.UNKNOWN).value
