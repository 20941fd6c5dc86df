"""The account of a rank, decided from the state alone, and the booking of the changes of one event.

Handlers book nothing: whatever state a rule of recovery makes has an account, so a new rule needs no bookkeeping.
"""

from __future__ import annotations

from collections import Counter

from dljob.master.state import ledger
from dljob.master.state.events import Event, HangFound, HostLost, NodeFrozen, NodesSeen
from dljob.master.state.job import RoleFacts
from dljob.master.state.ledger import Account, Move, RankKey
from dljob.master.state.staleness import no_requests_reason
from dljob.master.state.state import HostPhase, JobState, Phase, RankPhase, RankState, RoleState, SpareState, UnitPhase
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import HostId, Reason

Signs = dict[HostId | str, float]
"""Host or node -> time of its last sign of life (unix seconds)."""


def account_of(s: JobState | StateTransaction, key: RankKey) -> Account | None:
    """Return the account of a rank; None: its role shrank and dropped it. docs/ledger.md describes the accounts."""
    phase, sizing = s.ranks[key].phase, s.sizes.get(key[0])
    is_leaving = sizing is not None and key[1] in sizing.leaving
    if phase is RankPhase.ABSENT:
        # Until its role goes on without it, a rank that has left is one of those whose time is counted.
        return Account.IDLE if is_leaving else None
    if s.verdict is not None:  # the job is ending: no rank produces anything that counts
        return Account.IDLE
    if key in s.stalled:
        return Account.STALLED
    if phase is RankPhase.READY:
        return _ready(s, key)
    if phase is RankPhase.STARTING:
        return Account.INIT
    if phase is not RankPhase.WAITING and phase is not RankPhase.STOPPING:
        return Account.IDLE
    if not s.seats:  # not admitted yet
        return Account.QUEUE if s.phase is Phase.PENDING else Account.SCHEDULE
    return _stopping_or_waiting(s, key, is_leaving=is_leaving)


def _stopping_or_waiting(s: JobState | StateTransaction, key: RankKey, *, is_leaving: bool) -> Account:
    """Return the account of a rank of an admitted job that is asked to end, or waits for a process."""
    rank_state, facts, sizing = s.ranks[key], s.job.roles[key[0]], s.sizes.get(key[0])
    incident = s.incidents.get(rank_state.incident)
    is_dropped = is_leaving or (sizing is not None and sizing.all_leave_user_code and key[1] >= sizing.target)
    if incident is not None and is_dropped:  # the restart brings back only the others
        return Account.IDLE
    if incident is not None and not incident.is_backoff_over:
        return Account.DECIDE
    if rank_state.phase is RankPhase.WAITING:
        return _waiting(s, facts, rank_state, facts.host_of(key[1]))
    if incident is not None or s.roles[key[0]].stop_by is not None:  # it is to start again
        return Account.REPLACE
    # It finishes its work before its role goes on without it, or its unit moves.
    return _ready(s, key) if rank_state.ready_at else Account.INIT


def _ready(s: JobState | StateTransaction, key: RankKey) -> Account:
    """Return the account of a rank that is ready, or finishes its work."""
    rank_state, role, facts = s.ranks[key], s.roles[key[0]], s.job.roles[key[0]]
    if key[0] in s.inquiries:  # it, or the peer that it waits for, is lost, and the cause is looked for
        return Account.DETECT
    if no_requests_reason(s, key):
        return Account.STALE
    if facts.is_torch_world and not _all_in(role):
        return Account.RENDEZVOUS
    if rank_state.goal is None:  # no earlier process had come further
        return Account.PRODUCTIVE
    return Account.RECOMPUTE if rank_state.stepped else Account.INIT


def _waiting(s: JobState | StateTransaction, facts: RoleFacts, rank_state: RankState, host: HostId) -> Account:
    """Return the account of a waiting rank of an admitted job, by the first thing that it waits for."""
    begins = Account.REPLACE if rank_state.incarnation or rank_state.incident else Account.INIT
    if s.units[facts.unit_of(host)].phase is not UnitPhase.HELD:
        return Account.SCHEDULE
    if not s.roles[host.role].hosts_ordered:
        return Account.WAIT
    if s.hosts[host].phase is not HostPhase.READY:
        return begins
    if not all(_dependency_met(s, dependency, kind) for dependency, kind in facts.plan.depends_on):
        return Account.WAIT
    return Account.RENDEZVOUS if facts.is_torch_world else begins


def _dependency_met(s: JobState | StateTransaction, dependency: str, kind: str) -> bool:
    role = s.roles[dependency]
    return _completed(role, s.job.roles[dependency]) or (kind == "Ready" and role.was_ready)


def _completed(role: RoleState, facts: RoleFacts) -> bool:
    return role.succeeded_count + role.failed_count == facts.plan.replicas


def _all_in(role: RoleState) -> bool:
    """Whether all ranks of a torch world are up, so that they do not wait for each other."""
    return not (role.waiting_count or role.starting_count or role.stopping_count)


def micros(s: JobState | StateTransaction, at: float) -> int:
    """Return unix seconds as microseconds since the job's start."""
    return round((at - s.started_at) * 1e6)


def settle(d: StateTransaction, event: Event) -> None:
    """Book the changes of accounts that this transition caused."""
    spares = _spares(d) if d.changes.spares else {}
    clocks, signs = d.ledger.clocks, _signs(d, event)
    moves: list[Move] = []
    for key in _keys(d):
        account, clock = account_of(d, key), clocks.get(key)
        if (clock and clock[0]) is not account:
            moves.append(_move(d, key, account, _last_sign(d, key, signs, event) if signs else None))
        elif key in d.changes.first_work_at or (account is Account.STALLED and d.stalled[key] != d.base.stalled[key]):
            moves.append(_move(d, key, account, None))
    if moves or spares:
        d.ledger = ledger.book_moves(d.ledger, moves, spares, micros(d, d.now))


def _move(d: StateTransaction, key: RankKey, account: Account | None, lost: int | None) -> Move:
    began = d.changes.first_work_at.get(key)
    return Move(
        key,
        account,
        lost,
        stalled=micros(d, d.stalled[key]) if account is Account.STALLED else None,
        resumed=key in d.changes.resumed_ranks,
        began=None if began is None else micros(d, began),
    )


def _keys(d: StateTransaction) -> set[RankKey]:
    """Return the ranks whose account this transition may have changed.

    Beside the touched ones these are peers and dependents whose account follows from another rank's or role's state.
    All ranks are examined only when the job is admitted or ends.
    """
    base = d.base
    ends = d.verdict is not None and base.verdict is None
    if ends or d.was_admitted != bool(base.seats) or (d.phase is Phase.PENDING) != (base.phase is Phase.PENDING):
        return set(d.ranks)
    keys = d.changes.ranks
    for name in d.changes.roles.union(role for role, _ in keys):
        # A world that became whole, or ceased to be, changes the accounts of all its ranks; readiness, of dependents.
        old, new, facts = base.roles[name], d.roles[name], d.job.roles[name]
        if old.hosts_ordered != new.hosts_ordered or (facts.is_torch_world and _all_in(old) != _all_in(new)):
            keys = keys | _ranks(facts)
        if facts.dependents and _allows(old, facts) != _allows(new, facts):
            keys = keys.union(*(_ranks(d.job.roles[dependent]) for dependent in facts.dependents))
    return keys


def _allows(role: RoleState, facts: RoleFacts) -> tuple[bool, bool]:
    """Return (whether the role was ready, whether it completed): the facts that its dependents wait for."""
    return role.was_ready, _completed(role, facts)


def _ranks(facts: RoleFacts) -> set[RankKey]:
    return {(facts.plan.name, rank) for rank in facts.ranks}


def _spares(d: StateTransaction) -> dict[str, int]:
    """Return role -> change of the number of its live spares."""
    change = Counter[str]()
    for key in d.changes.spares:
        change[key[0]] += _alive(d.spares.get(key)) - _alive(d.base.spares.get(key))
    return {role: number for role, number in change.items() if number}


def _alive(spare: SpareState | None) -> bool:
    return spare is not None and spare.phase.alive


def _signs(d: StateTransaction, event: Event) -> Signs:
    """Return the last signs of life that an event reports, for the `detect` account."""
    if isinstance(event, HostLost):
        if event.seen is None:
            return {}
        # A lost node takes its other hosts along: they gave their last sign of life then, too.
        lost_host = d.base.hosts.get(event.host) if event.outcome.reason is Reason.NODE_LOST else None
        return {event.host: event.seen, **({lost_host.node: event.seen} if lost_host else {})}
    if isinstance(event, NodeFrozen):
        return {event.node: d.now - event.silent_s}
    if isinstance(event, HangFound):
        facts = d.job.roles.get(event.role)
        if facts is None:
            return {}
        still = facts.is_torch_world or event.whole  # its peers wait for it, so they stand still as long as it does
        hosts = facts.hosts() if still else (facts.host_of(event.rank),)
        return dict.fromkeys(hosts, d.now - event.silent_s)
    return dict(event.silent) if isinstance(event, NodesSeen) else {}


def _last_sign(d: StateTransaction, key: RankKey, signs: Signs, event: Event) -> int | None:
    """Return the last sign of life of a rank that this event reports as lost, in ledger time; None: none is known."""
    host, before = d.job.roles[key[0]].host_of(key[1]), d.base.ranks.get(key)
    if before is None or not before.phase.live:
        return None
    # A hang that was found as a stall before: its time is in `stalled` already.
    if isinstance(event, HangFound) and key in d.base.stalled:
        return None
    # The host's own sign is more exact than that of its node.
    sign = signs.get(host, signs.get(d.base.hosts[host].node))
    return None if sign is None else micros(d, sign)
