"""Teams and judgement: any single bad node is found in two rounds, and nobody is condemned where all are good."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob.master.state.pairing import (
    Disk,
    NodeFacts,
    TeamFacts,
    disjoint_turns,
    failed_together,
    find_culprits,
    first_round,
    master_clock_error,
    median_speeds,
    most_suspicious_node,
    second_round,
    team_failure,
    unfit_reason,
    without_shared_failures,
    without_shared_lateness,
)


def names(count):
    return tuple(f"n{i}" for i in range(count))


def rounds(everybody, bad, proven=()):
    """(proven, failures) after both rounds, as the core goes through them."""
    proven, failures = list(proven), []
    fresh = tuple(node for node in everybody if node not in proven)
    teams = first_round(fresh, tuple(proven), ())
    for _ in range(2):
        for team in teams:
            if bad.intersection(team):
                failures.append(team)
            else:
                proven.extend(node for node in team if node not in proven)
        found = find_culprits(failures, proven)
        open_ = tuple(node for node in everybody if node not in proven and node not in found)
        teams = second_round(open_, tuple(proven), failures) if open_ else ()
    return proven, failures


@given(st.integers(2, 40), st.data())
def test_any_single_bad_node_is_found_in_two_rounds(count, data):
    everybody = names(count)
    bad = data.draw(st.sampled_from(everybody))
    proven, failures = rounds(everybody, {bad})
    if count > 2:
        assert set(find_culprits(failures, proven)) == {bad}
        assert set(proven) == set(everybody) - {bad}
    else:
        assert not proven
        assert most_suspicious_node(everybody, failures) == ("n1", ("n0",)), "of two nobody can tell which"


@given(st.integers(1, 40))
def test_where_all_are_good_one_round_proves_them_all(count):
    everybody = names(count)
    teams = first_round(everybody, (), ())
    assert sorted(node for team in teams for node in team) == (sorted(everybody) if count > 1 else [])
    assert all(len(team) in (2, 3) for team in teams)
    assert sum(len(team) == 3 for team in teams) == count % 2 * (count > 1)
    assert len(disjoint_turns(teams)) <= 1, "nobody is in two teams at once"
    proven, failures = rounds(everybody, set())
    assert (sorted(proven) if count > 1 else [], failures) == (sorted(everybody) if count > 1 else [], [])


@given(st.integers(2, 16), st.data())
def test_no_good_node_is_condemned_however_many_are_bad(count, data):
    everybody = names(count)
    bad = data.draw(st.sets(st.sampled_from(everybody)))
    proven, failures = rounds(everybody, bad)
    assert not bad.intersection(proven)
    assert set(find_culprits(failures, proven)) <= bad


@given(st.integers(1, 10), st.integers(1, 10), st.data())
def test_newcomers_are_checked_with_those_that_are_proven(old, new, data):
    everybody = names(old + new)
    bad = data.draw(st.sets(st.sampled_from(everybody[old:])))
    proven, failures = rounds(everybody, bad, everybody[:old])
    assert set(find_culprits(failures, proven)) == bad
    assert set(proven) == set(everybody) - bad


def test_two_that_failed_together_are_not_put_together_again():
    failures = (("a", "b"), ("c", "d"))
    assert first_round(("a", "b", "c", "d"), (), failures) == (("a", "c"), ("b", "d"))
    assert second_round(("a", "b"), (), failures) == ()
    assert second_round(("a", "b", "c"), (), failures) == (("a", "c"), ("b", "c"))
    assert not failed_together(failures, "b", "c")
    assert first_round(("a", "b"), (), failures) == (("a", "b"),), "unless there is nobody else"


def test_newcomers_that_are_more_than_the_proven_meet_each_other_first():
    assert first_round(("a", "b", "c", "d"), ("p",), ()) == (("p", "a"), ("b", "c", "d"))
    assert first_round(("a", "b"), ("p",), ()) == (("p", "a", "b"),)
    assert second_round(("a", "b"), ("p",), ()) == (("p", "a"), ("p", "b"))


@given(
    st.lists(st.sets(st.sampled_from(names(8)), min_size=2, max_size=3).map(lambda s: tuple(sorted(s))), max_size=20)
)
def test_no_node_is_in_two_teams_of_a_wave(teams):
    made = disjoint_turns(teams)
    assert sorted(team for wave in made for team in wave) == sorted(teams)
    for wave in made:
        members = [node for team in wave for node in team]
        assert len(members) == len(set(members))


def test_the_node_that_failed_most_is_suspected_first():
    assert most_suspicious_node(("a", "b", "c"), ()) == ("", ())
    assert most_suspicious_node((), (("a", "b"),)) == ("", ())
    assert most_suspicious_node(("a", "b", "c"), (("a", "b"), ("a", "c"))) == ("a", ("b", "c"))


GIB = 2**30


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (NodeFacts("n"), ""),
        (NodeFacts("n", trouble="no device 0"), "no device 0"),
        (NodeFacts("n", memory_free=GIB, memory_wanted=GIB), ""),
        (NodeFacts("n", memory_free=GIB, memory_wanted=2 * GIB), "1.0 GiB of memory free, 2.0 GiB wanted"),
        (NodeFacts("n", disks=(Disk("/d", GIB),)), ""),
        (NodeFacts("n", disks=(Disk("/d", GIB, 10**6), Disk("/e", 5 << 20))), "/e: 5 MiB free, 64 MiB wanted"),
        (NodeFacts("n", disks=(Disk("/d", GIB, 3),)), "/d: room for 3 more files, 1000 wanted"),
        (NodeFacts("n", clock_s=4.0), ""),
        (NodeFacts("n", clock_s=9.0), "its clock is 9.0 s ahead of PrimeMaster's"),
        (NodeFacts("n", clock_s=-9.0), "its clock is 9.0 s behind PrimeMaster's"),
        (NodeFacts("n", "cpu", 30.0), ""),
        (NodeFacts("n", "cpu", 20.0), "matrix product 20 GFLOP/s, others 100"),
        (NodeFacts("n", "gpu", 20.0), ""),
    ],
)
def test_a_node_with_trouble_or_slow_speed_is_unfit(facts, words):
    speeds = (("cpu", "m", 100.0), ("cpu", "o", 110.0), ("cpu", "p", 90.0), ("tpu", "q", 0.1))
    assert unfit_reason(facts, median_speeds(speeds)) == words


def test_the_clock_that_is_wrong_may_be_primemasters():
    def clocks(*ahead):
        facts = [NodeFacts(f"n{i}", clock_s=at) for i, at in enumerate(ahead)]
        most = master_clock_error(facts)
        return most, [i for i, one in enumerate(facts) if unfit_reason(one, {}, most)]

    assert clocks() == clocks(4.0, 4.5, 5.0) == (0.0, [])
    assert clocks(9.0) == (0.0, [0])
    assert clocks(-9.0) == (0.0, [0])
    assert clocks(-7.0, 0.0) == (0.0, [0])
    assert clocks(7.0, 7.5) == (7.0, [])
    assert clocks(7.0, 7.5, 0.0, 8.0) == (7.0, [2])
    assert clocks(0.0, 0.1, 0.0, 9.0) == (0.0, [3])
    off = [NodeFacts(str(i), clock_s=-7.0, unmade="no torch") for i in range(3)]
    assert master_clock_error(off) == -7.0
    assert unfit_reason(off[0], {}, -7.0) == unfit_reason(NodeFacts("n", unmade="it died"), {}, -7.0) == ""
    assert unfit_reason(NodeFacts("n"), {}, -7.0) == "its clock is 7.0 s ahead of those of most nodes"


def test_trouble_of_most_nodes_at_once_is_no_nodes_fault():
    late = [NodeFacts(f"n{i}", trouble="it was late", late=True) for i in range(3)]
    good = [NodeFacts("a"), NodeFacts("b"), NodeFacts("c", trouble="no device")]
    assert without_shared_lateness(late) == tuple(late), "of three nodes one may be good"
    assert without_shared_lateness([*late, *good]) == (*late, *good), "half of them are not most"
    found = without_shared_lateness([*late, *good[1:]])
    assert [(one.trouble, one.late) for one in found] == [("", False)] * 4 + [("no device", False)]
    assert found[0].unmade == "it was late; it was so on 3 of 5 nodes: do they share a slow disk or network?"
    assert not found[3].unmade


def test_where_no_all_reduce_works_nobody_is_blamed():
    bad = [TeamFacts((f"a{i}", f"b{i}"), trouble="it failed") for i in range(4)]
    ok, unmade = TeamFacts(("c", "d"), 1.0), TeamFacts(("e", "f"), unmade="e died")
    assert without_shared_failures(bad[:3], ()) == tuple(bad[:3])
    assert without_shared_failures([*bad, ok], ()) == (*bad, ok)
    assert without_shared_failures(bad, {"a3"}) == tuple(bad), "who failed with one that is proven is bad"
    *found, last = without_shared_failures([*bad, unmade], ())
    assert last == unmade
    assert {(one.trouble, one.unmade) for one in found} == {
        ("", "it failed; all 4 teams failed: is the role's communication set up for its network?")
    }


def test_a_team_is_bad_that_is_much_slower_than_the_others():
    assert team_failure(TeamFacts(("a", "b"), trouble="it did not end"), ()) == "it did not end"
    assert team_failure(TeamFacts(("a", "b"), 0.3), ()) == team_failure(TeamFacts(("a", "b"), 0.3), (0.3,)) == ""
    assert team_failure(TeamFacts(("a", "b"), 3.0), (3.0, 11.0)) == ""
    assert team_failure(TeamFacts(("a", "b"), 0.3), (0.3, 11.0)) == "all-reduce 0.3 GB/s, others 11"


def test_of_two_unlike_nodes_the_slower_one_is_slow():
    speeds = median_speeds((("cpu", "a", 1.0), ("cpu", "b", 10.0)))
    assert unfit_reason(NodeFacts("a", "cpu", 1.0), speeds) == "matrix product 1 GFLOP/s, others 10"
    assert unfit_reason(NodeFacts("b", "cpu", 10.0), speeds) == ""
