"""The invariants: some are checked when something begins, the others over the whole world from time to time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from functools import lru_cache
from operator import attrgetter, itemgetter

from dljob.master.ledger.rules import micros
from dljob.master.persistence.codec import decode_event, decode_state, encode_event, encode_state
from dljob.master.placement import timers
from dljob.master.state import ledger, memory_overrides
from dljob.master.state.actions import Reserve, SpawnHost
from dljob.master.state.events import Event
from dljob.master.state.ledger import Account
from dljob.master.state.stalls import stalled_ranks
from dljob.master.state.state import (
    HostPhase,
    JobState,
    Phase,
    RankPhase,
    SparePhase,
    UnitPhase,
    homeless_units,
    housed_units,
)
from dljob.master.state.views import HostId
from dljob.master.transition import transition
from dljob.telemetry import reasons
from dljob.testing.world import (
    blame_invariants,
    checks,
    coupling_invariants,
    domain_invariants,
    elastic,
    fleets,
    repeat_invariants,
    server_invariants,
    spare_invariants,
    weight_invariants,
)
from dljob.testing.world.model import Process, ReportStalls, Running, spare_actor
from dljob.testing.world.state import WorldState


def text(state: JobState) -> str:
    """Return a state in its written form: equal states give equal text."""
    return json.dumps(encode_state(state), separators=(",", ":"), allow_nan=False)


def restored(state: JobState) -> JobState:
    """Return a state after it was written and read."""
    return decode_state(json.loads(text(state)), state.job)


def replayed(w: WorldState, *, written: bool = True) -> list[str]:
    """Replaying the journal gives PrimeMaster's state, byte for byte; `written`: from events written and read again."""
    # From the snapshot of the present PrimeMaster on, as a restart would.
    state = w.base
    for at, event in w.journal[w.base_at :]:
        state = transition(state, _reread(event), at).state if written else transition(state, event, at).state
    same = text(state) == text(w.known) if written else state == w.known
    return [] if same else [f"replay: {len(w.journal)} events do not lead to the state"]


@lru_cache(4096)
def _reread(event: Event) -> Event:
    """Return an event after it was written and read; cached, since explored worlds share most events."""
    return decode_event(json.loads(json.dumps(encode_event(event))))


# -- when something begins


def may_reserve(w: WorldState, a: Reserve) -> None:
    """A unit may not be reserved on a node that PrimeMaster has excluded."""
    exclusion = w.known.exclusions.get(a.node)
    if exclusion is not None:
        w.problems.append(f"excluded: {a.unit} goes to {a.node}, which is excluded: {exclusion.reason}")


def note_held_units(w: WorldState) -> None:
    """Record whether all units of the gang were held at once: some may be lost before PrimeMaster admits the job."""
    # Counted before a set of all is made: the gang of a large job is held last.
    if not w.admitted and len(w.groups) + len(w.struck) >= w.job.unit_count:
        w.admitted = len({unit for unit, _ in (*w.groups, *w.struck)}) == w.job.unit_count


def may_spawn(w: WorldState, a: SpawnHost, actor: str) -> None:
    """A host may be created only once the whole gang was held, and while no earlier process of it can be reached."""
    note_held_units(w)
    if not w.admitted:
        w.problems.append(f"gang: {a.host} is made before every unit is held")
    # Two processes of one host would write to the same checkpoint.
    former = w.processes.get(w.owner.get(a.host, ""))
    if former is not None and former.actor != actor and not former.condemned and w.reachable(former.node):
        w.problems.append(f"two hosts: {actor} is made while {former.actor} lives")


def may_become(w: WorldState, process: Process, host: HostId) -> None:
    """A process may become a host only if it is a spare, or that host already."""
    if isinstance(process.occupant, HostId) and process.occupant != host:
        w.problems.append(f"taken: {process.actor} is to be {host}, and is {process.occupant}")


def may_start(w: WorldState, running: Running) -> None:
    """A rank may start if it runs nowhere else, its torch world has one generation, and its dependencies are met."""
    key = (running.role, running.rank)
    name = f"{running.role}/{running.rank}"
    for incarnation, actor in w.running.get(key, ()):
        # One on an unreachable node ends by its lease.
        if w.reachable(w.processes[actor].node):
            w.problems.append(f"two live: {name} starts as {running.incarnation} while {incarnation} lives in {actor}")
    if running.incarnation <= w.started.get(key, 0):
        w.problems.append(f"incarnation: {name} starts as {running.incarnation} again")
    if running.rank not in w.job.roles[running.role].ranks:
        w.problems.append(f"elastic: {name} starts, its role has {w.job.roles[running.role].plan.replicas} ranks")
    if w.job.roles[running.role].is_torch_world:
        w.problems.extend(_mixed(w, running))
        w.problems.extend(checks.unfit(w, running))
    w.problems.extend(coupling_invariants.outlived(w, running))
    for dependency, kind in w.job.roles[running.role].plan.depends_on:
        met_ranks = w.was_ready if kind == "Ready" else w.ended
        everybody = ((dependency, rank) for rank in w.job.roles[dependency].ranks)
        # A rank that has ended was ready before that.
        lacking = [key[1] for key in everybody if key not in met_ranks and key not in w.ended]
        if lacking:
            w.problems.append(f"dependency: {name} starts before {dependency}/{lacking[0]} was {kind}")


def _mixed(w: WorldState, running: Running) -> Iterator[str]:
    """Yield live ranks of the same torch world with another generation."""
    # Most torch worlds have one generation, so most starts compare nothing.
    others = {g for role, g in w.worlds if role == running.role} - {running.generation}
    actors = (actor for g in sorted(others) for actor in w.worlds[running.role, g])
    for process in map(w.processes.__getitem__, actors):
        for r in process.ranks if w.reachable(process.node) else ():
            if r.generation in others:
                yield f"world: {r.role}/{running.rank} of start {running.generation} meets {r.rank} of {r.generation}"


def unread(state: JobState, new: JobState) -> list[str]:
    """A state that was read from a snapshot equals the one that was written."""
    lost = [
        state_field.name
        for state_field in fields(state)
        if getattr(new, state_field.name) != getattr(state, state_field.name)
    ]
    return [f"snapshot: {', '.join(lost)} is not what it was"] if lost else []


def well_ended(w: WorldState) -> list[str]:
    """A job that ended with success did so with the success of all its driver ranks."""
    if w.known.verdict is None or not w.known.verdict.ok:
        return []
    ranks = ((name, rank) for name in w.job.drivers for rank in w.job.plan.roles[name].ranks)
    return [
        f"early: the job ends well, and {role}/{rank} does not" for role, rank in ranks if (role, rank) not in w.ended
    ]


def left_behind(w: WorldState) -> list[str]:
    """At the end no process and no reservation is left."""
    # One that cannot be reached ends by its lease.
    problems = [f"left: process {p.actor}" for p in w.processes.values() if w.reachable(p.node)]
    return problems + [f"left: reservation {unit} {token} on {node}" for (unit, token), node in w.groups.items()]


# -- the whole world


def sweep(w: WorldState) -> list[str]:
    """Return all broken invariants that can be seen from outside the core or inside."""
    problems = [
        *_counts(w.known),
        *_incidents(w.known),
        *_timers(w.known),
        *_budgets(w),
        *_ledger(w),
        *_stalls(w),
        *well_ended(w),
    ]
    if w.obeyed > len(w.known.commands):
        problems.append(f"command: {w.obeyed} times somebody was answered, {len(w.known.commands)} commands came")
    problems += _banned(w.known)
    problems += domain_invariants.check_domains(w.known)
    if w.epoch == 1:  # a PrimeMaster that crashed may have done so with the note under way
        missed = [note.target for _, note in w.notes if note.reason == reasons.PREFERRED_DOMAIN_MISSED]
        problems += domain_invariants.check_preferences(w.known, missed)
    problems += repeat_invariants.check_repeats(w.known)
    problems += blame_invariants.check_blame(w.known, w.last)
    problems += elastic.bounded(w.known)
    problems += fleets.gives_room(w.known)
    problems += weight_invariants.served(w)
    if w.state is not None:
        # PrimeMaster knows the free resources from its last snapshot: this holds only while no pending item changes
        # them.
        busy = w.looking or w.arriving or w.carrying
        # A fleet runs on while it grows, and the last snapshot does not show what its new units took.
        grows = busy and any(facts.fleet for facts in w.job.roles.values())
        problems += () if grows else elastic.at_rest(w.state, w.state.nodes if busy else w.listed_nodes(), w.last)
    problems += _granted(w)
    if w.state is not None:
        problems += _orphans(w)
        problems += server_invariants.at_rest(w, w.state) if w.serving else ()
    return problems + spare_invariants.at_rest(w)


def _counts(state: JobState) -> Iterator[str]:
    # The state keeps counts so that no decision scans all ranks: they must equal what a scan finds.
    # By `map`, without code of Python's for each rank: a large job is swept hundreds of times.
    phases = map(str.lower, map(attrgetter("phase"), state.ranks.values()))
    counted = Counter(zip(map(itemgetter(0), state.ranks), phases, strict=True))
    live = sum(counted[name, phase.value.lower()] for name in state.roles for phase in RankPhase if phase.live)
    ready = Counter(
        [
            host.role
            for host, host_state in state.hosts.items()
            if host_state.phase is HostPhase.READY and host.index >= 0
        ]
    )
    for name, role in state.roles.items():
        for phase in RankPhase:
            count = counted[name, phase.value.lower()]
            if (kept_count := getattr(role, f"{phase.value.lower()}_count")) != count:
                yield f"count: {name} has {count} {phase.value}, not {kept_count}"
        if role.ready_host_count != ready[name]:
            yield f"count: {name} has {ready[name]} hosts ready, not {role.ready_host_count}"
    if state.live_rank_count != live:
        yield f"count: {live} ranks live, not {state.live_rank_count}"
    held_count = sum(unit.phase is UnitPhase.HELD for unit in state.units.values())
    if state.held_unit_count != held_count:
        yield f"count: {held_count} units held, not {state.held_unit_count}"
    if (lacking := homeless_units(state.units)) != state.homeless:
        yield f"count: {', '.join(sorted(lacking))} have no place, not {', '.join(sorted(state.homeless))}"
    if housed_units(state.units) != state.housed:
        yield f"count: units are on {housed_units(state.units)}, not on {state.housed}"


def _banned(state: JobState) -> Iterator[str]:
    """No unit is on an excluded node, or being reserved there."""
    # While the job ends, nothing moves off a node any more.
    for name, unit in state.units.items() if state.exclusions and state.verdict is None else ():
        if unit.phase in (UnitPhase.HELD, UnitPhase.RESERVING) and unit.node in state.exclusions:
            yield f"excluded: {name} is on {unit.node}: {state.exclusions[unit.node].reason}"


def _granted(w: WorldState) -> Iterator[str]:
    """A unit's reservation has the memory that PrimeMaster granted."""
    granted = w.known.memory_overrides
    # Few jobs let memory grow, and the others have nothing to compare.
    for key, node in w.groups.items() if w.granted or granted.overrides else ():
        unit_state = w.known.units[key[0]]
        if unit_state.phase is UnitPhase.HELD and unit_state.token == key[1]:
            has, expected = w.granted.get(key, ()), memory_overrides.overrides_of_unit(granted, key[0])
            if has != expected:
                yield f"memory: {key[0]} has {has} on {node}, and was given {expected}"


def _incidents(state: JobState) -> Iterator[str]:
    belonging = [(key, rank.incident) for key, rank in state.ranks.items() if rank.incident]
    members = Counter(incident for _, incident in belonging)
    for key, incident in belonging:
        if incident not in state.incidents and state.verdict is None:
            yield f"incident: {key} belongs to {incident}, which is over"
    for number, incident in state.incidents.items():
        if incident.unready_count != members[number] or incident.unready_count <= 0:
            yield f"incident: {number} waits for {incident.unready_count}, {members[number]} belong to it"
    if state.phase is Phase.RUNNING and state.incidents:
        yield "incident: the job runs while something is being restarted"
    if state.verdict is None:
        for name, role in state.roles.items():
            hold = sum(
                not i.is_backoff_over and any(member == name for member, _ in i.members)
                for i in state.incidents.values()
            )
            if role.incidents_in_backoff != hold:
                yield f"hold: {name} is held back by {hold}, not {role.incidents_in_backoff}"
            if role.stop_by is not None and not role.stopping_count:
                yield f"stop: {name} waits for ranks that have ended, and begins anew never"


def _timers(state: JobState) -> Iterator[str]:
    # A timer that is set too late would leave something undone until the next event.
    next_due = timers.earliest_timer(state)
    if next_due is not None and (state.wake is None or state.wake > next_due):
        yield f"timer: due at {next_due}, asked for {state.wake}"


def _budgets(w: WorldState) -> Iterator[str]:
    state, policy = w.known, w.job.fault_tolerance
    for key, marks in state.marks.items():
        recent = sum(mark.at > w.last - policy.window_seconds for mark in marks)
        # Only "job" and roles are checked: "fail:<role>" has no budget, "master" and "rule:<name>" have other limits.
        most = policy.max_restarts if key == "job" else getattr(w.job.plan.roles.get(key), "max_restarts", recent)
        if recent > most:
            yield f"budget: {key} used {recent} of {most}"
    if any(count < 0 for count in state.restarts.values()) or state.held_unit_count < 0 or state.live_rank_count < 0:
        yield "budget: a count is negative"


def _ledger(w: WorldState) -> Iterator[str]:
    """Each rank's time is in exactly one account: the sums equal the time since the start times the ranks."""
    state, book = w.known, w.known.ledger
    at = max(book.at, micros(state, w.last))
    for name, facts in w.job.roles.items():
        sums = ledger.totals(book, name, at)
        # Spare processes are not ranks, so their time is in an account of its own.
        spent = sum(total for account, total in sums.items() if account is not Account.SPARE)
        rank_time = ledger.rank_time(book, name, facts.plan.replicas, at)
        if spent != rank_time:
            yield f"ledger: {name} spent {spent} us, its ranks were there for {rank_time}"


def _stalls(w: WorldState) -> Iterator[str]:
    """A rank that stands still is in `stalled` since its stall began, and in no other account; nobody else is."""
    state, clocks = w.known, w.known.ledger.clocks
    if state.stalled != stalled_ranks(state.stalls):
        yield "stalls: the index is not that of the stalls"
    for key, (account, since) in clocks.items():
        if (account is Account.STALLED) != (key in state.stalled):
            yield f"stalls: {key} is in {account.value}, and is {'' if key in state.stalled else 'not '}in a stall"
        elif key in state.stalled:
            origin, begin = state.ledger.stalled[key]
            begin_us = max(begin, micros(state, state.stalled[key]))
            if since > begin_us:
                yield f"stalls: {key} stands still since {begin_us} us, and was in {origin.value} until {since} us"
    busy = w.arriving or any(isinstance(pending.item, ReportStalls) for pending in w.pending.values())
    if state.stalls and w.state is not None and not w.stalls and not busy:
        yield f"stalls: {state.stalls[0].name} stands in the state, and no rank stands still"


def _orphans(w: WorldState) -> Iterator[str]:
    """Nothing exists that PrimeMaster does not know, while no pending item could tell it."""
    if w.arriving or w.carrying:
        return
    for (role, node, slot), spare in w.known.spares.items():
        actor = spare_actor(role, node, slot, spare.incarnation)
        if spare.phase is SparePhase.SPAWNING and w.known.verdict is None and actor not in w.watched:
            yield f"spare: {actor} is awaited, and nobody makes it"
    for unit, token in w.groups:
        unit_state = w.known.units[unit]
        if unit_state.token != token or unit_state.phase not in (UnitPhase.HELD, UnitPhase.RESERVING):
            yield f"leak: reservation {unit} {token} is held, and PrimeMaster does not know it"
