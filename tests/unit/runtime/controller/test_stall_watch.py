"""PrimeMaster's watch over waits: reads reports, tells the core what has changed, looks at roots that stand still."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dljob.master.state import events as ev
from dljob.master.state.hang import ProcessSample, Where
from dljob.master.state.state import RankPhase
from dljob.master.state.views import HostId
from dljob.runtime.controller import stall_watch
from dljob.runtime.controller.heartbeat_log import HeartbeatLog
from dljob.runtime.controller.stall_watch import StallWatch
from dljob.runtime.node.stacks import ProcessStack
from dljob.runtime.process.messages import Heartbeat
from dljob.spec.policy import FaultTolerance
from dljob.tasks import TaskOwner

NONE = [0, 0.0, 0.0, 0.0]
"""No steps have been made."""


class Scene:
    """A trainer that waits for a reward role's call, and the watch over both."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **policy: Any) -> None:
        self.clock = 1000.0
        self.offered: list[Any] = []
        self.heartbeats = HeartbeatLog()
        roles = {name: SimpleNamespace(host_of=lambda rank, name=name: HostId(name, rank)) for name in ("t", "r")}
        keys = [(name, 0) for name in roles]
        self.state: Any = SimpleNamespace(
            verdict=None,
            running_at=1.0,
            stalls=(),
            ranks={
                key: SimpleNamespace(phase=RankPhase.READY, incarnation=1, process_ordered_at=0.0, hung_at=0.0)
                for key in keys
            },
            hosts={HostId(*key): SimpleNamespace(actor=f"actor {key[0]}") for key in keys},
            job=SimpleNamespace(
                roles=roles, drivers=("t",), fault_tolerance=FaultTolerance.model_validate({"hang": policy})
            ),
        )
        self.cpu_s = [0.0, 0.0]
        self.root_activity = Where.USER
        self.silent = False
        """Whether the reward role is not heard."""
        self.gil_lines: list[str] = []
        """What the next looks at silent ranks see; no more of them: their node does not answer."""
        monkeypatch.setattr(stall_watch, "PAUSE_S", 0.001)
        monkeypatch.setattr(stall_watch.RankSampler, "sample", self._sample)
        self.owner = TaskOwner(lambda _: None)
        setup: Any = SimpleNamespace(folder=folder)
        backend: Any = None
        self.watch = StallWatch(
            *(setup, backend, self._offer, lambda: self.state, self.heartbeats),
            owner=self.owner,
            now=lambda: self.clock,
        )

    async def _offer(self, event: Any) -> None:
        self.offered.append(event)
        if isinstance(event, ev.StallsFound):
            self.state.stalls = event.stalls

    async def _sample(self, keys: Any, *, stacks: bool) -> Any:
        if stacks and self.silent:
            return {key: ProcessStack(ProcessSample(gil_line=self.gil_lines.pop(0))) for key in keys if self.gil_lines}
        used = self.cpu_s.pop(0) if not stacks and self.cpu_s else 0.0
        return {key: ProcessStack(ProcessSample("", used, self.root_activity), "stack of it\n") for key in keys}

    def hear(self, role: str, *rows: Any, clock: float = 500.0) -> None:
        """Have a rank report, by its node's clock."""
        report = json.dumps({"rows": rows, "uses": {}, "finished": 3})
        for name in ("t", "r"):
            told = {0: (1, clock, report)} if name == role else {}
            beat = Heartbeat(name, f"actor {name}", 1, activities=told)
            assert not list(self.heartbeats.record(self.state, beat, self.clock))

    def wait(self, age: float) -> list[Any]:
        return ["call", "r", "f", 500.0 - age, [9, 0.1, 0.2], [["r", 0, "t/0:p:1"]]]

    def stand(self, age: float) -> None:
        """Have both ranks report a call that lasts for so many seconds."""
        self.hear("t", ["main", "main", "", "", 0.0, 500.0 - age, "t.py:1 in run", [self.wait(age)], NONE])
        self.hear("r", ["t/0:p:1", "call", "f", "", 500.0 - age, 500.0 - age, "r.py:2 in f", [], NONE])

    async def turn(self, seconds: float = 0.0) -> None:
        self.clock += seconds
        for name in ("t",) if self.silent else ("t", "r"):
            list(self.heartbeats.record(self.state, Heartbeat(name, f"actor {name}", 1), self.clock))
        await self.watch.turn()


async def test_a_stall_is_told_once_and_its_end_is_too(tmp_path, monkeypatch):
    scene = Scene(tmp_path, monkeypatch)
    scene.stand(50.0)
    await scene.turn()
    await scene.turn(5.0)
    assert not scene.offered
    await scene.turn(6.0)
    await scene.turn(1.0)
    (told,) = scene.offered
    assert told.stalls[0].sentence == "t/0 has waited {} for r/0.f, which runs at r.py:2 in f"
    assert told.stalls[0].since == pytest.approx(950.0)
    assert told.stalls[0].root == "r/0"
    scene.hear("t")
    scene.hear("r", ["idle", "idle", "", "", 499.0, 499.0, "", [], NONE])
    await scene.turn(2.0)
    assert scene.offered[1:] == [ev.StallsFound(())]


@pytest.mark.parametrize(
    ("kind", "phase", "is_circle"),
    [
        ("Ready", RankPhase.STARTING, True),
        ("Complete", RankPhase.READY, True),
        ("Ready", RankPhase.READY, False),
    ],
)
async def test_who_calls_a_role_that_starts_after_it_is_in_a_circle(kind, phase, is_circle, tmp_path, monkeypatch):
    scene, was_ready = Scene(tmp_path, monkeypatch), phase is RankPhase.READY
    for name, depends_on in (("t", ()), ("r", (("t", kind),))):
        role = scene.state.job.roles[name]
        role.plan, role.ranks = SimpleNamespace(depends_on=depends_on), (0,)
    scene.state.roles = {"t": SimpleNamespace(was_ready=was_ready)}
    scene.state.ranks["t", 0].phase, scene.state.ranks["r", 0].phase = phase, RankPhase.WAITING
    scene.hear("t", ["main", "main", "", "", 0.0, 485.0, "t.py:1 in setup", [scene.wait(15.0)], NONE])
    await scene.turn()
    assert scene.watch.starting_ranks == (("t/0 waiting for r/0.f at t.py:1 in setup",) if not was_ready else ())
    await scene.turn(6.0)
    stalls = [stall for event in scene.offered for stall in event.stalls]
    assert [stall.is_circle for stall in stalls] == [True] * is_circle
    assert all("r/0 is Waiting: it starts after t" in stall.sentence for stall in stalls)


async def test_a_later_master_lets_a_stall_stand_until_it_knows_the_ranks(tmp_path, monkeypatch):
    scene = Scene(tmp_path, monkeypatch)
    scene.stand(70.0)
    await scene.turn()
    await scene.turn(6.0)
    recorded = scene.state.stalls
    assert recorded
    for stands in (True, False):
        later = Scene(tmp_path, monkeypatch)
        later.state.stalls = recorded
        await later.turn()
        await later.turn(4.0)
        assert not later.offered, "nobody was heard yet"
        if stands:
            later.stand(80.0)
        else:
            later.hear("t", ["main", "main", "", "", 0.0, 499.0, "t.py:1 in run", [], NONE])
            later.hear("r", ["idle", "idle", "", "", 499.0, 499.0, "", [], NONE])
        for _ in range(3):
            await later.turn(2.0)
            assert not later.offered, "a wait must have been known for a while"
        await later.turn(6.0)
        assert later.offered == ([] if stands else [ev.StallsFound(())])
    later = Scene(tmp_path, monkeypatch)
    later.state.stalls = recorded
    await later.turn()
    await later.turn(stall_watch.UNSURE_S + 1.0)
    assert later.offered == [ev.StallsFound(())], "ranks that are never heard hold nobody up"


async def test_reports_of_another_clock_and_nonsense_change_nothing(tmp_path, monkeypatch):
    scene = Scene(tmp_path, monkeypatch)
    scene.stand(10.0)
    await scene.turn()
    scene.clock += 3600.0  # PrimeMaster's clock is set, reports come as before
    scene.stand(12.0)
    await scene.turn()
    assert not scene.offered
    scene.heartbeats.activities["t", 0] = (1, 0.0, "{nonsense")
    await scene.turn(2.0)
    assert not scene.offered


async def until_idle(scene: Scene) -> None:
    while scene.watch._inquiries:
        await stall_watch.asyncio.sleep(0.001)


async def test_an_idle_root_is_reported_as_hung_after_the_idle_bound_with_the_stacks(tmp_path, monkeypatch):
    scene = Scene(tmp_path, monkeypatch)
    scene.stand(170.0)
    await scene.turn()
    await scene.turn(6.0)
    assert [type(event).__name__ for event in scene.offered] == ["StallsFound"]
    await scene.turn(5.0)
    await until_idle(scene)
    hang = scene.offered[-1]
    assert isinstance(hang, ev.HangFound)
    assert (hang.role, hang.rank, hang.incarnation, hang.whole) == ("r", 0, 1, False)
    assert hang.why == "t/0 has waited 181 s for r/0.f, which runs at r.py:2 in f"
    assert (hang.line, hang.finished) == ("r.py:2 in f", 3)
    text = await stall_watch.asyncio.to_thread(Path(hang.stacks).read_text)
    assert text.index("== r/0") < text.index("== t/0")


async def test_a_root_that_works_is_left_until_the_busy_bound(tmp_path, monkeypatch):
    scene = Scene(tmp_path, monkeypatch)
    scene.cpu_s = [0.0, 50.0]
    scene.stand(200.0)
    await scene.turn()
    await scene.turn(6.0)
    await until_idle(scene)
    assert [type(event).__name__ for event in scene.offered] == ["StallsFound"]
    await scene.turn(900.0)
    await until_idle(scene)
    assert isinstance(scene.offered[-1], ev.HangFound)


async def test_a_root_that_a_debugger_holds_is_only_told(tmp_path, monkeypatch):
    scene = Scene(tmp_path, monkeypatch)
    scene.root_activity = Where.DEBUGGER
    scene.stand(2000.0)
    await scene.turn()
    await scene.turn(6.0)
    await until_idle(scene)
    assert [type(event).__name__ for event in scene.offered] == ["StallsFound"]


async def test_the_node_of_a_silent_rank_is_asked_why_until_it_answers_and_again_in_the_next_silence(
    tmp_path, monkeypatch
):
    scene = Scene(tmp_path, monkeypatch)
    scene.stand(10.0)
    await scene.turn()
    scene.silent = True

    async def sentences(*seconds: float) -> list[str]:
        for more in seconds:
            await scene.turn(more)
            await stall_watch.asyncio.sleep(0.01)
        return [stall.sentence.rpartition("; ")[2] for stall in scene.state.stalls]

    unknown = "r/0 does not answer: it is stopped, or C code of it holds the GIL"
    assert await sentences(7.0, 40.0, 20.0) == [unknown], "not asked before 8 s, and no answer at 47 and 67"
    scene.gil_lines = ["r.py:4 in f"]
    assert await sentences(20.0, 2.0) == ["r/0 does not answer: C code that it called at r.py:4 in f holds the GIL"]
    scene.silent = False
    await sentences(2.0)
    scene.silent, scene.gil_lines = True, ["r.py:9 in g"]
    assert await sentences(70.0, 2.0) == ["r/0 does not answer: C code that it called at r.py:9 in g holds the GIL"]
    scene.silent = False
    scene.hear("t")
    scene.hear("r")
    assert await sentences(2.0) == [], "nobody waits"
    scene.stand(10.0)
    scene.silent = True
    assert await sentences(70.0, 6.0) == [unknown], "what was seen in an earlier silence says nothing of this one"


async def test_looks_are_as_rare_as_they_are_dear(tmp_path, monkeypatch):
    scene = Scene(tmp_path, monkeypatch)
    for spent, pause in ((0.001, 2.0), (0.072, 4.0), (3.0, 10.0)):
        moments = iter((5.0, 5.0 + spent))
        monkeypatch.setattr(stall_watch.time, "thread_time", lambda moments=moments: next(moments))
        await scene.turn(2.0)
        assert scene.watch.pause_s == pytest.approx(pause)


async def test_ignore_only_tells(tmp_path, monkeypatch):
    scene = Scene(tmp_path, monkeypatch, action="Ignore")
    scene.stand(2000.0)
    await scene.turn()
    await scene.turn(6.0)
    await until_idle(scene)
    assert [type(event).__name__ for event in scene.offered] == ["StallsFound"]
