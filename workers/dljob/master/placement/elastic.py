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

from dljob.master.failure.ending import inhabited
from dljob.master.placement import departures, gaps, giving, leaving, resizing
from dljob.master.placement.admission import needed, overdue
from dljob.master.placement.departures import GRACE_S
from dljob.master.placement.resizing import Resize
from dljob.master.start import starting
from dljob.master.start.assign import Refusal, roomy
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


def opened(plan: JobPlan) -> Map[str, Sizing]:
    """Return the sizing of each role whose number of ranks may change, at the job's start."""
    return Map({name: Sizing(own.replicas, own.replicas) for name, own in plan.roles.items() if own.resizes})


def follow(d: StateTransaction) -> None:
    """Update the timers of elastic roles after an event: for roles that lost units, and for those that could grow."""
    if d.sizes and not d.seats:
        _watch_start(d)
    if not d.sizes or not d.seats or not d.phase.active:
        return
    for role, own in sorted(d.sizes.items()):
        _watch_losses(d, role, own)
        if own.leaving:
            leaving.follow(d, role, own)
        # All its ranks have left user code by now.
        if own.parting and not d.roles[role].stopping:
            _parted(d, role)
        elif own.leaving and leaving.over(d, role, own):
            _left(d, role)
    if d.phase.active and _changed(d):
        for role, own in sorted(d.sizes.items()):
            if _may_move(d, role):
                _watch_room(d, role, own)
    # Last: a snapshot of before these reservations shows room that they have taken, so nothing is looked for.
    _arrivals(d)


def timers(state: JobState | StateTransaction) -> Iterator[float | None]:
    """Yield when elastic roles need a Tick (unix seconds); None for timers that are not set."""
    for own in state.sizes.values():
        yield from (own.shrink_at, own.move_at, own.save_by, own.leave_by)


def tick(d: StateTransaction) -> None:
    """Start, shrink or grow what is due."""
    if d.phase is Phase.PENDING and d.sizes:
        _start(d)
    if not d.phase.active:
        return
    if any(own.shrink_at is not None and own.shrink_at <= d.now for own in d.sizes.values()):
        _shrink(d)
    for role, own in sorted(d.sizes.items()):
        if own.leave_by is not None and own.leave_by <= d.now:
            _left(d, role)
        elif own.save_by is not None and own.save_by <= d.now:
            _move(d, role)
        elif own.move_at is not None and own.move_at <= d.now:
            # Ranks that run on have no copies to restore from.
            (_move if d.facts(role).fleet else _save)(d, role)


def saved(d: StateTransaction) -> None:
    """Go on with changes of size that waited for copies: they are on disk, or cannot be brought there."""
    for role, own in sorted(d.sizes.items()):
        if own.save_by is not None and d.phase.active:
            _move(d, role)


def orders(state: JobState, now: float) -> Iterator[SaveCopies]:
    """Yield the flush that a new epoch orders again."""
    due = [own.save_by for own in state.sizes.values() if own.save_by is not None]
    if due:
        yield SaveCopies("", max(min(due) - now, 1.0))


# -- the start


def _watch_start(d: StateTransaction) -> None:
    """Run the timer of a job without room for all ranks, anew with each node that joins; stop it at admission."""
    waits = d.phase is Phase.PENDING and d.search.since is not None
    joined = len(d.nodes) > len(d.base.nodes)
    for role, own in sorted(d.sizes.items()):
        if waits and (joined or own.shrink_at is None):
            _put(d, role, evolve(own, shrink_at=d.now + _patience(d)))
        elif not waits and own.shrink_at is not None:
            _put(d, role, evolve(own, shrink_at=None))


def _start(d: StateTransaction) -> None:
    """Start with as many ranks as there is room for, once no node has joined for a while; else wait again."""
    due = any(own.shrink_at is not None and own.shrink_at <= d.now for own in d.sizes.values())
    # During a backoff nothing is placed; its end starts the next attempt.
    if not due or (d.search.retry_at is not None and d.now < d.search.retry_at):
        return
    if not resizing.start_with_fewer(d, d.search.why):
        for role, own in sorted(d.sizes.items()):
            _put(d, role, evolve(own, shrink_at=d.now + _patience(d)))


# -- fewer


def _arrivals(d: StateTransaction) -> None:
    """Note which units of growing fleets are held by now: with the first of them a growth is not in vain."""
    for role, own in sorted(d.sizes.items()):
        series = d.facts(role).series
        coming = tuple(group for group in own.coming if d.units[f"{series}/{group}"].phase is not UnitPhase.HELD)
        if coming != own.coming:
            _put(d, role, evolve(own, coming=coming, vain=0, grow_at=None))


def _watch_losses(d: StateTransaction, role: str, own: Sizing) -> None:
    """Start the shrink timer of a role that lost units, and stop it once all of them are held again.

    A fleet that could give room to units of other roles has the timer, too.
    """
    # Checked first, since in nearly all events every unit is held.
    if d.held == d.job.unit_count and own.shrink_at is None:
        return
    gives = giving.may_give(d, role) and bool(giving.needy(d))
    if own.shrink_at is None and (_lost(d, role) or gives):
        _put(d, role, evolve(own, shrink_at=d.now + _patience(d)))
    elif own.shrink_at is not None and not own.leaving and not gives and not any(_unplaced(d, role)):
        _put(d, role, evolve(own, shrink_at=None))


def _unplaced(d: StateTransaction, role: str) -> Iterator[str]:
    """Yield the role's units that need a place, and have unfinished ranks."""
    facts = d.facts(role)
    # By the index: this runs at each event of a recovery, and 10,000 groups are too many for that.
    for name in d.homeless:
        series, _, group = name.rpartition("/")
        if series == facts.series and int(group) in facts.places and inhabited(d, name):
            yield name


def _lost(d: StateTransaction, role: str) -> bool:
    """Whether a unit of the role, with unfinished ranks, lost its node."""
    return any(d.units[name].phase is UnitPhase.LOST for name in _unplaced(d, role))


def _patience(d: StateTransaction) -> float:
    """Return the seconds that lost units may look for a node before their role shrinks."""
    said = d.job.spec.fault_tolerance.elastic.shrink_after_seconds
    return said or (limits.SHRINK_S if d.job.own_nodes else limits.SHRINK_BARE_S)


def _shrink(d: StateTransaction) -> None:
    """Shrink roles to the number of ranks that there is room for; below their minimum they wait on."""
    waiting = [role for role in d.job.roles if role in d.sizes and d.sizes[role].shrink_at is not None]
    # Ranks that leave are waited for: their role has its next size first.
    lacking = [role for role in waiting if _lost(d, role) and not d.sizes[role].leaving]
    found = resizing.fewer(d, lacking)
    # First the next attempt: without room now, the roles wait for as long again.
    for role in waiting:
        own = d.sizes[role]
        # A role whose ranks leave shrinks as soon as they have left (`_left`), not after the next ones.
        _put(d, role, evolve(own, shrink_at=own.leave_by if own.leaving else d.now + _patience(d)))
    if isinstance(found, Refusal):
        _give_room(d, lacking)
        return
    why = d.search.why or "its lost nodes have no replacement"
    if leavers := [role for role in lacking if _leaves(d, role, found.sizes[role], why)]:
        # All look for room again as soon as the ranks have left that give it to them.
        last = max(d.sizes[role].leave_by or d.now for role in leavers)
        for role in lacking:
            own = d.sizes[role]
            _put(d, role, evolve(own, shrink_at=own.leave_by if role in leavers else last))
        return
    for role in lacking:
        _put(d, role, _after_loss(d, role, d.sizes[role]))
    resizing.resize(d, found, why, anew=True)


def _give_room(d: StateTransaction, lacking: Sequence[str]) -> None:
    """Have fleets let ranks go for units that cannot do with fewer; these are placed once the room is seen."""
    made = giving.decide(d, lacking)
    d.because(f"room for others: {made.why}")
    for role, size in made.sizes.items():
        if _leaves(d, role, size, made.why):
            _put(d, role, evolve(d.sizes[role], shrink_at=d.sizes[role].leave_by))
        else:
            resizing.resize(d, Resize({role: size}, {}), made.why, anew=False)


def at_last(d: StateTransaction) -> bool:
    """Go on with fewer ranks at the end of the search for room; return whether the job need not fail.

    Ranks that leave are waited for once more: as soon as they have left, their role shrinks.
    """
    needy = bool(giving.needy(d))
    lost = [
        role
        for role in sorted(d.sizes)
        if _lost(d, role) or (needy and (d.sizes[role].leaving or giving.may_give(d, role)))
    ]
    if lost:
        _shrink(d)
    return any(d.sizes[role].leaving for role in lost) or not overdue(d)


def _after_loss(d: StateTransaction, role: str, own: Sizing) -> Sizing:
    """Return the sizing of a role that is about to shrink: a growth in vain makes the next one wait longer.

    A world restarts with each growth: one that is lost again soon is in vain, and unsteady nodes must not restart it
    forever. Ranks of a fleet that come disturb nobody, and serve for as long as their node is there. So its growth is
    in vain only if the nodes did not hold what was placed on them, as others were faster, and would not the next time.
    """
    if d.facts(role).fleet:
        if not own.coming:
            return own
        vain = min(own.vain + 1, limits.GROW_DOUBLINGS)
        return evolve(own, vain=vain, grow_at=d.now + _interval(d, vain))
    soon = own.grown is not None and d.now - own.grown < limits.VAIN_S
    return evolve(own, vain=min(own.vain + 1, limits.GROW_DOUBLINGS) if soon else 0, grown=None)


def _interval(d: StateTransaction, vain: int) -> float:
    """Return the least seconds from a change of size to a growth, after so many growths in vain."""
    return d.job.spec.fault_tolerance.elastic.grow_after_seconds * 2.0**vain


# -- more, or as many as a scale command asked for


def _changed(d: StateTransaction) -> bool:
    """Whether this event changed anything that decides how many ranks there is room for."""
    base = d.base
    same = (d.nodes is base.nodes, d.exclusions is base.exclusions, d.departures is base.departures)
    return base.phase is not d.phase or d.sizes is not base.sizes or not all(same)


def _may_move(d: StateTransaction, role: str) -> bool:
    """Whether a role may change its size now: a world while the job runs, a fleet also while ranks restart."""
    return d.phase is Phase.RUNNING or (d.phase is Phase.RECOVERING and d.facts(role).fleet)


def _watch_room(d: StateTransaction, role: str, own: Sizing) -> None:
    """Start or stop the timer of a change of size, as room and the wanted number of ranks allow."""
    # A change of size is under way: it waits for copies, for ranks to leave user code, or to finish their work.
    if own.save_by is not None or own.parting or own.leaving:
        return
    target = _target(d, role, own).sizes[role]
    before = d.base.sizes.get(role)
    if target < own.want and before is not None and before.want != own.want:
        words = f"{counted(own.want, 'rank')} are wanted, and there is room for {target}; others start as nodes join"
        d.note(reasons.NO_ROOM, role, words)
    if target == own.size:
        _calm(d, role)
    elif target != own.target:
        at = _grows_at(d, role, own, target) if target > own.size else d.now
        _put(d, role, evolve(own, target=target, move_at=at))


def _grows_at(d: StateTransaction, role: str, own: Sizing, target: int) -> float:
    """Return when a role that has room for `target` ranks may grow to them (unix seconds).

    A growth, which restarts all, waits for further nodes as long as it could use them, and for the role's own minimum
    interval, unless it carries out an order. Ranks of a fleet join those that run on, and wait only after a growth in
    vain: other changes of its size do not put that off.
    """
    if d.facts(role).fleet:
        return max(d.now, own.grow_at or 0.0)
    whole = target == own.want
    at = d.now if whole else d.now + limits.SETTLE_S
    # An order since the last change of its size: it may have come while the job was recovering.
    if own.resized is None or (whole and own.scaled is not None and own.scaled >= own.resized):
        return at
    return max(at, own.resized + _interval(d, own.vain))


def _target(d: StateTransaction, role: str, own: Sizing) -> Resize:
    """Return the size that a role can have now, up to the wanted one. A completed role keeps its size."""
    if starting.completed(d, role):
        return Resize({role: own.size}, {})
    return resizing.more(d, role, own.want) if own.want > own.size else Resize({role: own.want}, {})


def settled(state: JobState) -> bool:
    """Whether nothing is to be placed: free amounts then matter only to roles that could grow (`room`).

    Units of a fleet are placed while the job runs: one that was refused must not be tried on the same node for ever,
    because the last snapshot shows room there.
    """
    # While ranks save before a resize units are about to be placed.
    if state.phase is not Phase.RUNNING or any(own.save_by is not None for own in state.sizes.values()):
        return False
    return not (state.homeless and state.sizes and needed(StateTransaction(state, state.started_at)))


def room(state: JobState, nodes: tuple[NodeView, ...]) -> int:
    """Compare the free room of nodes with what roles want that could grow, while the job runs.

    1: a role could grow and is not about to; -1: a role is about to grow and its room is gone; 0: nothing changes. The
    shell asks once a second and journals a change only when the answer matters, since on a shared Ray the free amounts
    change all the time. Without a change, or with no node free enough, the answer is quick.
    """
    if nodes == state.nodes:
        return 0
    # A transaction that is thrown away: only the search for room is wanted. No timer is read, so any time will do.
    d, change = StateTransaction(state, state.started_at), 0
    d.nodes = nodes
    for role, own in state.sizes.items():
        if own.size >= own.want or starting.completed(d, role):
            continue
        facts = d.facts(role)
        if own.target > own.size:
            if resizing.fits(d, role, own.target) is None:
                return -1
        elif roomy(nodes, [d.job.plan.units[f"{facts.series}/{facts.groups[0]}"]]):
            change = change or int(resizing.fits(d, role, own.size + facts.plan.group_size) is not None)
    return change


def _calm(d: StateTransaction, role: str) -> None:
    """Cancel a change of size that is under way; the role stays as it is."""
    own = d.sizes[role]
    if own.target or own.move_at is not None or own.save_by is not None:
        _put(d, role, evolve(own, target=0, move_at=None, save_by=None, parting=False))


def _save(d: StateTransaction, role: str) -> None:
    """Flush the copies of the ranks to disk before the change: a world of another size restores from there."""
    own = d.sizes[role]
    if d.phase is not Phase.RUNNING or _target(d, role, own).sizes[role] == own.size:
        _calm(d, role)  # `follow` looks again once the job runs or nodes change
        return
    checkpoint = d.job.spec.checkpoint
    within = float(checkpoint.grace_period_seconds) if checkpoint else GRACE_S
    _put(d, role, evolve(own, move_at=None, save_by=d.now + within))
    d.do(SaveCopies("", within))


def _move(d: StateTransaction, role: str) -> None:
    """Change the size of a role to what there is room for now, which may differ from the target."""
    own = d.sizes[role]
    made = _target(d, role, own)
    if not _may_move(d, role) or made.sizes[role] == own.size:
        _calm(d, role)
        return
    if resizing.level_of(d.job, role) is Level.IN_PROCESS:
        _put(d, role, evolve(own, target=made.sizes[role], save_by=None, parting=True))
        resizing.leave_user_code(d, role, _why(own, made.sizes[role]))
    elif not _leaves(d, role, made.sizes[role], _why(own, made.sizes[role])):
        resizing.resize(d, made, _why(own, made.sizes[role]), anew=False)


def _leaves(d: StateTransaction, role: str, size: int, why: str) -> bool:
    """Have the ranks of a fleet that shrinks finish their work; return whether any has to be waited for."""
    facts, own = d.facts(role), d.sizes[role]
    if not facts.fleet or size > own.size:
        return False
    stays = frozenset(gaps.numbers(d, role, size))
    goes = [rank for rank in facts.ranks if rank // facts.plan.group_size not in stays]
    if not leaving.begin(d, role, goes, why):
        return False
    _put(d, role, evolve(d.sizes[role], target=size, move_at=None))
    return True


def _left(d: StateTransaction, role: str) -> None:
    """Go on without the ranks that left; those that did not end in time are killed."""
    own = d.sizes[role]
    late = ", ".join(f"{role}/{rank}" for rank in own.leaving if d.ranks[role, rank].phase is RankPhase.STOPPING)
    said = f"; killed before they had finished: {late}" if late else ""
    goes = {d.units[d.facts(role).unit_of(d.facts(role).host_of(rank))].node for rank in own.leaving}
    taken = "their node is taken away" if goes & {*d.departures, ""} else "units of other roles get their room"
    why = f"its wanted size is {own.want}" if own.want <= own.staying else taken
    resizing.resize(d, Resize({role: own.staying}, {}), f"{why}{said}", anew=False)
    if own.shrink_at is not None and own.shrink_at == own.leave_by:
        # Time for the room that they left to be seen; none if those of the next node leave at once.
        _put(d, role, evolve(d.sizes[role], shrink_at=d.now + limits.SHRINK_BARE_S))
        if d.departures:
            _shrink(d)
    departures.go(d)


def _why(own: Sizing, size: int) -> str:
    """Return the reason of a change of size, in words."""
    return "there is room for more" if size > own.size else f"its wanted size is {own.want}"


def _parted(d: StateTransaction, role: str) -> None:
    """Resize a role whose ranks have all left user code; without room for the new size it restarts in the old one.

    If another restart took its ranks over meanwhile, the change is cancelled and considered again when the role runs.
    """
    own = d.sizes[role]
    if not _keeps_processes(d, role):
        _calm(d, role)
        return
    # The room is looked for again: nodes may have changed since the ranks began to leave.
    made = Resize({role: own.target}, {}) if own.target < own.size else resizing.more(d, role, own.target)
    if made.sizes[role] == own.size:
        _calm(d, role)
        resizing.stay(d, role)
    else:
        resizing.resize(d, made, _why(own, made.sizes[role]), anew=True)


def _keeps_processes(d: StateTransaction, role: str) -> bool:
    """Whether all ranks of a role wait in their own processes; in a larger restart they wait for new ones."""
    count = d.facts(role).plan.replicas  # of a world, whose ranks have no gaps
    incidents = [d.incidents.get(d.ranks[role, rank].incident) for rank in range(count)]
    return d.roles[role].waiting == count and all(own and own.level is Level.IN_PROCESS for own in incidents)


def _put(d: StateTransaction, role: str, own: Sizing) -> None:
    """Replace the sizing of a role, and ask for the Ticks that its timers need."""
    d.sizes = d.sizes.set(role, own)
    for at in (own.shrink_at, own.move_at, own.save_by, own.leave_by):
        if at is not None:
            d.wake_at(at)
