"""The faults file, and when and to whom faults happen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dljob.errors import SpecError, UsageError
from dljob.plan.model import JobPlan
from dljob.plan.plan import plan
from dljob.runtime.faults import Fault, Injector, excused, load_faults, moved
from dljob.spec.load import parse


@pytest.fixture(scope="module")
def rl() -> JobPlan:
    roles = [
        {"name": "driver", "entrypoint": {"class": "m.D"}},
        {"name": "rollout", "replicas": 2, "driver": False, "entrypoint": {"class": "m.R"}},
        {
            "name": "trainer",
            "type": "Elastic",
            "replicas": 4,
            "replicasPerGroup": 2,
            "driver": False,
            "entrypoint": {"class": "m.T"},
        },
    ]
    head = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "rl"}}
    return plan(parse({**head, "spec": {"roles": roles}}))


def write(folder: Path, text: str) -> Path:
    file = folder / "faults.yaml"
    file.write_text(text)
    return file


def test_faults_come_by_step(rl: JobPlan, tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "- {when: {step: 35}, target: master, fault: kill}\n- {when: {step: 15}, target: rollout/1, fault: kill}\n",
    )
    assert load_faults(file, rl) == (Fault(15, "rollout/1"), Fault(35, "master"))


def test_an_empty_file_is_no_fault(rl: JobPlan, tmp_path: Path) -> None:
    assert load_faults(write(tmp_path, "[]\n"), rl) == ()


def test_all_problems_of_the_file_at_once(rl: JobPlan, tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "- {when: {step: 15}, target: rolout/1, fault: kill}\n"
        "- {when: {step: 15}, target: rollout/2, fault: kill}\n"
        "- {when: {step: -1}, target: rollout, fault: kil}\n"
        "- {wen: {step: 1}, target: master, fault: kill}\n"
        "- {when: {stp: 1}, target: master, fault: kill}\n"
        "- {when: 3, target: master, fault: kill}\n"
        "- kill master\n",
    )
    with pytest.raises(SpecError) as caught:
        load_faults(file, rl)
    told = [str(p).removeprefix(f"{file}:") for p in caught.value.problems]
    assert told == [
        "1:30: [0].target: there is no role 'rolout' in job rl (did you mean 'rollout'?)",
        "2:30: [1].target: 'rollout/2' is no rank of the job (rollout/0 to rollout/1)",
        "3:17: [2].when.step: must be a whole number, 0 or more",
        "3:30: [2].target: 'rollout' is no rank of the job (rollout/0 to rollout/1)",
        "3:46: [2].fault: there is no fault 'kil' (did you mean 'kill'?)",
        "4:3: [3]: has no 'when'",
        "4:4: [3].wen: unknown field (did you mean 'when'?)",
        "5:10: [4].when.step: must be a whole number, 0 or more",
        "5:11: [4].when.stp: unknown field (did you mean 'step'?)",
        "6:10: [5].when: is no mapping (write {step: 15})",
        "7:3: [6]: is no mapping (write {when: {step: 15}, target: ..., fault: kill})",
    ]


@pytest.mark.parametrize("text", ["step: 1\n", "- {when: [}\n"])
def test_a_file_that_is_no_list(text: str, rl: JobPlan, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"faults.yaml:1:"):
        load_faults(write(tmp_path, text), rl)


def test_a_file_that_cannot_be_read(rl: JobPlan, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*: No such file"):
        load_faults(tmp_path / "none.yaml", rl)
    (tmp_path / "faults.yaml").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="cannot read"):
        load_faults(tmp_path / "faults.yaml", rl)


def test_the_killed_and_its_group_are_excused(rl: JobPlan) -> None:
    assert excused("master", rl) == {"master"}
    assert excused("rollout/1", rl) == {"rollout/1"}
    assert excused("trainer/2", rl) == {"trainer/2", "trainer/3"}


def test_who_moved() -> None:
    before = {"master": 1, "a/0": 2, "a/1": 3, "b/0": 4, "b/1": 5}
    after = {"master": 1, "a/0": 9, "a/1": 10, "b/0": 11}
    assert moved(before, after, frozenset({"a/0"})) == ("a/1", "b/0")


class World:
    """A job whose processes are numbers."""

    def __init__(self, rl: JobPlan, *faults: Fault) -> None:
        names = ("master", "driver/0", "rollout/0", "rollout/1", "trainer/0", "trainer/1", "trainer/2", "trainer/3")
        self.pids = {name: 100 + i for i, name in enumerate(names)}
        self.killed: list[int] = []
        self.injector = Injector(faults, rl, lambda: dict(self.pids), self.killed.append)

    def at(self, step: int | None, *, phase: str = "Running", ready: int = 8) -> Fault | None:
        return self.injector.observe(self.status(step, phase=phase, ready=ready))

    def status(self, step: int | None, *, phase: str = "Running", ready: int = 8) -> dict[str, Any]:
        roles = [{"name": "all", "desired": 8, "ready": ready, "succeeded": 0}]
        ranks = [
            {"role": n.split("/")[0], "rank": int(n.split("/")[1]), "pid": p} for n, p in self.pids.items() if "/" in n
        ]
        return {"phase": phase, "progress": {"step": step}, "roles": roles, "ranks": ranks}


def test_a_fault_waits_for_its_step_and_comes_once(rl: JobPlan) -> None:
    world = World(rl, Fault(15, "rollout/1"))
    assert world.at(None) is None
    assert world.at(14) is None
    assert world.at(16) == Fault(15, "rollout/1")
    assert world.killed == [103]
    world.pids["rollout/1"] = 200
    assert world.at(17) is None
    assert world.killed == [103]
    assert world.injector.pids_kept
    assert world.injector.pending == ()


def test_a_fault_waits_until_the_job_runs_with_everybody(rl: JobPlan) -> None:
    world = World(rl, Fault(1, "rollout/1"))
    assert world.at(2, phase="Recovering") is None
    assert world.at(2, ready=7) is None
    assert world.at(2) is not None


def test_the_next_fault_waits_for_the_recovery_from_the_one_before(rl: JobPlan) -> None:
    world = World(rl, Fault(1, "trainer/1"), Fault(2, "master"))
    assert world.at(1) == Fault(1, "trainer/1")
    assert world.at(5) is None, "the victim has its old process still"
    world.pids |= {"trainer/0": 201, "trainer/1": 202}
    assert world.at(5, ready=7) is None
    assert world.at(5) == Fault(2, "master")
    world.pids["master"] = 203
    assert world.at(6) is None
    assert world.injector.pids_kept
    assert world.killed == [105, 100]


def test_a_bystander_with_another_process_is_told(rl: JobPlan) -> None:
    world = World(rl, Fault(1, "trainer/1"))
    world.at(1)
    world.pids |= {"trainer/0": 201, "trainer/1": 202, "trainer/2": 203, "driver/0": 204}
    world.at(2)
    assert not world.injector.pids_kept
    assert world.injector.moved == ["driver/0 after trainer/1", "trainer/2 after trainer/1"]


def test_a_fault_from_which_the_job_ended_is_still_compared(rl: JobPlan) -> None:
    world = World(rl, Fault(1, "rollout/1"), Fault(99, "master"))
    world.at(1)
    world.pids["rollout/0"] = 300
    world.injector.finish(world.status(2, phase="Succeeded"))
    assert world.injector.moved == ["rollout/0 after rollout/1"]
    assert world.injector.pending == (Fault(99, "master"),)


def test_a_victim_without_a_process_is_waited_for(rl: JobPlan) -> None:
    world = World(rl, Fault(1, "rollout/1"))
    gone = world.pids.pop("rollout/1")
    assert world.at(1) is None
    world.pids["rollout/1"] = gone
    assert world.at(1) is not None
