"""The wait graph: who keeps whom waiting, by what ranks report."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

from dljob.master.state.hang import ProcessSample
from dljob.master.state.stalls import RootState
from dljob.master.state.waits import RankFacts, WaitFinding, WaitGraph, parse, told_after_s
from dljob.spec.policy import HangPolicy

NOW = 1000.0
POLICY = HangPolicy()
Rows = list[list[Any]]


def wait(
    name: str, method: str, since: float, *targets: tuple[str, int, str], kind: str = "call", usual: Any = None
) -> Any:
    """A wait as a rank reports it; `usual`: (count, median, longest) of earlier ones."""
    return [kind, name, method, since, list(usual or (9, 0.1, 0.5)), [list(target) for target in targets]]


def main(line: str, *waits: Any, touched: float = 900.0) -> list[Any]:
    return ["main", "main", "", "", 0.0, touched, line, list(waits), [0, 0.0, 0.0, 0.0]]


def call(id_: str, method: str, line: str, *waits: Any, queued_for: str = "", touched: float = 900.0) -> list[Any]:
    return [id_, "call", method, queued_for, touched, touched, line, list(waits), [0, 0.0, 0.0, 0.0]]


IDLE = ["idle", "idle", "", "", 800.0, 800.0, "", [], [0, 0.0, 0.0, 0.0]]


def found(
    reports: Mapping[str, Rows],
    uses: Mapping[str, Mapping[str, list[str]]] | None = None,
    *,
    facts: Mapping[str, RankFacts] | None = None,
    seen_s: float = 60.0,
    now: float = NOW,
    works: bool = False,
) -> tuple[WaitFinding, ...]:
    """The findings of a job; `reports`: rank -> its activities, `facts`: what differs from a ready rank."""
    keys = {name: (name.partition("/")[0], int(name.partition("/")[2])) for name in (*reports, *(facts or {}))}
    idle = {} if works else {"idle": 820.0}
    texts = {
        keys[name]: parse(1, json.dumps({"rows": rows, "uses": (uses or {}).get(name, {}), "finished": 7} | idle), 0.0)
        for name, rows in reports.items()
    }
    known = {key: RankFacts(1, "Ready", ready=True) for key in keys.values()}
    known |= {keys[name]: one for name, one in (facts or {}).items()}
    graph = WaitGraph(texts, known, now)
    return graph.findings(POLICY, {identity: now - seen_s for identity, _ in graph.waits()})


def one(*args: Any, **kwargs: Any) -> WaitFinding:
    findings = found(*args, **kwargs)
    assert len(findings) == 1, findings
    return findings[0]


# -- calls


def test_a_call_that_loops_is_told_with_the_line_of_the_callee() -> None:
    stall = one(
        {
            "trainer/0": [main("t.py:5 in run", wait("reward", "score", 930.0, ("reward", 0, "trainer/0:p:7")))],
            "reward/0": [call("trainer/0:p:7", "score", "h.py:9 in score", touched=930.0)],
        }
    )
    assert stall.sentence == "trainer/0 has waited {} for reward/0.score, which runs at h.py:9 in score"
    assert (stall.root, stall.since, stall.is_restartable) == (("reward", 0), 930.0, True)
    assert stall.ranks == (("trainer", 0), ("reward", 0))


def test_a_young_wait_and_one_whose_root_goes_on_are_not_told() -> None:
    young = wait("reward", "score", 950.0, ("reward", 0, "c:p:7"))
    assert not found({"trainer/0": [main("", young)], "reward/0": [call("c:p:7", "score", "")]})
    long = wait("reward", "score", 900.0, ("reward", 0, "c:p:7"))
    assert not found({"trainer/0": [main("", long)], "reward/0": [call("c:p:7", "score", "", touched=990.0)]})


@pytest.mark.parametrize(("usual", "told"), [((9, 12.0, 20.0), False), ((9, 5.0, 40.0), False), ((9, 6.0, 20.0), True)])
def test_the_limit_follows_what_earlier_waits_took(usual: tuple[int, float, float], told: bool) -> None:
    slow = wait("reward", "score", 900.0, ("reward", 0, "c:p:7"), usual=usual)
    reports = {"trainer/0": [main("", slow)], "reward/0": [call("c:p:7", "score", "")]}
    assert bool(found(reports)) == told


def test_before_six_waits_the_job_s_own_bound_holds() -> None:
    first = wait("reward", "score", 830.0, ("reward", 0, "c:p:7"), usual=(2, 0.1, 0.1))
    reports = {"trainer/0": [main("", first, touched=800.0)], "reward/0": [call("c:p:7", "score", "", touched=800.0)]}
    assert not found(reports)
    assert found(reports, now=1012.0)


def test_a_group_call_names_the_rank_that_is_late() -> None:
    targets = [("reward", rank, f"c:p:{rank}") for rank in range(2)]
    stall = one(
        {
            "trainer/0": [main("", wait("reward", "score", 900.0, *targets))],
            "reward/0": [call("c:p:0", "score", "fast.py:1 in f", touched=995.0)],
            "reward/1": [call("c:p:1", "score", "slow.py:2 in g")],
        }
    )
    assert stall.root == ("reward", 1)
    assert "reward/0, reward/1" in stall.sentence
    assert "reward/1 runs score at slow.py:2 in g" in stall.sentence


def test_a_chain_leads_to_its_end() -> None:
    stall = one(
        {
            "a/0": [main("", wait("b", "f", 900.0, ("b", 0, "a/0:p:1")))],
            "b/0": [call("a/0:p:1", "f", "b.py:1 in f", wait("c", "g", 901.0, ("c", 0, "b/0:p:1")))],
            "c/0": [call("b/0:p:1", "g", "c.py:3 in g")],
        }
    )
    assert stall.root == ("c", 0)
    assert "b/0 waits for c/0.g; c/0 runs g at c.py:3 in g" in stall.sentence
    assert set(stall.ranks) == {("a", 0), ("b", 0), ("c", 0)}


def test_one_call_that_returns_hides_no_other_that_does_not() -> None:
    waits = [wait("reward", "score", at, ("reward", 0, f"c:p:{n}")) for n, at in enumerate((900.0, 999.0))]
    stall = one(
        {
            "trainer/0": [main("", *waits, touched=999.0)],
            "reward/0": [call("c:p:0", "score", "h.py:9 in score"), call("c:p:1", "score", "", touched=999.0)],
        }
    )
    assert stall.since == 900.0


def test_two_stalls_at_once_are_two() -> None:
    reports = {}
    for name in ("a", "b"):
        reports[f"{name}/0"] = [main("", wait("r" + name, "f", 900.0, ("r" + name, 0, f"{name}/0:p:1")))]
        reports[f"r{name}/0"] = [call(f"{name}/0:p:1", "f", "")]
    assert {stall.root for stall in found(reports)} == {("ra", 0), ("rb", 0)}


def test_all_who_wait_for_one_root_are_one_stall() -> None:
    reports = {f"a/{rank}": [main("", wait("r", "f", 900.0 + rank, ("r", 0, f"a/{rank}:p:1")))] for rank in range(3)}
    stall = one({**reports, "r/0": [*(call(f"a/{rank}:p:1", "f", "x.py:1 in f") for rank in range(1)), *()]})
    assert stall.since == 900.0
    assert set(stall.ranks) == {("a", 0), ("a", 1), ("a", 2), ("r", 0)}


def test_the_call_of_a_script_is_found_by_its_caller() -> None:
    stall = one(
        {
            "script/3": [main("", wait("r", "f", 900.0, ("r", 0, "")))],
            "r/0": [call("other/0:p:1", "f", "", touched=999.0), call("script/3:q:1", "f", "x.py:1 in f")],
        }
    )
    assert stall.line == "x.py:1 in f"


def test_a_script_s_call_that_its_callee_does_not_have_waits_for_those_that_it_runs() -> None:
    other = call("other/0:p:1", "f", "x.py:1 in f")
    assert one({"script/3": [main("", wait("r", "f", 900.0, ("r", 0, "")))], "r/0": [other]}).line == "x.py:1 in f"


# -- circles


def circle(calls: int = 1) -> Mapping[str, Rows]:
    a = [call(f"b/0:p:{n}", "f", "a.py:1 in f", wait("b", "g", 985.0, ("b", 0, f"a/0:p:{n}"))) for n in range(calls)]
    b = [
        call(f"a/0:p:{n}", "g", "b.py:2 in g", wait("a", "f", 986.0, ("a", 0, f"b/0:p:{n + 1}"))) for n in range(calls)
    ]
    return {"a/0": a, "b/0": b}


def test_a_circle_is_told_after_ten_seconds() -> None:
    reports = {name: [[*row[:4], 980.0, 980.0, *row[6:]] for row in rows] for name, rows in circle(3).items()}
    stall = one(reports)
    assert stall.is_circle
    assert stall.is_restartable
    assert "a circle" in stall.sentence
    assert {"a/0.f", "b/0.g"} <= set(stall.sentence.replace(":", "").split())
    assert not found(reports, now=990.0)


def test_a_method_that_calls_itself_with_one_place_is_a_circle() -> None:
    outer = call("t/0:p:1", "f", "a.py:1 in f", wait("a", "f", 980.0, ("a", 0, "a/0:p:1")), touched=980.0)
    inner = call("a/0:p:1", "f", "", queued_for="f", touched=980.0)
    stall = one({"t/0": [main("", wait("a", "f", 979.0, ("a", 0, "t/0:p:1")))], "a/0": [outer, inner]})
    assert stall.is_circle
    assert stall.root == ("a", 0)


def test_a_queued_call_whose_holder_works_is_no_circle() -> None:
    outer = call("x/0:p:9", "f", "a.py:1 in f", touched=995.0)
    inner = call("t/0:p:1", "f", "", queued_for="f")
    assert not found({"t/0": [main("", wait("a", "f", 900.0, ("a", 0, "t/0:p:1")))], "a/0": [outer, inner]})


def test_a_call_that_has_not_reached_a_full_callee_waits_for_its_holders() -> None:
    holders = [
        call(f"b/0:p:{n}", "f", "a.py:1 in f", wait("b", "g", 980.0, ("b", 0, f"x:{n}")), touched=980.0)
        for n in range(3)
    ]
    b = [
        call(f"x:{n}", "g", "b.py:2 in g", wait("a", "f", 981.0, ("a", 0, f"lost:{n}")), touched=980.0)
        for n in range(3)
    ]
    assert one({"a/0": holders, "b/0": b}).is_circle


def test_who_waits_for_a_circle_is_told_of_it() -> None:
    reports = dict(circle(1))
    reports = {name: [[*row[:4], 980.0, 980.0, *row[6:]] for row in rows] for name, rows in reports.items()}
    reports["t/0"] = [main("", wait("a", "f", 970.0, ("a", 0, "b/0:p:0")), touched=970.0)]
    assert ("t", 0) in one(reports).ranks


def test_a_circle_of_five_roles() -> None:
    roles = "abcde"
    reports = {
        f"{name}/0": [
            call(f"{before}/0:p:1", "f", "", wait(after, "f", 980.0, (after, 0, f"{name}/0:p:1")), touched=980.0)
        ]
        for before, name, after in zip(roles[-1] + roles, roles, roles[1:] + roles[0], strict=False)
    }
    stall = one(reports)
    assert stall.is_circle
    assert len(stall.ranks) == 5


# -- steps


def stepping(line: str, stepped: float, steps: int = 20, median: float = 0.1, longest: float = 0.5) -> list[Any]:
    return ["main", "main", "", "", 0.0, stepped, line, [], [steps, median, longest, stepped]]


def test_ranks_that_make_no_step_are_told_by_where_they_are() -> None:
    reports = {f"w/{rank}": [stepping("train.py:8 in step", 900.0 + rank)] for rank in (0, 2, 3)}
    stall = one({**reports, "w/1": [stepping("eval.py:3 in f", 900.5)]})
    where = "w/1 at eval.py:3 in f; w/0, 2, 3 at train.py:8 in step"
    assert stall.sentence == f"role w has made no step for {{}} (usually 0.1 s): {where}"
    assert (stall.since, stall.root, stall.is_restartable) == (900.0, None, False)
    assert len(stall.ranks) == 4


def test_a_step_that_is_usually_as_long_or_was_once_is_no_stall() -> None:
    assert not found({"w/0": [stepping("", 900.0, median=11.0)]})
    assert not found({"w/0": [stepping("", 900.0, longest=40.0)]})
    assert not found({"w/0": [stepping("", 900.0, steps=3)]}), "nothing is known yet"
    assert one({"w/0": [stepping("", 900.0)]}).root == ("w", 0)


def test_a_rank_whose_steps_stop_because_it_waits_is_told_once() -> None:
    row = stepping("t.py:1 in run", 900.0)
    row[7] = [wait("r", "f", 900.0, ("r", 0, "t/0:p:1"))]
    looping = stepping("r.py:7 in run", 900.0)
    assert one({"t/0": [row], "r/0": [looping, call("t/0:p:1", "f", "r.py:2 in f")]}).root == ("r", 0)


# -- queues and weights


def test_an_item_that_nobody_puts_is_put_down_to_its_producer() -> None:
    stall = one(
        {
            "feeder/0": [main("", wait("done", "get", 900.0, kind="queue"))],
            "engine/0": [main("rl6.py:22 in run", touched=901.0)],
        },
        {"feeder/0": {"queue:done": ["get"]}, "engine/0": {"queue:done": ["put"]}},
    )
    assert stall.sentence == "feeder/0 has waited {} for an item of queue done; engine/0 is at rl6.py:22 in run"


def test_a_queue_waits_for_any_of_its_producers() -> None:
    rows = {
        "feeder/0": [main("", wait("done", "get", 900.0, kind="queue"))],
        "engine/0": [main("x.py:1 in run")],
        "engine/1": [main("x.py:2 in run", touched=998.0)],
    }
    uses = {name: {"queue:done": ["put"]} for name in ("engine/0", "engine/1")}
    assert not found(rows, uses)
    assert not found({**rows, "engine/1": []}, uses), "nothing of it is old: it goes on"
    assert one({**rows, "engine/1": [IDLE]}, uses).root == ("engine", 0)


def test_room_comes_from_consumers_and_versions_from_their_publisher() -> None:
    full = one(
        {"e/0": [main("", wait("done", "put", 900.0, kind="queue"))], "t/0": [main("t.py:8 in run")]},
        {"t/0": {"queue:done": ["get"]}, "e/0": {"queue:done": ["put"]}},
    )
    assert full.sentence == "e/0 has waited {} for room in queue done; t/0 is at t.py:8 in run"
    stale = one(
        {"e/0": [main("", wait("policy", "receive", 900.0, kind="weights"))], "t/0": [main("t.py:8 in run")]},
        {"t/0": {"weights:policy": ["put"]}},
    )
    assert "a version of weights policy" in stale.sentence
    assert stale.root == ("t", 0)


def goes_on(line: str) -> list[Any]:
    return main(line, touched=NOW - 1)


def stepped(*waits: list[Any], line: str = "", at: float = 700.0, steps: int = 9) -> list[Any]:
    """A main thread that made its last step at a moment, and its present wait."""
    return [*main(line, *waits, touched=at)[:-1], [steps, 0.1, 0.2, at]]


@pytest.mark.parametrize(
    ("awaited", "uses", "words"),
    [
        (wait("q", "get", 700.0, kind="queue"), {"queue:q": ["put"]}, "for an item of queue q at t.py:1; w/0 {} none"),
        (wait("q", "put", 700.0, kind="queue"), {"queue:q": ["get"]}, "for room in queue q at t.py:1; w/0 {} none"),
        (
            wait("p", "receive", 700.0, kind="weights"),
            {"weights:p": ["put"]},
            "for a version of weights p at t.py:1; w/0 {} none",
        ),
        (wait("w/0", "f", 700.0, ("w", 0, "t/0:p:1")), {}, "for w/0.f at t.py:1; w/0 {} it"),
    ],
)
def test_who_goes_on_without_ending_a_wait_is_told_after_the_idle_bound(
    awaited: list[Any], uses: dict[str, list[str]], words: str
) -> None:
    act = {"get": "puts", "put": "takes", "receive": "publishes", "f": "does not answer"}[awaited[2]]
    rows = {"t/0": [stepped(awaited, line="t.py:1")], "w/0": [goes_on("w.py:2")]}
    if awaited[0] == "call":
        rows["w/0"] = [call("t/0:p:1", "f", "w.py:2", touched=NOW - 1)]
    stall = one(rows, {"w/0": uses})
    assert stall.sentence == "t/0 has waited {} " + words.replace("{}", "goes on, and " + act)
    assert (stall.ranks, stall.root, stall.is_restartable, stall.since) == ((("t", 0),), ("w", 0), False, 700.0)
    assert stall.root_state is RootState.ELSEWHERE
    for differs in ({3: NOW - 170.0}, {4: [4, 0.1, 0.5]}, {4: [9, 11.0, 0.5]}, {4: [9, 0.1, 101.0]}):
        other = [differs.get(place, part) for place, part in enumerate(awaited)]
        assert not found({**rows, "t/0": [stepped(other)]}, {"w/0": uses}), differs
    assert not found({**rows, "t/0": [main("", awaited, touched=700.0)]}, {"w/0": uses}), "nobody makes steps"
    others = {"e/0": [stepped(at=NOW - 9)]}
    assert not found({**rows, **others}, {"w/0": uses}), "the job goes on"


def test_nobody_is_named_where_nobody_has_brought_anything_and_a_process_is_new() -> None:
    rows = {"t/0": [stepped(wait("q", "get", 700.0, kind="queue"))], "w/0": [goes_on("w.py:2")]}
    assert not found(rows, facts={"w/0": RankFacts(1, "Ready", ready=True, since=NOW - 5)})
    assert one(rows, facts={"w/0": RankFacts(1, "Ready", ready=True, since=NOW - 70)}).root is None


def test_several_who_go_on_without_ending_a_wait_are_named() -> None:
    rows = {f"w/{rank}": [goes_on("w.py:2")] for rank in range(8)}
    rows |= {f"t/{rank}": [stepped(wait("q", "get", 700.0 + rank, kind="queue"))] for rank in (0, 1)}
    stall = one(rows, {f"w/{rank}": {"queue:q": ["put"]} for rank in range(8)})
    names = "w/0, w/1, w/2, w/3, w/4, w/5, ..."
    assert stall.sentence == f"t/0 has waited {{}} for an item of queue q; {names} go on, and put none"
    assert (set(stall.ranks), stall.root) == ({("t", 0), ("t", 1)}, None)


def test_of_a_circle_each_wait_that_is_no_call_is_told_from_the_first_member_on() -> None:
    rows = {
        "b/0": [main("b.py:2 in run", wait("full", "put", 970.0, kind="queue"), touched=970.0)],
        "a/0": [main("a.py:1 in run", wait("policy", "receive", 980.0, kind="weights"), touched=970.0)],
    }
    uses = {"a/0": {"queue:full": ["get"]}, "b/0": {"queue:full": ["put"], "weights:policy": ["put"]}}
    assert one(rows, uses).sentence == (
        "a/0 -> b/0 -> a/0: a circle, for {}, nobody in it can go on (a/0 waits for a version of weights policy at"
        " a.py:1 in run, b/0 waits for room in queue full at b.py:2 in run)"
    )


def test_what_nobody_brings_is_told_and_nobody_is_to_blame() -> None:
    stall = one({"e/0": [main("", wait("done", "get", 900.0, kind="queue"))]}, {"e/0": {"queue:done": ["get"]}})
    assert "no rank that runs has put anything into it" in stall.sentence
    assert (stall.root, stall.is_restartable) == (None, False)
    two = {name: [main("", wait("done", "get", at, kind="queue"))] for name, at in (("e/0", 900.0), ("e/1", 901.0))}
    assert set(one(two).ranks) == {("e", 0), ("e", 1)}
    own = {"e/0": {"queue:done": ["get", "put"]}}
    assert (
        "no rank that runs has put" in one({"e/0": [main("", wait("done", "get", 900.0, kind="queue"))]}, own).sentence
    )
    line = one({"e/0": [main("e.py:3 in run", wait("done", "get", 900.0, kind="queue"))]}).sentence
    assert "an item of queue done at e.py:3 in run: no rank" in line
    other = one({"e/0": [main("", wait("PrimeMaster", "muster", 900.0, kind="master"))]})
    assert not other.is_restartable


def test_producers_that_have_ended_are_named_where_none_is_left() -> None:
    rows = {"e/0": [main("e.py:3 in run", wait("done", "get", 900.0, kind="queue"))], "p/0": []}
    uses = {"p/0": {"queue:done": ["put"]}}
    facts = {"p/0": RankFacts(1, "Succeeded", ready=False, since=880.0)}
    stall = one(rows, uses, facts=facts)
    assert stall.sentence == "e/0 has waited {} for an item of queue done at e.py:3 in run; p/0 ended with code 0"
    assert (stall.root, stall.root_state, stall.is_restartable) == (("p", 0), RootState.ENDED, False)
    rows["q/0"], uses["q/0"] = [main("q.py:1 in run")], uses["p/0"]
    assert one(rows, uses, facts=facts).root == ("q", 0)


def test_a_process_that_does_not_look_at_what_it_does_is_the_root() -> None:
    silent = parse(1, json.dumps({"rows": [], "silent": 905.0}), 0.0)
    waiting = parse(1, json.dumps({"rows": [main("", wait("r/0", "f", 900.0))]}), 0.0)
    facts = {key: RankFacts(1, "Ready", ready=True) for key in (("t", 0), ("r", 0))}
    graph = WaitGraph({("t", 0): waiting, ("r", 0): silent}, facts, NOW)
    stalls = graph.findings(POLICY, {identity: NOW - 60 for identity, _ in graph.waits()})
    assert [(stall.root, stall.is_restartable) for stall in stalls] == [(("r", 0), True)]
    assert "r/0 does not answer: it is stopped, or C code of it holds the GIL" in stalls[0].sentence
    # Of an earlier process, and of a rank that is not there, it says nothing.
    later = {("t", 0): facts["t", 0], ("r", 0): RankFacts(2, "Ready", ready=True)}
    assert not list(WaitGraph({("r", 0): silent, ("x", 0): silent}, later, NOW).waits())
    assert not WaitGraph({("t", 0): waiting, ("r", 0): silent}, later, NOW).findings(POLICY, {})


def test_silent_are_only_ranks_that_should_be_heard() -> None:
    facts = {("r", n): RankFacts(1, "Ready", ready=n < 2, silent_s=9.0 * (n != 1)) for n in range(3)}
    assert WaitGraph({}, facts, NOW).silent_ranks(8.0) == (("r", 0),)


def test_a_process_that_is_stopped_is_told_as_soon_as_a_circle() -> None:
    for began, sample, is_told in (
        (NOW - 11, ProcessSample("process 7 is stopped by a signal (state T)"), True),
        (NOW - 9, ProcessSample("process 7 is stopped by a signal (state T)"), False),
        (NOW - 11, ProcessSample(gil_line="r.py:4 in f"), False),
    ):
        rows = {"t/0": [main("", wait("r", "f", began, ("r", 0, "t/0:p:1")))]}
        facts = {"r/0": RankFacts(1, "Ready", ready=True, silent_s=NOW - began, sample=sample)}
        assert [stall.root_state for stall in found(rows, facts=facts)] == [RootState.STOPPED] * is_told


def test_a_call_that_waits_for_weights_is_told_and_no_hang_of_its_rank() -> None:
    rows = {
        "t/0": [main("", wait("r", "f", 900.0, ("r", 0, "t/0:p:1")))],
        "r/0": [call("t/0:p:1", "f", "", queued_for="weights"), main("r.py:3 in run")],
    }
    stall = one(rows)
    assert stall.sentence == "t/0 has waited {} for r/0.f; r/0 has not begun f: its weights are stale"
    assert (stall.root, stall.is_restartable) == (("r", 0), False)


def test_a_producer_that_has_just_started_again_gets_its_time() -> None:
    rows = {"e/0": [main("", wait("done", "get", 900.0, kind="queue"))], "p/0": [main("p.py:3 in run")]}
    assert not found(rows, facts={"p/0": RankFacts(2, "Starting", ready=False, since=NOW - 5)})
    assert one(rows, facts={"p/0": RankFacts(1, "Ready", ready=True, since=NOW - 70)})


# -- ranks that say nothing


def test_a_callee_that_is_not_ready_is_told_by_its_phase_and_never_hung() -> None:
    rows = {"t/0": [main("", wait("r/0", "f", 900.0))]}
    stall = one(rows, facts={"r/0": RankFacts(2, "Starting", ready=False, since=905.0)})
    assert "r/0 is Starting" in stall.sentence
    assert not stall.is_restartable
    assert "not there any more" in one({"t/0": [main("", wait("gone", "f", 900.0))]}).sentence


def test_a_callee_that_is_not_heard_is_the_root() -> None:
    rows = {"t/0": [main("", wait("r", "f", 900.0, ("r", 0, "t/0:p:1")))]}
    stall = one(rows, facts={"r/0": RankFacts(1, "Ready", ready=True, silent_s=95.0)})
    assert stall.sentence.endswith("r/0 does not answer: it is stopped, or C code of it holds the GIL")
    assert stall.is_restartable
    for sample, words, line in (
        (ProcessSample("process 7 is stopped by a signal (state T)"), "process 7 is stopped by a signal (state T)", ""),
        (
            ProcessSample(gil_line="r.py:4 in f"),
            "C code that it called at r.py:4 in f holds the GIL",
            "r.py:4 in f",
        ),
        (ProcessSample(), "it is stopped, or C code of it holds the GIL", ""),
    ):
        facts = {"r/0": RankFacts(1, "Ready", ready=True, silent_s=95.0, sample=sample)}
        stall = one(rows, facts=facts)
        assert stall.sentence == f"t/0 has waited {{}} for r/0.f; r/0 does not answer: {words}"
        assert stall.line == line


def test_an_idle_callee_that_does_not_have_the_call_is_told() -> None:
    rows = {"t/0": [main("", wait("r", "f", 900.0, ("r", 0, "t/0:p:1")))], "r/0": [IDLE]}
    assert "does not have the call" in one(rows).sentence
    assert not found({**rows, "r/0": []}), "it may have begun a moment ago"


def test_a_call_before_setup_waits_for_the_main_thread() -> None:
    stall = one(
        {
            "t/0": [main("", wait("r", "f", 900.0, ("r", 0, "t/0:p:1")))],
            "r/0": [main("r.py:3 in setup"), call("t/0:p:1", "f", "", queued_for="setup")],
        }
    )
    assert stall.sentence.endswith("r/0 is at r.py:3 in setup")


def test_reports_of_an_earlier_process_count_for_nothing() -> None:
    rows = {
        "t/0": [main("", wait("r", "f", 900.0, ("r", 0, "t/0:p:1")))],
        "r/0": [call("t/0:p:1", "f", "old.py:1 in f")],
    }
    stall = one(rows, facts={"r/0": RankFacts(2, "Starting", ready=False, since=900.0)})
    assert "old.py" not in stall.sentence


def test_what_was_seen_only_once_does_not_count() -> None:
    rows = {
        "t/0": [main("", wait("r", "f", 900.0, ("r", 0, "t/0:p:1")))],
        "r/0": [call("t/0:p:1", "f", "x.py:1 in f")],
    }
    assert not found(rows, seen_s=2.0)


def test_a_thread_of_the_user_s_is_named_and_never_to_blame() -> None:
    thread = [
        "thread-5",
        "thread",
        "loader",
        "",
        800.0,
        800.0,
        "l.py:1 in g",
        [wait("r", "f", 900.0, ("r", 0, "t/0:p:1"))],
        [0, 0.0, 0.0, 0.0],
    ]
    stall = one({"t/0": [thread], "r/0": [call("t/0:p:1", "f", "x.py:1 in f")]})
    assert not stall.is_restartable


def test_a_stream_that_is_ahead_of_its_caller_is_not_to_blame() -> None:
    rows = {
        "t/0": [main("", wait("r", "f", 900.0, ("r", 0, "t/0:p:1")))],
        "r/0": [call("t/0:p:1", "f", "", queued_for="its caller")],
    }
    assert not found(rows)


def test_who_is_in_a_debugger_is_told_and_is_no_hang() -> None:
    waits = [wait("r", "f", 900.0, ("r", 0, "t/0:p:1"))], [wait("r", "f", 900.0, ("r", 0, "u/0:p:1"))]
    debugged = call("t/0:p:1", "f", "r.py:4 in f", queued_for="a debugger")
    stall = one({"t/0": [main("", *waits[0])], "r/0": [debugged]})
    assert stall.sentence == "t/0 has waited {} for r/0.f; r/0 is in a debugger at r.py:4 in f"
    assert (stall.root, stall.is_restartable) == (("r", 0), False)
    # It holds the only place of its method.
    queued = call("u/0:p:1", "f", "", queued_for="f")
    behind = one({"u/0": [main("", *waits[1])], "r/0": [debugged, queued]})
    assert (behind.root, behind.is_restartable) == (("r", 0), False)
    # A call that is not known there may be any that runs.
    unknown = one({"t/0": [main("", wait("r", "f", 900.0, ("r", 0, "t/0:p:9")))], "r/0": [debugged]})
    assert unknown.sentence.endswith("r/0 is in a debugger at r.py:4 in f")
    main_row = ["main", "main", "", "a debugger", 0.0, 900.0, "t.py:2 in run", [], [0, 0.0, 0.0, 0.0]]
    group = ["group", "default_pg", "all_reduce", 900.0, [9, 0.1, 0.2], [], [[0, 2, 1]]]
    stopped = one({"w/0": [main("t.py:9 in run", group)], "w/1": [main_row]})
    assert stopped.sentence.endswith("w/1 is in a debugger at t.py:2 in run")
    assert not stopped.is_restartable


# -- bounds, and nonsense


@pytest.mark.parametrize(("idle_seconds", "told_s"), [(1800, 60.0), (180, 60.0), (60, 20.0), (1, 12.0)])
def test_a_stall_is_told_before_the_hang_but_never_sooner_than_reports_are_fresh(
    idle_seconds: int, told_s: float
) -> None:
    rows = parse(1, json.dumps({"rows": [main("", wait("r", "f", 1.0, usual=(9, 0.1, 1.0)))]}), 0.0)
    policy = HangPolicy(idle_seconds=idle_seconds)
    assert told_after_s(rows.activities[0].waits[0], policy, uses_cpu=False) == pytest.approx(told_s)


def test_a_rank_whose_report_may_be_old_is_not_told_however_short_the_bounds() -> None:
    policy = HangPolicy(idle_seconds=1, busy_seconds=1)
    first = wait("r", "f", 980.0, ("r", 0, "t/0:p:1"), usual=(0, 0.0, 0.0))
    steps = ["main", "main", "", "", 0.0, 990.0, "s.py:1 in run", [], [50, 0.1, 0.2, 990.0]]
    rows = {
        ("t", 0): [main("", first, touched=980.0)],
        ("r", 0): [call("t/0:p:1", "f", "", touched=990.0)],
        ("s", 0): [steps],
        ("n", 0): [main("n.py:1 in __init__", touched=990.0)],
    }
    reports = {key: parse(1, json.dumps({"rows": own, "idle": 990.0}), 0.0) for key, own in rows.items()}
    facts = {key: RankFacts(1, "Ready", ready=True) for key in rows} | {("n", 0): RankFacts(1, "Starting", ready=False)}
    for now, told in ((1001.9, 0), (1002.1, 3)):
        graph = WaitGraph(reports, facts, now)
        assert len(graph.findings(policy, {identity: 0.0 for identity, _ in graph.waits()})) == told


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "7",
        '{"rows": 3}',
        '{"rows": [[1]]}',
        '{"uses": 4}',
        '{"rows": [["a","b","c","d","x",1,"",[]]]}',
        "[" * 100_000,
    ],
)
def test_nonsense_is_no_report(text: str) -> None:
    with pytest.raises(ValueError, match="no report"):
        parse(1, text, 0.0)


def test_ten_thousand_ranks_in_a_second() -> None:
    reports = {f"t/{n}": [main("", wait("r", "f", 900.0, ("r", 0, f"t/{n}:p:1")))] for n in range(10_000)}
    reports["r/0"] = [call("t/0:p:1", "f", "x.py:1 in f")]
    begun = time.process_time()
    stall = one(reports)
    assert len(stall.ranks) == 10_001
    assert time.process_time() - begun < 5.0


def in_group(line: str, *, call: str = "all_reduce", ranks: int = 3, name: str = "default_pg", since: float = 900.0):
    """A main thread that waits for the others of a torch group."""
    return [main(line, ["group", name, call, since, [20, 0.1, 2.0], [], [[0, ranks, 1]]], touched=since)]


@pytest.mark.parametrize(
    ("last", "facts", "root"),
    [
        ([main("t.py:9 in evaluate")], {}, "t/2 is at t.py:9 in evaluate"),
        ([call("x", "fit", "t.py:9 in fit")], {}, "t/2 runs fit at t.py:9 in fit"),
        ([], {"t/2": RankFacts(1, "Succeeded", ready=False, since=890.0)}, "t/2 ended with code 0: uneven data?"),
        ([], {"t/2": RankFacts(2, "Starting", ready=False, since=890.0)}, "t/2 is Starting (it is not ready)"),
        (
            [main("t.py:9 in <module>")],
            {"t/2": RankFacts(1, "Ready", ready=True, silent_s=90.0)},
            "t/2 does not answer: it is stopped, or C code of it holds the GIL",
        ),
    ],
)
def test_ranks_in_a_torch_group_wait_for_who_is_not_in_it(last: Rows, facts: dict[str, RankFacts], root: str) -> None:
    stall = one({"t/0": in_group("t.py:5"), "t/1": in_group("t.py:5"), "t/2": last}, facts=facts)
    assert stall.sentence == f"t/0 has waited {{}} for the others in all_reduce (default_pg); {root}"
    assert stall.root == ("t", 2)
    assert set(stall.ranks) == {("t", 0), ("t", 1), ("t", 2)}
    assert stall.is_restartable is not ("ended" in root or "Starting" in root)
    assert stall.root_state is (RootState.ENDED if "ended" in root else RootState.STANDS)


def test_of_a_mismatch_the_rank_that_is_alone_elsewhere_comes_first() -> None:
    odd_one = in_group("t.py:9", call="barrier")
    for rows, first in (
        ({"t/0": in_group("t.py:5"), "t/1": in_group("t.py:5"), "t/2": odd_one}, ("t", 2)),
        ({"t/0": in_group("t.py:5", ranks=2), "t/1": in_group("t.py:9", ranks=2)}, ("t", 0)),
    ):
        stall = one(rows)
        assert (stall.ranks[0], set(stall.ranks), stall.root) == (first, {("t", n) for n in range(len(rows))}, None)


def test_a_member_that_goes_on_keeps_a_group_from_being_told() -> None:
    assert not found({"t/0": in_group("t.py:5", ranks=2), "t/1": []})
    assert not found({"t/0": in_group("t.py:5", ranks=2), "t/1": [main("t.py:9 in f", touched=NOW - 1)]})


def test_a_rank_that_ended_is_named_before_one_that_works() -> None:
    facts = {"t/2": RankFacts(1, "Succeeded", ready=False, since=890.0)}
    stall = one({"t/0": in_group("t.py:5"), "t/1": [main("t.py:9 in f", touched=950.0)]}, facts=facts)
    assert stall.root == ("t", 2)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (in_group("t.py:5", ranks=2), "t/0, 1 in all_reduce at t.py:5: a lost connection, or tensors of other sizes?"),
        (
            in_group("t.py:9", ranks=2, call="barrier"),
            "t/0 in all_reduce at t.py:5; t/1 in barrier at t.py:9: a mismatch of collectives?",
        ),
    ],
)
def test_a_group_in_which_all_wait_tells_where_each_is(second: Rows, words: str) -> None:
    stall = one({"t/0": in_group("t.py:5", ranks=2), "t/1": second})
    assert stall.sentence.endswith(f"(default_pg): all 2 ranks of it are in it, and it does not end: {words}")
    assert stall.root is None


def test_ranks_that_wait_for_each_other_in_two_groups_are_a_circle() -> None:
    stall = one({"t/0": in_group("t.py:5", ranks=2, name="dp"), "t/1": in_group("t.py:6", ranks=2, name="tp")})
    assert stall.is_circle
    assert "t/0 -> t/1 -> t/0" in stall.sentence


@pytest.mark.parametrize("runs", [[[0, 10**12, 1]], [[3, 9, 2], [11, 12, 1]]])
def test_a_group_with_ranks_of_elsewhere_is_told_without_a_root(runs: Any) -> None:
    rows = [main("t.py:5", ["group", "dp", "all_reduce", 900.0, [20, 0.1, 2.0], [], runs])]
    stall = one({"t/0": rows, "t/1": [main("t.py:9")]})
    assert stall.sentence.endswith("for the others in all_reduce (dp): it has other ranks than t")
    assert stall.root is None


def test_a_wait_for_a_key_of_the_store_and_of_a_group_without_ranks() -> None:
    stall = one({"t/0": in_group("t.py:5", ranks=2, name="the store", call="wait"), "t/1": [main("t.py:9")]})
    assert stall.sentence == "t/0 has waited {} for a key of torch's store, in wait; t/1 is at t.py:9"
    rows = [main("t.py:5", wait("grads", "all_reduce", 900.0, kind="group"))]
    assert one({"t/0": rows}).sentence == "t/0 has waited {} for the others in all_reduce (grads): grads all_reduce"


def test_ten_thousand_ranks_of_one_group_in_seconds() -> None:
    reports = {f"t/{n}": in_group("t.py:5", ranks=10_000) for n in range(10_000)}
    reports["t/77"] = [main("t.py:9 in evaluate")]
    begun = time.process_time()
    stall = one(reports)
    assert (stall.root, len(stall.ranks)) == (("t", 77), 10_000)
    assert time.process_time() - begun < 5.0


def test_an_unmeasured_wait_for_a_rank_that_works_is_told_later() -> None:
    reports = {
        "t/0": [main("", wait("r", "f", 700.0, ("r", 0, "1"), usual=(4, 0.1, 0.5)))],
        "r/0": [call("1", "f", "x.py:1", touched=700.0)],
    }
    assert one(reports).root == ("r", 0)
    assert not found(reports, works=True)
    reports["t/0"][0][7][0][4] = [5, 0.1, 0.5]
    assert one(reports, works=True).root == ("r", 0)


@pytest.mark.parametrize(
    ("works", "since", "told"), [(False, 820.0, False), (False, 700.0, True), (True, 700.0, False), (True, 90.0, True)]
)
def test_a_rank_that_stands_still_before_it_is_ready_is_told(works: bool, since: float, told: bool) -> None:
    facts = {"w/0": RankFacts(1, "Starting", ready=False, since=since)}
    reports = {"w/0": [main("work.py:5 in __init__", touched=since)]}
    idle = {} if works else {"idle": since}
    texts = {("w", 0): parse(1, json.dumps({"rows": reports["w/0"]} | idle), 0.0)}
    findings = WaitGraph(texts, {("w", 0): facts["w/0"]}, NOW).findings(POLICY, {})
    assert [stall.sentence for stall in findings] == (
        ["role w is not ready, and stands still for {}: w/0 at work.py:5 in __init__"] if told else []
    )
    assert [(stall.root, stall.since, stall.is_restartable) for stall in findings] == (
        [(("w", 0), since, False)] if told else []
    )


def test_starts_of_a_role_are_told_as_one_and_without_ranks_that_are_not_heard() -> None:
    lines = {("w", 0): "a.py:1", ("w", 1): "a.py:1", ("w", 2): "b.py:2", ("w", 3): "a.py:1", ("w", 4): ""}
    texts = {key: parse(1, json.dumps({"rows": [main(line)], "idle": 500.0}), 0.0) for key, line in lines.items()}
    facts = {key: RankFacts(1, "Starting", ready=False, since=400.0 + key[1]) for key in lines}
    facts["w", 3] = RankFacts(1, "Starting", ready=False, since=403.0, silent_s=60.0)
    (stall,) = WaitGraph(texts, facts, NOW).findings(POLICY, {})
    assert stall.sentence == "role w is not ready, and stands still for {}: w/2 at b.py:2; w/0, 1 at a.py:1"
    assert (stall.root, stall.since, len(stall.ranks)) == (None, 500.0, 3)


def starting(*awaited_ranks: tuple[str, int], phase: str = "Starting", since: float = 900.0) -> RankFacts:
    return RankFacts(1, phase, ready=False, since=since, awaited_ranks=awaited_ranks)


def test_ranks_that_call_each_other_in_setup_are_a_circle() -> None:
    never = (0, 0.0, 0.0)
    reports = {
        "a/0": [main("a.py:2 in setup", wait("b/0", "val", 985.0, ("b", 0, ""), usual=never), touched=985.0)],
        "b/0": [main("b.py:4 in setup", wait("a/0", "val", 985.0, ("a", 0, ""), usual=never), touched=985.0)],
    }
    facts = {"a/0": starting(), "b/0": starting()}
    stall = one(reports, facts=facts)
    assert stall.sentence == (
        "a/0 -> b/0 -> a/0: a circle, for {}, nobody in it can go on (a/0 at a.py:2 in setup, b/0 at b.py:4 in setup)"
    )
    assert (stall.is_circle, stall.is_restartable) == (True, True)
    assert not found(reports, facts=facts, now=994.0)


def test_a_rank_in_setup_that_calls_a_role_which_starts_after_it_is_in_a_circle() -> None:
    reports = {"a/0": [main("a.py:2 in setup", wait("b/0", "val", 985.0, ("b", 0, "")), touched=985.0)]}
    facts = {"a/0": starting(), "b/0": starting(("a", 0), phase="Waiting", since=0.0)}
    stall = one(reports, facts=facts)
    assert stall.is_circle
    assert stall.sentence.endswith("(a/0 at a.py:2 in setup, b/0 is Waiting: it starts after a)")
    reports |= {"c/0": [main("c.py:2 in run", wait("b/0", "val", 986.0, ("b", 0, "")), touched=985.0)]}
    assert one(reports, facts=facts).ranks == (("a", 0), ("b", 0), ("c", 0))


def test_who_waits_for_a_rank_in_setup_is_told_of_its_line_and_it_is_not_restarted() -> None:
    reports = {
        "a/0": [main("a.py:2 in run", wait("b/0", "val", 800.0, ("b", 0, "")), touched=800.0)],
        "b/0": [main("b.py:4 in setup", touched=800.0)],
    }
    stall = one(reports, facts={"b/0": starting(since=790.0)})
    assert stall.sentence == "a/0 has waited {} for b/0.val; b/0 is at b.py:4 in setup"
    assert (stall.root, stall.is_restartable) == (("b", 0), False)


@pytest.mark.parametrize(
    ("kind", "words"),
    [("queue", "an item of queue c: no rank that runs has put"), ("weights", "a version of weights c: no rank that")],
)
def test_a_setup_that_waits_for_what_nobody_brings_is_told_once(kind: str, words: str) -> None:
    awaited = wait("c", "get", 700.0, kind=kind, usual=(0, 0.0, 0.0))
    reports = {"a/0": [main("", awaited, touched=700.0)]}
    stall = one(reports, facts={"a/0": starting(since=700.0)})
    assert stall.sentence.startswith(f"a/0 has waited {{}} for {words}")


def test_starting_ranks_are_told_by_role_with_what_they_wait_for() -> None:
    waiting = wait("b/0", "val", 990.0, ("b", 0, ""))
    rows = {("a", 0): [main("a.py:2 in setup", waiting)], ("a", 1): [main("a.py:2 in setup", waiting)]}
    rows |= {("b", 0): [main("b.py:4 in __init__")], ("c", 0): []}
    texts = {key: parse(1, json.dumps({"rows": activities}), 0.0) for key, activities in rows.items()}
    graph = WaitGraph(texts, dict.fromkeys(rows, starting()), NOW)
    assert graph.starting_ranks() == ("a/0, 1 waiting for b/0.val at a.py:2 in setup", "b/0 at b.py:4 in __init__")


STILL = {"still": 700.0}


def standing_still(ranks: Mapping[str, str], others: Mapping[str, RankFacts] = {}) -> tuple[WaitFinding, ...]:
    """The findings of scripts without steps: rank -> its line, and ranks without such a report."""
    lines = {("t", int(name.partition("/")[2])): line for name, line in ranks.items()}
    texts = {
        key: parse(1, json.dumps({"rows": [main(line)] if line else []} | STILL), 20.0) for key, line in lines.items()
    }
    facts = {key: RankFacts(1, "Ready", ready=True) for key in lines}
    facts |= {("t", int(name.partition("/")[2])): one for name, one in others.items()}
    return WaitGraph(texts, facts, NOW).findings(POLICY, {})


def test_scripts_without_steps_are_told_with_their_lines_when_none_of_them_does_anything() -> None:
    (stall,) = standing_still({"t/0": "train.py:7", "t/1": "train.py:9"})
    words = "role t makes no progress for {}, without CPU, output and input"
    assert stall.sentence == f"{words}: t/0 at train.py:7; t/1 at train.py:9"
    assert (stall.since, stall.root, stall.is_restartable, len(stall.ranks)) == (720.0, None, False, 2)
    (stall,) = standing_still({"t/1": ""}, {"t/0": RankFacts(1, "Succeeded", ready=False)})
    assert (stall.sentence, stall.root) == (f"{words}: t/1 at no line that is known", ("t", 1))


@pytest.mark.parametrize("other", [RankFacts(1, "Ready", ready=True), RankFacts(1, "Starting", ready=False)])
def test_a_script_that_may_wait_for_a_rank_that_works_is_not_told(other: RankFacts) -> None:
    assert not standing_still({"t/1": "train.py:9"}, {"t/0": other})


def test_a_standstill_is_told_after_idle_seconds() -> None:
    texts = {("t", 0): parse(1, json.dumps({"rows": [main("a.py:1")], "still": NOW - POLICY.idle_seconds}), 0.0)}
    facts = {("t", 0): RankFacts(1, "Ready", ready=True)}
    assert not WaitGraph(texts, facts, NOW).findings(POLICY, {})
    assert WaitGraph(texts, facts, NOW + 1).findings(POLICY, {})
