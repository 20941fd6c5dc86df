"""Looks at ranks: stacks on demand, and living ranks while the cause of a lost peer is looked for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from memory_backend import MemoryBackend, MemoryHost

from dljob.errors import DLJobError, NotFoundError
from dljob.master.state import events as ev
from dljob.master.state import limits
from dljob.master.state.faults import PeerInquiry
from dljob.master.state.hang import ProcessSample, Where
from dljob.master.state.state import RankPhase
from dljob.master.state.views import HostId, Outcome, PeerSample, Reason
from dljob.runtime.controller import stack_collector
from dljob.runtime.controller.stack_collector import PeerWatch, stacks_of
from dljob.runtime.node.stacks import DumpTarget, ProcessStack
from dljob.tasks import TaskOwner

UID = "0123456789abcdef" * 2


class Agent(MemoryHost):
    async def look(self, targets: Sequence[DumpTarget], whole: bool) -> tuple[ProcessStack, ...]:
        assert whole
        return tuple(
            ProcessStack(ProcessSample("it is stopped" if t.name == "b/0" else ""), f"{t.name} {t.pid}\n")
            for t in targets
        )


def state() -> Any:
    """Two roles on two nodes; of the second node there is no agent, and a/1 has ended."""
    ranks = {("a", 0): 10, ("a", 1): 11, ("b", 0): 0, ("b", 1): 21}
    phases = {key: RankPhase.SUCCEEDED if key == ("a", 1) else RankPhase.READY for key in ranks}
    nodes = {("a", 0): "n1", ("a", 1): "n1", ("b", 0): "n1", ("b", 1): "n2"}

    def facts(role: str) -> Any:
        return SimpleNamespace(plan=SimpleNamespace(replicas=2), ranks=(0, 1), host_of=lambda rank: HostId(role, rank))

    return SimpleNamespace(
        job=SimpleNamespace(uid=UID, roles={"a": facts("a"), "b": facts("b")}),
        stalls=(),
        ranks={key: SimpleNamespace(phase=phases[key], pid=pid) for key, pid in ranks.items()},
        hosts={HostId(*key): SimpleNamespace(node=node, pid=99) for key, node in nodes.items()},
    )


@pytest.fixture
def backend() -> MemoryBackend:
    made = MemoryBackend()
    made.hosts[f"{UID[:8]}/agent/n1"] = Agent("agent", "n1")
    return made


async def test_the_stacks_of_a_job_are_those_of_its_ranks_or_why_there_are_none(backend):
    assert await stacks_of(backend, state(), "job") == {
        "a/0": "a/0 10\n",
        "a/1": "no stack: it is Succeeded\n",
        "b/0": "it is stopped\nb/0 99\n",
        "b/1": "no stack: the agent of its node does not answer, or is not there yet\n",
    }


async def test_a_rank_in_setup_shows_its_stack_and_one_without_a_process_says_that_it_starts(backend):
    starts = state()
    starts.ranks["a", 0].phase = starts.ranks["b", 0].phase = RankPhase.STARTING
    starts.hosts[HostId("b", 0)].pid = 0
    stacks = await stacks_of(backend, starts, "job")
    assert (stacks["a/0"], stacks["b/0"]) == ("a/0 10\n", "no stack: it is Starting\n")


async def test_the_rank_that_all_wait_for_comes_first(backend):
    here = state()
    assert next(iter(await stacks_of(backend, here, "job"))) == "a/0"
    here.stalls = (SimpleNamespace(root="b/1"),)
    assert next(iter(await stacks_of(backend, here, "job"))) == "b/1"


async def test_a_role_or_a_rank_can_be_meant_and_nothing_else(backend):
    assert list(await stacks_of(backend, state(), "b")) == ["b/0", "b/1"]
    assert list(await stacks_of(backend, state(), "b/0")) == ["b/0"]
    for nobody in ("c", "b/2", "b/x", "job/0"):
        with pytest.raises(NotFoundError, match="the job has no"):
            await stacks_of(backend, state(), nobody)


# -- living ranks, while the cause of a lost peer is looked for

BAD = Outcome(ok=False, reason=Reason.USER_ERROR, error_type="AssertionError")


class Node(MemoryHost):
    """The agent of the node, and the host of its ranks."""

    def __init__(self) -> None:
        super().__init__("agent", "n1")
        self.sees: dict[str, ProcessSample] = {}
        self.failing: dict[int, tuple[int, Outcome]] = {}
        self.is_silent = False

    async def look(self, targets: Sequence[DumpTarget], whole: bool) -> tuple[ProcessStack, ...]:
        assert whole
        waits = ProcessSample(activity=Where.COLLECTIVE)
        return tuple(ProcessStack(self.sees.get(target.name, waits), "a stack\n") for target in targets)

    async def failures(self) -> Mapping[int, tuple[int, Outcome]]:
        if self.is_silent:
            raise DLJobError("gone")
        return self.failing


class Here:
    """A world of three scripts, of which rank 0 has lost a peer."""

    def __init__(self, folder: Path) -> None:
        self.backend, self.node, self.told = MemoryBackend(), Node(), list[Any]()
        self.backend.hosts[f"{UID[:8]}/agent/n1"] = self.backend.hosts["a"] = self.node
        facts = SimpleNamespace(host_of=lambda _: HostId("w", 0), ranks=range(3))
        self.state = SimpleNamespace(
            inquiries={"w": PeerInquiry(10.0, 18.0)},
            held_ends={("w", 0): None},
            ranks={("w", n): SimpleNamespace(phase=RankPhase.READY, incarnation=2, pid=40 + n) for n in range(3)},
            hosts={HostId("w", 0): SimpleNamespace(node="n1", pid=9, actor="a")},
            job=SimpleNamespace(uid=UID, roles={"w": facts}),
        )
        self.now = 10.0
        self.watch = PeerWatch(
            *(SimpleNamespace(folder=folder), self.backend, self._offer, lambda: self.state, lambda: self.now),  # type: ignore[arg-type]
            owner=TaskOwner(print),
        )

    async def _offer(self, event: ev.Event) -> None:
        self.told.append(event)

    async def turns(self) -> None:
        for _ in range(20):
            self.watch.turn()
            await asyncio.sleep(0.005)  # the stacks are written by a thread


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    monkeypatch.setattr(stack_collector, "PAUSE_S", 0)
    return Here(tmp_path)


async def test_living_ranks_are_looked_at_once_and_the_busy_one_is_told_with_its_stacks(here, tmp_path):
    here.node.sees["w/1"] = ProcessSample(activity=Where.USER, at_line="e.py:3 in f")
    await here.turns()
    assert here.told == [], "most causes report themselves in the first moment"
    here.now += limits.PEER_SAMPLE_DELAY_S
    await here.turns()
    path = str(tmp_path / "stacks" / "w-1-2.txt")
    expected = PeerSample(1, 2, "it waits in user code at e.py:3 in f", path), PeerSample(2, 2, "", path)
    assert here.told == [ev.PeersSeen("w", expected)]
    assert "== w/1: it waits in user code" in await asyncio.to_thread(Path(path).read_text)


async def test_an_error_that_a_host_knows_is_told_of_the_present_process_alone(here):
    here.node.failing = {1: (2, BAD), 2: (1, BAD), 0: (2, BAD)}
    here.now += limits.PEER_SAMPLE_DELAY_S
    await here.turns()
    assert here.told == [ev.PeersSeen("w", (PeerSample(1, 2, failure=BAD), PeerSample(2, 2)))]


async def test_nobody_is_accused_where_neither_node_nor_host_answers(here):
    here.node.is_silent = True
    del here.backend.hosts[f"{UID[:8]}/agent/n1"]
    here.now += limits.PEER_SAMPLE_DELAY_S
    await here.turns()
    assert here.told == [ev.PeersSeen("w", (PeerSample(1, 2), PeerSample(2, 2)))]


async def test_stacks_that_cannot_be_written_are_left_out(here, tmp_path):
    (tmp_path / "stacks").write_text("")
    here.node.sees["w/1"] = ProcessSample(activity=Where.USER)
    here.now += limits.PEER_SAMPLE_DELAY_S
    await here.turns()
    assert [peer.stacks for peer in here.told[0].peers] == ["", ""]


async def test_the_watch_runs_until_it_is_cancelled(here, monkeypatch):
    monkeypatch.setattr(stack_collector, "TICK_S", 0)
    running = asyncio.create_task(here.watch.run())
    here.now += limits.PEER_SAMPLE_DELAY_S
    await asyncio.sleep(0.05)
    assert len(here.told) == 1
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
