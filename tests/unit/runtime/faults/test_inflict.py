"""Faults of a file done to a job: when, to which processes, what came of it, and who else was touched."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from dljob.master.state.views import Clue
from dljob.plan.model import JobPlan
from dljob.plan.plan import plan
from dljob.runtime.faults import signals
from dljob.runtime.faults.injector import STEP_S, FaultInjector, describe, excused
from dljob.spec.loading import faults
from dljob.spec.loading.load import parse

NAMES = ("driver/0", "rollout/0", "rollout/1", "trainer/0", "trainer/1", "trainer/2", "trainer/3")
NODES = {"n-a": 1001, "n-b": 1002}


@pytest.fixture(scope="module")
def rl() -> JobPlan:
    roles = [
        {"name": "driver", "entrypoint": {"class": "m.D"}},
        {"name": "rollout", "replicas": 2, "driver": False, "entrypoint": {"class": "m.R"}},
        {"name": "trainer", "replicas": 4, "replicasPerGroup": 2, "driver": False, "entrypoint": {"module": "t"}},
    ]
    head = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "rl"}}
    return plan(parse({**head, "spec": {"roles": roles}}))


class Noted:
    """A hand that only says what it did."""

    def __init__(self) -> None:
        self.did: list[tuple[object, ...]] = []

    def kill(self, pids: Iterable[int]) -> None:
        self.did.append(("kill", *pids))

    def stop(self, pids: Iterable[int], seconds: float | None) -> None:
        self.did.append(("stop", seconds, *pids))

    def leave(self, node: str, raylet: int, seconds: int) -> None:
        self.did.append(("leave", node, raylet, seconds))

    def slow(self, pids: Iterable[int], factor: int, seconds: float) -> None:
        self.did.append(("slow", factor, seconds, *pids))

    def close(self) -> None:
        self.did.append(("close",))


class World:
    """A job whose processes are numbers: rollout/1 is 103; `n-a` holds rollouts, `n-b` the rest."""

    def __init__(self, rl: JobPlan, text: str, *, begin: float | None = None) -> None:
        self.pids_now = {"master": 100, **{name: 101 + i for i, name in enumerate(NAMES)}}
        self.hand = Noted()
        self.heard: list[tuple[str, int, str]] = []
        self.faults: list[dict[str, Any]] = []
        self.ended: set[str] = set()
        self.raylets: Mapping[str, int] = NODES
        self.inflictor = FaultInjector(
            faults.parse(text, lambda *_: ()),
            rl,
            self,
            begin=begin,
            hand=self.hand,  # type: ignore[arg-type]
            raylets=lambda: self.raylets,
        )

    def pids(self) -> dict[str, int]:
        return dict(self.pids_now)

    def learned(self, target: str, incarnation: int, clue: Clue) -> None:
        self.heard.append((target, incarnation, clue.text))

    def told(self, target: str, *, level: str = "Process", cause: str = "Unknown", well: bool = True) -> None:
        """The job tells of a restart that has just begun, and of its end."""
        at = datetime.fromtimestamp(time.time() + 0.01, UTC).isoformat(timespec="milliseconds")
        row = {"reason": cause, "target": target, "level": level, "detectedAt": at, "recoveredAt": at if well else None}
        self.faults.append(row)

    def at(self, step: int | None, *notes: str, phase: str = "Running", ready: int = 7) -> list[str]:
        return self.inflictor.observe(
            self.status(step, phase=phase, ready=ready), [{"reason": n, "time": time.time()} for n in notes]
        )

    def status(self, step: int | None, *, phase: str = "Running", ready: int = 7) -> dict[str, Any]:
        ranks = [
            {
                "role": name.split("/")[0],
                "rank": int(name.split("/")[1]),
                "pid": self.pids_now.get(name, 0),
                "incarnation": 5,
                "phase": "Succeeded" if name in self.ended else "Ready",
                "node": "n-a" if name.startswith("rollout") else "n-b",
            }
            for name in NAMES
        ]
        return {
            "phase": phase,
            "progress": {"step": step},
            "roles": [{"name": "all", "desired": 7, "ready": ready, "succeeded": 0}],
            "ranks": ranks,
            "units": [{"name": "u", "node": "n-b"}, {"name": "v", "node": "n-a"}],
            "recentFaults": list(self.faults),
        }


def test_a_fault_waits_for_its_step_and_comes_once(rl):
    world = World(rl, "- {when: {step: 15}, target: rollout/1, fault: kill}")
    assert world.at(None) == []
    assert world.at(14) == []
    (line,) = world.at(16)
    assert line == "kill rollout/1 at step 15"
    assert world.hand.did == [("kill", 103)]
    assert world.at(17) == []
    assert world.inflictor.done


def test_a_fault_that_nobody_knows_kills_nothing(rl):
    world = World(rl, "- {when: {step: 15}, target: rollout/1, fault: kill}")
    (fault,) = world.inflictor._faults
    world.inflictor._waiting = {0: fault.model_copy(update={"fault": "melt"})}
    with pytest.raises(ValueError, match="unknown fault 'melt'"):
        world.at(16)
    assert world.hand.did == []


def test_faults_come_by_time_since_the_job_runs_and_by_events(rl):
    text = (
        "- {when: {time: 0}, target: rollout, fault: stop, seconds: 7}\n"
        "- {when: {event: Restarting, count: 2}, target: trainer/3, fault: slow, factor: 4, seconds: 3}\n"
    )
    world = World(rl, text)
    assert world.at(1) == []
    assert world.inflictor.patience(time.time()) == float("inf")
    assert world.at(1, "JobRunning") == ["stop rollout for 7 s after 0 s"]
    world.at(1, "Restarting", "Recovered")
    assert world.hand.did == [("stop", 7, 102, 103)]
    assert world.at(1, "Restarting") == ["slow trainer/3 4 times for 3 s at Restarting"]
    assert world.hand.did[1:] == [("slow", 4, 3, 107)]


def test_a_fault_that_waits_for_a_step_is_looked_at_often(rl):
    text = "- {when: {step: 4}, target: master, fault: kill}\n- {when: {time: 5}, target: master, fault: kill}\n"
    begin = time.time()
    world = World(rl, text, begin=begin)
    assert world.inflictor.patience(begin) == STEP_S
    assert world.inflictor.patience(begin + 4.9) == pytest.approx(0.1)


def test_time_counts_from_the_order_when_there_is_one(rl):
    begin = time.time()
    world = World(rl, "- {when: {time: 60}, target: master, fault: kill}", begin=begin)
    assert world.inflictor.patience(begin + 10) == pytest.approx(50)
    assert world.inflictor.patience(begin + 70) == 0
    assert world.at(1, "JobRunning") == []


def test_incidents_before_the_order_are_not_compared(rl):
    world = World(rl, "- {when: {time: 0}, target: rollout/1, fault: kill}", begin=time.time() + 5)
    world.told("driver/0", well=False)
    assert world.inflictor.finish(world.status(1))["unasked"] == []


def test_a_rank_that_the_kernel_would_kill_has_its_line(rl):
    world = World(rl, "- {when: {step: 1}, target: rollout, fault: oom}")
    world.at(1)
    assert world.hand.did == [("kill", 102, 103)]
    assert [(who, incarnation) for who, incarnation, _ in world.heard] == [("rollout/0", 5), ("rollout/1", 5)]
    assert "Out of memory: Killed process 102 " in world.heard[0][2]


def test_nodes_are_killed_by_their_raylet_and_stopped_whole(rl, monkeypatch):
    monkeypatch.setattr("dljob.runtime.faults.means.processes_of_node", lambda raylet: [raylet, 7, 8])
    world = World(
        rl,
        "- {when: {step: 1}, target: node/0, fault: kill}\n- {when: {step: 2}, target: node/n-a, fault: stop}\n",
    )
    world.at(1)
    world.at(2)
    assert world.hand.did == [("kill", 1002), ("stop", None, 1001, 7, 8)]


def test_the_keeper_of_a_queue_is_killed_once_it_is_there_and_no_incident_is_waited_for(rl):
    world = World(rl, "- {when: {step: 1}, target: queue/groups, fault: kill}\n")
    assert world.at(1) == []
    world.pids_now["queue/groups"] = 300
    assert world.at(2) == ["kill queue/groups at step 1"]
    assert world.hand.did == [("kill", 300)]
    world.pids_now["queue/groups"] = 301
    assert world.inflictor.settled(world.status(3), time.time() + 1)
    assert world.inflictor.finish(world.status(3))["pids_kept"]


def test_a_node_that_leaves_is_announced_with_its_raylet(rl):
    world = World(rl, "- {when: {step: 1}, target: node/1, fault: leave, seconds: 7}\n")
    assert world.at(1) == ["leave node/1 for 7 s at step 1"]
    assert world.hand.did == [("leave", "n-a", 1001, 7)]


def test_a_rank_that_went_to_another_machine_is_not_looked_for_here(rl):
    world = World(rl, "- {when: {step: 1}, target: rollout/1, fault: kill}")
    world.raylets = {"n-b": 1002}
    assert world.at(1) == []
    assert world.hand.did == []
    world.raylets = NODES
    world.at(1)
    assert world.hand.did == [("kill", 103)]


def test_a_node_that_is_gone_is_waited_for(rl):
    world = World(rl, "- {when: {step: 1}, target: node/n-a, fault: kill}")
    world.raylets = {"n-b": 1002}
    assert world.at(1) == []
    assert not world.inflictor.done


def test_a_victim_without_a_process_is_waited_for(rl):
    world = World(
        rl, "- {when: {step: 1}, target: rollout/1, fault: kill}\n- {when: {step: 1}, target: master, fault: kill}"
    )
    gone, master = world.pids_now.pop("rollout/1"), world.pids_now.pop("master")
    assert world.at(1) == []
    world.pids_now |= {"rollout/1": gone, "master": master}
    assert len(world.at(1)) == 2


def test_a_role_is_hit_as_a_whole_but_for_those_that_have_ended(rl):
    world = World(rl, "- {when: {step: 1}, target: trainer, fault: kill}")
    del world.pids_now["trainer/0"]
    world.ended.add("trainer/0")
    gone = world.pids_now.pop("trainer/2")
    assert world.at(1) == []
    world.pids_now["trainer/2"] = gone
    world.at(1)
    assert world.hand.did == [("kill", 105, 106, 107)]


def test_faults_are_settled_once_they_are_reported_and_recovered(rl):
    world = World(rl, "- {when: {step: 1}, target: rollout/1, fault: kill}")
    world.at(1)
    now = time.time()
    assert not world.inflictor.settled(world.status(1), now), "nothing was told yet"
    world.told("rollout/1", well=False)
    world.at(2)
    assert not world.inflictor.settled(world.status(2), now)
    world.faults[0]["recoveredAt"] = world.faults[0]["detectedAt"]
    world.at(3)
    assert not world.inflictor.settled(world.status(3, ready=6), now)
    assert not world.inflictor.settled(world.status(3, phase="Recovering"), now)
    assert world.inflictor.settled(world.status(3), now)


def test_a_fault_that_is_never_reported_is_given_up(rl):
    world = World(rl, "- {when: {step: 1}, target: rollout/1, fault: kill}")
    world.at(1)
    assert world.inflictor.settled(world.status(1), time.time() + 61)


def test_a_stopped_target_is_waited_for(rl):
    world = World(rl, "- {when: {step: 1}, target: rollout/1, fault: stop, seconds: 30}")
    world.at(1)
    assert not world.inflictor.settled(world.status(1), time.time() + 20)
    assert world.inflictor.settled(world.status(1), time.time() + 31)


def test_the_report_says_what_was_expected(rl):
    text = (
        "- {when: {step: 1}, target: rollout/1, fault: kill, expect: {cause: Unknown, level: Process}}\n"
        "- {when: {step: 2}, target: trainer/2, fault: kill, expect: {level: Role}}\n"
        "- {when: {step: 9}, target: master, fault: kill}\n"
    )
    world = World(rl, text)
    world.at(1)
    world.told("rollout/1")
    world.at(2)
    world.told("trainer/2", level="RoleGroup", cause="OOMKilled")
    told = world.inflictor.finish(world.status(2))
    assert [row["problem"] for row in told["faults"]] == [
        "",
        "expected level Role; the job reported OOMKilled of trainer/2 at level RoleGroup",
        "it was never injected",
    ]
    assert [row["met"] for row in told["faults"]] == [True, False, True]
    assert told["pids_kept"] is True


def test_a_bystander_with_another_process_is_told(rl):
    world = World(rl, "- {when: {step: 1}, target: trainer/1, fault: kill}")
    world.at(1)
    world.pids_now |= {"trainer/0": 201, "trainer/1": 202, "trainer/2": 203, "driver/0": 204}
    world.told("trainer/0", level="RoleGroup")
    world.at(2)
    assert world.inflictor.moved == ["driver/0 after trainer/1", "trainer/2 after trainer/1"]


def test_a_fault_from_which_the_job_ended_is_still_compared(rl):
    world = World(rl, "- {when: {step: 1}, target: rollout/1, fault: kill}")
    world.at(1)
    world.pids_now["rollout/0"] = 300
    told = world.inflictor.finish(world.status(2, phase="Succeeded"))
    assert (told["pids_kept"], world.inflictor.moved) == (False, ["rollout/0 after rollout/1"])


def test_the_ranks_that_a_fault_may_restart_follow_from_the_level():
    def job(level: str) -> JobPlan:
        role = {"name": "a", "replicas": 4, "replicasPerGroup": 2, "entrypoint": {"module": "a"}}
        role["restartPolicy"] = {"level": level}
        other = {"name": "b", "entrypoint": {"module": "b"}}
        return plan(parse({"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "j"},
                           "spec": {"roles": [role, other]}}))  # fmt: skip

    assert excused(["a/2", "master", "node"], job("Process")) == {"a/2", "a/3"}
    assert excused(["a/2"], job("Role")) == {"a/0", "a/1", "a/2", "a/3"}
    assert excused(["a/2"], job("Job")) == {"a/0", "a/1", "a/2", "a/3", "b/0"}


def test_a_fault_is_described_in_words(rl):
    (one,) = faults.parse("- {when: {step: 1}, target: a, fault: slow, factor: 4, seconds: 3}", lambda *_: ())
    assert describe(one) == "slow a 4 times for 3 s"


def test_the_raylets_of_one_ray_are_found_by_its_address(tmp_path):
    def process(pid: int, *words: str) -> None:
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_text("\0".join((*words, "")))

    process(1, "/usr/lib/raylet", "--node_id=aa", "--gcs-address=127.0.0.1:1")
    process(2, "/usr/lib/raylet", "--node_id=bb", "--gcs-address=127.0.0.1:2")
    process(3, "/usr/lib/raylet", "--node_id=cc", "--gcs-address=127.0.0.1:1", "--head")
    process(4, "/usr/bin/python", "raylet", "--node_id=dd", "--gcs-address=127.0.0.1:1")
    (tmp_path / "5").mkdir()
    (tmp_path / "self").mkdir()
    assert signals.raylets_here("127.0.0.1:1", tmp_path) == {"aa": 1}


def test_a_pod_that_is_deleted_is_told_of_as_the_operator_does_where_there_is_none(rl):
    world = World(rl, "- {when: {step: 1}, target: pod/1, fault: kill}")
    assert world.at(1) == ["kill pod/1 at step 1"]
    assert world.heard == [("node/n-a", 0, "Deleted: somebody deleted it")]
    assert world.hand.did == [("kill", 1001)]


def test_a_node_that_is_cut_off_is_stopped_where_nodes_share_a_network(rl, monkeypatch):
    monkeypatch.setattr("dljob.runtime.faults.means.processes_of_node", lambda raylet: [raylet, 7])
    world = World(rl, "- {when: {step: 1}, target: node/1, fault: cut, seconds: 9}")
    world.at(1)
    assert world.hand.did == [("stop", 9, 1001, 7)]


def test_where_there_is_no_operator_nothing_is_done_and_nothing_waited_for(rl):
    world = World(rl, "- {when: {step: 1}, target: operator, fault: kill}")
    assert world.at(1) == ["kill operator at step 1"]
    assert (world.hand.did, world.heard) == ([], [])
    assert world.inflictor.settled(world.status(3), time.time() + 1)
    assert world.inflictor.finish(world.status(3))["pids_kept"]


def test_a_due_fault_without_a_process_is_told_of_once(rl, monkeypatch):
    world = World(rl, "- {when: {step: 1}, target: rollout/1, fault: kill}")
    now = time.time()
    monkeypatch.setattr(world.inflictor, "_clock", lambda: now)
    del world.pids_now["rollout/1"]
    assert world.at(1) == []
    now += 31
    assert world.at(1) == ["kill rollout/1 waits: it is due since 30 s, and rollout/1 has no process"]
    now += 31
    assert world.at(1) == []
    world.pids_now["rollout/1"] = 400
    assert world.at(1) == ["kill rollout/1 at step 1"]
