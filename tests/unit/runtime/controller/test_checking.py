"""A round of checks as PrimeMaster makes it: what hangs has failed, what breaks could not be made, nothing is left."""

from __future__ import annotations

import asyncio
import time
from typing import ClassVar

import pytest
from role_kit import role_plan

from dljob.errors import UsageError
from dljob.master.state import events as ev
from dljob.master.state.actions import CheckNodes, CheckPlace
from dljob.master.state.pairing import NodeFacts
from dljob.runtime.backend.interface import ActorCallError, ActorLostError, ActorRef
from dljob.runtime.controller import checking
from dljob.runtime.controller.checking import Checks
from dljob.runtime.process.messages import JobInfo
from dljob.tasks import TaskOwner

INFO = JobInfo("c0ffee00" * 4, "j", "/job", "n", "m", 30.0, 0.2, "", (("t", 3),))
PREFIX = "c0ffee00/check/t/"
HANG = "hang"
BROKEN = ActorCallError("it raised RuntimeError: no way\nand more", error_type="RuntimeError", remote_traceback="")
DEAD = ActorLostError("its process died")


class Plan:
    roles: ClassVar = {"t": role_plan("t", ("class", "a.B"), elastic=True, comm_backend="gloo", env=(("A", "1"),))}


class Fake:
    """Checkers as entries of a dict. `does`: (node, method) -> what it does instead of answering well."""

    def __init__(self, does=None, **there):
        self.does = does or {}
        self.there = dict.fromkeys(there.get("there", ()))
        self.specs, self.ended, self.orders = [], [], []
        self.nodes_error = None

    async def actors(self, prefix):
        return tuple(sorted(name for name in self.there if name.startswith(prefix)))

    async def lookup(self, name):
        return ActorRef(name, None) if name in self.there else None

    async def kill(self, ref):
        self.ended.append(ref.name)
        self.there.pop(ref.name, None)

    async def nodes(self):
        if self.nodes_error:
            raise self.nodes_error
        return ()

    async def spawn(self, spec):
        node = spec.name.removeprefix(PREFIX).partition("/")[0]
        if isinstance(does := self.does.get((node, "spawn")), Exception):
            raise does
        self.specs.append(spec)
        self.there[spec.name] = None
        return ActorRef(spec.name, None)

    async def call(self, ref, method, *args):
        assert ref.name in self.there, "who was ended is asked nothing"
        node = ref.name.removeprefix(PREFIX).partition("/")[0]
        does = self.does.get((node, method))
        if does == HANG:
            await asyncio.Event().wait()
        if isinstance(does, Exception):
            raise does
        self.orders += args
        return {"clock": time.time() + (does or 0.0), "open": f"{node}:1", "meet": 2.5}.get(method) or NodeFacts(node)


class Hurried(asyncio.SelectorEventLoop):
    """A loop whose time passes only when nobody has anything to do: what hangs takes none of ours."""

    def __init__(self):
        super().__init__()
        self._passed = 0.0
        wait = self._selector.select

        def select(timeout=None):
            ready = wait(0 if timeout else timeout)
            self._passed += 0.0 if ready else timeout or 0.0
            return ready

        self._selector.select = select

    def time(self):
        return self._passed


def order(*nodes, teams=(), number=1):
    return CheckNodes(
        "t", number, tuple(CheckPlace(node, f"t/{i}", 7, 0, name=node) for i, node in enumerate(nodes)), teams
    )


def ask(backend, *orders):
    """The answers to orders that are given one right after the other."""
    told = []

    async def run():
        async def offer(*events):
            told.extend(events)

        checks = Checks(INFO, Plan, backend, offer, lambda: 3, owner=TaskOwner(print))
        for each in orders:
            checks.begin(each)
            await asyncio.sleep(0)
        await asyncio.wait([task for _, task in checks._rounds.values()])
        checks.close()

    with asyncio.Runner(loop_factory=Hurried) as runner:
        runner.run(run())
    return [event for event in told if isinstance(event, ev.NodesChecked)]


def test_all_nodes_are_checked_meet_and_leave_no_checker():
    backend = Fake()
    (answer,) = ask(backend, order("a", "b", "c", teams=(("a", "b", "c"),)))
    assert (answer.role, answer.number) == ("t", 1)
    assert [(f.node, f.trouble, f.unmade, f.clock_s) for f in answer.nodes] == [(n, "", "", 0.0) for n in "abc"]
    assert [(team.nodes, team.gbytes_s) for team in answer.teams] == [(("a", "b", "c"), 2.5)]
    first = backend.specs[0]
    assert (first.reservation, first.bundle, first.env) == ("c0ffee00/t/0/7", 0, (("A", "1"),))
    assert first.name == PREFIX + "a/1.3.1"
    meets = [one for one in backend.orders if hasattr(one, "rank")]
    assert [(one.rank, one.size, one.address, one.kind) for one in meets] == [(i, 3, "a:1", "cpu") for i in range(3)]
    assert backend.there == {}


def test_a_checker_that_hangs_is_ended_and_has_failed():
    backend = Fake({("a", "look"): HANG, ("b", "clock"): HANG})
    (answer,) = ask(backend, order("a", "b", "c", teams=(("a", "b"), ("b", "c"))))
    assert [f.trouble for f in answer.nodes] == [
        "it was not looked through within 180 s", "its checker did not come up within 60 s", ""
    ]  # fmt: skip
    assert [f.late for f in answer.nodes] == [True, True, False]
    assert answer.teams == (), "who is bad by itself keeps nobody waiting"
    assert {name.removeprefix(PREFIX)[0] for name in backend.ended} == {"a", "b", "c"}


@pytest.mark.parametrize("what", [("a", "spawn"), ("a", "clock"), ("a", "look"), ("a", "open")])
@pytest.mark.parametrize("error", [BROKEN, DEAD, UsageError("the reservation is gone")])
def test_a_check_that_breaks_by_itself_counts_as_not_made(what, error):
    (answer,) = ask(Fake({what: error}), order("a", "b", teams=(("a", "b"),)))
    assert not any(one.trouble for one in (*answer.nodes, *answer.teams))
    if what != ("a", "open"):
        assert answer.nodes[0].unmade == str(error).splitlines()[0]
    assert answer.teams[0].unmade


def test_an_error_in_an_all_reduce_is_told_with_who_had_it():
    backend = Fake({("a", "meet"): HANG, ("b", "meet"): BROKEN})
    (answer,) = ask(backend, order("a", "b", teams=(("a", "b"),)))
    said = "all-reduce of 2 failed (a: it did not end; b: it raised RuntimeError: no way)"
    assert (answer.teams[0].trouble, answer.teams[0].unmade) == (said, "")


def test_a_process_that_dies_in_an_all_reduce_says_nothing_about_its_node():
    (answer,) = ask(Fake({("b", "meet"): DEAD}), order("a", "b", teams=(("a", "b"),)))
    assert (answer.teams[0].trouble, answer.teams[0].unmade) == ("", "b: its process died")


def test_a_node_that_failed_in_one_team_has_a_new_checker_in_the_next():
    backend = Fake({("b", "meet"): BROKEN})
    (answer,) = ask(backend, order("a", "b", "c", teams=(("a", "b"), ("a", "c"))))
    assert [bool(team.trouble) for team in answer.teams] == [True, False]
    assert [spec.name.removeprefix(PREFIX)[0] for spec in backend.specs] == ["a", "b", "c", "a"]
    assert backend.there == {}


def test_clocks_are_compared_less_what_the_way_may_have_taken():
    (answer,) = ask(Fake({("a", "clock"): 50.0, ("b", "clock"): -50.0}), order("a", "b"))
    assert 49 < answer.nodes[0].clock_s <= 50
    assert -50 <= answer.nodes[1].clock_s < -49


def test_the_same_order_again_is_the_same_round_and_a_newer_one_takes_its_place():
    backend = Fake({("a", "look"): HANG})
    newer = order("b", number=2)
    (answer,) = ask(backend, order("a"), order("a"), newer, newer)
    assert (answer.number, [f.node for f in answer.nodes]) == (2, ["b"])
    assert backend.there == {}


def test_at_the_end_of_a_job_no_checker_is_left_not_even_one_on_its_way():
    class Slow(Fake):
        async def spawn(self, spec):
            await asyncio.sleep(5)
            return await super().spawn(spec)

    backend = Slow()

    async def run():
        checks = Checks(INFO, Plan, backend, None, lambda: 1, owner=TaskOwner(print))
        await checks.end()
        checks.begin(order("a"))
        await asyncio.sleep(1)
        await checks.end()
        assert backend.specs
        assert backend.there == {}

    with asyncio.Runner(loop_factory=Hurried) as runner:
        runner.run(run())


def test_checkers_of_an_earlier_master_are_ended_first():
    backend = Fake(there=(PREFIX + "a/1.2.1", "c0ffee00/check/u/a/1.2.1"))
    ask(backend, order("a"))
    assert backend.ended[0] == PREFIX + "a/1.2.1"
    assert list(backend.there) == ["c0ffee00/check/u/a/1.2.1"]


def test_an_error_of_ours_is_no_failed_check(monkeypatch):
    async def wrong(self, team, facts):
        raise LookupError("nobody thought of this")

    monkeypatch.setattr(checking._Round, "_team", wrong)
    backend = Fake()
    backend.nodes_error = ActorLostError("nobody answers")
    (answer,) = ask(backend, order("a", teams=(("a",),)))
    assert answer.nodes[0].unmade == "LookupError: nobody thought of this"
    assert backend.there == {}
