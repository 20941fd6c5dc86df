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

FOLLOWERS = 16
"""Largest number of failures listed under one cause: a world of thousands would fill the state with echoes."""
DETAIL = 2048
"""Last characters of a log or traceback that are kept with a fault."""
# Reasons that say that a process or connection is gone, but not why.
_VAGUE = frozenset({Reason.UNKNOWN.value, Reason.KILLED.value, Reason.NODE_LOST.value, Reason.NETWORK.value})
_OUTSIDE = _VAGUE | {Reason.PREEMPTED.value}
"""Reasons that later news about the node may explain: a pod reports its end, Kubernetes who deleted or evicted it."""
# Ranks in the message of a failure: a failure of one of them can be its cause.
_NAME = re.compile(r"[a-z][-a-z0-9]{0,23}/\d{1,6}\b")


def attribute_failure(tx: StateTransaction, role: str, rank: int, outcome: Outcome) -> Failure:
    """Classify a failure, with the evidence that was announced for its rank or node before."""
    node, name = _node(tx, role, rank), f"{role}/{rank}"
    for target in (node, name):
        outcome = causes.add_clues(outcome, _announced(tx, target))
    # A notice about a rank concerns one process; one about a node holds for all that dies there.
    if name in tx.notices:
        tx.notices = tx.notices.delete(name)
    failure = _classify(tx, (role, rank), tx.ranks[role, rank].incarnation, outcome, node)
    if failure.secondary and causes.is_time_out(failure.outcome):
        failure = evolve(failure, outcome=stalling.blame_root(tx, (role, rank), failure.outcome))
    return failure


def seconds_to_hold(tx: StateTransaction, key: RankKey, outcome: Outcome) -> float:
    """Return for how long an end may be held that only reports the loss of a peer of its own role.

    0: it says more than that, or follows from a failure that is known. A failure of before the process began explains
    nothing of its end.
    """
    role, rank = key
    rank_state, node, name = tx.ranks[key], _node(tx, role, rank), f"{role}/{rank}"
    for target in (node, name):
        outcome = causes.add_clues(outcome, _announced(tx, target))
    failure = _classify(tx, key, rank_state.incarnation, outcome, node)
    is_local = failure.rule == LOCAL_CONNECTION
    if failure.ordered or not (failure.secondary or is_local):
        return 0.0
    cause = _describe(failure, name)
    if any(named.rpartition("/")[0] != role for named in _NAME.findall(cause)[1:]):
        return 0.0  # it reports the loss of a rank that it had called
    known = _follows(tx, FaultRecord(0, "", _value(outcome), name, cause, tx.now, rank=name, node=node, secondary=True))
    hold_s = limits.LOCAL_PEER_WAIT_S if is_local else limits.PEER_WAIT_S
    return hold_s if known is None or known.detected <= rank_state.since else 0.0


def is_local_connection(tx: StateTransaction, outcome: Outcome) -> bool:
    """Whether an end tells of a broken connection to an address of its own machine."""
    return causes.classify(outcome, tx.job.fault_tolerance.causes).rule == LOCAL_CONNECTION


def _describe(failure: Failure, name: str) -> str:
    return policy.describe(name, failure.outcome, lost_peer=failure.secondary)


def record_fault(tx: StateTransaction, number: int, failure: Failure | None, root: int = 0) -> str:
    """Record the failed rank in a fault, and link the fault to its cause. Return the words for the timeline.

    `root`: the known cause of a fault without a failure of its own.
    """
    if failure is None:
        if root:
            _put(tx, evolve(_fault(tx, number), root=root))
        return ""
    fault = _fault(tx, number)
    shortened = evolve(failure.outcome, detail=failure.outcome.detail[-DETAIL:])
    fault = evolve(fault, rank=failure.name, incarnation=failure.incarnation, node=failure.node, outcome=shortened)
    fault = evolve(fault, reason=_value(failure.outcome), secondary=failure.secondary, rule=failure.rule)
    _put(tx, fault)
    first = _follows(tx, fault)
    # A cause of its own collects the echoes that were recorded before it.
    if first is None:
        _gather(tx, fault)
        return ""
    _put(tx, evolve(fault, root=first.id))
    _list(tx, first, (Consequence(fault.rank, fault.incarnation, fault.cause),))
    return f" (follows from {first.cause})"


def on_left_node(tx: StateTransaction, culprit: Failure, role: str, rank: int) -> Failure:
    """Return the failure for which a rank has to leave its node: the culprit's, also where it is of another role."""
    if role == culprit.role:
        return culprit
    return evolve(
        culprit, role=role, rank=rank, incarnation=tx.ranks[role, rank].incarnation, node=_node(tx, role, rank)
    )


def fault_of(tx: StateTransaction, failure: Failure) -> int:
    """Return the number of the fault that a failure is recorded in, or follows from; 0: it is not recorded."""
    key = (failure.name, failure.incarnation)
    return next((f.root or f.id for f in reversed(tx.faults) if (f.rank, f.incarnation) == key), 0)


def ends(tx: StateTransaction, failure: Failure, cause: str, root: int = 0) -> None:
    """Record the failure that ends the job as a fault. `root`: the fault in which it is recorded already."""
    number = tx.next_serial()
    tx.append_fault(FaultRecord(number, "Fail", _value(failure.outcome), failure.name, cause, tx.now))
    record_fault(tx, number, None if root else failure, root)


def late(tx: StateTransaction, role: str, rank: int, incarnation: int, outcome: Outcome) -> None:
    """Handle the end of a rank that was already taken down: it may be the first cause of that restart."""
    name, now = f"{role}/{rank}", tx.ranks[role, rank].incarnation
    # Only the present process and the one before it can have caused the latest fault.
    if outcome.ok or not now - 1 <= incarnation <= now or _is_recorded(tx, name, incarnation):
        return
    # A coupled role may have been taken down for the echo of a failure that was its own.
    roles = {role, *(name for name, facts in tx.job.roles.items() if role in facts.coupled)}
    own_faults = [f for f in tx.faults if f.rank.rpartition("/")[0] in roles and tx.now - f.detected <= limits.JOIN_S]
    if not own_faults:
        return
    failure = _classify(tx, (role, rank), incarnation, outcome, _node(tx, role, rank))
    if failure.ordered:  # it ended because PrimeMaster ended it
        return
    fault, cause = _root(tx, own_faults[-1]), _describe(failure, name)
    # A late failure is only listed if it is secondary itself, or if the fault's primary cause is known: that one stays.
    if failure.secondary or not (fault.secondary or fault.rule == LOCAL_CONNECTION):
        _list(tx, fault, (Consequence(name, incarnation, cause),))
        return
    # Otherwise they change places: the late failure is the cause, and the recorded one follows from it.
    before = Consequence(fault.rank, fault.incarnation, fault.cause)
    new = evolve(fault, rank=name, incarnation=incarnation, node=failure.node, outcome=failure.outcome, cause=cause)
    _put(tx, evolve(new, reason=_value(failure.outcome), secondary=False, rule=failure.rule))
    _list(tx, _fault(tx, fault.id), (before,))
    _corrected(tx, fault, cause)
    # The restart stays as decided; only a cause that would repeat still changes the outcome.
    if not tx.ending:
        decision = policy.decide(tx, failure, repeats.judge(tx, failure, late=incarnation != now))
        if isinstance(decision, policy.Fail):
            ending.fail_job(tx, decision.reason, f"{cause}; {decision.why}")


def record_late_loss(tx: StateTransaction, role: str, ranks: Iterable[int], outcome: Outcome) -> None:
    """Handle the loss of a host that was already taken down, which may have died before it was killed.

    Without Ray's words or other evidence the death cannot be told from PrimeMaster's own kill, so it is ignored.
    """
    for rank in ranks:
        rank_state = tx.ranks[role, rank]
        down = rank_state.phase in (RankPhase.WAITING, RankPhase.STOPPING)
        if outcome.detail or outcome.clues:
            late(tx, role, rank, rank_state.incarnation if down else rank_state.incarnation - 1, outcome)


def learned(tx: StateTransaction, event: CauseLearned) -> None:
    """Add evidence about a rank or a node: to recorded faults, and to a notice for failures that are still to come."""
    kind, _, name = event.target.partition("/")
    if kind == "node":
        _notice(tx, name, event.clues)
        faults = [
            f for f in tx.faults if f.node == name and f.reason in _OUTSIDE and tx.now - f.detected <= limits.LEARN_S
        ]
    elif event.host is not None:
        faults = _faults_of(tx, event.host)[-1:]
    else:
        faults = [f for f in tx.faults if f.rank == event.target and event.incarnation in (0, f.incarnation)][-1:]
        if not faults and _is_live(tx, event):
            _notice(tx, event.target, event.clues)
    for fault in faults:
        # Without an outcome somebody ordered the restart: how the process ended is no cause then.
        known = causes.with_end(fault.outcome, event.end) if fault.outcome else Outcome(ok=False)
        _reconsider(tx, fault, causes.add_clues(known, event.clues))


def _faults_of(tx: StateTransaction, host: HostId) -> list[FaultRecord]:
    """Return the faults of a host's ranks, or of a torch store, that are recent enough for news about its end."""
    ranks = tx.facts(host.role).ranks_of(host.index)
    names = {str(host)} if host.index == STORE else {f"{host.role}/{rank}" for rank in ranks}
    return [f for f in tx.faults if f.rank and _named(f) in names and tx.now - f.detected <= limits.LEARN_S]


def _named(fault: FaultRecord) -> str:
    """Return the name of what failed: the fault's rank, or its world's torch store, as its cause begins."""
    if fault.outcome is not None and fault.outcome.origin is not None:
        return fault.rank
    return fault.cause.partition(": ")[0]


def _announced(tx: StateTransaction, target: str) -> tuple[Clue, ...]:
    """Return the evidence announced for a node or a rank, if it is recent enough to explain an end now.

    For a node that is announced to go, its deadline counts instead of the time of the announcement.
    """
    notice, going = tx.notices.get(target), tx.departures.get(target)
    counts = notice is not None and tx.now - (going.by if going else notice.at) <= limits.NOTICE_S
    return notice.clues if notice is not None and counts else ()


def _notice(tx: StateTransaction, target: str, clues: tuple[Clue, ...]) -> None:
    """Add evidence to the notice of a node or a rank: the pod and Kubernetes both report, in any order."""
    known = _announced(tx, target)
    new = tuple(clue for clue in clues if clue not in known)
    tx.notices = tx.notices.set(target, Notice(tx.now, (*known, *new)[-FOLLOWERS:]))


def _is_live(tx: StateTransaction, event: CauseLearned) -> bool:
    """Whether the evidence is about a rank's live process, whose end is still to be reported."""
    role, _, rank = event.target.partition("/")
    rank_state = tx.ranks.get((role, int(rank))) if rank.isdecimal() else None
    return rank_state is not None and rank_state.phase.live and rank_state.incarnation == event.incarnation


def root_of(faults: Iterable[FaultRecord], fault: FaultRecord) -> FaultRecord:
    """Return the fault that another one follows from, or the fault itself if that one is unknown or forgotten."""
    return next((f for f in faults if f.id == fault.root), fault)


def _classify(tx: StateTransaction, key: RankKey, incarnation: int, outcome: Outcome, node: str) -> Failure:
    cause = causes.classify(outcome, tx.job.fault_tolerance.causes)
    judged = causes.judged(outcome, cause)
    return Failure(*key, incarnation, node, judged, cause.secondary, cause.ordered, cause.rule)


def _reconsider(tx: StateTransaction, fault: FaultRecord, outcome: Outcome) -> None:
    """Classify a fault again with more evidence; if its reason changed, correct the timeline and the verdict."""
    if outcome is fault.outcome:
        return
    cause = causes.classify(outcome, tx.job.fault_tolerance.causes)
    new = causes.judged(outcome, cause)
    cause_words = policy.describe(_named(fault), new, lost_peer=cause.secondary)
    again = evolve(
        fault, outcome=new, reason=_value(new), secondary=cause.secondary, rule=cause.rule, cause=cause_words
    )
    _put(tx, again)
    if new.reason is not outcome.reason:
        _corrected(tx, fault, cause_words)
    if not fault.root:
        _gather(tx, _fault(tx, fault.id))


def _corrected(tx: StateTransaction, before: FaultRecord, cause: str) -> None:
    """Report the corrected first cause, and mend the message of the verdict if the job ended with the old one."""
    tx.note(reasons.CAUSE_LEARNED, before.target, f"first cause: {cause}; before: {before.cause}")
    if tx.verdict is not None and tx.verdict.message.startswith(before.cause):
        tx.verdict = evolve(tx.verdict, message=cause + tx.verdict.message[len(before.cause) :])


def _follows(tx: StateTransaction, fault: FaultRecord) -> FaultRecord | None:
    """Return the recent fault that a new one follows from; None: it is a cause of its own."""
    for earlier in reversed(_recent(tx, fault)):
        root = _root(tx, earlier)
        if root.id != fault.id and _is_under(fault, earlier) and (not root.secondary or fault.secondary):
            return root
    return None


def _gather(tx: StateTransaction, fault: FaultRecord) -> None:
    """List under a newly known cause the recent faults that were taken for causes before."""
    if fault.secondary:
        return
    for echo in _recent(tx, fault):
        vague = echo.reason in (Reason.UNKNOWN.value, Reason.KILLED.value) and _same_node(fault, echo)
        if echo.root or not (vague or (echo.secondary and _is_under(echo, fault))):
            continue
        _put(tx, evolve(echo, root=fault.id, followed=()))
        first = () if echo.rank == fault.rank else (Consequence(echo.rank, echo.incarnation, echo.cause),)
        _list(tx, _fault(tx, fault.id), (*first, *echo.followed))
        _corrected(tx, echo, fault.cause)


def _is_under(fault: FaultRecord, earlier: FaultRecord) -> bool:
    """Whether a fault can follow from another one.

    A primary fault can if both lost the same node for the same reason. A secondary one can if it names the other rank,
    or if it names none and both are of one role.
    """
    if not fault.secondary:
        return fault.reason == earlier.reason and _same_node(fault, earlier)
    origin = fault.outcome.origin if fault.outcome else None
    rank = fault.rank if origin is None else origin.rank
    # The first name in a cause is that of its own rank; a callee's error has its caller behind it, which is no cause.
    named = _NAME.findall(fault.cause)[1:] if origin is None else _NAME.findall(origin.message)
    same_role = rank.rpartition("/")[0] == earlier.rank.rpartition("/")[0]
    return earlier.rank in named or (same_role and not named)


def _same_node(fault: FaultRecord, earlier: FaultRecord) -> bool:
    """Whether both faults are of one node, and at least one of them says that the node is lost."""
    lost = Reason.NODE_LOST.value
    return bool(fault.node) and fault.node == earlier.node and lost in (fault.reason, earlier.reason)


def _recent(tx: StateTransaction, fault: FaultRecord) -> list[FaultRecord]:
    return [f for f in tx.faults if f.id != fault.id and f.rank and tx.now - f.detected <= limits.JOIN_S]


def _is_recorded(tx: StateTransaction, name: str, incarnation: int) -> bool:
    """Whether the end of a process is already recorded, as a fault or as a consequence of one."""
    key = (name, incarnation)
    return any(
        (f.rank, f.incarnation) == key or any((o.rank, o.incarnation) == key for o in f.followed) for f in tx.faults
    )


def _list(tx: StateTransaction, fault: FaultRecord, more: tuple[Consequence, ...]) -> None:
    if more:
        _put(tx, evolve(fault, followed=(*fault.followed, *more)[:FOLLOWERS]))


def _put(tx: StateTransaction, fault: FaultRecord) -> None:
    tx.faults = tuple(fault if f.id == fault.id else f for f in tx.faults)


def _fault(tx: StateTransaction, number: int) -> FaultRecord:
    return next(f for f in tx.faults if f.id == number)


def _root(tx: StateTransaction, fault: FaultRecord) -> FaultRecord:
    return root_of(tx.faults, fault)


def _node(tx: StateTransaction, role: str, rank: int) -> str:
    facts = tx.facts(role)
    host = facts.host_of(rank)
    return tx.hosts[host].node or tx.units[facts.unit_of(host)].node


def _value(outcome: Outcome) -> str:
    return (outcome.reason or Reason.UNKNOWN).value
