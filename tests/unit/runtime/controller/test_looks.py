"""Stacks on demand: whose they are, and what is said where there are none."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from memory_backend import MemoryBackend, MemoryHost

from dljob.errors import NotFoundError
from dljob.master.state.hang import ProcessSample
from dljob.master.state.state import RankPhase
from dljob.master.state.views import HostId
from dljob.runtime.controller.stack_collector import stacks_of
from dljob.runtime.node.stacks import DumpTarget, ProcessStack

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


async def test_the_stacks_of_a_job_are_those_of_its_ranks_or_why_there_are_none(backend: MemoryBackend) -> None:
    assert await stacks_of(backend, state(), "job") == {
        "a/0": "a/0 10\n",
        "a/1": "no stack: it is Succeeded\n",
        "b/0": "it is stopped\nb/0 99\n",
        "b/1": "no stack: the agent of its node does not answer, or is not there yet\n",
    }


async def test_the_rank_that_all_wait_for_comes_first(backend: MemoryBackend) -> None:
    here = state()
    assert next(iter(await stacks_of(backend, here, "job"))) == "a/0"
    here.stalls = (SimpleNamespace(root="b/1"),)
    assert next(iter(await stacks_of(backend, here, "job"))) == "b/1"


async def test_a_role_or_a_rank_can_be_meant_and_nothing_else(backend: MemoryBackend) -> None:
    assert list(await stacks_of(backend, state(), "b")) == ["b/0", "b/1"]
    assert list(await stacks_of(backend, state(), "b/0")) == ["b/0"]
    for nobody in ("c", "b/2", "b/x", "job/0"):
        with pytest.raises(NotFoundError, match="the job has no"):
            await stacks_of(backend, state(), nobody)
