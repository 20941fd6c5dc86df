"""PrimeMaster's watch over ranks that stand still: hears steps, has nodes look, writes stacks down, tells the core."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from memory_backend import MemoryBackend, MemoryHost

from dljob.master.state import events as ev
from dljob.master.state import hang
from dljob.master.state.hang import ProcessSample, Where
from dljob.master.state.problems import StandingProblem
from dljob.master.state.state import RankPhase
from dljob.master.state.views import HostId
from dljob.runtime.backend.interface import ActorCallError
from dljob.runtime.controller import hang_watch
from dljob.runtime.controller.hang_watch import HangWatch
from dljob.runtime.node.stacks import DumpTarget, ProcessStack
from dljob.spec.policy import FaultTolerance
from dljob.tasks import TaskOwner
from dljob.telemetry import reasons

UID = "0123456789abcdef" * 2
STOPPED = "process 41 is stopped by a signal (state T)"
WAITS, USER = ProcessSample(activity=Where.COLLECTIVE), ProcessSample(activity=Where.USER)


class Agent(MemoryHost):
    """An agent that sees what the test says."""

    def __init__(self) -> None:
        super().__init__("agent", "n1")
        self.sees: dict[str, ProcessSample] = {}
        self.asked: list[tuple[tuple[str, ...], bool]] = []
        self.pids: dict[str, tuple[int, int]] = {}
        self.broken = False
        self.at_stacks: Callable[[], object] = lambda: None
        """What happens before the stacks are looked at."""

    async def look(self, targets: Sequence[DumpTarget], whole: bool) -> tuple[ProcessStack, ...]:
        self.asked.append((tuple(target.name for target in targets), whole))
        self.pids |= {target.name: (target.pid, target.host_pid) for target in targets}
        if self.broken:
            raise ActorCallError("OSError", "no", "")
        if whole:
            self.at_stacks()
        stack = "thread\n    f (train.py:1)\n" if whole else ""
        return tuple(ProcessStack(self.sees.get(target.name, USER), stack) for target in targets)


class Here:
    """A role of three ranks on one node, and the watch over it."""

    def __init__(self, folder: Path, *, world: bool = True, **policy: Any) -> None:
        self.backend = MemoryBackend()
        self.agent = Agent()
        self.backend.hosts[f"{UID[:8]}/agent/n1"] = self.agent
        self.told: list[Any] = []
        self.progress: dict[tuple[str, int], tuple[int, dict[str, float]]] = {}
        facts = SimpleNamespace(
            is_torch_world=world,
            host_of=lambda rank: HostId("w", 0 if world else rank),
            plan=SimpleNamespace(replicas=3),
            ranks=range(3),
        )
        rank = {"phase": RankPhase.READY, "incarnation": 1}
        self.state = SimpleNamespace(
            verdict=None,
            running_at=1.0,
            ranks={("w", n): SimpleNamespace(**rank, pid=40 + n if world else 0) for n in range(3)},
            hosts={HostId("w", n): SimpleNamespace(node="n1", pid=90 + n) for n in range(3)},
            nodes=("n1",),
            problems=(),
            roles={"w": SimpleNamespace(succeeded_count=0, ready_count=3)},
            job=SimpleNamespace(
                uid=UID, roles={"w": facts}, fault_tolerance=FaultTolerance.model_validate({"hang": policy})
            ),
        )
        setup = SimpleNamespace(folder=folder)
        self.watch = HangWatch(
            setup, self.backend, self._offer, lambda: self.state, self.progress, owner=TaskOwner(print)
        )  # type: ignore[arg-type]
        self.now = 0.0

    async def _offer(self, *events: ev.Event) -> None:
        self.told += events

    async def steps(self, count: int, *ranks: int, each: float = 0.4) -> None:
        """These ranks (all) tell so many steps."""
        for _ in range(count):
            for rank in ranks or (0, 1, 2):
                step = self.progress.get(("w", rank), (0, {}))[0]
                self.progress["w", rank] = step + 1, {}
            await self.passes(each)

    async def passes(self, seconds: float) -> None:
        """Time goes by on a loop that is never late."""
        for _ in range(round(seconds / 0.1)):
            self.now += 0.1
            await self.watch.turn(self.now)
            await self.settled()

    async def settled(self) -> None:
        while self.watch._looking:
            await asyncio.gather(*self.watch._looking.values())
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_watch, "PAUSE_S", 0)
    monkeypatch.setattr(hang_watch, "LONG_PAUSE_S", 0)


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path)


async def test_a_stopped_rank_is_named_within_three_steps_and_the_stacks_of_all_are_in_a_file(here, tmp_path):
    await here.steps(8)
    here.agent.sees["w/1"] = ProcessSample(STOPPED, at_line="t.py:9 in step")
    await here.passes(1.2)
    assert not here.agent.asked, "within three steps nobody looks"
    await here.passes(0.4)
    (event,) = here.told
    path = tmp_path / "stacks" / "w-1-1.txt"
    assert event == ev.HangFound("w", 1, 1, "Hang", event.why, str(path), silent_s=event.silent_s)
    assert 1.5 < event.silent_s < 2.5
    assert STOPPED in event.why
    first, second, *_, last = here.agent.asked
    assert first == second == (("w/0", "w/1", "w/2"), False)
    assert last == (("w/1", "w/0", "w/2"), True)
    assert here.agent.pids["w/2"] == (42, 90)
    text = path.read_text()
    assert text.startswith(f"w/1: {event.why}\n")
    assert [row for row in text.splitlines() if row.startswith("==")] == ["== w/1", "== w/0", "== w/2"]
    assert f"== w/1\n{STOPPED}\nthread\n" in text


async def test_a_reported_hang_is_not_reported_again_before_the_rank_steps(here):
    await here.steps(8)
    here.agent.sees["w/1"] = ProcessSample(STOPPED)
    await here.passes(9)
    assert len(here.told) == 1, "its policy may be to do nothing"
    del here.agent.sees["w/1"]
    await here.steps(3)
    here.agent.sees["w/1"] = ProcessSample(STOPPED)
    await here.passes(9)
    assert len(here.told) == 2


async def test_a_process_that_was_stopped_for_a_moment_is_left_alone_and_found_when_it_stops_for_good(here):
    await here.steps(8)
    here.agent.sees["w/1"] = ProcessSample(STOPPED)
    here.agent.at_stacks = here.agent.sees.clear
    await here.passes(1.7)
    assert any(whole for _, whole in here.agent.asked)
    assert here.told == []
    here.agent.at_stacks = lambda: None
    here.agent.sees["w/1"] = ProcessSample(STOPPED)
    await here.passes(3)
    assert [event.rank for event in here.told] == [1]


async def test_a_rank_that_steps_while_its_stack_is_written_down_is_left_alone(tmp_path):
    here = Here(tmp_path, idleSeconds=5, busySeconds=50)
    await here.steps(8, each=0.1)
    here.agent.sees = dict.fromkeys(("w/0", "w/2"), WAITS)

    def steps() -> None:
        if any(len(names) == 3 and names[0] == "w/1" for names, _ in here.agent.asked):
            here.progress["w", 1] = (9, {})
            here.watch._hear(here.state)  # type: ignore[arg-type]

    here.agent.at_stacks = steps
    await here.passes(12)
    assert here.watch._paces["w"][1].step == 9
    assert here.told == []


async def test_a_silence_that_proves_nothing_is_looked_at_ever_more_rarely(here):
    await here.steps(8)
    here.agent.sees = dict.fromkeys(("w/0", "w/2"), WAITS)
    await here.passes(60)
    assert here.told == []
    assert 10 <= len(here.agent.asked) <= 20, "two for each look"
    assert not any(whole for _, whole in here.agent.asked)


async def test_long_after_the_bound_the_rank_that_did_not_arrive_is_named(tmp_path):
    here = Here(tmp_path, idleSeconds=5, busySeconds=50)
    await here.steps(8, each=0.1)
    here.agent.sees = dict.fromkeys(("w/0", "w/2"), WAITS)
    here.agent.sees["w/1"] = ProcessSample(activity=Where.USER, at_line="t.py:9 in step")
    await here.passes(12)
    (event,) = here.told
    assert (event.rank, event.whole, event.line) == (1, False, "t.py:9 in step")
    assert "2 of 3 ranks wait for it" in event.why


async def test_a_role_in_which_nobody_can_be_named_is_told_as_a_whole(tmp_path):
    here = Here(tmp_path, idleSeconds=5, busySeconds=50)
    await here.steps(8, each=0.1)
    in_collective = ProcessSample(activity=Where.COLLECTIVE, at_line="t.py:8 in step")
    here.agent.sees = dict.fromkeys(("w/0", "w/1", "w/2"), in_collective)
    await here.passes(12)
    (event,) = here.told
    assert (event.rank, event.whole, event.line) == (0, True, ""), "the one that is waited for is not known"


async def test_nobody_is_blamed_while_a_node_is_too_busy_to_look_at_the_rank_that_all_may_wait_for(tmp_path):
    here = Here(tmp_path, idleSeconds=5, busySeconds=50)
    here.state.job.roles["w"].host_of = lambda rank: HostId("w", rank)
    here.state.hosts[HostId("w", 1)].node = "n2"
    await here.steps(8, each=0.1)
    here.agent.sees = dict.fromkeys(("w/0", "w/2"), WAITS)
    await here.passes(12)
    assert any(whole for _, whole in here.agent.asked)
    assert here.told == []
    here.agent.sees["w/2"] = ProcessSample(STOPPED)
    await here.passes(30)
    assert [event.rank for event in here.told] == [2], "a stopped one is proof all the same"


async def test_a_long_silence_that_nobody_can_judge_for_want_of_a_stack_is_reported_once(tmp_path):
    here = Here(tmp_path, idleSeconds=5, busySeconds=50)
    await here.steps(8, each=0.1)
    here.agent.sees = {"w/0": WAITS, "w/1": ProcessSample(), "w/2": WAITS}
    await here.passes(45)
    assert here.told == []
    await here.passes(150)
    said = (
        "no step within any bound of faultTolerance.hang, and whether it is a hang is not known: "
        "the stack cannot be read (`dljob stack` says why) of w/1"
    )
    assert here.told == [ev.NoteReported(reasons.STACKS_UNREADABLE, said)]
    here.agent.sees["w/1"] = ProcessSample(STOPPED)
    await here.passes(100)
    assert [event.rank for event in here.told[1:]] == [1], "a report is no conviction, and does not hinder one"


async def test_ranks_that_step_alone_are_looked_at_alone_and_by_their_host(tmp_path):
    here = Here(tmp_path, world=False)
    await here.steps(8)
    here.agent.sees["w/2"] = ProcessSample(STOPPED)
    await here.steps(8, 0, 1)
    assert here.agent.asked[0] == (("w/2",), False)
    assert here.agent.pids["w/2"] == (92, 92), "a rank of a thread host is its host"
    (event,) = here.told
    assert event.rank == 2


async def test_only_those_who_are_silent_are_looked_at_while_others_of_their_world_step(here):
    await here.steps(8)
    await here.steps(6, 0, 1)
    assert here.agent.asked[0] == (("w/2",), False)
    assert here.told == []


async def test_a_stopped_rank_that_told_this_master_no_step_is_found_all_the_same(here):
    here.agent.sees = {"w/0": WAITS, "w/1": ProcessSample(STOPPED)}
    await here.passes(hang.quiet_every(1) - 1)
    assert here.agent.asked == []
    await here.passes(2)
    (event,) = here.told
    assert (event.rank, event.why) == (1, STOPPED)
    await here.passes(2 * hang.quiet_every(1))
    assert len(here.told) == 1


async def test_a_node_that_does_not_answer_convicts_nobody(here):
    await here.steps(8)
    here.agent.broken = True
    await here.passes(5)
    here.backend.hosts.clear()
    await here.passes(5)
    assert here.told == []


async def test_an_agent_that_answers_is_looked_up_once_and_one_that_does_not_anew(here):
    asked: list[str] = []
    lookup = here.backend.lookup

    async def counted(name: str) -> Any:
        asked.append(name)
        return await lookup(name)

    here.backend.lookup = counted
    await here.steps(8)
    await here.passes(20)
    assert len(here.agent.asked) > 4
    assert len(asked) == 1
    here.agent.broken = True
    await here.passes(20)
    assert len(asked) > 1


async def test_a_rank_restarted_or_ended_meanwhile_is_not_named(here):
    await here.steps(8)
    here.state.ranks["w", 1].incarnation = 2
    here.state.ranks["w", 2].phase = RankPhase.SUCCEEDED
    here.agent.sees = {"w/0": ProcessSample(STOPPED), "w/2": ProcessSample(STOPPED)}
    here.state.ranks["w", 0].phase = RankPhase.STOPPING
    here.progress["w", 1] = (9, {})
    await here.passes(20)
    assert here.told == []
    assert {asked for asked, _ in here.agent.asked} == {("w/1",)}, "its new process told too few steps"


async def test_time_that_this_loop_slept_counts_little_and_nobody_is_judged_before_the_job_runs(here):
    await here.steps(8)
    here.agent.sees["w/1"] = ProcessSample(STOPPED)
    here.now += 3600
    await here.watch.turn(here.now)
    await here.settled()
    assert here.agent.asked == []
    here.state.running_at = None
    await here.passes(5)
    here.state.running_at, here.state.verdict = 1.0, object()
    await here.passes(5)
    assert here.agent.asked == []


async def test_a_straggler_is_told_once_until_it_is_fast_again(tmp_path):
    here = Here(tmp_path, world=False)

    async def odd(rounds: int, *, slow: bool) -> None:
        for turn in range(rounds):
            await here.steps(1, *([0, 1, 2] if turn % 3 == 0 or not slow else [0, 1]), each=0.2)

    await odd(90, slow=True)
    (event,) = here.told
    assert (event.rank, event.kind, event.stacks) == (2, "Straggler", "")
    assert event.why == "median step 0.6 s, 3.0 times that of its role"
    await odd(60, slow=True)
    assert len(here.told) == 1
    others = [StandingProblem(*words, 0.0) for words in (("Straggler", "v/2", ""), ("SlowCallee", "w", ""))]
    here.state.problems = (StandingProblem("Straggler", "w/2", event.why, 0.0), *others)
    await odd(9, slow=True)
    assert len(here.told) == 1, "it stands"
    await odd(60, slow=False)
    assert {*here.told[1:]} == {ev.ProblemReported("Straggler", "w/2")}
    here.state.problems = ()
    here.told.clear()
    await odd(120, slow=True)
    assert len(here.told) == 1


async def test_a_straggler_is_told_once_although_its_peer_restarts_and_anew_once_it_has_restarted_itself(tmp_path):
    here = Here(tmp_path, world=False)

    async def odd(rounds: int) -> None:
        for turn in range(rounds):
            await here.steps(1, *([0, 1, 2] if turn % 3 == 0 else [0, 1]), each=0.2)

    await odd(90)
    assert len(here.told) == 1
    here.state.ranks["w", 0].incarnation = 2
    await odd(90)
    assert len(here.told) == 1, "with too few steps of its peer nobody knows whether it is fast again"
    here.state.ranks["w", 2].incarnation = 2
    await odd(90)
    assert [(event.rank, event.incarnation) for event in here.told] == [(2, 1), (2, 2)]


async def test_stacks_that_cannot_be_written_down_are_no_reason_to_be_silent(tmp_path):
    (tmp_path / "file").write_text("")
    here = Here(tmp_path / "file")
    await here.steps(8)
    here.agent.sees["w/1"] = ProcessSample(STOPPED)
    await here.passes(2)
    assert [event.stacks for event in here.told] == [""]


async def test_many_ranks_stacks_are_cut_and_a_node_that_did_not_look_is_said(here, tmp_path, monkeypatch):
    monkeypatch.setattr(hang_watch, "SHOWN", 2)
    await here.steps(8)
    here.agent.broken = True
    await here.watch._write_down("w", 1, 1, "why")
    text = (tmp_path / "stacks" / "w-1-1.txt").read_text()
    assert "== w/0\nno stack: the agent of its node does not answer" in text
    assert "== w/2" not in text
    assert text.endswith("\n1 more ranks are not shown\n")


@pytest.mark.parametrize("steps", [0, 8])
async def test_a_rank_that_ended_with_code_0_is_named_where_the_others_wait_for_it(tmp_path, steps):
    here = Here(tmp_path, idleSeconds=5, busySeconds=50)
    await here.steps(steps, each=0.1)
    here.state.ranks["w", 1] = SimpleNamespace(phase=RankPhase.SUCCEEDED, incarnation=1, end_step=steps, pid=0)
    here.state.roles["w"] = SimpleNamespace(succeeded_count=1, ready_count=2)
    here.agent.sees = dict.fromkeys(("w/0", "w/2"), ProcessSample(activity=Where.COLLECTIVE, call="barrier"))
    await here.passes(4.5)
    assert here.told == []
    await here.passes(6)
    (event,) = here.told
    assert (event.rank, event.whole, event.kind) == (1, False, "Hang")
    assert event.why == f"ended with code 0 at step {steps}; w/0 and 2 wait for it in barrier: uneven data?"
    assert "== w/0" in (tmp_path / "stacks" / "w-1-1.txt").read_text()


async def test_a_rank_that_still_works_keeps_the_others_waiting_and_not_the_one_that_ended(tmp_path):
    here = Here(tmp_path, idleSeconds=5, busySeconds=500)
    here.state.ranks["w", 1] = SimpleNamespace(phase=RankPhase.SUCCEEDED, incarnation=1, end_step=8, pid=0)
    here.state.roles["w"] = SimpleNamespace(succeeded_count=1, ready_count=2)
    here.agent.sees = {"w/0": WAITS, "w/2": ProcessSample(runs=True, activity=Where.USER)}
    await here.passes(20)
    assert here.told == []
    assert 2 < len(here.agent.asked) < 20, "it looks again, and not all the time"


async def test_the_watch_runs_until_it_is_cancelled_and_not_at_all_where_nobody_shall_look(tmp_path):
    await Here(tmp_path, action="Ignore").watch.run()
    here = Here(tmp_path)
    running = asyncio.create_task(here.watch.run())
    await asyncio.sleep(0.25)
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


class Witnesses:
    """Outside witnesses that say this of role w."""

    def __init__(self, **hanging: str) -> None:
        self.said = {int(rank[1:]): words for rank, words in hanging.items()}
        self.dumped: list[str] = []

    def hanging(self, _role: str) -> dict[int, str]:
        return self.said

    def dump(self, role: str, name: str) -> tuple[str, ...]:
        self.dumped.append(f"{role} {name}")
        return ("/job/stacks/x.dump",)

    async def wait_for_dumps(self) -> None:
        self.dumped.append("waited")


async def test_a_witness_names_the_culprit_where_nobody_could_and_its_dump_is_linked(tmp_path):
    here = Here(tmp_path, idleSeconds=5, busySeconds=50)
    here.watch._witnesses = witnesses = Witnesses(r2="witness timer: it hangs")  # type: ignore[assignment]
    await here.steps(8, each=0.1)
    here.agent.sees = dict.fromkeys(("w/0", "w/1", "w/2"), WAITS)
    await here.passes(12)
    (event,) = here.told
    assert (event.rank, event.whole) == (2, False)
    assert event.why.endswith("; witness timer: it hangs; dumps: /job/stacks/x.dump")
    assert witnesses.dumped == ["w w-2-1", "waited"]
