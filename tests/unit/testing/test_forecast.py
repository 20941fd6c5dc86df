"""A forecast repeats recorded faults at the recorded pace, under the rule that it is given."""

from __future__ import annotations

from typing import Any

import pytest

from dljob.master.state.events import Commanded, HangFound
from dljob.master.state.views import HostId, Outcome, Reason
from dljob.testing.simulate import forecast
from dljob.testing.simulate.forecast import End, Forecast, JobPace, Strike

CLASS = {"class": "pkg.Class"}
KILLED = Outcome(ok=False, reason=Reason.UNKNOWN, code=137)
WRONG = Outcome(ok=False, reason=Reason.USER_ERROR, error_type="ValueError")
PACE = JobPace(
    100.0,
    {HostId("driver", 0): 2.0, HostId("worker", 0): 3.0, HostId("worker", 1): 4.0},
    {("driver", 0): 1.0, ("worker", 0): 6.0, ("worker", 1): 6.0},
    up={"worker": ((3.0, 5.0),)},
    set_up={"worker": (6.0,)},
    reserve=(0.1,),
)


def job(level: str = "Role", *, workers: dict[str, Any] | None = None, **policy: object) -> dict[str, Any]:
    worker = {"name": "worker", "replicas": 2, "driver": False, "entrypoint": CLASS, "restartPolicy": {"level": level}}
    roles = [{"name": "driver", "entrypoint": CLASS, "dependsOn": [{"role": "worker"}]}, {**worker, **(workers or {})}]
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": "job"},
        "spec": {"roles": roles, "faultTolerance": policy},
    }


def played(manifest: dict[str, Any], *strikes: Strike, pace: JobPace = PACE, seed: int = 0) -> End:
    return Forecast(manifest, pace, strikes, seed).play()


def kill(at: float, rank: int = 0, **more: Any) -> Strike:
    return Strike(at, "lost", "worker", rank, KILLED, **more)


def test_a_job_without_faults_ends_with_its_work() -> None:
    end = played(job())
    assert end.phase == "Succeeded"
    assert 111.0 < end.seconds < 113.0
    assert end.goodput == pytest.approx((102 + 2 * 105) / 3 / 112.2, abs=0.02)


def test_a_restart_costs_the_time_of_the_record_and_a_smaller_level_less() -> None:
    calm, role, process = played(job()), played(job(), kill(30.0)), played(job("Process"), kill(30.0))
    assert role.seconds - calm.seconds == pytest.approx(5.0 + 6.0, abs=0.3)
    # A process alone takes as long as the fastest of those that started together.
    assert process.seconds - calm.seconds == pytest.approx(3.0 + 6.0, abs=0.3)
    assert role.restarts == {"Role": 1}
    assert process.restarts == {"Process": 1}
    assert role.goodput < process.goodput < calm.goodput


def test_a_longer_backoff_makes_it_worse() -> None:
    strikes = (kill(20.0), kill(60.0, 1))
    usual, longer = (played(job(backoff={"initialSeconds": wait}), *strikes) for wait in (1, 30))
    assert longer.seconds - usual.seconds == pytest.approx(29.0, abs=0.1)
    assert longer.goodput < usual.goodput - 0.05


def test_a_spare_saves_the_start_of_a_process_and_a_part_of_its_set_up() -> None:
    bare = played(job("Process"), kill(50.0))
    spares = [played(job("Process", spares={"processesPerNode": 1}), kill(50.0), seed=seed) for seed in range(8)]
    saved = [bare.seconds - end.seconds for end in spares]
    assert min(saved) > 2.5
    assert max(saved) <= 9.1
    assert max(saved) - min(saved) > 1.0
    known = JobPace(**{**{name: getattr(PACE, name) for name in PACE.__slots__}, "spared": {"worker": (1.0,)}})
    again = played(job("Process", spares={"processesPerNode": 1}), kill(50.0), pace=known)
    assert bare.seconds - again.seconds == pytest.approx(3.0 + 5.0, abs=0.3)


def test_a_fault_is_detected_as_late_as_in_the_record() -> None:
    late, soon = played(job(), kill(30.0, detect=8.0)), played(job(), kill(30.0))
    # The report comes at the same time; the rank was dead before it.
    assert late.seconds == pytest.approx(soon.seconds, abs=0.1)
    assert late.goodput < soon.goodput


def test_an_error_a_lost_master_and_an_order_happen_again() -> None:
    error = Strike(30.0, "ended", "worker", 1, WRONG)
    master = Strike(60.0, "master")
    order = Strike(60.5, "event", event=Commanded("c1", "restart", "worker/0", "somebody"))
    end = played(job("Process"), error, master, order)
    assert end.phase == "Succeeded"
    assert end.restarts["Master"] == 1
    assert end.restarts["Process"] == 2


def test_a_hang_is_found_in_the_process_that_the_rank_has_then() -> None:
    found = HangFound("worker", 0, 7, Reason.HANG.value, "it stands still")
    end = played(job("Process"), kill(20.0), Strike(50.0, "event", event=found))
    assert end.restarts == {"Process": 2}
    nobody = HangFound("nobody", 0, 1, Reason.HANG.value, "it stands still")
    assert played(job("Process"), Strike(50.0, "event", event=nobody)).restarts == {}


def test_a_lost_and_a_frozen_node_take_their_ranks_along() -> None:
    two = job("Process", workers={"resources": {"cpu": "4"}})
    two["spec"]["nodeGroups"] = [{"name": "g", "replicas": 3, "cpu": "6"}]
    calm = played(two)
    for strike in (
        Strike(30.0, "node", "worker", 1),
        Strike(30.0, "freeze", "worker", 1, detect=3.0, seconds=40.0),
    ):
        end = played(two, strike)
        assert end.phase == "Succeeded"
        assert sum(end.restarts.values()) >= 1
        assert end.seconds > calm.seconds


def test_a_fault_before_the_job_runs_counts_from_its_start() -> None:
    early = kill(5.5, early=True)
    end = played(job("Process"), early)
    assert end.restarts == {"Process": 1}
    assert end.seconds > played(job("Process")).seconds


def test_a_fault_waits_until_its_target_has_a_process() -> None:
    end = played(job("Process"), kill(20.0), kill(20.5))
    assert end.restarts == {"Process": 2}


def test_a_rank_that_is_done_cannot_fail_any_more() -> None:
    serving = JobPace(**{**{name: getattr(PACE, name) for name in PACE.__slots__}, "runs": {"first": (5.0,)}})
    manifest = job("Process")
    manifest["spec"]["roles"].append({"name": "first", "driver": False, "entrypoint": CLASS})
    manifest["spec"]["roles"][0]["dependsOn"].append({"role": "first", "condition": "Complete"})
    end = played(manifest, Strike(50.0, "lost", "first", 0, KILLED), pace=serving)
    assert end.phase == "Succeeded"
    assert end.restarts == {}


def test_repeated_steps_are_no_progress() -> None:
    base = {name: getattr(PACE, name) for name in PACE.__slots__}
    manifest = job("Process")
    strike = Strike(40.0, "lost", "driver", 0, KILLED)
    plain = played(manifest, strike)
    measured = JobPace(**{**base, "stepping": frozenset({"driver"}), "repeats": {"driver": ((1.0, 9.0),)}})
    known = played(manifest, strike, pace=measured)
    assert known.seconds - plain.seconds == pytest.approx(9.0, abs=0.2)
    # Nobody knows: from the beginning without checkpoints, else from the last one.
    lost = played(manifest, strike, pace=JobPace(**{**base, "stepping": frozenset({"driver"})}))
    assert lost.seconds - plain.seconds == pytest.approx(40.0, abs=0.5)
    saved = played(manifest, strike, pace=JobPace(**{**base, "stepping": frozenset({"driver"}), "saves_every": 10.0}))
    assert 0 < saved.seconds - plain.seconds < 10.1


def test_a_rule_that_allows_no_restart_ends_the_job_early() -> None:
    end = played(job("Never"), kill(30.0), kill(90.0))
    assert end.phase == "Failed"
    assert end.seconds < 50.0


def test_a_job_that_never_gets_on_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "PATIENCE_S", 300.0)
    endless = JobPace(**{**{name: getattr(PACE, name) for name in PACE.__slots__}, "up": {"worker": ((1e7,),)}})
    end = played(job("Process", backoff={"initialSeconds": 3600}), kill(10.0), kill(40.0, 1), pace=endless)
    assert end.phase != "Succeeded"


def test_a_pace_without_measures_has_defaults() -> None:
    end = played(job("Process", spares={"processesPerNode": 1}), kill(10.0), pace=JobPace(50.0))
    assert end.phase == "Succeeded"
    assert 50.0 < end.seconds < 60.0
