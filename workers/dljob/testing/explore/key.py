"""Keys of states: two worlds with the same key have the same future, so the exploration expands only one of them.

A key leaves out what no decision depends on: the ledger, evidence of causes (the exploration has only failures of
unknown cause), texts, pids, durations. Times count from now; a time that is only compared with a limit is cut off
there. The window of the budgets is longer than any run here, so only the number of their marks counts.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from dljob.master.state import limits
from dljob.master.state.evolve import evolve
from dljob.master.state.sizing import Sizing
from dljob.master.state.state import HostState, JobState, RankState
from dljob.master.state.weight_versions import RankWeights
from dljob.testing.world.model import (
    AskIfKnown,
    Break,
    Depart,
    Done,
    Drained,
    GoOn,
    Heal,
    Item,
    Lapse,
    NodeOverdue,
    Probed,
    ReportHang,
    SetUp,
    Silence,
    StrikeOff,
    Up,
)

if TYPE_CHECKING:
    from dljob.testing.world.world import World


def key_of(w: World) -> tuple[Any, ...]:
    """Return a value that is equal for worlds with the same future."""
    now = w.now
    return (
        *_core(w.known, now),
        (w.state is None, w.finished is None, w.looking, w.refusing, w.doomed, w.outlived, w.admitted, w.obeyed),
        w.versions,
        frozenset(
            # The beginning of a silence counts only while it lasts.
            (name, node.view, node.silence, node.listed, _since(node.since, now) if node.silence else 0)
            for name, node in w.nodes.items()
        ),
        frozenset(w.groups.items()),
        frozenset(w.granted.items()),
        frozenset(w.struck),
        frozenset(w.processes.values()),
        frozenset(w.watched.items()),
        frozenset(w.owner.items()),
        frozenset(w.hung),
        frozenset((running, _since(at, now)) for running, at in w.stalls.items()),
        frozenset(w.met),
        frozenset(w.said.items()),
        frozenset(w.heard.items()),
        frozenset((key, _since(first, now), _since(last, now)) for key, (first, last) in w.asked.items()),
        frozenset((*w.draining, *((server, "stubborn") for server in w.stubborn))),
        frozenset(w.started.items()),
        frozenset(w.reserving),
        w.reported_nodes,
        frozenset(w.was_ready),
        frozenset(w.ended),
        frozenset(w.bad.items()),
        frozenset(w.fit),
        # Counted: two equal items can take effect twice.
        frozenset(Counter((p.item, _seconds_left(p.item, p.least, now)) for p in w.pending.values()).items()),
    )


def _seconds_left(item: Item, least: float, now: float) -> float:
    """Return the seconds until an item may take effect; negative: it is late by that much. User code is never late."""
    seconds_left = round(least - now, 3)
    return max(seconds_left, 0.0) if isinstance(item, Done) else seconds_left


def _from(at: float | None, now: float) -> float | None:
    return None if at is None else round(at - now, 3)


def _since(at: float, now: float, limit: float = 1e4) -> float:
    return max(round(at - now, 3), -limit)


def _core(s: JobState, now: float) -> tuple[Any, ...]:
    # Numbers of incidents grow with the history; only their order matters.
    number = {incident: i for i, incident in enumerate(sorted(s.incidents), 1)}
    # Just beyond the limit: how far beyond makes no difference to a decision.
    verdict, join = s.verdict, limits.SAME_FAILURE_WINDOW_S + 1
    return (
        s.phase.value,
        tuple((stall.name, stall.ranks, stall.hung) for stall in s.stalls),
        _search(s, now),
        frozenset((name, evolve(row, stop_by=_from(row.stop_by, now))) for name, row in s.roles.items()),
        frozenset(
            (
                *(key, r.phase.value, r.incarnation, _since(r.process_ordered_at, now, join)),
                *(number.get(r.incident, 0), _weights(r, now)),
            )
            for key, r in s.ranks.items()
        ),
        frozenset((key, r.addresses, r.serving) for key, r in s.ranks.items() if r.addresses),
        frozenset(
            (key, row.error_type, row.frame, row.code, row.step, row.was_ready, row.short_incarnation_count)
            for key, row in s.last_errors.items()
        ),
        frozenset((host, *_host(row, now)) for host, row in s.hosts.items()),
        s.units,
        frozenset((key, p.phase.value, p.incarnation, p.actor, p.failures) for key, p in s.spares.items()),
        s.seats,
        s.nodes,
        s.nodes_seen,
        frozenset(
            (name, x.silent, x.check != "", _from(x.until, now), _from(x.fence, now))
            for name, x in s.exclusions.items()
        ),
        frozenset(
            (name, x.saved, x.stays != "", _from(x.save_by, now), _from(x.gone_at, now))
            for name, x in s.departures.items()
        ),
        s.domain_move and (s.domain_move.units, _from(s.domain_move.finish_by, now)),
        frozenset(
            # Before the launch only the time when it is due counts, after it the deadlines.
            (number[n], i.level.value, i.role, i.members, i.unready_count, i.replaces_hosts, i.is_backoff_over)
            + (
                (_from(i.deadline, now), _from(i.stop_by, now))
                if i.is_backoff_over
                else (_from(i.backoff_until, now),) * 2
            )
            for n, i in s.incidents.items()
        ),
        _held_ends(s, now),
        _marks(s, now),
        frozenset((role, evolve(row, began=0.0)) for role, row in s.checks.items()),
        frozenset(s.commands),
        s.memory_overrides,
        frozenset(_sizing(role, row, now) for role, row in s.sizes.items()),
        verdict and (verdict.ok, verdict.suspends, verdict.reason),
        verdict and (_from(verdict.kill_at, now), _from(verdict.release_at, now)),
        s.running_at is None,
        s.epoch,
        _from(s.wake, now),
    )  # fmt: skip


def _weights(rank_state: RankState, now: float) -> RankWeights | None:
    rank_weights = rank_state.weights
    return rank_weights and evolve(rank_weights, retry_at=_from(rank_weights.retry_at, now))


def _host(host_state: HostState, now: float) -> tuple[Any, ...]:
    since = _since(host_state.process_ordered_at, now, limits.SAME_FAILURE_WINDOW_S + 1)
    process = (
        host_state.phase.value,
        host_state.incarnation,
        since,
        host_state.node,
        host_state.actor,
        host_state.previous_actor,
    )
    return (*process, host_state.address, host_state.slots, host_state.unconfirmed)


def _sizing(role: str, sizing: Sizing, now: float) -> tuple[Any, ...]:
    past = (_since(at, now) if at is not None else None for at in (sizing.resized, sizing.grown))
    return (
        role,
        sizing.size,
        sizing.want,
        sizing.target,
        sizing.vain,
        sizing.all_leave_user_code,
        sizing.leaving,
        sizing.coming,
        *past,
        *(_from(at, now) for at in (sizing.shrink_at, sizing.move_at, sizing.save_by, sizing.leave_by, sizing.grow_at)),
    )


def _search(s: JobState, now: float) -> tuple[Any, ...]:
    search = s.search
    since = None if search.since is None else _since(search.since, now, limits.NODES_S + 1)
    times = (search.retry_at, search.deadline, search.final_at)
    until = tuple((name, _from(at, now)) for name, at in search.until)
    return (search.attempt, search.never, since, until, *(_from(at, now) for at in times))


def _held_ends(s: JobState, now: float) -> tuple[Any, ...]:
    """Return the ends whose cause is looked for, in the order of their arrival, and until when it is."""
    ends = sorted(s.held_ends.items(), key=lambda item: item[1].arrival_number)
    inquiries = sorted(s.inquiries.items())
    return (
        tuple((key, end.incarnation, end.ended_host_incarnation) for key, end in ends),
        tuple((role, _from(inquiry.ends_at, now), inquiry.rank_samples) for role, inquiry in inquiries),
    )


def _marks(s: JobState, now: float) -> frozenset[Any]:
    """Return how many failures each budget has, with time and place while more may belong to the same failure."""
    return frozenset(
        (
            key,
            len(marks),
            *((_since(m.at, now, limits.SAME_FAILURE_WINDOW_S + 1), m.node) for m in marks if key.startswith("fail:")),
        )
        for key, marks in s.marks.items()
    )


def tidy(w: World) -> None:
    """Drop pending items that can have no effect any more, and notes, which only a timeline shows."""
    w.notes.clear()
    for number in [n for n, p in w.pending.items() if _void(w, p.item)]:
        del w.pending[number]


def _void(w: World, item: Item) -> bool:
    match item:
        case Up():
            return item.actor not in w.processes
        case SetUp() | Done() | ReportHang() | Probed() | Drained():
            # The process is gone, or runs another incarnation of the rank.
            process = w.processes.get(item.actor)
            return process is None or item.running not in process.ranks
        case GoOn():
            return item.running not in w.stalls
        case AskIfKnown():
            # It is gone, or PrimeMaster watches it by now.
            return item.actor not in w.processes or item.actor in w.watched
        case Lapse():
            # Without a node: void once another PrimeMaster has started.
            return _spoken(w, item.node) if item.node else item.epoch != w.epoch
        case Depart():
            return item.node not in w.nodes or not w.reachable(item.node)
        case Heal() | NodeOverdue() | Break() | StrikeOff():
            return _spoken(w, item.node)
        case _:
            return False


def _spoken(w: World, node: str) -> bool:
    """Whether a node answers, or is gone."""
    found_node = w.nodes.get(node)
    return found_node is None or found_node.silence is Silence.NONE
