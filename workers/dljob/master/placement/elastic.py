"""Elastic roles: when a role shrinks because a lost node has no replacement, and when it grows again.

A change of size is a restart. In a role of level InProcess the remaining ranks keep their processes: all ranks leave
user code first, then those that go end.

The ranks of a world are always 0 to n-1, and group k lives in unit k. So a smaller world gives back its last units, and
first units that lost their nodes take the places of the last ones. A loss first waits as long as a replacement of the
node may take. A growth to fewer ranks than are wanted waits until no more nodes join; each waits until checkpoint
copies are on disk, from where a world of another size restores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from immutables import Map

from dljob.master.failure.ending import has_unfinished_rank
from dljob.master.placement import departures, gaps, giving, leaving, resizing
from dljob.master.placement.admission import needs_room, overdue_units
from dljob.master.placement.departures import GRACE_S
from dljob.master.placement.resizing import Resize
from dljob.master.start import starting
from dljob.master.start.assign import Refusal, nodes_with_room
from dljob.master.state import limits
from dljob.master.state.actions import SaveCopies
from dljob.master.state.evolve import evolve
from dljob.master.state.sizing import Sizing
from dljob.master.state.state import JobState, Phase, RankPhase, UnitPhase
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Level, NodeView
from dljob.plan.model import JobPlan
from dljob.telemetry import reasons
from dljob.telemetry.wording import counted


def initial_sizings(plan: JobPlan) -> Map[str, Sizing]:
    """Return the sizing of each role whose number of ranks may change, at the job's start."""
    return Map({name: Sizing(role.replicas, role.replicas) for name, role in plan.roles.items() if role.resizes})


def follow(tx: StateTransaction) -> None:
    """Update the timers of elastic roles after an event: for roles that lost units, and for those that could grow."""
    if tx.sizes and not tx.was_admitted:
        _watch_start(tx)
    if not tx.sizes or not tx.was_admitted or not tx.phase.active:
        return
    for role, sizing in sorted(tx.sizes.items()):
        _watch_losses(tx, role, sizing)
        if sizing.leaving:
            leaving.ask_ready_ranks(tx, role, sizing)
        # All its ranks have left user code by now.
        if sizing.all_leave_user_code and not tx.roles[role].stopping_count:
            _resize_parted_role(tx, role)
        elif sizing.leaving and leaving.is_over(tx, role, sizing):
            _finish_leaving(tx, role)
    if tx.phase.active and _room_may_have_changed(tx):
        for role, sizing in sorted(tx.sizes.items()):
            if _may_move(tx, role):
                _watch_room(tx, role, sizing)
    # Last: a snapshot of before these reservations shows room that they have taken, so nothing is looked for.
    _note_held_groups(tx)


def timers(state: JobState | StateTransaction) -> Iterator[float | None]:
    """Yield when elastic roles need a Tick (unix seconds); None for timers that are not set."""
    for sizing in state.sizes.values():
        yield from (sizing.shrink_at, sizing.move_at, sizing.save_by, sizing.leave_by)


def tick(tx: StateTransaction) -> None:
    """Start, shrink or grow what is due."""
    if tx.phase is Phase.PENDING and tx.sizes:
        _start_with_fewer(tx)
    if not tx.phase.active:
        return
    if any(sizing.shrink_at is not None and sizing.shrink_at <= tx.now for sizing in tx.sizes.values()):
        _shrink(tx)
    for role, sizing in sorted(tx.sizes.items()):
        if sizing.leave_by is not None and sizing.leave_by <= tx.now:
            _finish_leaving(tx, role)
        elif sizing.save_by is not None and sizing.save_by <= tx.now:
            _change_size(tx, role)
        elif sizing.move_at is not None and sizing.move_at <= tx.now:
            # Ranks that run on have no copies to restore from.
            (_change_size if tx.facts(role).fleet else _save_before_resize)(tx, role)


def handle_saved_copies(tx: StateTransaction) -> None:
    """Go on with changes of size that waited for copies: they are on disk, or cannot be brought there."""
    for role, sizing in sorted(tx.sizes.items()):
        if sizing.save_by is not None and tx.phase.active:
            _change_size(tx, role)


def orders(state: JobState, now: float) -> Iterator[SaveCopies]:
    """Yield the flush that a new epoch orders again."""
    save_times = [sizing.save_by for sizing in state.sizes.values() if sizing.save_by is not None]
    if save_times:
        yield SaveCopies("", max(min(save_times) - now, 1.0))


# -- the start


def _watch_start(tx: StateTransaction) -> None:
    """Run the timer of a job without room for all ranks, anew with each node that joins; stop it at admission."""
    waits = tx.phase is Phase.PENDING and tx.search.since is not None
    joined = len(tx.nodes) > len(tx.base.nodes)
    for role, sizing in sorted(tx.sizes.items()):
        if waits and (joined or sizing.shrink_at is None):
            _set_sizing(tx, role, evolve(sizing, shrink_at=tx.now + _shrink_delay(tx)))
        elif not waits and sizing.shrink_at is not None:
            _set_sizing(tx, role, evolve(sizing, shrink_at=None))


def _start_with_fewer(tx: StateTransaction) -> None:
    """Start with as many ranks as there is room for, once no node has joined for a while; else wait again."""
    is_due = any(sizing.shrink_at is not None and sizing.shrink_at <= tx.now for sizing in tx.sizes.values())
    # During a backoff nothing is placed; its end starts the next attempt.
    if not is_due or (tx.search.retry_at is not None and tx.now < tx.search.retry_at):
        return
    if not resizing.start_with_fewer(tx, tx.search.no_room_reason):
        for role, sizing in sorted(tx.sizes.items()):
            _set_sizing(tx, role, evolve(sizing, shrink_at=tx.now + _shrink_delay(tx)))


# -- fewer


def _note_held_groups(tx: StateTransaction) -> None:
    """Note which units of growing fleets are held by now: with the first of them a growth is not in vain."""
    for role, sizing in sorted(tx.sizes.items()):
        series = tx.facts(role).series
        coming = tuple(group for group in sizing.coming if tx.units[f"{series}/{group}"].phase is not UnitPhase.HELD)
        if coming != sizing.coming:
            _set_sizing(tx, role, evolve(sizing, coming=coming, vain=0, grow_at=None))


def _watch_losses(tx: StateTransaction, role: str, sizing: Sizing) -> None:
    """Start the shrink timer of a role that lost units, and stop it once all of them are held again.

    A fleet that could give room to units of other roles has the timer, too.
    """
    # Checked first, since in nearly all events every unit is held.
    if tx.held_unit_count == tx.job.unit_count and sizing.shrink_at is None:
        return
    gives = giving.may_give(tx, role) and bool(giving.units_in_need(tx))
    if sizing.shrink_at is None and (_has_lost_unit(tx, role) or gives):
        _set_sizing(tx, role, evolve(sizing, shrink_at=tx.now + _shrink_delay(tx)))
    elif sizing.shrink_at is not None and not sizing.leaving and not gives and not any(_unplaced(tx, role)):
        _set_sizing(tx, role, evolve(sizing, shrink_at=None))


def _unplaced(tx: StateTransaction, role: str) -> Iterator[str]:
    """Yield the role's units that need a place, and have unfinished ranks."""
    facts = tx.facts(role)
    # By the index: this runs at each event of a recovery, and 10,000 groups are too many for that.
    for name in tx.homeless:
        series, _, group = name.rpartition("/")
        if series == facts.series and int(group) in facts.places and has_unfinished_rank(tx, name):
            yield name


def _has_lost_unit(tx: StateTransaction, role: str) -> bool:
    """Whether a unit of the role, with unfinished ranks, lost its node."""
    return any(tx.units[name].phase is UnitPhase.LOST for name in _unplaced(tx, role))


def _shrink_delay(tx: StateTransaction) -> float:
    """Return the seconds that lost units may look for a node before their role shrinks."""
    seconds = tx.job.spec.fault_tolerance.elastic.shrink_after_seconds
    return seconds or (limits.SHRINK_S if tx.job.own_nodes else limits.SHRINK_BARE_S)


def _shrink(tx: StateTransaction) -> None:
    """Shrink roles to the number of ranks that there is room for; below their minimum they wait on."""
    waiting_roles = [role for role in tx.job.roles if role in tx.sizes and tx.sizes[role].shrink_at is not None]
    # Ranks that leave are waited for: their role has its next size first.
    lacking_roles = [role for role in waiting_roles if _has_lost_unit(tx, role) and not tx.sizes[role].leaving]
    result = resizing.largest_sizes(tx, lacking_roles)
    # First the next attempt: without room now, the roles wait for as long again.
    for role in waiting_roles:
        sizing = tx.sizes[role]
        # A role whose ranks leave shrinks as soon as they have left (`_finish_leaving`), not after the next ones.
        shrink_at = sizing.leave_by if sizing.leaving else tx.now + _shrink_delay(tx)
        _set_sizing(tx, role, evolve(sizing, shrink_at=shrink_at))
    if isinstance(result, Refusal):
        _give_room(tx, lacking_roles)
        return
    reason = tx.search.no_room_reason or "its lost nodes have no replacement"
    if leavers := [role for role in lacking_roles if _order_leaving(tx, role, result.sizes[role], reason)]:
        # All look for room again as soon as the ranks have left that give it to them.
        last_leave_by = max(tx.sizes[role].leave_by or tx.now for role in leavers)
        for role in lacking_roles:
            sizing = tx.sizes[role]
            _set_sizing(tx, role, evolve(sizing, shrink_at=sizing.leave_by if role in leavers else last_leave_by))
        return
    for role in lacking_roles:
        _set_sizing(tx, role, _after_loss(tx, role, tx.sizes[role]))
    resizing.resize(tx, result, reason, anew=True)


def _give_room(tx: StateTransaction, lacking: Sequence[str]) -> None:
    """Have fleets let ranks go for units that cannot do with fewer; these are placed once the room is seen."""
    gift = giving.choose_givers(tx, lacking)
    tx.because(f"room for others: {gift.reason}")
    for role, size in gift.sizes.items():
        if _order_leaving(tx, role, size, gift.reason):
            _set_sizing(tx, role, evolve(tx.sizes[role], shrink_at=tx.sizes[role].leave_by))
        else:
            resizing.resize(tx, Resize({role: size}, {}), gift.reason, anew=False)


def shrink_at_last(tx: StateTransaction) -> bool:
    """Go on with fewer ranks at the end of the search for room; return whether the job need not fail.

    Ranks that leave are waited for once more: as soon as they have left, their role shrinks.
    """
    has_needy_units = bool(giving.units_in_need(tx))
    shrinking_roles = [
        role
        for role in sorted(tx.sizes)
        if _has_lost_unit(tx, role) or (has_needy_units and (tx.sizes[role].leaving or giving.may_give(tx, role)))
    ]
    if shrinking_roles:
        _shrink(tx)
    return any(tx.sizes[role].leaving for role in shrinking_roles) or not overdue_units(tx)


def _after_loss(tx: StateTransaction, role: str, sizing: Sizing) -> Sizing:
    """Return the sizing of a role that is about to shrink: a growth in vain makes the next one wait longer.

    A world restarts with each growth: one that is lost again soon is in vain, and unsteady nodes must not restart it
    forever. Ranks of a fleet that come disturb nobody, and serve for as long as their node is there. So its growth is
    in vain only if the nodes did not hold what was placed on them, as others were faster, and would not the next time.
    """
    if tx.facts(role).fleet:
        if not sizing.coming:
            return sizing
        vain_growths = min(sizing.vain + 1, limits.GROW_DOUBLINGS)
        return evolve(sizing, vain=vain_growths, grow_at=tx.now + _growth_interval(tx, vain_growths))
    is_soon = sizing.grown is not None and tx.now - sizing.grown < limits.VAIN_S
    return evolve(sizing, vain=min(sizing.vain + 1, limits.GROW_DOUBLINGS) if is_soon else 0, grown=None)


def _growth_interval(tx: StateTransaction, vain: int) -> float:
    """Return the least seconds from a change of size to a growth, after so many growths in vain."""
    return tx.job.spec.fault_tolerance.elastic.grow_after_seconds * 2.0**vain


# -- more, or as many as a scale command asked for


def _room_may_have_changed(tx: StateTransaction) -> bool:
    """Whether this event changed anything that decides how many ranks there is room for."""
    base = tx.base
    same = (tx.nodes is base.nodes, tx.exclusions is base.exclusions, tx.departures is base.departures)
    return base.phase is not tx.phase or tx.sizes is not base.sizes or not all(same)


def _may_move(tx: StateTransaction, role: str) -> bool:
    """Whether a role may change its size now: a world while the job runs, a fleet also while ranks restart."""
    return tx.phase is Phase.RUNNING or (tx.phase is Phase.RECOVERING and tx.facts(role).fleet)


def _watch_room(tx: StateTransaction, role: str, sizing: Sizing) -> None:
    """Start or stop the timer of a change of size, as room and the wanted number of ranks allow."""
    # A change of size is under way: it waits for copies, for ranks to leave user code, or to finish their work.
    if sizing.save_by is not None or sizing.all_leave_user_code or sizing.leaving:
        return
    target = _possible_size(tx, role, sizing).sizes[role]
    old_sizing = tx.base.sizes.get(role)
    if target < sizing.want and old_sizing is not None and old_sizing.want != sizing.want:
        words = f"{counted(sizing.want, 'rank')} are wanted, and there is room for {target}; others start as nodes join"
        tx.note(reasons.NO_ROOM, role, words)
    if target == sizing.size:
        _cancel_resize(tx, role)
    elif target != sizing.target:
        move_at = _growth_time(tx, role, sizing, target) if target > sizing.size else tx.now
        _set_sizing(tx, role, evolve(sizing, target=target, move_at=move_at))


def _growth_time(tx: StateTransaction, role: str, sizing: Sizing, target: int) -> float:
    """Return when a role that has room for `target` ranks may grow to them (unix seconds).

    A growth, which restarts all, waits for further nodes as long as it could use them, and for the role's own minimum
    interval, unless it carries out an order. Ranks of a fleet join those that run on, and wait only after a growth in
    vain: other changes of its size do not put that off.
    """
    if tx.facts(role).fleet:
        return max(tx.now, sizing.grow_at or 0.0)
    is_complete = target == sizing.want
    earliest = tx.now if is_complete else tx.now + limits.SETTLE_S
    # An order since the last change of its size: it may have come while the job was recovering.
    if sizing.resized is None or (is_complete and sizing.scaled is not None and sizing.scaled >= sizing.resized):
        return earliest
    return max(earliest, sizing.resized + _growth_interval(tx, sizing.vain))


def _possible_size(tx: StateTransaction, role: str, sizing: Sizing) -> Resize:
    """Return the size that a role can have now, up to the wanted one. A completed role keeps its size."""
    if starting.is_role_completed(tx, role):
        return Resize({role: sizing.size}, {})
    return _resize_towards(tx, role, sizing.want)


def _resize_towards(tx: StateTransaction, role: str, size: int) -> Resize:
    """Return the change to fewer ranks, or to as many more as there is room for."""
    return resizing.largest_size(tx, role, size) if size > tx.sizes[role].size else Resize({role: size}, {})


def is_settled(state: JobState) -> bool:
    """Whether nothing is to be placed: free amounts then matter only to roles that could grow (`room`).

    Units of a fleet are placed while the job runs: one that was refused must not be tried on the same node for ever,
    because the last snapshot shows room there.
    """
    # While ranks save before a resize units are about to be placed.
    if state.phase is not Phase.RUNNING or any(sizing.save_by is not None for sizing in state.sizes.values()):
        return False
    return not (state.homeless and state.sizes and needs_room(StateTransaction(state, state.started_at)))


def room(state: JobState, nodes: tuple[NodeView, ...]) -> int:
    """Compare the free room of nodes with what roles want that could grow, while the job runs.

    1: a role could grow and is not about to; -1: a role is about to grow and its room is gone; 0: nothing changes. The
    shell asks once a second and journals a change only when the answer matters, since on a shared Ray the free amounts
    change all the time. Without a change, or with no node free enough, the answer is quick.
    """
    if nodes == state.nodes:
        return 0
    # A transaction that is thrown away: only the search for room is wanted. No timer is read, so any time will do.
    tx, change = StateTransaction(state, state.started_at), 0
    tx.nodes = nodes
    for role, sizing in state.sizes.items():
        if sizing.size >= sizing.want or starting.is_role_completed(tx, role):
            continue
        facts = tx.facts(role)
        if sizing.target > sizing.size:
            if resizing.assign_grown(tx, role, sizing.target) is None:
                return -1
        elif nodes_with_room(nodes, [tx.job.plan.units[f"{facts.series}/{facts.groups[0]}"]]):
            change = change or int(resizing.assign_grown(tx, role, sizing.size + facts.plan.group_size) is not None)
    return change


def _cancel_resize(tx: StateTransaction, role: str) -> None:
    """Cancel a change of size that is under way; the role stays as it is."""
    sizing = tx.sizes[role]
    if sizing.target or sizing.move_at is not None or sizing.save_by is not None:
        _set_sizing(tx, role, evolve(sizing, target=0, move_at=None, save_by=None, all_leave_user_code=False))


def _save_before_resize(tx: StateTransaction, role: str) -> None:
    """Flush the copies of the ranks to disk before the change: a world of another size restores from there."""
    sizing = tx.sizes[role]
    if tx.phase is not Phase.RUNNING or _possible_size(tx, role, sizing).sizes[role] == sizing.size:
        _cancel_resize(tx, role)  # `follow` looks again once the job runs or nodes change
        return
    checkpoint = tx.job.spec.checkpoint
    within = float(checkpoint.grace_period_seconds) if checkpoint else GRACE_S
    _set_sizing(tx, role, evolve(sizing, move_at=None, save_by=tx.now + within))
    tx.do(SaveCopies("", within))


def _change_size(tx: StateTransaction, role: str) -> None:
    """Change the size of a role to what there is room for now, which may differ from the target."""
    sizing = tx.sizes[role]
    change = _possible_size(tx, role, sizing)
    if not _may_move(tx, role) or change.sizes[role] == sizing.size:
        _cancel_resize(tx, role)
        return
    if resizing.level_of(tx.job, role) is Level.IN_PROCESS:
        _set_sizing(tx, role, evolve(sizing, target=change.sizes[role], save_by=None, all_leave_user_code=True))
        resizing.leave_user_code(tx, role, _resize_reason(sizing, change.sizes[role]))
    elif not _order_leaving(tx, role, change.sizes[role], _resize_reason(sizing, change.sizes[role])):
        resizing.resize(tx, change, _resize_reason(sizing, change.sizes[role]), anew=False)


def _order_leaving(tx: StateTransaction, role: str, size: int, reason: str) -> bool:
    """Have the ranks of a fleet that shrinks finish their work; return whether any has to be waited for."""
    facts, sizing = tx.facts(role), tx.sizes[role]
    if not facts.fleet or size > sizing.size:
        return False
    staying_groups = frozenset(gaps.group_numbers(tx, role, size))
    leavers = [rank for rank in facts.ranks if rank // facts.plan.group_size not in staying_groups]
    if not leaving.begin_leaving(tx, role, leavers, reason):
        return False
    _set_sizing(tx, role, evolve(tx.sizes[role], target=size, move_at=None))
    return True


def _finish_leaving(tx: StateTransaction, role: str) -> None:
    """Go on without the ranks that left; those that did not end in time are killed."""
    sizing = tx.sizes[role]
    late_ranks = [rank for rank in sizing.leaving if tx.ranks[role, rank].phase is RankPhase.STOPPING]
    names = ", ".join(f"{role}/{rank}" for rank in late_ranks)
    late_words = f"; killed before they had finished: {names}" if names else ""
    left_nodes = {tx.units[tx.facts(role).unit_of(tx.facts(role).host_of(rank))].node for rank in sizing.leaving}
    cause = "their node is taken away" if left_nodes & {*tx.departures, ""} else "units of other roles get their room"
    reason = f"its wanted size is {sizing.want}" if sizing.want <= sizing.staying else cause
    resizing.resize(tx, Resize({role: sizing.staying}, {}), f"{reason}{late_words}", anew=False)
    if sizing.shrink_at is not None and sizing.shrink_at == sizing.leave_by:
        # Time for the room that they left to be seen; none if those of the next node leave at once.
        _set_sizing(tx, role, evolve(tx.sizes[role], shrink_at=tx.now + limits.SHRINK_BARE_S))
        if tx.departures:
            _shrink(tx)
    departures.leave_departing_nodes(tx)


def _resize_reason(sizing: Sizing, size: int) -> str:
    """Return the reason of a change of size, in words."""
    return "there is room for more" if size > sizing.size else f"its wanted size is {sizing.want}"


def _resize_parted_role(tx: StateTransaction, role: str) -> None:
    """Resize a role whose ranks have all left user code; without room for the new size it restarts in the old one.

    If another restart took its ranks over meanwhile, the change is cancelled and considered again when the role runs.
    """
    sizing = tx.sizes[role]
    if not _keeps_processes(tx, role):
        _cancel_resize(tx, role)
        return
    # The room is looked for again: nodes may have changed since the ranks began to leave.
    change = _resize_towards(tx, role, sizing.target)
    if change.sizes[role] == sizing.size:
        _cancel_resize(tx, role)
        resizing.stay_in_size(tx, role)
    else:
        resizing.resize(tx, change, _resize_reason(sizing, change.sizes[role]), anew=True)


def _keeps_processes(tx: StateTransaction, role: str) -> bool:
    """Whether all ranks of a role wait in their own processes; in a larger restart they wait for new ones."""
    count = tx.facts(role).plan.replicas  # of a world, whose ranks have no gaps
    incidents = [tx.incidents.get(tx.ranks[role, rank].incident) for rank in range(count)]
    in_process = all(incident and incident.level is Level.IN_PROCESS for incident in incidents)
    return tx.roles[role].waiting_count == count and in_process


def _set_sizing(tx: StateTransaction, role: str, sizing: Sizing) -> None:
    """Replace the sizing of a role, and ask for the Ticks that its timers need."""
    tx.sizes = tx.sizes.set(role, sizing)
    for at in (sizing.shrink_at, sizing.move_at, sizing.save_by, sizing.leave_by):
        if at is not None:
            tx.wake_at(at)
