"""PrimeMaster's watch over slowness: reads heartbeats, looks at processes, tells the core what has changed."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from dljob.master.state import events as ev
from dljob.master.state.hang import ProcessSample, Where
from dljob.master.state.problems import StandingProblem
from dljob.master.state.state import RankPhase
from dljob.master.state.views import HostId
from dljob.plan.amounts import GRAIN
from dljob.runtime.controller import slowness_watch
from dljob.runtime.controller.slowness_watch import SlownessWatch
from dljob.runtime.node.stacks import ProcessStack
from dljob.tasks import TaskOwner
from dljob.telemetry import reasons

QUICK, SLOW = 0.1, 2.5
LOADER = "thread\n    _next_data (torch/utils/data/dataloader.py:7)\n"


class Scene:
    """A trainer of two ranks that train as one world, a reward role of one, and the watch over both."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = 1000.0
        self.offered: list[ev.ProblemReported] = []
        self.heartbeats: Any = SimpleNamespace(progress={}, usage={}, activities={})
        keys = [("t", 0), ("t", 1), ("r", 0)]
        roles = {
            name: SimpleNamespace(is_torch_world=name == "t", ranks=range(count))
            for name, count in (("t", 2), ("r", 1))
        }
        plans = {
            "t": SimpleNamespace(per_rank=(("memory", 300 * 2**20 * GRAIN),)),
            "r": SimpleNamespace(per_rank=()),
        }
        self.state: Any = SimpleNamespace(
            verdict=None,
            running_at=1.0,
            problems=(),
            ranks={key: SimpleNamespace(phase=RankPhase.READY, incarnation=1, has_worked=True) for key in keys},
            hosts={HostId(role, rank): SimpleNamespace(actor=f"{role}{rank}") for role, rank in keys},
            job=SimpleNamespace(roles=roles, plan=SimpleNamespace(roles=plans)),
        )
        self.sees: dict[int, ProcessStack] = {}
        self.looks = 0
        self.looks_a_step = 1
        self.paces = {key: QUICK for key in keys if key[0] == "t"}
        self.counts = dict.fromkeys(keys, 0.0)
        self.usage: dict[str, Any] = {}
        """Rank -> parts of its usage that are not the usual ones."""
        monkeypatch.setattr(slowness_watch, "PAUSE_S", 0)
        monkeypatch.setattr(slowness_watch, "PAUSE_STEPS", 0)
        monkeypatch.setattr(slowness_watch.RankSampler, "sample", self._sample)
        self.owner = TaskOwner(lambda _: None)
        backend: Any = None
        self.watch = SlownessWatch(
            *(backend, self._offer, lambda: self.state, self.heartbeats), owner=self.owner, now=lambda: self.clock
        )

    async def _offer(self, event: ev.ProblemReported) -> None:
        self.offered.append(event)
        rest = [one for one in self.state.problems if (one.reason, one.target) != (event.reason, event.target)]
        new = [StandingProblem(event.reason, event.target, event.message, self.clock)] if event.message else []
        self.state.problems = (*rest, *new)

    async def _sample(self, keys: Any, *, stacks: bool) -> Any:
        assert stacks
        self.looks += 1
        for key in self.paces:  # until the next second
            self.heartbeats.progress[key] = self.looks // self.looks_a_step, {}
        return {(role, rank): self.sees[rank] for role, rank in keys if role == "t" and rank in self.sees}

    async def passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock += 1.0
            for key, pace in self.paces.items():
                self.counts[key] += 1.0 / pace
                self.heartbeats.progress[key] = int(self.counts[key]), {}
            if self.clock % 10 == 0:
                self._measure()
            await self.watch.turn()
            for _ in range(20):
                await asyncio.sleep(0)

    def _measure(self) -> None:
        for role, rank in self.state.ranks:
            usual = {
                "resident": [[rank, 100]],
                "pressure": [[rank, self.clock, 10 * self.clock, 0, 0, 0, 0, 0]],
                "machine": [1.0, 2, 5000],
            }
            made = {name: row(self.clock) for name, row in self.usage.get(f"{role}/{rank}", {}).items()}
            self.heartbeats.usage[f"{role}{rank}"] = role, {**usual, **made}

    def told(self) -> list[tuple[str, str, str]]:
        return [(event.reason, event.target, event.message) for event in self.offered]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def quota_from(begin: float) -> Any:
    """Rows of pressure of rank 1, whose group is held back 90 % of the time."""
    return lambda at: [[1, at, at, 0, 10 * (at - begin), 9 * (at - begin), 900 * (at - begin), 6]]


async def test_a_throttled_rank_is_told_while_it_is_throttled(scene):
    await scene.passes(60)
    assert scene.told() == []
    scene.usage["t/1"] = {"pressure": quota_from(scene.clock)}
    await scene.passes(40)
    words = "t/1 is throttled 90% of the time by its cgroup, whose quota is 0.06 of a CPU"
    assert scene.told() == [(reasons.CPU_THROTTLED, "t", words)]
    scene.usage.clear()
    await scene.passes(60)
    assert scene.told()[1:] == [(reasons.CPU_THROTTLED, "t", "")]
    assert scene.looks == 0


async def test_memory_beyond_that_of_the_role_is_told_again_ever_more_rarely(scene):
    await scene.passes(30)
    scene.usage["t/0"] = {"resident": lambda at: [[0, at]]}
    await scene.passes(600)
    told = [message for reason, _, message in scene.told() if reason == reasons.MEMORY_EXCEEDED]
    assert told[0] == "t/0 uses 1050 MiB of memory: its role's `memory` is 300 MiB"
    assert told[2].startswith("t/0 uses 1230 MiB of memory, and grows by 0.1 MiB a step: its role's")
    assert len(told) == 4, "after 1, 2 and 4 minutes"


async def test_memory_beyond_that_of_the_role_is_told_of_a_script_that_reports_nothing(scene):
    scene.state.ranks["t", 0].has_worked = False
    scene.usage["t/0"] = {"resident": lambda at: [[0, at]]}
    await scene.passes(120)
    assert {(reason, target) for reason, target, _ in scene.told()} == {(reasons.MEMORY_EXCEEDED, "t")}
    scene.usage.clear()
    await scene.passes(60)
    assert scene.told()[-1] == (reasons.MEMORY_EXCEEDED, "t", "")


async def test_memory_of_before_the_first_work_is_no_growth(scene):
    scene.state.ranks["r", 0].has_worked = False
    scene.usage["r/0"] = {"resident": lambda at: [[0, at]], "machine": lambda at: [1, 2, 1300 - at]}
    await scene.passes(90)
    assert scene.told() == []
    scene.state.ranks["r", 0].has_worked = True
    scene.usage["r/0"] = {"resident": lambda at: [[0, 1090]], "machine": lambda at: [1, 2, 210]}
    await scene.passes(30)
    assert scene.told() == []


async def test_memory_that_fills_its_machine_is_told(scene):
    scene.usage["r/0"] = {"resident": lambda at: [[0, at]], "machine": lambda at: [1, 2, 1300 - at]}
    await scene.passes(90)
    assert {reason for reason, _, _ in scene.told()} == {reasons.MEMORY_GROWS}
    assert "r/0 grows by 60 MiB a minute" in scene.told()[0][2]


async def test_a_busy_machine_is_told_where_steps_are_slower(scene):
    scene.usage["t/0"] = {
        "pressure": lambda at: [[0, at, 100 * at, 900 * at, 0, 0, 0, 0]],
        "machine": lambda _: [20.0, 2, 5000],
    }
    await scene.passes(60)
    assert scene.told() == []
    scene.paces["t", 0] = scene.paces["t", 1] = SLOW
    await scene.passes(40)
    ((reason, target, words),) = scene.told()
    assert (reason, target) == (reasons.MACHINE_BUSY, "t")
    assert words.startswith("t/0 waits for a CPU 90% of the time that it wants one (load 20 on 2 CPUs): a step takes")
    assert scene.looks == 0 or not scene.sees


async def test_a_callee_that_takes_longer_is_told(scene):
    await scene.passes(30)
    begin = scene.clock
    scene.paces["t", 0] = scene.paces["t", 1] = SLOW
    for rank in (0, 1):
        scene.usage[f"t/{rank}"] = {
            "noted": lambda at, rank=rank: [["waited:r", rank, 950 * (at - begin)], ["held:x", rank, 1]]
        }
    scene.usage["r/0"] = {"served": lambda at: [[0, 1000 * (at - begin)]]}
    rows = [["main", "main", "", ""], ["t/0:1", "call", "f", ""]]
    report = json.dumps({"rows": [[*row, 0.0, 0.0, f"{row[1]}.py:7 in f", [], [0, 0, 0, 0]] for row in rows]})
    scene.heartbeats.activities["r", 0] = (1, 0.0, report)
    await scene.passes(31)
    scene.heartbeats.activities["r", 0] = (1, 0.0, "nonsense")
    await scene.passes(30)
    ((reason, target, words),) = scene.told()
    assert (reason, target) == (reasons.SLOW_CALLEE, "t")
    assert words.startswith(
        "t/0 waits 95% of its time for r, where r/0 runs calls 100% of the time at call.py:7 in f: a"
    )
    assert words.endswith("; the same holds for t/1")


async def test_the_last_rank_of_a_group_is_told_and_looked_for_ever_more_rarely(scene):
    await scene.passes(30)
    scene.paces["t", 0] = scene.paces["t", 1] = SLOW
    scene.sees = {
        0: ProcessStack(ProcessSample(activity=Where.COLLECTIVE, at_line="t.py:3 in f")),
        1: ProcessStack(ProcessSample(activity=Where.USER, at_line="t.py:9 in read")),
    }
    await scene.passes(40)
    ((reason, target, words),) = scene.told()
    assert (reason, target) == (reasons.SLOW_PEER, "t")
    begin = "t/1 comes last to its group's collectives: the other rank waits for it while it is at t.py:9 in read"
    assert words.startswith(f"{begin}: a step takes")
    assert scene.looks == slowness_watch.LOOKS
    await scene.passes(200)
    assert scene.looks == 3 * slowness_watch.LOOKS
    scene.paces["t", 0] = scene.paces["t", 1] = QUICK
    await scene.passes(60)
    assert scene.told()[-1] == (reasons.SLOW_PEER, "t", "")


async def test_who_comes_last_in_a_single_long_step_is_not_told(scene):
    await scene.passes(30)
    scene.paces["t", 0] = scene.paces["t", 1] = SLOW
    scene.looks_a_step = slowness_watch.LOOKS
    scene.sees = {
        0: ProcessStack(ProcessSample(activity=Where.COLLECTIVE)),
        1: ProcessStack(ProcessSample(activity=Where.USER)),
    }
    await scene.passes(40)
    assert scene.looks == slowness_watch.LOOKS
    assert scene.told() == []


async def test_a_slow_loader_is_told(scene):
    scene.state.job.roles["t"].is_torch_world = False
    await scene.passes(30)
    scene.paces["t", 0] = SLOW
    scene.sees[0] = ProcessStack(ProcessSample(activity=Where.USER, at_line="t.py:5 in main"), LOADER)
    await scene.passes(40)
    ((reason, target, words),) = scene.told()
    assert (reason, target) == (reasons.SLOW_LOADER, "t")
    assert words.startswith("t/0 waits for its DataLoader in 8 of 8 steps, at t.py:5 in main: a step takes")


async def test_slower_steps_without_a_cause_are_nobodys_problem(scene):
    await scene.passes(30)
    scene.paces["t", 0] = scene.paces["t", 1] = SLOW
    await scene.passes(200)
    assert scene.told() == []


async def test_what_an_earlier_master_told_stands_until_this_one_has_measured(scene):
    problems = ((reasons.CPU_THROTTLED, "t"), (reasons.VOLUME_FULL, "job"))
    scene.state.problems = tuple(StandingProblem(*words, "it is", 0.0) for words in problems)
    await scene.passes(80)
    assert scene.told() == []
    await scene.passes(10)
    assert scene.told() == [(reasons.CPU_THROTTLED, "t", "")]


async def test_ranks_that_are_not_at_work_and_jobs_that_do_not_run_are_left_alone(scene):
    scene.usage["t/1"] = {"pressure": quota_from(scene.clock)}
    scene.state.running_at = None
    await scene.passes(60)
    scene.state.running_at = 1.0
    scene.state.ranks["t", 1].has_worked = False
    await scene.passes(60)
    scene.state.ranks["t", 1] = SimpleNamespace(phase=RankPhase.READY, incarnation=1, has_worked=True)
    await scene.passes(15)
    scene.state.ranks["t", 1].incarnation = 2  # its readings begin anew
    await scene.passes(15)
    scene.state.ranks["t", 1].phase = RankPhase.STOPPING
    await scene.passes(60)
    assert scene.told() == []


async def test_the_watch_looks_until_it_is_cancelled(scene, monkeypatch):
    monkeypatch.setattr(slowness_watch, "EVERY_S", 0.001)
    task = asyncio.ensure_future(scene.watch.run())
    scene.usage["t/0"] = {"resident": lambda _: [[0, 900]]}
    for _ in range(200):
        scene.clock += 1
        scene._measure()
        await asyncio.sleep(0.002)
        if scene.offered:
            break
    task.cancel()
    assert scene.told()[0][0] == reasons.MEMORY_EXCEEDED
