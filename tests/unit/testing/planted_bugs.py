"""Bugs to plant: each takes one thing out of the core, out of its journal, or out of what surrounds it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from immutables import Map

from dljob.master import status, transition
from dljob.master.failure import budget, coupling, ending, lost_peers, moving, restart
from dljob.master.ledger import rules
from dljob.master.persistence import codec
from dljob.master.placement import admission, autoscale, commands, gaps, giving, leaving, reissue, resizing
from dljob.master.start import spares, standby, starting, weights
from dljob.master.state import staleness
from dljob.master.state.events import (
    Commanded,
    HostReady,
    MasterStarted,
    RankEnded,
    RankReady,
    RankServes,
    UnitReserved,
)
from dljob.master.state.evolve import evolve
from dljob.master.state.state import HostPhase, JobState, RankPhase, SparePhase, UnitPhase
from dljob.master.state.transaction import StateTransaction
from dljob.master.state.views import Level, Reason
from dljob.runtime.journal import journal
from dljob.testing.world import executor, prime_master, server_invariants, servers, world

Patch = pytest.MonkeyPatch
BUGS: dict[str, Callable[[Patch], None]] = {}


def bug(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
    BUGS[plant.__name__] = plant
    return plant


def instead(patch: Patch, event: type, handler: Callable[..., None]) -> Callable[..., None]:
    """Another handler of an event; gives the one that was there."""
    old = transition._HANDLERS[event]
    patch.setitem(transition._HANDLERS, event, lambda d, e: handler(old, d, e))
    return old


@bug
def drops_the_fence_of_incarnations(patch):
    """The end of a process that a rank had before counts as its end now."""

    def ended(old, d, e):
        old(d, evolve(e, incarnation=d.ranks[e.role, e.rank].incarnation))

    instead(patch, RankEnded, ended)


@bug
def blames_a_witness(patch):
    """The rank that reports the loss of a peer is the cause, and not the one that ended before."""
    patch.setattr(lost_peers, "_first_rank_ended_with_code_0", lambda *_: None)


@bug
def skips_a_persist(patch):
    """A host that is ready is acted upon, and not written down."""

    class Forgetful(list):
        def append(self, entry):
            if not isinstance(entry[1], HostReady):
                super().append(entry)

        def copy(self):
            return Forgetful(self)

    old = world.World._surround

    def surround(self, views):
        old(self, views)
        self.journal = Forgetful()

    patch.setattr(world.World, "_surround", surround)


@bug
def acknowledges_before_it_writes(patch):
    """What a process said is forgotten there as soon as it arrives here."""
    old = world.World.tell

    def tell(self, batch):
        for arrival in batch:
            self.acknowledge(arrival)
        old(self, batch)

    patch.setattr(world.World, "tell", tell)


@bug
def forgets_a_budget(patch):
    """No budget is ever used up."""
    patch.setattr(budget, "has_restart_left", lambda d, level, role: True)


@bug
def reuses_an_incarnation(patch):
    """A rank that is started again goes by the count that it had."""

    def again(value, **changes):
        if changes.get("phase") is RankPhase.STARTING:
            changes["incarnation"] = value.incarnation or 1
        return evolve(value, **changes)

    patch.setattr(starting, "evolve", again)


@bug
def tells_survivors_the_old_generation(patch):
    """Who kept its process is to meet the others where they met the last time."""
    old = starting.start_order

    def order(d, host, ranks, store, there):
        told = old(d, host, ranks, store, there)
        kept = d.hosts[host].incarnation < max(start.incarnation for start in told.ranks)
        return evolve(told, generation=told.generation - kept)

    patch.setattr(starting, "start_order", order)


@bug
def starts_before_the_gang(patch):
    """The first unit that is held starts everybody who has a place."""

    def reserved(old, d, e):
        old(d, e)
        if not d.seats and d.held_unit_count:
            admission._start_admitted_job(d)

    instead(patch, UnitReserved, reserved)


@bug
def ignores_an_exclusion(patch):
    """A node that was left is as good as any."""
    old = admission._assign_units
    patch.setattr(admission, "_assign_units", lambda d, names, excluded: old(d, names, frozenset()))


@bug
def ignores_a_notice(patch):
    """A node that somebody said is to go holds units as any other."""
    old = admission._assign_units
    patch.setattr(
        admission, "_assign_units", lambda d, names, excluded: old(d, names, excluded.difference(d.departures))
    )


@bug
def doubles_a_command(patch):
    """A command is done as often as it comes."""

    def commanded(_old, d, e):
        d.commands = d.commands.delete(e.id) if e.id in d.commands else d.commands
        commands.handle_command(d, e)

    instead(patch, Commanded, commanded)


@bug
def skips_a_field_of_the_snapshot(patch):
    """Who was counted against a budget is not written down."""
    whole = codec.parts

    def parts(kind):
        found = dict(whole(kind))
        if kind is JobState:
            del found["marks"]
        return found

    patch.setattr(codec, "parts", parts)
    patch.setattr(codec, "_written", codec._written.__wrapped__)  # not as it was kept before


@bug
def misorders_two_segments(patch):
    """What the last master wrote is read before what the one before it wrote."""
    old = journal.Journal._chain

    async def chain(self, epochs):
        segments, prev = await old(self, epochs)
        return segments[::-1], prev

    patch.setattr(journal.Journal, "_chain", chain)


@bug
def reads_beyond_the_fence(patch):
    """What a master wrote after a later one had claimed the job counts."""
    old = journal.scan_tail
    patch.setattr(journal, "scan_tail", lambda source, name, limit: old(source, name=name, limit=None))


@bug
def forgets_a_spare(patch):
    """A new master does not order the spares that were on their way."""
    old = reissue.reissue

    def without(state, now):
        coming = [key for key, spare in state.spares.items() if spare.phase is SparePhase.SPAWNING]
        return old(evolve(state, spares=_without(state.spares, coming)), now)

    patch.setattr(prime_master, "reissue", without)


@bug
def leaves_a_spare_node_cold(patch):
    """What a node that stands by has to have is ordered for no other that takes its place."""
    old = standby.update_standby_spares
    patch.setattr(standby, "update_standby_spares", lambda d: None if d.base.restarts else old(d))


@bug
def forgets_a_spare_and_lets_it_live(patch):
    """A spare of a node that is left is forgotten, and its process is not ended."""

    def forget(d, nodes):
        d.spares = _without(d.spares, [key for key in d.spares if key[1] in nodes])

    patch.setattr(admission.spares, "end_spares_of_nodes", forget)


def _without(table: Map, keys) -> Map:
    for key in keys:
        table = table.delete(key)
    return table


@bug
def gives_a_spare_twice(patch):
    """A spare that became a host is still taken for a spare."""
    old = spares.take_spare

    def take(d, host, node):
        before = d.spares
        taken = old(d, host, node)
        d.spares = before
        return taken

    patch.setattr(spares, "take_spare", take)


@bug
def ends_early(patch):
    """One driver role that completed is enough."""
    old = ending.advance_role_and_job

    def changed(d, role):
        old(d, role)
        if role in d.job.drivers and starting.is_role_completed(d, role) and d.verdict is None:
            ending.end_job(d, ending.Verdict(ok=True, reason="Completed", message="", at=d.now))

    patch.setattr(ending, "advance_role_and_job", changed)


@bug
def forgets_a_kill(patch):
    """A host that is replaced is not ended."""

    def spared(d, host):
        own = d.hosts[host]
        if own.phase is not HostPhase.DOWN:
            d.set_host(host, evolve(own, phase=HostPhase.DOWN, pid=0, address=""))

    patch.setattr(restart, "kill_host", spared)


@bug
def starts_before_whom_it_waits_for(patch):
    """Nobody waits for anybody."""
    patch.setattr(starting, "are_dependencies_met", lambda d, role: True)


@bug
def forgets_what_was_under_way(patch):
    """A new master does not order again what the last one may not have done."""
    patch.setattr(prime_master, "reissue", lambda state, now: ())


@bug
def forgets_a_timer(patch):
    """Nobody wakes up when a backoff is over."""
    patch.setattr(StateTransaction, "wake_at", lambda d, when: None)


@bug
def keeps_a_reservation(patch):
    """A unit that moves keeps its old place too."""
    old = moving.Unreserve
    patch.setattr(moving, "Unreserve", lambda unit, token: old(unit, 0))


@bug
def begins_before_it_ends(patch):
    """Of the orders of a step, what begins something comes first."""
    old = executor.in_order
    patch.setattr(executor, "in_order", lambda actions: old(actions)[::-1])


@bug
def starts_unchecked(patch):
    """Nobody waits for the check of its nodes."""
    patch.setattr(starting.checks, "must_wait_for_check", lambda d, role: False)


@bug
def takes_those_along_who_stay(patch):
    """A resize ends the processes of all, whatever the role says."""
    patch.setattr(restart, "_rejoining_members", lambda d, order, members: frozenset())


@bug
def ends_who_goes_at_work(patch):
    """A resize that does not wait until those who go have left their code."""

    def at_once(d, role, why):
        resizing.resize(d, resizing.Resize({role: d.sizes[role].target}, {}), why, anew=False)

    patch.setattr(resizing, "leave_user_code", at_once)


@bug
def skips_a_count(patch):
    """A unit that is lost still counts as held."""

    def set_unit(d, name, new):
        d.held_unit_count += new.phase is UnitPhase.HELD
        d.put_unit(name, new)

    patch.setattr(StateTransaction, "set_unit", set_unit)


@bug
def leaves_a_coupled_role_alone(patch):
    """Who cannot live without a role goes on when it restarts."""
    patch.setattr(coupling, "ranks_taken_along", lambda d, role, members: ())


@bug
def loads_all_at_once(patch):
    """Nobody counts who is left in the endpoints."""
    patch.setattr(weights, "_free_count", lambda plan, serving_count: serving_count)


@bug
def serves_old_weights(patch):
    """A rank without weights gets requests."""
    patch.setattr(staleness, "stale_reason", lambda plan, newest, own: "")


@bug
def serves_calls_with_old_weights(patch):
    """Nobody tells a rank whose weights have become stale to keep calls waiting."""
    patch.setattr(weights, "_hold_calls", lambda d, role: None)


def serves_weights_of_left_steps(patch):
    """Nothing of what engines hold is left when a job goes back to a cut."""
    patch.setattr(weights, "leave_versions_after_cut", lambda d, cut, of: None)


def takes_weights_of_left_steps_that_are_told_late(patch):
    """Nobody looks which process has published a version."""
    patch.setattr(weights, "left_reason", lambda s, by: "")


def takes_a_load_for_good_that_was_under_way_at_a_restore(patch):
    """A rank that loads while the job goes back to a cut holds what it has loaded."""
    leave = weights._leave_newer_weights

    def not_loads(d, key, at, cut):
        found = leave(d, key, at, cut)
        if (own := d.ranks[key]).weights is not None:
            d.set_rank(key, evolve(own, weights=evolve(own.weights, left_reason="")))
        return found

    patch.setattr(weights, "_leave_newer_weights", not_loads)


@bug
def restarts_a_fleet_for_its_size(patch):
    """Ranks that stay restart when others of their fleet come or go."""

    def leave(d, gone):
        role = gone[0][0] if gone else next(name for name, facts in d.job.roles.items() if facts.fleet)
        restart.begin_restart(
            d, restart.RestartOrder(Level.ROLE, role, (), "Resized", "", dropped_ranks=gone, is_continuation=True)
        )

    patch.setattr(resizing, "leave_restarts", leave)


@bug
def lists_a_server_that_is_stopped(patch):
    """A server is an endpoint until its end, also while it drains."""

    def is_endpoint(state, key):
        own = state.ranks[key]
        return status.is_endpoint(state, key) or (own.phase is RankPhase.STOPPING and own.serving)

    patch.setattr(server_invariants, "is_endpoint", is_endpoint)


@bug
def keeps_a_server_that_is_not_ready(patch):
    """A server whose readiness probe fails stays an endpoint."""
    instead(patch, RankServes, lambda old, d, e: old(d, e) if e.ready else None)


@bug
def loses_a_server_that_failed_its_probe(patch):
    """A server that was ended for its probe is not started again."""

    def ended(old, d, e):
        if e.outcome.reason is not Reason.UNHEALTHY:
            old(d, e)

    instead(patch, RankEnded, ended)


@bug
def ends_a_drain_too_soon(patch):
    """The deadline of a restart leaves no time for a drain."""
    patch.setattr(restart, "_seconds_to_stop", lambda d, incident, *, has_rejoining_members: 5.0)


@bug
def waits_for_ever_for_a_drain(patch):
    """A server that ignores its drain holds up its restart."""
    patch.setattr(restart, "_seconds_to_stop", lambda d, incident, *, has_rejoining_members: 1e6)


@bug
def kills_servers_that_begin_anew(patch):
    """A restart of the job kills the servers whose role waits for another one to complete."""

    def end(d, role, reason):
        for host in d.facts(role).hosts():
            restart.kill_host(d, host)
        for rank in d.facts(role).ranks:
            ending.mark_without_process(d, (role, rank))
            d.set_rank((role, rank), evolve(d.ranks[role, rank], incident=0))

    patch.setattr(restart, "_drain_or_kill_role", end)


@bug
def waits_for_ever_to_begin_anew(patch):
    """A server that ignores its drain keeps its role from beginning anew."""
    old = restart._drain_or_kill_role

    def end(d, role, reason):
        old(d, role, reason)
        if d.roles[role].stop_by is not None:
            d.set_role(role, evolve(d.roles[role], stop_by=d.now + 1e6))

    patch.setattr(restart, "_drain_or_kill_role", end)


@bug
def forgets_the_endpoints(patch):
    """A new master waits until servers tell it anew that they serve."""

    def started(old, d, e):
        old(d, e)
        for key, own in list(d.ranks.items()) if e.epoch > 1 else ():
            d.set_rank(key, evolve(own, serving=False))

    instead(patch, MasterStarted, started)


@bug
def tells_ready_before_its_probe(patch):
    """A host takes a server for ready as soon as its process runs."""
    old = executor._enter

    def enter(w, actor, running):
        old(w, actor, running)
        if servers.served(w, running.role):
            w.report(w.processes[actor], RankReady(running.role, running.rank, running.incarnation, 7))

    patch.setattr(executor, "_enter", enter)


@bug
def lets_the_lowest_number_go(patch):
    """Of ranks that are equal the first goes."""
    patch.setattr(gaps, "groups_in_order", lambda d, role: sorted(d.facts(role).groups, reverse=True))


@bug
def leaves_a_number_out(patch):
    """A fleet that grows leaves a gap."""
    old = gaps.group_numbers

    def numbers(d, role, size):
        had, found = d.facts(role).groups, old(d, role, size)
        return found if len(found) <= len(had) else [*had, *(number + 1 for number in found if number not in had)]

    patch.setattr(gaps, "group_numbers", numbers)


@bug
def kills_ranks_at_work(patch):
    """A fleet gives ranks up that have not finished."""
    patch.setattr(leaving, "begin_leaving", lambda d, role, ranks, why, by=0.0: False)


@bug
def keeps_its_room(patch):
    """A fleet does not see that a driver has no room."""
    patch.setattr(giving, "units_in_need", lambda d: ())


@bug
def follows_every_load(patch):
    """A load is followed right after another change."""
    patch.setattr(autoscale, "hold_s", lambda policy, own, now: 0.0)


@bug
def dates_no_stall_back(patch):
    """A stall counts from its report on, so that its ranks were productive while they stood still."""
    move = rules._move
    patch.setattr(rules, "_move", lambda d, *rest: (made := move(d, *rest))._replace(
        stalled=made.stalled and rules.micros(d, d.now)))  # fmt: skip
