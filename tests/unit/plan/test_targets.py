"""Faults files against a job: who is meant, and everything that is wrong, at its place."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from dljob.errors import SpecError, UsageError
from dljob.master.state.views import Level, Reason
from dljob.plan.model import JobPlan
from dljob.plan.plan import plan
from dljob.plan.targets import Target, chosen, load_faults, ranked, target_of
from dljob.spec.loading.faults import Expected, FaultCause, FaultLevel
from dljob.spec.loading.load import parse


@pytest.fixture(scope="module")
def rl() -> JobPlan:
    roles = [
        {"name": "driver", "entrypoint": {"class": "m.D"}},
        {"name": "rollout", "replicas": 2, "driver": False, "entrypoint": {"class": "m.R"}},
    ]
    groups = [{"name": "n", "replicas": 2, "cpu": "8"}]
    head = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "rl"}}
    return plan(parse({**head, "spec": {"roles": roles, "nodeGroups": groups}}))


def write(folder: Path, text: str) -> Path:
    file = folder / "faults.yaml"
    file.write_text(text)
    return file


def problems(folder: Path, text: str, job: JobPlan, nodes: tuple[str, ...] | None = None) -> list[str]:
    file = write(folder, text)
    with pytest.raises(SpecError) as caught:
        load_faults(file, job, nodes)
    return [str(problem).removeprefix(f"{file}:") for problem in caught.value.problems]


def test_each_form_of_a_fault_is_parsed(rl: JobPlan, tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "- {when: {step: 15}, target: rollout/1, fault: kill}\n"
        "- {when: {time: 20}, target: rollout, fault: oom, expect: {cause: OOMKilled, target: rollout/0}}\n"
        "- {when: {event: Restarting, count: 2}, target: master, fault: kill, expect: {level: Master}}\n"
        "- {when: {time: 0}, target: node/1, fault: stop, seconds: 5}\n"
        "- {when: {time: 0}, target: node/0, fault: kill}\n"
        "- {when: {time: 0}, target: driver/0, fault: slow, factor: 4, seconds: 10}\n",
    )
    found = load_faults(file, rl)
    assert [(f.target, f.fault) for f in found] == [
        ("rollout/1", "kill"),
        ("rollout", "oom"),
        ("master", "kill"),
        ("node/1", "stop"),
        ("node/0", "kill"),
        ("driver/0", "slow"),
    ]
    assert (found[0].when.step, found[1].when.time, found[2].when.event, found[2].when.count) == (
        15,
        20,
        "Restarting",
        2,
    )
    assert found[1].expect == Expected(cause="OOMKilled", target="rollout/0")
    assert (found[3].seconds, found[5].factor, found[5].seconds) == (5, 4, 10)


def test_an_empty_file_is_no_fault(rl: JobPlan, tmp_path: Path) -> None:
    assert load_faults(write(tmp_path, "[]\n"), rl) == ()


def test_a_fault_may_name_a_rank_that_a_fleet_gets_later(tmp_path: Path) -> None:
    fleet = {"name": "s", "driver": False, "minReplicas": 1, "maxReplicas": 4, "entrypoint": {"class": "m.S"}}
    head = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "rl"}}
    job = plan(parse({**head, "spec": {"roles": [{"name": "d", "entrypoint": {"class": "m.D"}}, fleet]}}))
    (fault,) = load_faults(write(tmp_path, "- {when: {step: 1}, target: s/3, fault: kill}\n"), job)
    assert target_of(fault.target, job) == Target("s", (3,))
    (said,) = problems(tmp_path, "- {when: {step: 1}, target: s/4, fault: kill}\n", job)
    assert said == "1:29: [0].target: 's/4' is no rank of the job (s/0 to s/3)"


def test_all_problems_of_a_fault_file_are_told_at_once(rl: JobPlan, tmp_path: Path) -> None:
    text = (
        "- {when: {step: 15}, target: rolout/1, fault: kill}\n"
        "- {when: {step: 15}, target: rollout/2, fault: kill}\n"
        "- {when: {step: -1}, target: rollout/x, fault: kil}\n"
        "- {wen: {step: 1}, target: master, fault: stop}\n"
        "- {when: {stp: 1}, target: master/0, fault: kill}\n"
        "- {when: 3, target: node/2, fault: oom}\n"
        "- kill master\n"
        "- {when: {time: 1, step: 2}, target: node/abc, fault: kill}\n"
        "- {when: {}, target: driver, fault: kill, seconds: 3, factor: 2}\n"
        "- {when: {time: 1, count: 2}, target: driver, fault: slow}\n"
        "- {when: {event: Restartin}, target: driver, fault: stop, factor: 3, expect: {}}\n"
        "- {when: {step: 1.5}, target: 7, fault: kill, expect: {cause: OOM, level: Pod}}\n"
    )
    assert problems(tmp_path, text, rl) == [
        "1:30: [0].target: there is no role 'rolout' in job rl (did you mean rollout?)",
        "2:30: [1].target: 'rollout/2' is no rank of the job (rollout/0 to rollout/1)",
        "3:17: [2].when.step: must be at least 0, not -1",
        "3:30: [2].target: 'rollout/x' is no rank of the job (rollout/0 to rollout/1)",
        '3:48: [2].fault: must be one of kill, stop, oom, slow, leave, cut; not "kil" (did you mean kill?)',
        "4:3: [3].when: is missing",
        "4:4: [3].wen: unknown field (did you mean when?)",
        "4:43: [3].fault: a master takes kill, not stop",
        "5:11: [4].when.stp: unknown field (did you mean step?)",
        "5:28: [4].target: there is one master (write master)",
        "6:10: [5].when: must be a mapping, not 3 (its fields are time, step, event, count)",
        "6:21: [5].target: node '2' is not one of 2; before a job runs, nodes have numbers only (node/0 to node/1)",
        "6:36: [5].fault: a node takes kill, stop, leave and cut, not oom",
        '7:3: [6]: must be a mapping, not "kill master" (its fields are when, target, fault, seconds, factor, expect)',
        "8:10: [7].when: one of time, step and event, not time and step (write {step: 15}, {time: 60} or {event: ...})",
        "8:38: [7].target: node 'abc' is not one of 2; before a job runs, nodes have numbers only (node/0 to node/1)",
        "9:10: [8].when: one of time, step and event, not none of them (write {step: 15}, {time: 60} or {event: ...})",
        "9:43: [8].seconds: kill takes no time (for stop, slow, leave and cut)",
        "9:55: [8].factor: kill has no factor (for slow)",
        "10:3: [9]: slow needs 'seconds' (for so many seconds)",
        "10:3: [9]: slow needs 'factor' (so many times slower, at least 2)",
        "10:20: [9].when.count: counts events (time comes once)",
        "11:18: [10].when.event: there is no event 'Restartin' (did you mean Restarting?)",
        "11:59: [10].factor: stop has no factor (for slow)",
        "11:78: [10].expect: expects nothing (give cause, target or level, or leave it out)",
        "12:17: [11].when.step: must be a whole number, not 1.5",
        '12:31: [11].target: must be a text, not 7 (write "7")',
        f'12:63: [11].expect.cause: must be one of {", ".join(get_args(FaultCause))}; not "OOM"',
        f'12:75: [11].expect.level: must be one of {", ".join(get_args(FaultLevel))}; not "Pod"',
    ]


def test_nodes_of_a_running_job_have_names(rl: JobPlan, tmp_path: Path) -> None:
    nodes = ("aa11", "ab22")
    file = write(tmp_path, "- {when: {time: 1}, target: node/ab, fault: kill}\n")
    assert load_faults(file, rl, nodes)[0].target == "node/ab"
    text = "- {when: {time: 1}, target: node/a, fault: kill}\n"
    assert problems(tmp_path, text, rl, nodes) == [
        "1:29: [0].target: 'a' is not one node of the job (node/0 to node/1, or aa11, ab22)"
    ]


@pytest.mark.parametrize("text", ["step: 1\n", "- {when: [}\n"])
def test_a_fault_file_that_is_no_list_is_refused(text: str, rl: JobPlan, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"faults.yaml:1:"):
        load_faults(write(tmp_path, text), rl)


def test_a_fault_file_that_cannot_be_read_is_refused(rl: JobPlan, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*: No such file"):
        load_faults(tmp_path / "none.yaml", rl)
    (tmp_path / "faults.yaml").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="cannot read"):
        load_faults(tmp_path / "faults.yaml", rl)


def test_a_target_names_master_node_role_or_rank(rl: JobPlan) -> None:
    assert target_of("master", rl) == Target("master")
    assert target_of("node/1", rl) == Target("node", node="1")
    assert target_of("rollout/1", rl) == Target("rollout", (1,))
    assert target_of("rollout", rl) == Target("rollout", (0, 1))


def test_nodes_are_counted_by_what_they_hold() -> None:
    order = ranked(["b", "", "b", "a"], ["d", "a", "c", "b"])
    assert order == ("b", "a", "c", "d")
    assert chosen("1", order) == "a"
    assert chosen("c", order) == "c"
    assert chosen("4", order) is None


def test_the_examples_of_the_pages_are_right(tmp_path: Path) -> None:
    roles = [
        {"name": "driver", "entrypoint": {"class": "m.D"}},
        {"name": "rollout", "replicas": 2, "driver": False, "entrypoint": {"class": "m.R"}},
        {"name": "trainer", "replicas": 2, "driver": False, "entrypoint": {"class": "m.T"}},
    ]
    head = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "rl"}}
    made = plan(parse({**head, "spec": {"roles": roles}}))
    docs = Path(__file__).resolve().parents[3] / "docs"
    for page in (docs / "howto" / "faults.md", docs / "reference" / "faults.md"):
        (block,) = [part.split("```")[0] for part in page.read_text().split("```yaml\n")[1:]]
        assert len(load_faults(write(tmp_path, block), made)) >= 3


def test_each_level_and_cause_of_the_master_can_be_expected_in_a_fault_file() -> None:
    assert {level.value for level in Level} <= set(get_args(FaultLevel))
    assert {reason.value for reason in Reason} <= set(get_args(FaultCause))


def test_a_queue_is_a_target_by_its_name_unless_a_role_is_called_so(rl: JobPlan, tmp_path: Path) -> None:
    (fault,) = load_faults(write(tmp_path, "- {when: {step: 1}, target: queue/groups, fault: kill}\n"), rl)
    assert target_of(fault.target, rl) == Target("queue", queue="groups")
    text = "- {when: {step: 1}, target: queue, fault: kill}\n- {when: {step: 1}, target: queue/groups, fault: oom}\n"
    assert problems(tmp_path, text, rl) == [
        "1:29: [0].target: the queue has no name (write queue/NAME, with the name that DataQueue gets)",
        "2:50: [1].fault: a queue takes kill, not oom",
    ]


def test_only_a_node_leaves_and_only_with_its_seconds(rl: JobPlan, tmp_path: Path) -> None:
    text = (
        "- {when: {step: 1}, target: node/0, fault: leave}\n"
        "- {when: {step: 1}, target: rollout/1, fault: leave, seconds: 5}\n"
    )
    assert problems(tmp_path, text, rl) == [
        "1:3: [0]: leave needs 'seconds' (as many as lie between announcement and end)",
        "2:47: [1].fault: a rank takes kill, stop, oom and slow, not leave",
    ]


def test_pods_and_the_operator_are_targets_beside_nodes(rl: JobPlan, tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "- {when: {time: 0}, target: pod/1, fault: kill}\n"
        "- {when: {time: 0}, target: node/0, fault: cut, seconds: 5}\n"
        "- {when: {time: 0}, target: operator, fault: kill}\n",
    )
    assert [target_of(f.target, rl) for f in load_faults(file, rl)] == [
        Target("node", node="1", pod=True),
        Target("node", node="0"),
        Target("operator"),
    ]
    wrong = (
        "- {when: {time: 0}, target: pod/9, fault: kill}\n"
        "- {when: {time: 0}, target: node/0, fault: cut}\n"
        "- {when: {time: 0}, target: operator/1, fault: kill}\n"
        "- {when: {time: 0}, target: operator, fault: stop}\n"
        "- {when: {time: 0}, target: rollout/1, fault: cut, seconds: 5}\n"
        "- {when: {time: 0}, target: operators, fault: kill}\n"
    )
    assert problems(tmp_path, wrong, rl) == [
        "1:29: [0].target: node '9' is not one of 2; before a job runs, nodes have numbers only (node/0 to node/1)",
        "2:3: [1]: cut needs 'seconds' (as many as nothing that the node sends arrives)",
        "3:29: [2].target: all replicas of the operator are meant (write operator)",
        "4:46: [3].fault: an operator takes kill, not stop",
        "5:47: [4].fault: a rank takes kill, stop, oom and slow, not cut",
        "6:29: [5].target: there is no role 'operators' in job rl (did you mean operator?)",
    ]


def test_roles_may_be_called_like_the_targets_of_clusters(tmp_path: Path) -> None:
    roles = [
        {"name": "pod", "replicas": 2, "entrypoint": {"class": "m.D"}},
        {"name": "operator", "driver": False, "entrypoint": {"class": "m.R"}},
    ]
    head = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "rl"}}
    job = plan(parse({**head, "spec": {"roles": roles}}))
    text = "- {when: {time: 0}, target: pod/1, fault: oom}\n- {when: {time: 0}, target: operator, fault: oom}\n"
    found = load_faults(write(tmp_path, text), job)
    assert [target_of(f.target, job) for f in found] == [Target("pod", (1,)), Target("operator", (0,))]
