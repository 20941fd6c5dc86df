"""Who gets what: each dispatch, and the words where it does not fit."""

from __future__ import annotations

import math
from enum import IntEnum, StrEnum

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob import UsageError, register_dispatch, whole
from dljob.calls.dispatch import RoleSnapshot, _user_dispatches, plan_call, rank_of_key, user_dispatches
from dljob.calls.mark import RpcMark, change_options

ROLE = RoleSnapshot("r", 4, {})


def sent(view, args=(), kwargs=None, **mark):
    """[(rank, args, kwargs, whether its answer is wanted)]."""
    plan = plan_call(view, RpcMark(**mark), args, kwargs or {})
    return [(s.rank, *plan.arguments[s.arguments_index], not s.discards_answer) for s in plan.sends]


def ranks(view, **mark):
    return [request[0] for request in sent(view, (), **mark)]


def test_all_get_the_same_arguments_which_stand_once():
    plan = plan_call(ROLE, RpcMark(), (1,), {"b": 2})
    assert plan.arguments == (((1,), {"b": 2}),)
    assert [send.rank for send in plan.sends] == [0, 1, 2, 3]
    assert not plan.picks_one_rank


def test_all_over_a_mesh_answers_once_per_shard():
    view = RoleSnapshot("r", 4, {"dp": 2, "tp": 2})
    assert [(rank, answers) for rank, _, _, answers in sent(view, mesh="dp")] == [
        (0, True),
        (1, False),
        (2, True),
        (3, False),
    ]


def test_each_gets_its_own():
    assert sent(RoleSnapshot("r", 2, {}), (["a", "b"],), {"n": (1, 2)}, dispatch="each") == [
        (0, ("a",), {"n": 1}, True),
        (1, ("b",), {"n": 2}, True),
    ]
    meshed = sent(RoleSnapshot("r", 4, {"dp": 2, "tp": 2}), (["a", "b"],), dispatch="each")
    assert [(rank, args[0], answers) for rank, args, _, answers in meshed] == [
        (0, "a", True),
        (1, "a", False),
        (2, "b", True),
        (3, "b", False),
    ]


@pytest.mark.parametrize("name", ["all", "rank0", "round_robin", "least_loaded", "owner", "hash:key", "mine"])
def test_a_whole_argument_is_unwrapped_where_nothing_is_split(name, monkeypatch):
    first_rank = {"mine": lambda view, args, kwargs: [(0, args, kwargs)]}
    monkeypatch.setattr("dljob.calls.dispatch._user_dispatches", first_rank)
    for _, args, kwargs, _ in sent(ROLE, (whole([1]), 2), {"key": whole("k"), "n": 3}, dispatch=name):
        assert (args, kwargs) == (([1], 2), {"key": "k", "n": 3})


def test_a_whole_argument_goes_to_each_rank_as_it_is():
    requests = sent(RoleSnapshot("r", 2, {}), (["a", "b"], whole([1, 2])), {"n": whole(3)}, dispatch="each")
    assert [request[1:3] for request in requests] == [(("a", [1, 2]), {"n": 3}), (("b", [1, 2]), {"n": 3})]


@pytest.mark.parametrize(("value", "words"), [([1], "list of 4, one for each, got 1 item"), ("abcd", "got str")])
def test_each_wants_as_many_as_there_are(value, words):
    with pytest.raises(UsageError, match=f"argument 1 is to be a {words}|argument 1 is to be a list of 4.*{words}"):
        sent(ROLE, (value,), dispatch="each")


def test_shard_of_a_mesh_goes_to_all_its_ranks_and_one_answers():
    view = RoleSnapshot("r", 4, {"pp": 2, "dp": 2})
    assert sent(view, ([1, 2, 3],), dispatch="shard") == [
        (0, ([1, 2],), {}, False),
        (2, ([1, 2],), {}, True),
        (1, ([3],), {}, False),
        (3, ([3],), {}, True),
    ]
    assert [args for _, args, _, _ in sent(ROLE, ([1, 2, 3],), dispatch="shard")] == [([1],), ([2],), ([3],), ([],)]


def test_shard_of_a_mesh_without_dp_wants_to_know_over_which_axis():
    with pytest.raises(UsageError, match=r"has a mesh \(tp\) without an axis 'dp'"):
        sent(RoleSnapshot("r", 4, {"tp": 4}), ([1],), dispatch="shard")
    assert ranks(RoleSnapshot("r", 4, {"tp": 4}), mesh="tp") == [0, 1, 2, 3]


@given(st.integers(1, 8), st.integers(0, 100))
def test_turns_go_round(size, turn):
    assert ranks(RoleSnapshot("r", size, {}, turn=turn), dispatch="round_robin") == [turn % size]


@given(st.dictionaries(st.integers(0, 3), st.integers(0, 5)), st.integers(0, 9))
def test_least_loaded_has_no_rank_with_less(busy, turn):
    (rank,) = ranks(RoleSnapshot("r", 4, {}, in_flight=busy, turn=turn), dispatch="least_loaded")
    assert busy.get(rank, 0) == min(busy.get(n, 0) for n in range(4))


def test_of_several_least_loaded_the_next_in_turn_is_taken():
    assert [ranks(RoleSnapshot("r", 3, {}, in_flight={1: 1}, turn=n), dispatch="least_loaded") for n in range(3)] == [
        [0],
        [2],
        [2],
    ]


@given(st.one_of(st.text(), st.integers(), st.binary(), st.none()), st.integers(1, 16))
def test_key_stays_where_it_is_and_moves_only_to_a_rank_that_came(key, size):
    before, after = rank_of_key(key, size), rank_of_key(key, size + 1)
    assert before == rank_of_key(key, size)
    assert after in (before, size)


class Color(StrEnum):
    RED = "red"


class Number(IntEnum):
    ONE = 1


@pytest.mark.parametrize(
    ("key", "same"),
    [(np.str_("red"), "red"), (Color.RED, "red"), (np.bytes_(b"r"), b"r"), (np.int64(1), 1), (Number.ONE, 1)],
)
def test_a_key_hashes_by_its_value_whatever_its_type(key, same):
    assert [rank_of_key(key, 2**n) for n in range(8)] == [rank_of_key(same, 2**n) for n in range(8)]


def test_keys_spread_evenly_over_the_ranks():
    ranks = [rank_of_key(f"session {n}", 4) for n in range(400)]
    assert all(60 < ranks.count(rank) < 140 for rank in range(4))


def test_key_is_found_by_name_and_by_place():
    mark = {"dispatch": "hash:session", "parameters": ("prompt", "session")}
    by_place, by_name = sent(ROLE, ("p", "s"), **mark), sent(ROLE, ("p",), {"session": "s"}, **mark)
    assert by_place[0][0] == by_name[0][0] == rank_of_key("s", 4)
    with pytest.raises(UsageError, match=r"no argument 'session'\n  the method's parameters: prompt, session"):
        sent(ROLE, ("p",), **mark)
    with pytest.raises(UsageError, match="got list"):
        sent(ROLE, ("p", ["s"]), **mark)


@given(st.integers(1, 12), st.integers(1, 12))
def test_owners_are_shared_out_in_order(callers, size):
    owners = [ranks(RoleSnapshot("r", size, {}, (n, callers)), dispatch="owner")[0] for n in range(callers)]
    assert owners == sorted(owners)
    if callers == size:
        assert owners == list(range(size))
    counts = [owners.count(rank) for rank in set(owners)]
    assert max(counts) - min(counts) <= 1


def test_a_registered_dispatch_is_used_and_its_mistakes_are_named(monkeypatch):
    monkeypatch.setattr("dljob.calls.dispatch._user_dispatches", dict(_user_dispatches))
    register_dispatch("odd", lambda view, args, kwargs: [(r, args, kwargs) for r in range(1, view.ranks, 2)])
    register_dispatch("far", lambda view, args, kwargs: [(view.ranks, args, kwargs)])
    register_dispatch("numpy's", lambda view, args, kwargs: [(np.int64(2), args, kwargs)])
    register_dispatch("halves", lambda view, args, kwargs: [(1.0, args, kwargs)])
    register_dispatch("none of them", lambda view, args, kwargs: [])
    assert ranks(ROLE, dispatch="odd") == [1, 3]
    assert [type(rank) for rank in ranks(ROLE, dispatch="numpy's")] == [int]
    with pytest.raises(UsageError, match=r"chose rank 1\.0; r has ranks 0 to 3"):
        ranks(ROLE, dispatch="halves")
    with pytest.raises(UsageError, match="chose rank 4; r has ranks 0 to 3"):
        ranks(ROLE, dispatch="far")
    with pytest.raises(UsageError, match="chose no rank"):
        ranks(ROLE, dispatch="none of them")
    with pytest.raises(UsageError, match="not registered in this process"):
        ranks(ROLE, dispatch="unheard of")
    for name in ("all", "hash:x"):
        with pytest.raises(UsageError, match="taken"):
            register_dispatch(name, lambda view, args, kwargs: [])


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"dispatch": "shrad"}, r"dispatch='shrad': unknown\n  did you mean 'shard'"),
            ({"dispatch": "hash:"}, "wanted the name of a parameter"),
            ({"collect": "everything"}, "there are: list, first"),
            ({"pad": "zero"}, "pad='zero': unknown"),
            ({"pad": "auto"}, r"pad='auto' with collect='list'"),
            ({"timeout": 0}, "seconds above 0"),
            ({"timeout": "5"}, "seconds above 0"),
            ({"timeout": [5]}, r"timeout=\[5\]: wanted seconds above 0"),
            ({"timeout": -1}, "timeout=-1: wanted seconds above 0"),
            ({"timeout": float("nan")}, "timeout=nan: wanted seconds above 0"),
            ({"dispatch": None}, "dispatch=None: wanted a name\n  there are: all"),
            ({"mesh": ("dp", "cp")}, "wanted names of axes in one text, as in 'dp,cp'"),
            ({"idempotent": "no"}, "idempotent='no': wanted True or False"),
            ({"stream": "yes"}, "stream='yes': wanted a whole number from 1, or True"),
            ({"stream": -3}, "stream=-3: wanted a whole number from 1, or True"),
            ({"stream": 1.5}, "stream=1.5: wanted a whole number from 1, or True"),
            ({"concurrency": 2.5}, "concurrency=2.5: wanted a whole number from 1, or None"),
            ({"concurrency": "4"}, "concurrency='4': wanted a whole number from 1, or None"),
            ({"concurrency": True}, "concurrency=True: wanted a whole number from 1, or None"),
        ],
    )
    def test_wrong_options_are_refused_in_words(self, options, words):
        with pytest.raises(UsageError, match=words):
            change_options(RpcMark(), options, (), ())

    def test_numbers_become_those_that_travel(self):
        options = {"timeout": np.float64(2), "stream": np.int64(4), "concurrency": np.int32(2)}
        mark = change_options(RpcMark(), options, (), ())
        assert [type(value) for value in (mark.timeout_s, mark.stream, mark.concurrency)] == [float, int, int]
        plain = change_options(RpcMark(), {"timeout": 60, "stream": True, "concurrency": None, "mesh": None}, (), ())
        assert plain == RpcMark(timeout_s=60.0, stream=True)

    @pytest.mark.parametrize("timeout", [None, math.inf, 1e300])
    def test_an_endless_timeout_means_no_deadline(self, timeout):
        assert change_options(RpcMark(), {"timeout": timeout}, (), ()).timeout_s is None

    def test_right_options_are_laid_over_the_earlier_ones(self):
        mark = change_options(
            RpcMark(), {"idempotent": True, "timeout": None, "dispatch": "odd", "mesh": "dp, cp"}, ("odd",), ()
        )
        assert mark == RpcMark(idempotent=True, timeout_s=None, dispatch="odd", mesh="dp, cp")
        assert mark.axes == ("dp", "cp")
        assert RpcMark().axes == ()


def test_names_that_were_added_are_known_and_a_hash_of_any_parameter_is(monkeypatch):
    monkeypatch.setattr("dljob.calls.dispatch._user_dispatches", {})
    register_dispatch("last", lambda view, args, kwargs: [(view.ranks - 1, args, kwargs)])
    assert user_dispatches() == ("last",)
    assert change_options(RpcMark(), {"dispatch": "last"}, user_dispatches(), ()).dispatch == "last"
    assert change_options(RpcMark(), {"dispatch": "hash:session"}, (), ()).dispatch == "hash:session"


def test_dispatch_rank0_sends_to_the_first_rank():
    assert sent(ROLE, (1,), dispatch="rank0") == [(0, (1,), {}, True)]
    assert ranks(ROLE, dispatch="round_robin") == [0]


GAPS = (0, 2, 5)


@pytest.mark.parametrize(
    ("dispatch", "turn", "ranks"),
    [("all", 0, [0, 2, 5]), ("shard", 0, [0, 2, 5]), ("rank0", 0, [0]), ("round_robin", 1, [2]), ("owner", 0, [5])],
)
def test_a_call_of_a_role_with_gaps_goes_to_the_ranks_that_there_are(dispatch, turn, ranks):
    view = RoleSnapshot("r", 3, {}, (2, 3), {}, turn, GAPS)
    sent = plan_call(view, RpcMark(dispatch=dispatch), ([1, 2, 3],), {})
    assert [send.rank for send in sent.sends] == ranks


def test_the_least_loaded_of_ranks_with_gaps_is_known_by_its_number():
    view = RoleSnapshot("r", 3, {}, (0, 1), {0: 1, 2: 0, 5: 1}, 2, GAPS)
    (send,) = plan_call(view, RpcMark(dispatch="least_loaded"), (), {}).sends
    assert send.rank == 2


def test_a_key_keeps_its_rank_when_another_rank_leaves_a_gap():
    mark = RpcMark(dispatch="hash:key")
    for n in range(100):
        (before,) = plan_call(RoleSnapshot("r", 6, {}), mark, (), {"key": f"s{n}"}).sends
        (after,) = plan_call(RoleSnapshot("r", 5, {}, numbers=(0, 1, 2, 4, 5)), mark, (), {"key": f"s{n}"}).sends
        assert before.rank in (after.rank, 3)
