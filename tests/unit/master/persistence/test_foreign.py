"""A state that other code wrote, begun anew: what goes on, and that nothing has a number that was used."""

from __future__ import annotations

import json

import pytest
from master_kit import UID, World, job, nodes

from dljob.errors import JournalError
from dljob.master.ledger.rules import micros
from dljob.master.persistence import codec
from dljob.master.persistence.migration import TAIL, fresh_state, read_event, take
from dljob.master.state import events as ev
from dljob.master.state import ledger
from dljob.master.state.ledger import Account
from dljob.master.state.state import Phase, RankPhase
from dljob.master.transition import initial, transition
from dljob.telemetry import reasons

ELASTIC = {"name": "e", "type": "Elastic", "replicas": 3, "minReplicas": 1, "maxReplicas": 4}


def shrunk():
    """An elastic role of three that has two, and a spare."""
    groups = [{"name": "any", "replicas": 8, "maxReplicas": 9, "cpu": "4"}]
    made = job(ELASTIC, nodeGroups=groups, faultTolerance={"spares": {"processesPerNode": 1}})
    world = World(made, views=nodes(3, cpus=1)).boot()
    world.now += 7.5
    world.lose_node(world.state.units["e/2"].node)
    world.settle()
    while not world.notes(reasons.RESIZED):
        world.tick()
        world.settle()
    return world


def written(world):
    return json.loads(json.dumps(codec.encode_state(world.state)))


def fresh(world):
    return initial(world.plan, world.spec, UID, world.now)


def accounted(state, now):
    at = micros(state, now)
    return {role: sum(ledger.totals(state.ledger, role, at).values()) for role in state.roles}


def test_a_role_that_has_fewer_ranks_has_all_again_and_its_time_stays_accounted_for():
    world = shrunk()
    taken = fresh_state(written(world), fresh(world), "for a test", world.now)
    state = taken.state
    assert (taken.anew, taken.left_out) == ("for a test", ())
    assert [own.phase for own in state.ranks.values()] == [RankPhase.WAITING] * 3
    spares = ledger.totals(world.state.ledger, "e", micros(world.state, world.now)).get(Account.SPARE, 0)
    assert spares
    for later in (0, 10):
        at = micros(state, world.now + later)
        assert accounted(state, world.now + later)["e"] == ledger.rank_time(state.ledger, "e", 3, at) + spares
    assert accounted(state, world.now) == accounted(world.state, world.now)


def test_accounts_that_were_laid_in_part_begin_anew_and_none_goes_below_nothing():
    world = shrunk()
    data = written(world)
    begun = codec.encode_state(fresh(world))["ledger"]
    state = fresh_state(
        {**data, "ledger": {**data["ledger"], "clocks": begun["clocks"]}}, fresh(world), "", world.now
    ).state
    assert state.ledger == fresh(world).ledger
    at = micros(state, world.now + 10)
    assert min(ledger.totals(state.ledger, "e", at).values()) >= 0
    torn = {**data["ledger"], "productive": begun["productive"]}
    assert fresh_state({**data, "ledger": torn}, fresh(world), "", world.now).state.ledger == fresh(world).ledger


def test_every_number_is_above_all_that_were_used_the_last_events_included():
    world = shrunk()
    tail = [codec.encode_event(ev.RankReady("e", 0, 70, 1))]
    state = fresh_state({**written(world), TAIL: tail}, fresh(world), "for a test", world.now).state
    assert {own.incarnation for own in state.ranks.values()} == {70}
    assert {own.incarnation for own in state.hosts.values()} == {70}
    assert {own.token for own in state.units.values()} == {70}
    assert state.roles["e"].generation == 70
    assert state.roles["e"].restarts == world.state.roles["e"].restarts


def test_an_empty_foreign_state_begins_a_fresh_job():
    world = shrunk()
    assert fresh_state({}, fresh(world), "for a test", world.now).state == fresh(world)


def test_a_whole_state_is_taken_as_it_is():
    world = shrunk()
    taken = take(written(world), fresh(world), world.plan.digest, world.now)
    assert (taken.state, taken.anew, taken.left_out) == (world.state, "", ())


def test_a_job_that_ends_counts_no_restart_for_what_could_not_be_read():
    world = shrunk()
    world.send(ev.Commanded("s", "stop"))
    state = transition(
        world.state, ev.MasterStarted(2, "lost", "the journal is of another", anew=True), world.now
    ).state
    assert (state.phase, dict(state.restarts).get("Job", 0)) == (Phase.STOPPING, 0)


def test_a_role_that_has_all_its_ranks_keeps_its_books():
    world = World(job(ELASTIC, nodeGroups=[{"name": "any", "replicas": 8, "maxReplicas": 9, "cpu": "4"}])).boot()
    state = fresh_state(written(world), fresh(world), "for a test", world.now + 5).state
    assert accounted(state, world.now + 5) == accounted(world.state, world.now + 5)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("rank", "1", "rank is '1', which is no int"),
        ("rank", True, "rank is True, which is no int"),
        ("role", 1, "role is 1, which is no str"),
        ("silent_s", "9", "silent_s is '9', which is no float"),
    ],
)
def test_a_field_of_another_type_is_refused_by_its_name(field, value, words):
    written = codec.encode_event(ev.HangFound("w", 1, 1, "Hang", "it stands still", silent_s=9.0))
    assert read_event({**written, "silent_s": 9}) == ev.HangFound("w", 1, 1, "Hang", "it stands still", silent_s=9.0)
    with pytest.raises(JournalError, match=words):
        read_event({**written, field: value})
