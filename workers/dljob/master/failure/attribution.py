"""Which failure of several was the first cause: by kind first, then by time.

A failure that only tells that somebody else is gone never is the cause while one is known that it can follow from.
Whatever is told too late to be acted upon (the rank was taken down already, the kernel's or the pod's words came after
the restart) still corrects what is said of a fault, and ends the job where it must repeat.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from dljob.master.failure import ending, policy, repeats
from dljob.master.state import causes, limits
from dljob.master.state.events import CauseLearned
from dljob.master.state.evolve import evolve
from dljob.master.state.faults import Consequence, Failure, FaultRecord, Notice
from dljob.master.state.state import RankKey, RankPhase
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Clue, Outcome, Reason
from dljob.telemetry import reasons

FOLLOWERS = 16
"""So many errors are listed under one cause."""
DETAIL = 2048
"""So many of the last characters of a log or traceback are kept with a fault."""
_VAGUE = frozenset({Reason.UNKNOWN.value, Reason.KILLED.value, Reason.NODE_LOST.value, Reason.NETWORK.value})
_OUTSIDE = _VAGUE | {Reason.PREEMPTED.value}
"""Of what happens to a node there may be more to say: a pod tells that it is to end, Kubernetes whose doing that is."""
_NAME = re.compile(r"[a-z][-a-z0-9]{0,23}/\d{1,6}\b")


def attribute_failure(d: StateTransaction, role: str, rank: int, outcome: Outcome) -> Failure:
    """A failure with its cause, after what was announced of its node."""
    node, name = _node(d, role, rank), f"{role}/{rank}"
    for told in (node, name):
        outcome = causes.told(outcome, _announced(d, told))
    if name in d.notices:
        d.notices = d.notices.delete(name)
    return _judged(d, (role, rank), d.ranks[role, rank].incarnation, outcome, node)


def record_fault(d: StateTransaction, number: int, heard: Failure | None) -> str:
    """Write down who a fault was heard of, and under which it belongs; gives what is to be said of that."""
    if heard is None:
        return ""
    fault = _fault(d, number)
    kept = evolve(heard.outcome, detail=heard.outcome.detail[-DETAIL:])
    fault = evolve(fault, rank=heard.name, incarnation=heard.incarnation, node=heard.node, outcome=kept)
    fault = evolve(fault, reason=_value(heard.outcome), secondary=heard.secondary)
    _put(d, fault)
    root = _follows(d, fault)
    if root is None:
        _gather(d, fault)
        return ""
    _put(d, evolve(fault, root=root.id))
    _list(d, root, (Consequence(fault.rank, fault.incarnation, fault.cause),))
    return f" (follows from {root.cause})"


def ends(d: StateTransaction, heard: Failure, cause: str) -> None:
    """Remember the failure that ends the job."""
    number = d.next_serial()
    d.append_fault(FaultRecord(number, "Fail", _value(heard.outcome), heard.name, cause, d.now))
    record_fault(d, number, heard)


def late(d: StateTransaction, role: str, rank: int, incarnation: int, outcome: Outcome) -> None:
    """A rank that was taken down already told how it ended: is it the first cause of why it was taken down?"""
    name, now = f"{role}/{rank}", d.ranks[role, rank].incarnation
    if outcome.ok or not now - 1 <= incarnation <= now or _known(d, name, incarnation):
        return
    mine = [f for f in d.faults if f.rank.startswith(f"{role}/") and d.now - f.detected <= limits.JOIN_S]
    if not mine:
        return
    heard = _judged(d, (role, rank), incarnation, outcome, _node(d, role, rank))
    if heard.ordered:
        return
    fault, cause = _root(d, mine[-1]), policy.describe(name, heard.outcome)
    if heard.secondary or not fault.secondary:
        _list(d, fault, (Consequence(name, incarnation, cause),))
        return
    before = Consequence(fault.rank, fault.incarnation, fault.cause)
    new = evolve(fault, rank=name, incarnation=incarnation, node=heard.node, outcome=heard.outcome, cause=cause)
    _put(d, evolve(new, reason=_value(heard.outcome), secondary=False))
    _list(d, _fault(d, fault.id), (before,))
    _corrected(d, fault, cause)
    if not d.ending:
        decision = policy.decide(d, heard, repeats.judge(d, heard, late=incarnation != now))
        if isinstance(decision, policy.Fail):
            ending.fail(d, decision.reason, f"{cause}; {decision.why}")


def lost_late(d: StateTransaction, role: str, ranks: Iterable[int], outcome: Outcome) -> None:
    """A host that was ended had been dead before. Only Ray's word for it counts: our own kill looks alike."""
    for rank in ranks:
        own = d.ranks[role, rank]
        down = own.phase in (RankPhase.WAITING, RankPhase.STOPPING)
        if outcome.detail or outcome.clues:
            late(d, role, rank, own.incarnation if down else own.incarnation - 1, outcome)


def learned(d: StateTransaction, event: CauseLearned) -> None:
    """More is known of why a rank, or what lived on a node, went."""
    kind, _, name = event.target.partition("/")
    if kind == "node":
        _notice(d, name, event.clues)
        told = [f for f in d.faults if f.node == name and f.reason in _OUTSIDE and d.now - f.detected <= limits.LEARN_S]
    else:
        told = [f for f in d.faults if f.rank == event.target and event.incarnation in (0, f.incarnation)][-1:]
        if not told and _lives(d, event):
            _notice(d, event.target, event.clues)
    for fault in told:
        _reconsider(d, fault, causes.told(fault.outcome or Outcome(ok=False), event.clues))


def _announced(d: StateTransaction, whom: str) -> tuple[Clue, ...]:
    """What was announced of a node, or of a rank, and still counts."""
    notice, going = d.notices.get(whom), d.departures.get(whom)
    counts = notice is not None and d.now - (going.by if going else notice.at) <= limits.NOTICE_S
    return notice.clues if notice is not None and counts else ()


def _notice(d: StateTransaction, whom: str, clues: tuple[Clue, ...]) -> None:
    """Keep what is announced beside what was: the pod itself and Kubernetes both speak, in any order."""
    known = _announced(d, whom)
    new = tuple(clue for clue in clues if clue not in known)
    d.notices = d.notices.set(whom, Notice(d.now, (*known, *new)[-FOLLOWERS:]))


def _lives(d: StateTransaction, event: CauseLearned) -> bool:
    """Whether it is about a process whose end nobody has heard of yet."""
    role, _, rank = event.target.partition("/")
    own = d.ranks.get((role, int(rank))) if rank.isdecimal() else None
    return own is not None and own.phase.live and own.incarnation == event.incarnation


def root_of(faults: Iterable[FaultRecord], fault: FaultRecord) -> FaultRecord:
    """The fault that another follows from; itself when it follows from none that is still known."""
    return next((f for f in faults if f.id == fault.root), fault)


def _judged(d: StateTransaction, key: RankKey, incarnation: int, outcome: Outcome, node: str) -> Failure:
    cause = causes.classify(outcome, d.job.fault_tolerance.causes)
    return Failure(*key, incarnation, node, causes.judged(outcome, cause), cause.secondary, cause.ordered)


def _reconsider(d: StateTransaction, fault: FaultRecord, outcome: Outcome) -> None:
    """Judge a fault again with more evidence; the end that it was heard with stays what it is."""
    if outcome is fault.outcome:
        return
    cause = causes.classify(outcome, d.job.fault_tolerance.causes)
    new = causes.judged(outcome, cause)
    said = policy.describe(fault.rank, new)
    again = evolve(fault, outcome=new, reason=_value(new), secondary=cause.secondary, cause=said)
    _put(d, again)
    if new.reason is not outcome.reason:
        _corrected(d, fault, said)
    if not fault.root:
        _gather(d, _fault(d, fault.id))


def _corrected(d: StateTransaction, before: FaultRecord, cause: str) -> None:
    """Say what the first cause really was, also where it ended the job."""
    d.note(reasons.CAUSE_LEARNED, before.target, f"first cause: {cause}; before: {before.cause}")
    if d.verdict is not None and d.verdict.message.startswith(before.cause):
        d.verdict = evolve(d.verdict, message=cause + d.verdict.message[len(before.cause) :])


def _follows(d: StateTransaction, fault: FaultRecord) -> FaultRecord | None:
    """The fault that a new one follows from."""
    for other in reversed(_recent(d, fault)):
        root = _root(d, other)
        if root.id != fault.id and _is_under(fault, other) and (not root.secondary or fault.secondary):
            return root
    return None


def _gather(d: StateTransaction, fault: FaultRecord) -> None:
    """Put under a fault what was taken for a cause before it was known."""
    if fault.secondary:
        return
    for other in _recent(d, fault):
        vague = other.reason in (Reason.UNKNOWN.value, Reason.KILLED.value) and _same_node(fault, other)
        if other.root or not (vague or (other.secondary and _is_under(other, fault))):
            continue
        _put(d, evolve(other, root=fault.id, followed=()))
        own = () if other.rank == fault.rank else (Consequence(other.rank, other.incarnation, other.cause),)
        _list(d, _fault(d, fault.id), (*own, *other.followed))
        _corrected(d, other, fault.cause)


def _is_under(fault: FaultRecord, other: FaultRecord) -> bool:
    """Whether a fault can follow from another: it names it, meets it in one world of ranks, or fell with its node."""
    if not fault.secondary:
        return fault.reason == other.reason and _same_node(fault, other)
    named = _NAME.findall(fault.cause)[1:]
    same_role = fault.rank.rpartition("/")[0] == other.rank.rpartition("/")[0]
    return other.rank in named or (same_role and not named)


def _same_node(fault: FaultRecord, other: FaultRecord) -> bool:
    lost = Reason.NODE_LOST.value
    return bool(fault.node) and fault.node == other.node and lost in (fault.reason, other.reason)


def _recent(d: StateTransaction, fault: FaultRecord) -> list[FaultRecord]:
    return [f for f in d.faults if f.id != fault.id and f.rank and d.now - f.detected <= limits.JOIN_S]


def _known(d: StateTransaction, name: str, incarnation: int) -> bool:
    key = (name, incarnation)
    return any(
        (f.rank, f.incarnation) == key or any((o.rank, o.incarnation) == key for o in f.followed) for f in d.faults
    )


def _list(d: StateTransaction, fault: FaultRecord, more: tuple[Consequence, ...]) -> None:
    if more:
        _put(d, evolve(fault, followed=(*fault.followed, *more)[:FOLLOWERS]))


def _put(d: StateTransaction, fault: FaultRecord) -> None:
    d.faults = tuple(fault if f.id == fault.id else f for f in d.faults)


def _fault(d: StateTransaction, number: int) -> FaultRecord:
    return next(f for f in d.faults if f.id == number)


def _root(d: StateTransaction, fault: FaultRecord) -> FaultRecord:
    return root_of(d.faults, fault)


def _node(d: StateTransaction, role: str, rank: int) -> str:
    facts = d.facts(role)
    host = facts.host_of(rank)
    return d.hosts[host].node or d.units[facts.unit_of(host)].node


def _value(outcome: Outcome) -> str:
    return (outcome.reason or Reason.UNKNOWN).value
