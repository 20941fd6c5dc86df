"""From snapshots of PrimeMaster's own making to the text that Prometheus scrapes."""

from __future__ import annotations

import pytest
from master_kit import World, job, nodes
from prometheus_client.parser import text_string_to_metric_families

from dljob.master.state.ledger import Account
from dljob.master.state.state import Phase
from dljob.master.status import status
from dljob.telemetry.catalog import CATALOG, GATEWAY
from dljob.telemetry.exposition import exposition, sample
from dljob.telemetry.job_samples import ACCOUNTS, MASTER_PHASES, samples

SPENT = "dljob_role_seconds_total"


def snapshot(world, progress=None):
    return status(world.state, world.now, progress or {})


def brief(whole, **placement):
    short = {key: value for key, value in whole.items() if key not in ("ranks", "units")}
    return {**short, "placement": {"units": 2, "ready": 2, "pending": 0, "notReady": [], **placement}}


def parsed(text):
    """(series, labels) -> value, read by prometheus_client, which is not what wrote it."""
    return {
        (one.name, frozenset(one.labels.items())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def value(values, name, **labels):
    return values[name, frozenset({"namespace": "ns", "dljob": "job", **labels}.items())]


def until(world, phase):
    for _ in range(100):
        world.settle()
        if world.state.phase is phase:
            return
        world.tick()
    raise AssertionError(f"the job never came to {phase}")


def running():
    return World(job({"name": "w", "replicas": 2}), views=nodes(2)).boot()


def test_a_running_job_is_told_whole():
    world = running()
    whole = snapshot(world, {("w", 0): (7, {"loss": 0.5, "lr": 1.0})})
    whole["progress"]["declared"] = ["loss", "reward"]
    whole["roles"][0]["servedLagSeconds"] = 0.75
    values = parsed(exposition(samples(whole, "ns", "2.60.0")))
    assert value(values, "dljob_info", uid=whole["uid"], ray_version="2.60.0") == 1
    assert value(values, "dljob_phase", phase="Running") == 1
    assert sum(v for (name, _), v in values.items() if name == "dljob_phase") == 1
    assert value(values, "dljob_workers", role="w", state="ready") == 2
    assert sum(v for (name, _), v in values.items() if name == "dljob_workers") == 2
    assert value(values, "dljob_units", state="ready") == 2
    assert value(values, "dljob_units", state="pending") == 0
    assert value(values, "dljob_step") == 7
    assert value(values, "dljob_progress", metric="loss") == 0.5
    assert sum(name == "dljob_progress" for name, _ in values) == 1, "not declared, or not reported"
    assert value(values, "dljob_served_lag_seconds", role="w") == 0.75
    assert value(values, "dljob_master_epoch") == world.state.epoch
    assert value(values, "dljob_running_seconds") == whole["seconds"]
    assert {name for name, _ in values} | {"dljob_last_recovery_seconds"} == {m.name for m in GATEWAY}


def test_the_accounts_of_a_role_add_up_and_never_fall():
    world = running()
    world.kill("w", 1)
    lost = world.pending.pop()
    world.now += 10
    before = parsed(exposition(samples(snapshot(world), "ns")))
    assert {value(before, SPENT, role="w", account=account) for account in set(ACCOUNTS) - {"productive"}} == {0}
    assert value(before, SPENT, role="w", account="productive") == 20
    world.send(type(lost)(lost.host, lost.incarnation, lost.outcome, seen=world.now - 1))
    after = parsed(exposition(samples(snapshot(world), "ns")))
    assert value(after, SPENT, role="w", account="detect") == 1
    assert value(after, SPENT, role="w", account="productive") == 20, "one of these seconds is owed"
    world.now += 5
    later = parsed(exposition(samples(snapshot(world), "ns")))
    assert value(later, SPENT, role="w", account="productive") == 24
    assert sum(v for (name, _), v in later.items() if name == SPENT) == 30


def test_the_accounts_are_those_of_the_ledger():
    assert tuple(Account) == ACCOUNTS


def test_states_of_workers_part_all_ranks():
    world = World(job({"name": "w", "replicas": 2}))
    values = parsed(exposition(samples(snapshot(world), "ns")))
    assert value(values, "dljob_workers", role="w", state="waiting") == 2
    assert value(values, "dljob_units", state="pending") == 2
    world = running()
    world.kill("w", 1)
    world.deliver()
    assert world.state.phase is Phase.RECOVERING
    values = parsed(exposition(samples(snapshot(world), "ns")))
    assert sum(v for (name, _), v in values.items() if name == "dljob_workers") == 2
    assert value(values, "dljob_workers", role="w", state="ready") < 2


def test_a_recovery_counts_when_it_is_over_under_the_level_that_restarts_have():
    world = running()
    world.kill("w", 1)
    world.deliver()
    open_yet = parsed(exposition(samples(snapshot(world), "ns")))
    assert not any(name == "dljob_last_recovery_seconds" for name, _ in open_yet)
    world.now += 2.5
    until(world, Phase.RUNNING)
    whole = snapshot(world)
    values = parsed(exposition(samples(whole, "ns")))
    (told,) = [labels for name, labels in values if name == "dljob_last_recovery_seconds"]
    assert values["dljob_last_recovery_seconds", told] == whole["lastFault"]["seconds"] >= 2.5
    assert values["dljob_restarts_total", told] >= 1


def test_the_words_of_counts_and_faults_are_one():
    whole = snapshot(running())
    fault = {"level": "RoleGroup", "seconds": 4.5}
    later = {"level": "RoleGroup", "seconds": 2.5}
    values = parsed(exposition(samples({**whole, "recentFaults": [fault, later]}, "ns")))
    assert value(values, "dljob_restarts_total", level="RoleGroup") == 0
    assert value(values, "dljob_last_recovery_seconds", level="RoleGroup") == 2.5


def test_the_gateways_brief_snapshot_serves_as_well():
    values = parsed(exposition(samples(brief(snapshot(running()), ready=1, pending=1), "ns")))
    assert value(values, "dljob_units", state="ready") == 1
    assert value(values, "dljob_units", state="pending") == 1
    assert not any(name == "dljob_step" for name, _ in values), "no step was told"


def test_every_phase_of_the_master_has_its_series():
    assert tuple(phase.value for phase in Phase) == MASTER_PHASES


def test_families_come_together_and_values_are_escaped():
    text = exposition(
        [
            sample("dljob_step", ("ns", "a"), 1),
            sample("dljob_operator_build_info", ('0"1\\2\n3',), 1),
            sample("dljob_step", ("ns", "b"), 2.5),
        ]
    )
    lines = text.splitlines()
    assert lines[2:4] == ['dljob_step{namespace="ns",dljob="a"} 1', 'dljob_step{namespace="ns",dljob="b"} 2.5']
    assert parsed(text)["dljob_operator_build_info", frozenset({("version", '0"1\\2\n3')})] == 1
    assert text.endswith("\n")
    assert exposition([]) == ""


def test_a_metric_without_labels_has_no_braces():
    bare = CATALOG["dljob_step"]
    plain = type(bare)("dljob_x", "gauge", "gateway", "X.")
    from dljob.telemetry.exposition import Sample

    assert exposition([Sample(plain, (), 3)]).splitlines()[-1] == "dljob_x 3"


def test_a_sample_with_too_few_labels_is_refused():
    with pytest.raises(ValueError, match="dljob_step has the labels namespace, dljob; got the values ns"):
        sample("dljob_step", ("ns",), 1)


def test_a_finished_job_keeps_its_last_word():
    world = running()
    world.end_role("w")
    until(world, Phase.SUCCEEDED)
    values = parsed(exposition(samples(snapshot(world), "ns")))
    assert value(values, "dljob_phase", phase="Succeeded") == 1
    assert value(values, "dljob_workers", role="w", state="succeeded") == 2
