"""Small worlds explored completely: all laws hold, every job ends; and the search itself."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

from dljob.cli import main
from dljob.master.state.state import JobState
from dljob.testing.explore import explore, worlds
from dljob.testing.explore.explore import PROMPT, Small, enabled
from dljob.testing.explore.key import key_of, tidy
from dljob.testing.explore.worlds import KILL, WORLDS, explored, job, role
from dljob.testing.world import events
from dljob.testing.world.model import Arrive, Carry, Done, FaultMove, Happen, Pending, Wake

NAMES = [each.small.name for each in WORLDS]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_order_of_moves_and_faults_breaks_a_law_and_every_job_ends(name):
    found = explored(name)
    assert (found["problems"], found["trace"], found["whole"]) == ([], [], True)
    assert found["states"] > 250
    assert found["ends"]


def test_among_the_worlds_is_what_was_promised():
    shapes = {(found["roles"], found["ranks"]) for found in (explored(name, 0) for name in NAMES)}
    assert (2, 6) in shapes
    kinds = {fault.kind for each in WORLDS for fault in each.small.faults}
    assert kinds >= {
        "kill",
        "error",
        "crash",
        "freeze",
        "cut",
        "node lost",
        "command",
        "double",
        "hang",
        "evict",
        "drain",
    }


def test_a_search_that_is_cut_short_says_so():
    found = explored("one rank", most=50)
    assert (found["whole"], found["problems"]) == (False, [])
    assert 50 <= found["states"] < 60
    with pytest.raises(KeyError, match="nowhere"):
        explored("nowhere")


def test_the_same_search_finds_the_same_states():
    one, two = explored("a spare", 0), explored("a spare", 0)
    assert {**one, "seconds": 0} == {**two, "seconds": 0}


def two():
    return Small("two", job(role("a", 2)), (KILL,)).world()


def by_oldest(w, count):
    for _ in range(count):
        w.apply(next(iter(enabled(w))))
        tidy(w)
    return w


def carries(w):
    return [n for n, p in w.pending.items() if isinstance(p.item, Carry)]


def test_two_orders_of_independent_moves_lead_to_one_state():
    w = by_oldest(two(), 2)
    one, other = carries(w)
    there, back = w.clone(), w.clone()
    for world, order in ((there, (one, other)), (back, (other, one))):
        for number in order:
            world.apply(Happen(number))
            tidy(world)
    assert key_of(there) == key_of(back) != key_of(w)


def test_time_that_passes_for_all_alike_makes_no_other_state():
    w = by_oldest(two(), 3)
    later = by_oldest(Small("two", job(role("a", 2))).world(), 3)
    assert key_of(later) == key_of(w)
    later.now += 5.0
    assert key_of(later) != key_of(w)  # what is on its way is late now


def at_work():
    w = Small("one", job(role("a", 1)), (KILL,)).world()
    while any(not isinstance(p.item, Done) for p in w.pending.values()):
        w.apply(next(move for move in enabled(w) if not done(w, move)))
        tidy(w)
    return w


def done(w, move):
    return isinstance(move, Happen) and isinstance(w.pending[move.number].item, Done)


def test_a_timer_that_is_far_away_waits_for_what_is_on_its_way():
    w = at_work()
    assert [type(move) for move in enabled(w)] == [Happen]
    w.apply(FaultMove("kill"))
    tidy(w)
    while not carries(w):
        w.apply(next(iter(enabled(w))))
        tidy(w)
    assert w.wake_at() == pytest.approx(w.now + 600)
    assert [type(move) for move in enabled(w)] == [Happen]
    (number,) = carries(w)
    del w.pending[number]
    assert [type(move) for move in enabled(w)] == [Wake]


def test_an_event_under_way_may_come_after_a_timer_that_is_near():
    w = at_work()
    w.apply(FaultMove("command", 0, 1, "stop job"))
    w.apply(next(move for move in enabled(w) if not done(w, move)))
    assert w.wake_at() == pytest.approx(w.now + 15)
    (number,) = carries(w)
    w.pending[number] = replace(w.pending[number], least=w.wake_at() - 10)
    assert [type(move) for move in enabled(w)].count(Wake) == 1


def test_a_job_that_cannot_end_is_told_with_the_way_there(monkeypatch):
    monkeypatch.setattr("dljob.testing.world.events.ends_by_itself", lambda w, name: False)
    found = explore.explore(Small("endless", job(role("a")), (), PROMPT), 0)
    assert found.problems[0].startswith(("stuck", "no end"))
    assert "SetUp" in found.trace[-1]


def test_an_endless_cycle_is_reported(monkeypatch):
    def again(w, item):
        w.pending[w.serial + 1] = Pending(item, w.now)
        w.serial += 1

    monkeypatch.setitem(events._HAPPEN, Done, again)
    found = explore.explore(Small("round", job(role("a")), (), PROMPT), 0)
    assert found.problems[0].startswith("no end")


def test_an_event_that_comes_twice_is_on_its_way_twice():
    w = by_oldest(two(), 2)
    w.apply(Happen(carries(w)[0]))
    (number,) = (n for n, p in w.pending.items() if isinstance(p.item, Arrive))
    explore.make(w, explore.Double(number))
    assert sum(isinstance(p.item, Arrive) for p in w.pending.values()) == 2


def test_the_command_sim_explores_small_worlds(capsys, monkeypatch):
    monkeypatch.setattr(worlds, "WORLDS", WORLDS[:2])
    assert main.run(["sim", "--explore", "--most", "0", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["world"] for each in found] == NAMES[:2]
    assert main.run(["sim", "--explore", "--most", "0"]) == 0
    assert NAMES[0] in capsys.readouterr().out
    assert main.run(["sim", "--explore", "--most", "-1"]) == 2
    assert "--most -1" in capsys.readouterr().err


LEFT_OUT = {
    *("job", "started_at", "ended_at", "version", "serial", "ledger", "result", "faults", "notices", "last_errors"),
    *(
        "restarts",
        "replaced",
        "carried",
        "held_unit_count",
        "live_rank_count",
        "saves",
        "feeds",
        "groups",
        "homeless",
        "housed",
        "cuts",
    ),
    *("problems", "stalled"),
}
"""What decides nothing in these worlds, or follows from what is looked at."""
LOOKED_AT = {
    *("phase", "search", "roles", "ranks", "hosts", "units", "spares", "seats", "nodes", "nodes_seen", "exclusions"),
    *("incidents", "marks", "commands", "verdict", "running_at", "epoch", "wake", "checks"),
    *("departures", "memory_overrides", "sizes", "domain_move", "stalls", "held_ends", "inquiries"),
}


def test_each_field_of_the_state_is_compared_or_left_out_on_purpose():
    assert {field.name for field in fields(JobState)} == LEFT_OUT | LOOKED_AT


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a spare", "a torch world"])
def test_worlds_that_count_as_one_state_lead_to_the_same_states(name):
    """Whatever was left out of the comparison decides nothing: the same choices, and the same states behind them."""
    small = next(each.small for each in WORLDS if each.small.name == name)
    search = explore._Search(small, 1)

    def after(w, left):
        found = {}
        for faulty, choices in (
            (0, list(enabled(w))),
            (1, list(search._wrong(w)) if left and w.doomed is None else []),
        ):
            for choice in choices:
                new = w.clone()
                explore.make(new, choice)
                small.settle(new)
                tidy(new)
                found[left - faulty, key_of(new)] = new
        return found

    begin = small.world()
    tidy(begin)
    known, todo, same = {}, [(begin, 1)], 0
    while todo:
        w, left = todo.pop()
        here = (left, key_of(w))
        if here in known:
            same += 1
            assert set(after(w, left)) == known[here]
            continue
        nexts = after(w, left) if w.finished is None else {}
        known[here] = set(nexts)
        todo.extend((new, remaining) for (remaining, _), new in nexts.items() if new.finished is None)
    assert same > 200
