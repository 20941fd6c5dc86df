"""PrimeMaster's snapshot as pieces of the status."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reconcile_kit import World, snapshot

from dljob.reconcile.state.context import stamp
from dljob.reconcile.state.snapshot import digest, pieces, places, significant

FAULT = {
    "level": "Role",
    "reason": "NodeLost",
    "target": "worker",
    "firstCause": "n" * 900,
    "detectedAt": "2027-01-15T08:00:00Z",
    "lostSteps": 0,
    "rank": "worker/1",
    "incarnation": 2,
}


def made(**more: object) -> dict:
    return pieces(snapshot(**more), clusters=2, at="now")


def test_counts_and_restarts_of_a_snapshot_are_read():
    got = made(restarts={"process": 1, "roleGroup": 2, "role": 3, "job": 4, "master": 5})
    assert got["rolesReady"] == "2/2"
    assert got["restarts"] == {
        "inProcess": 0,
        "process": 1,
        "roleGroup": 2,
        "role": 3,
        "job": 4,
        "node": 0,
        "master": 5,
        "cluster": 2,
    }
    assert got["restartsTotal"] == 17


def test_ranks_that_ended_well_are_ready():
    assert pieces(snapshot("Succeeded"), clusters=0, at="")["rolesReady"] == "2/2"


def test_progress_has_a_time_and_bounded_metrics():
    got = made(progress={"step": 3, "metrics": {"loss": 0.123456789, **{f"m{n:02}": n for n in range(30)}}})
    assert got["progress"]["time"] == "now"
    assert got["progress"]["step"] == 3
    assert got["progress"]["metrics"][0] == {"name": "loss", "value": "0.123457"}
    assert len(got["progress"]["metrics"]) == 16
    assert made()["progress"] == {"time": "now"}
    told = {"step": 9, "goodputPermille": 8, "lastCheckpointStep": 8, "lastCheckpointTime": "2027-01-15T08:00:01Z"}
    assert made(progress=told)["progress"] == {"time": "now", **told}
    assert made(progress={**told, "lastCheckpointStep": None, "lastCheckpointTime": None})["progress"].keys() == {
        "time",
        "step",
        "goodputPermille",
    }


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 1e9, "0.4", None, True])
def test_the_time_between_steps_is_a_number_that_json_has(seconds: object) -> None:
    times = {"step": 3, "stepTime": "2027-01-15T08:00:01Z", "secondsPerStep": 0.4}
    assert made(progress=times)["progress"] == {"time": "now", **times}
    assert digest(snapshot(progress=times))["progress"] == times
    del times["secondsPerStep"]
    assert made(progress={**times, "secondsPerStep": seconds})["progress"] == {"time": "now", **times}


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 1e9, "0.4", None, True])
def test_the_age_of_served_events_is_told_by_role_where_it_is_a_number(seconds: object) -> None:
    role = snapshot()["roles"][0]
    assert "servedLagSeconds" not in made()["roles"][0]
    for lag, told in ((0.25, {"servedLagSeconds": 0.25}), (seconds, {})):
        told_by_head = snapshot(roles=[{**role, "servedLagSeconds": lag}])
        assert made(roles=told_by_head["roles"])["roles"] == [{**made()["roles"][0], **told}]
        assert digest(told_by_head)["roles"] == [{**digest(snapshot())["roles"][0], **told}]
    assert not significant(snapshot(), snapshot(roles=[{**role, "servedLagSeconds": 0.25}]))


def test_faults_and_units_are_bounded():
    waiting = [{"name": f"worker/{n}", "node": "", "why": "w" * 900} for n in range(40)]
    got = made(
        recentFaults=[{**FAULT, "recoveredAt": None, "seconds": None}] * 30,
        placement={"units": 40, "ready": 0, "pending": 40, "notReady": waiting},
        roles=[{**snapshot()["roles"][0], "name": f"r{n}"} for n in range(40)],
    )
    assert len(got["recentFaults"]) == 10
    assert got["recentFaults"][0] == {**FAULT, "firstCause": "n" * 511 + "…"}
    assert len(got["placement"]["notReady"]) == 20
    assert got["placement"]["notReady"][0] == {"name": "worker/0", "why": "w" * 511 + "…"}
    assert len(got["roles"]) == 32
    assert len(json.dumps(got)) < 32 * 1024


def test_the_machines_that_were_left_and_those_that_are_not_used():
    one = {"name": "a" * 56, "reason": "NodeFrozen", "since": "2027-01-15T08:00:00Z", "until": "2027-01-16T08:00:00Z"}
    many = [{**one, "name": f"n{n}", "more": "of no interest"} for n in range(60)]
    got = made(nodes={"desired": 9, "ready": 8, "replaced": 3, "excluded": many})
    assert got["nodes"]["replaced"] == 3
    assert [row["name"] for row in got["nodes"]["excluded"]] == [f"n{n}" for n in range(10, 60)]
    assert got["nodes"]["excluded"][0] == {**one, "name": "n10"}
    assert "desired" not in got["nodes"], "that is the RayCluster's word"


def test_a_snapshot_with_little_in_it_gives_empty_fields():
    got = pieces({"phase": "Pending"}, clusters=0, at="now")
    assert got == {
        "roles": [],
        "rolesReady": "0/0",
        "restarts": dict.fromkeys(["inProcess", "process", "roleGroup", "role", "job", "node", "master", "cluster"], 0),
        "restartsTotal": 0,
        "recentFaults": [],
        "progress": {"time": "now"},
    }


def role(**more: object) -> list[dict]:
    return [{**snapshot()["roles"][0], **more}]


@pytest.mark.parametrize(
    "change",
    [
        {"phase": "Recovering"},
        {"reason": "NoRoom"},
        {"epoch": 2},
        {"restarts": {"process": 1}},
        {"carry": {"v": 1, "restarts": {"Process": 1}}},
        {"lastFault": FAULT},
        {"lastFault": {**FAULT, "recoveredAt": "t"}},
        {"roles": role(ready=1)},
        {"roles": role(failed=1)},
        {"roles": role(restarts=1)},
        {"roles": role(ready=0, succeeded=2)},
        {"roles": role(desired=4)},
        {"placement": {"units": 2, "ready": 1}},
        {"placement": {"units": 3, "ready": 3}},
        {"nodes": {"wanted": {"cpu": 3}}},
    ],
)
def test_a_change_of_more_than_progress_is_significant(change: dict):
    assert significant(snapshot(), snapshot(**{"phase": "Running", **change}))
    assert significant({}, snapshot())


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"version": 99},
        {"seconds": 5.0},
        {"message": "other words"},
        {"progress": {"step": 5, "metrics": {"loss": 1.0}}},
        {"roles": role(running=1)},
    ],
)
def test_a_change_of_progress_alone_is_not_significant(change: dict):
    assert not significant(snapshot(), snapshot(**change))


def test_partial_counts_are_progress():
    few, more = snapshot(roles=role(desired=9, ready=3)), snapshot(roles=role(desired=9, ready=5))
    assert not significant(few, more)
    few = snapshot(placement={"units": 9, "ready": 3})
    assert not significant(few, snapshot(placement={"units": 9, "ready": 5}))


ONE = st.one_of(
    st.fixed_dictionaries({"phase": st.sampled_from(["Scheduling", "Running", "Recovering"])}),
    st.fixed_dictionaries({"reason": st.sampled_from(["Running", "NoRoom"])}),
    st.fixed_dictionaries({"epoch": st.integers(1, 3)}),
    st.fixed_dictionaries({"carry": st.builds(dict, v=st.integers(1, 3))}),
    st.fixed_dictionaries({"version": st.integers(1, 99)}),
    st.fixed_dictionaries({"message": st.sampled_from(["", "x", "y"])}),
    st.fixed_dictionaries({"progress": st.builds(dict, step=st.integers(0, 5))}),
    st.fixed_dictionaries(
        {"roles": st.builds(role, desired=st.just(4), ready=st.integers(0, 4), failed=st.integers(0, 1))}
    ),
    st.fixed_dictionaries({"placement": st.builds(dict, units=st.just(4), ready=st.integers(0, 4))}),
)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.lists(ONE, max_size=4), ONE)
def test_poller_and_status_hold_back_the_same_changes(before: list[dict], change: dict):
    """The poller and the status agree on what does not wait: nothing is lost between them, and nothing hurries."""
    base = {key: value for one in before for key, value in one.items()}
    world = World().running().later(60).master(**{"phase": "Running", **base}).settle()
    world.status["progress"]["time"] = stamp(world.now)
    old = world.view.snapshot
    world.later(5).master(**{"phase": "Running", **base, **change})
    outcome = world.look()
    if significant(old, world.view.snapshot):
        assert outcome.status is not None
    else:
        assert outcome.status is None
        assert outcome.requeue in (None, 10.0)


AT = "2027-01-15T08:00:01.25Z"
RICH = snapshot(
    "Recovering",
    reason="Restarting",
    message="worker: exit code 1",
    completionTime="2027-01-15T08:00:01Z",
    restarts={"process": 1, "inProcess": 2, "unknown": 9},
    lastFault={**FAULT, "evidence": ["e" * 10], "followed": ["f"]},
    recentFaults=[FAULT] * 12,
    roles=[{**snapshot()["roles"][0], "wanted": 3}],
    nodes={"replaced": 1, "wanted": {"cpu": 2}, "excluded": [{"name": "n", "reason": "r", "since": AT, "until": AT}]},
    carry={"v": 1, "count": 3},
    progress={"step": 4, "lastCheckpointStep": 3, "lastCheckpointTime": AT, "metrics": {"loss": 0.5, "no": "number"}},
    placement={"units": 2, "ready": 1, "pending": 1, "notReady": [{"name": "worker/0", "node": "n", "why": "w"}]},
    cuts={"committed": 2, "givenUp": 0, "why": "", "last": 2, "lastTime": AT, "restored": 1, "restoredCut": 1, "x": 7},
    ledger={"Useful": 1.0},
    result={"any": "thing"},
)


def test_the_digest_of_a_snapshot_gives_the_same_status():
    kept = digest(RICH)
    assert pieces(kept, clusters=1, at="now") == pieces(RICH, clusters=1, at="now")
    assert not significant(digest(RICH), kept)
    assert not {"ledger", "result", "uid", "name"} & kept.keys()
    assert kept["roles"][0]["wanted"] == 3
    assert kept["nodes"]["wanted"] == {"cpu": 2}
    assert (kept["carry"], kept["progress"]["step"]) == ({"v": 1, "count": 3}, 4)
    assert [kept[key] for key in ("phase", "reason", "message", "completionTime", "version")] == [
        *("Recovering", "Restarting", "worker: exit code 1", "2027-01-15T08:00:01Z", 7)
    ]
    assert digest(kept) == kept


def test_the_cuts_in_the_status_are_counts_whatever_a_head_says():
    told = {"committed": 2, "givenUp": 0, "last": 2, "lastTime": AT, "restored": 1, "restoredCut": 1}
    assert pieces(RICH, clusters=0, at="")["cuts"] == told
    odd = snapshot(cuts={"committed": "many", "why": "w" * 9999, "last": None})
    assert [*digest(odd)["cuts"]] == ["why"]
    assert len(digest(odd)["cuts"]["why"]) == 1024
    assert "cuts" not in {**digest(snapshot()), **pieces(snapshot(), clusters=0, at="")}


@pytest.mark.parametrize("odd", [{}, [], [{}] * 3, {"roles": 3, "nodes": [], "carry": "x", "progress": None}])
def test_a_malformed_snapshot_has_a_small_digest(odd):
    assert len(json.dumps(digest(odd))) < 300


def test_the_digest_of_a_snapshot_is_bounded():
    many = {str(n): n for n in range(5000)}
    said = {
        "phase": "p" * 10**6,
        "message": "m" * 10**6,
        "roles": [{"name": "r" * 10**4, "desired": 1}] * 5000,
        "nodes": {"wanted": many, "excluded": [{"name": "n" * 10**4}] * 5000},
        "recentFaults": [dict.fromkeys(FAULT, "f" * 10**4)] * 500,
        "progress": {"metrics": {"x" * 10**4 + str(n): n for n in range(500)}},
        "placement": {"units": 1, "notReady": [{"why": "w" * 10**4}] * 500},
        "carry": {"data": "c" * 10**6},
        "x": [{}] * 10**5,
    }
    assert len(json.dumps(digest(said))) < 300_000


def test_the_placement_is_kept_with_its_units_and_ranks():
    told = {"nodes": [{"pod": "p", "node": "n", "units": ["a/0", "a/1"], "ranks": "a/0-1", "roles": ["a"]}, 3, {}]}
    assert places(told)[0] == {"pod": "p", "node": "n", "units": ["a/0,a/1"], "ranks": "a/0-1"}
    assert len(places(told)) == 2
    assert places([]) == ()
    assert len(json.dumps(places({"nodes": [{"units": ["u" * 99] * 9999, "ranks": "r" * 99999}]}))) < 9000


def test_the_marks_of_services_are_kept_by_role_and_bounded():
    """The operator asks for the endpoints of a role again when its mark changes."""
    said = {"worker": 7, "r" * 99: 8, "odd": "x"}
    assert digest(snapshot(services=said))["services"] == {"worker": 7, "r" * 62 + "…": 8}
    many = {f"r{at}": at for at in range(99)}
    assert len(digest(snapshot(services=many))["services"]) == 32


def test_the_endpoints_in_the_status_are_bounded_whatever_a_head_says():
    address = {"http": "10.0.0.1:24000"}
    role = {"role": "engine", "ready": 1, "desired": 2, "addresses": [address]}
    said = snapshot(endpoints=[role])
    assert digest(said)["endpoints"] == [role]
    assert pieces(digest(said), clusters=0, at="")["endpoints"] == [role]
    assert "endpoints" not in {**digest(snapshot()), **pieces(snapshot(), clusters=0, at="")}
    wide = {f"p{at}": "9" * 999 for at in range(99)}
    many = snapshot(endpoints=[{"role": "r" * 999, "ready": "x", "addresses": [wide] * 999}, 7] * 999)
    kept = digest(many)["endpoints"]
    assert (len(kept), len(kept[0]["addresses"]), len(kept[0]["addresses"][0])) == (32, 8, 4)
    assert (kept[0]["ready"], len(kept[0]["role"]), len(kept[0]["addresses"][0]["p0"])) == (0, 63, 64)
