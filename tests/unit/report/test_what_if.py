"""What-ifs: the record's own rule gives the record, other rules are checked as validate does, and refusals say why."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from past_kit import WORKERS, PastJob, past_of

from dljob.errors import SpecError, UsageError
from dljob.master.state.checkpoint_ids import CheckpointId, RunId
from dljob.master.state.events import CheckpointCommitted, Event, HostLost, NodesSeen, RankEnded, RankReady, Stepped
from dljob.master.state.views import HostId
from dljob.report import what_if
from dljob.report.record import record_of
from dljob.report.replay import Past
from dljob.report.what_if import best_what_ifs, changed, predict
from dljob.testing.simulate import forecast
from dljob.testing.simulate.drive import Case
from dljob.testing.simulate.forecast import USUAL_SPREAD, Forecast, JobPace
from dljob.testing.world.fault_schedule import Timed
from dljob.testing.world.model import FaultMove

CLASS = {"class": "pkg.Class"}
COUPLED: dict[str, Any] = {
    **WORKERS,
    "spec": {
        "roles": [
            {"name": "driver", "entrypoint": CLASS, "dependsOn": [{"role": "worker"}]},
            {
                "name": "worker",
                "replicas": 3,
                "driver": False,
                "entrypoint": CLASS,
                "restartPolicy": {"level": "Role", "maxRestarts": 50},
            },
        ]
    },
}


def text(rank: str, at: float, kind: str = "kill", value: float = 1) -> Timed:
    return Timed(at, FaultMove(kind, 0, value, rank))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> PastJob:
    faults = (text("worker/1", 60.0), text("worker/2", 120.0), text("worker/0", 180.0, "error", 2))
    made = past_of(tmp_path_factory.mktemp("past") / "job", Case(11, COUPLED, faults), work=300.0)
    assert json.loads(made.states[-1])["phase"] == "Succeeded"
    return made


@pytest.fixture(autouse=True)
def few_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(what_if, "SEEDS", 4)
    monkeypatch.setattr(what_if, "FEW", 2)


def test_the_simulation_of_the_records_own_rule_gives_its_goodput(job: PastJob) -> None:
    found = predict(job.folder, ["faultTolerance.windowSeconds=3601"])
    assert found.difference == pytest.approx(0.0, abs=0.002)
    assert found.unchanged == pytest.approx(found.measured, abs=0.03)
    assert found.goodput == pytest.approx(found.measured, abs=0.003)
    assert found.phase == "Succeeded"


def test_rules_change_the_goodput_in_their_direction_and_together(job: PastJob) -> None:
    smaller = predict(job.folder, ["roles.worker.restartPolicy.level=Process"])
    longer = predict(job.folder, ["faultTolerance.backoff.initialSeconds=60"])
    both = predict(
        job.folder, ["spec.faultTolerance.backoff.initialSeconds=60", "roles.worker.restartPolicy.level=Process"]
    )
    assert longer.difference < both.difference < -0.05
    assert both.rule.count("=") == 2
    assert smaller.difference > 0
    never = predict(job.folder, ["restartPolicy.level=Never"])
    assert never.phase == "Failed"
    assert set(never.shown()) == {
        *("rule", "goodput", "difference", "uncertainty", "measured", "unchanged", "seconds", "phase")
    }


def test_the_best_rules_are_those_that_help_most(job: PastJob, monkeypatch: pytest.MonkeyPatch) -> None:
    found = best_what_ifs(job.folder)
    assert 1 <= len(found) <= 3
    assert [each["difference"] for each in found] == sorted((each["difference"] for each in found), reverse=True)
    assert all(each["difference"] > 0 for each in found)
    assert any("level=" in each["rule"] for each in found)
    monkeypatch.setattr(what_if, "_candidates", lambda *_: ["roles.worker.restartPolicy.level=Nowhere"])
    assert best_what_ifs(job.folder) == []


def test_candidates_follow_from_the_faults_and_the_present_rule(job: PastJob) -> None:
    past = Past(job.folder)
    record = record_of(past)
    names = list(what_if._candidates(past.manifest, record))
    assert "faultTolerance.spares.nodes=1" not in names
    lost = record._replace(strikes=(*record.strikes, record.strikes[0]._replace(kind="node")))
    assert "faultTolerance.spares.nodes=1" in what_if._candidates(past.manifest, lost)
    rules = ["faultTolerance.spares.processesPerNode=1", "faultTolerance.backoff.initialSeconds=0"]
    rules += ["roles.worker.restartPolicy.level=Process"]
    left = list(what_if._candidates(changed(past.manifest, rules), record))
    assert not set(left) & set(rules)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("faultTolerance", "is no rule"),
        ("faultTolerance=1", "is no rule"),
        ("faultTolerance.spares.procesesPerNode=1", "did you mean processesPerNode?"),
        ("faultTolerance.backoff.initialSeconds.more=1", "spec.faultTolerance.backoff.initialSeconds"),
        ("faultTolerance.backoff.initialSeconds=-1", "spec.faultTolerance.backoff.initialSeconds"),
        ("faultTolerance.backoff.initialSeconds=[", "is no YAML value"),
        ("faultolerance.spares.nodes=1", "did you mean faultTolerance?"),
        ("nodeGroups.h100.replicas=1", "a what-if changes faultTolerance, restartPolicy, checkpoint"),
        ("roles.wrker.restartPolicy.level=Job", "did you mean worker?"),
        ("roles.zzz.restartPolicy.level=Job", "driver, worker"),
        ("roles.worker.restartPolcy.level=Job", "did you mean restartPolicy?"),
        ("roles.worker.replicas=4", "of a role a what-if changes restartPolicy.FIELD"),
        ("roles.worker=4", "of a role a what-if changes restartPolicy.FIELD"),
        ("restartPolicy.level=Jobs", "did you mean Job?"),
        ("checkpoint.gracePeriod=5", "spec.checkpoint.gracePeriod: unknown field"),
    ],
)
def test_a_wrong_rule_is_refused_with_what_is_meant(job: PastJob, rule: str, said: str) -> None:
    with pytest.raises(SpecError) as told:
        predict(job.folder, [rule])
    assert said in str(told.value)


def test_all_wrong_rules_are_told_at_once(job: PastJob) -> None:
    with pytest.raises(SpecError) as told:
        predict(job.folder, ["nodeGroups.x=1", "faultTolerance.spares.procesesPerNode=1", "restartPolicy.levl=Job"])
    assert len(told.value.problems) >= 3


def test_a_folder_of_another_version_is_refused_with_the_version_to_use(tmp_path: Path) -> None:
    made = past_of(tmp_path / "job", Case(11, COUPLED, ()), core="9.9.9 f00f00f00f00")
    with pytest.raises(UsageError, match=r"ran with dljob 9\.9\.9 f00f00f00f00") as told:
        predict(made.folder, ["faultTolerance.spares.nodes=1"])
    assert told.value.hint.startswith("use dljob 9.9.9")


def test_a_job_whose_work_or_faults_are_not_known_is_refused(job: PastJob, tmp_path: Path) -> None:
    fatal = past_of(tmp_path / "fatal", Case(11, COUPLED, (text("worker/1", 60.0, "error", 6),)), work=300.0)
    with pytest.raises(UsageError, match="for a job that succeeded"):
        predict(fatal.folder, ["faultTolerance.spares.nodes=1"])
    cut = past_of(tmp_path / "cut", Case(11, COUPLED, ()), every=5)
    sorted((cut.folder / "journal").glob("*.jsonl"))[0].unlink()
    with pytest.raises(UsageError, match="first parts were dropped"):
        predict(cut.folder, ["faultTolerance.spares.nodes=1"])


def test_each_first_fault_is_read_with_its_target_and_time(job: PastJob) -> None:
    record = record_of(Past(job.folder))
    assert [(strike.kind, strike.role, strike.rank) for strike in record.strikes] == [
        ("lost", "worker", 1),
        ("lost", "worker", 2),
        ("ended", "worker", 0),
    ]
    assert record.over
    assert len(record.pace.first_up) == 4
    assert {len(group) for group in record.pace.up["worker"]} <= {1, 2, 3}


def test_all_kinds_of_faults_are_read_from_a_journal_and_happen_again(tmp_path: Path) -> None:
    manifest = json.loads(json.dumps(COUPLED))
    manifest["spec"]["nodeGroups"] = [{"name": "g", "replicas": 5, "cpu": "1"}]
    manifest["spec"]["faultTolerance"] = {"spares": {"processesPerNode": 1}, "maxRestarts": 50}
    manifest["spec"]["roles"][1]["restartPolicy"]["level"] = "Process"
    faults = [Timed(40.0 * n, FaultMove(kind, n, value, what)) for n, (kind, value, what) in enumerate(
        [("hang", 0.0, ""), ("freeze", 8.0, ""), ("crash", 0.0, ""), ("command", 1.0, "restart rank"),
         ("node lost", 2.0, ""), ("freeze", 15.0, "")], start=1)]  # fmt: skip
    kinds: set[str] = set()
    for seed in range(3):
        made = past_of(tmp_path / f"job-{seed}", Case(seed, manifest, tuple(faults)), work=300.0)
        record = record_of(Past(made.folder))
        kinds |= {strike.kind if strike.event is None else type(strike.event).__name__ for strike in record.strikes}
        if record.over:
            end = Forecast(manifest, record.pace, record.strikes, 0).play()
            assert 0 < end.goodput < 1
    assert kinds >= {"master", "node", "freeze", "HangFound", "Commanded"}


def test_spares_and_what_heartbeats_tell_are_read_from_a_journal(tmp_path: Path) -> None:
    """The simulator has no heartbeats: what they add to events is put into the journal here."""
    told: list[Stepped] = []
    count = 0

    def edit(event: Event) -> Iterator[Event]:
        nonlocal count
        if isinstance(event, RankReady) and event.incarnation > 1:
            yield dataclasses.replace(event, goal=9)
            told.extend(Stepped(event.role, event.rank, event.incarnation, step) for step in (3, 9, 9))
            told.append(Stepped("nobody", 0, 1, 1))
        elif isinstance(event, HostLost):
            yield dataclasses.replace(event, seen=1_000_000_059.0)
        elif isinstance(event, RankEnded):
            yield dataclasses.replace(event, outcome=dataclasses.replace(event.outcome, step=12))
        else:
            yield event
            # With a later event of the simulation, so that time has passed.
            yield from (told.pop(0) for _ in told[:1])
        if isinstance(event, NodesSeen):
            count += 1
            yield CheckpointCommitted("worker/0", CheckpointId(RunId(1, 1), count))

    manifest = json.loads(json.dumps(COUPLED))
    manifest["spec"]["faultTolerance"] = {"spares": {"processesPerNode": 1}}
    manifest["spec"]["roles"][0]["replicas"] = 2
    manifest["spec"]["roles"][1]["restartPolicy"]["level"] = "Process"
    faults = (text("worker/1", 60.0), text("worker/2", 120.0))
    made = past_of(tmp_path / "job", Case(11, manifest, faults), work=300.0, edit=edit)
    record = record_of(Past(made.folder))
    assert record.strikes[0].detect == pytest.approx(made.times[0] + 60.0 - 1_000_000_059.0, abs=0.5)
    assert record.pace.spared["worker"]
    assert "worker" in record.pace.stepping
    assert record.pace.repeats["worker"]
    assert record.pace.runs["driver"] == (pytest.approx(300.0, abs=5.0),)


def test_the_uncertainty_has_a_part_for_starts_that_take_longer_or_shorter(
    job: PastJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = what_if.Predictor(Past(job.folder))
    rule = changed(Past(job.folder).manifest, ["roles.worker.restartPolicy.level=Process"])
    first_up = dict.fromkeys(predictor.record.pace.first_up, 100.0)
    up = {"worker": ((1.0,),)}
    pace = dataclasses.replace(predictor.record.pace, first_up=first_up, up=up)
    predictor.record = predictor.record._replace(pace=pace)
    wide = predictor.predict("x", rule, 4)
    monkeypatch.setattr(forecast, "USUAL_SPREAD", 0.0)
    narrow = predictor.predict("x", rule, 4)
    assert wide.difference == pytest.approx(narrow.difference)
    # A start of 100 s beside 290 s of work: at a quarter more or less of it, the goodput moves by 4 points.
    assert 0.06 < wide.uncertainty - narrow.uncertainty < 0.12
    # Restarts of which one took four times as long as the other tell it, too.
    predictor.record = predictor.record._replace(pace=dataclasses.replace(pace, up={"worker": ((1.0,), (4.0,))}))
    assert predictor.predict("x", rule, 4).uncertainty > wide.uncertainty


def test_a_slower_machine_takes_longer_for_all_starts_and_for_nothing_else() -> None:
    pace = JobPace(
        9.0,
        first_up={HostId("w", 0): 2.0},
        first_set_up={("w", 0): 3.0},
        up={"w": ((1.0, 2.0), ())},
        set_up={"w": (4.0,)},
        spared={"w": (5.0,)},
        repeats={"w": ((1.0, 2.0),)},
    )
    slow = pace.with_starts(2.0)
    assert (slow.work, slow.repeats) == (pace.work, pace.repeats)
    assert (slow.first_up, slow.first_set_up) == ({HostId("w", 0): 4.0}, {("w", 0): 6.0})
    assert (slow.up, slow.set_up, slow.spared) == ({"w": ((2.0, 4.0), ())}, {"w": (8.0,)}, {"w": (10.0,)})
    assert pace.start_spread == pytest.approx(USUAL_SPREAD)
