"""A node's agent speaks for the hosts of its node, and each speaks for itself while the agent does not."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from host_kit import HostHandle, Job, alive, eventually
from ray.exceptions import RayError
from role_kit import role_plan

from dljob.runtime.node.node_agent import NodeAgent
from dljob.runtime.process.messages import AgentRequest, NodeHeartbeat
from dljob.runtime.worker.thread_host import ThreadHost

pytestmark = pytest.mark.ray
PATIENT = 20.0
"""So long hosts rely on their agent between two questions, and no busy machine makes it longer."""


class Agent:
    """An agent on the node of a host, and PrimeMaster's questions to it."""

    def __init__(self, job: Job, node: str) -> None:
        made: Any = ray.remote(concurrency_groups=dict(NodeAgent.concurrency_groups), num_cpus=0)(NodeAgent)
        where = {"label_selector": {"ray.io/node-id": node}}
        self.actor = made.options(**where).remote(600.0, job.info.uid, job.info.dir)
        self._acked = 0
        self.pulse = self.ask()

    def ask(self, *unknown: str, pause_s: float = PATIENT) -> NodeHeartbeat:
        asked = AgentRequest(1, pause_s, 0.1, self._acked, unknown)
        self.pulse = NodeHeartbeat.unpacked(ray.get(self.actor.beat.remote(asked.packed()), timeout=60))
        self._acked = self.pulse.number
        return self.pulse

    def speaks_for(self, host: HostHandle) -> bool:
        return host.name in {beacon.actor for beacon in self.ask().hosts}

    def step(self) -> int:
        """The next step that it tells."""
        for beacon in self.ask().hosts:
            for _, step, _ in beacon.steps.values():
                return step
        return 0

    def kill(self) -> None:
        ray.kill(self.actor)


@pytest.fixture
def job(ray_here: Any, tmp_path: Path) -> Iterator[Job]:
    yield (made := Job(str(tmp_path)))
    made.close()


@pytest.fixture
def host(job: Job) -> HostHandle:
    """A host whose rank has news all the time."""
    made = job.host(ThreadHost, role_plan("w", ("class", "people.steps_for_ever")))
    made.start(0)
    made.ready()
    return made


def beacons(job: Job) -> int:
    """How many PrimeMaster was sent by hosts themselves."""
    return ray.get(job.master.count.remote(), timeout=60)


def silent(job: Job, agent: Agent) -> bool:
    """Whether no host speaks for itself while its rank gets on, by what the agent tells."""
    before, first = beacons(job), agent.step()
    last = [agent.step() for _ in range(5)][-1]
    return last > first > 0 and beacons(job) == before


def more(job: Job) -> bool:
    before = beacons(job)
    return bool(eventually(lambda: beacons(job) > before, 60))


def test_the_agent_speaks_for_a_host_and_the_host_for_itself_while_there_is_none(job: Job, host: HostHandle) -> None:
    assert more(job), "no agent"
    node = host.hello().node
    agent = Agent(job, node)
    eventually(lambda: agent.speaks_for(host), 60)
    eventually(lambda: silent(job, agent), 60)
    agent.kill()
    assert more(job), "the agent is gone"
    agent = Agent(job, node)
    eventually(lambda: agent.speaks_for(host), 60)
    eventually(lambda: silent(job, agent), 60)
    pid = agent.ask(pause_s=0.1).pid
    agent.ask(pause_s=0.1)
    os.kill(pid, signal.SIGSTOP)
    assert more(job), "the agent is frozen"
    os.kill(pid, signal.SIGCONT)
    eventually(lambda: silent(job, agent), 60)
    agent.kill()


def test_a_host_that_nobody_knows_any_more_is_told_so_by_the_agent_and_ends(job: Job, host: HostHandle) -> None:
    pid, node = host.hello().pid, host.hello().node
    agent = Agent(job, node)
    eventually(lambda: agent.speaks_for(host), 60)
    eventually(lambda: silent(job, agent), 60)
    agent.ask(host.name, pause_s=0.5)
    eventually(lambda: not alive(pid), 60)
    eventually(lambda: not agent.ask(pause_s=0.5).hosts, 60)
    with pytest.raises(RayError):
        host.hello()
    agent.kill()


def test_a_host_that_is_stopped_is_seen_as_such(job: Job, host: HostHandle) -> None:
    pid, node = host.hello().pid, host.hello().node
    agent = Agent(job, node)
    eventually(lambda: agent.speaks_for(host), 60)
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: all(beacon.silent_s > 0 for beacon in agent.ask(pause_s=0.5).hosts), 60)
    os.kill(pid, signal.SIGCONT)
    eventually(lambda: all(beacon.silent_s == 0 for beacon in agent.ask(pause_s=0.5).hosts), 60)
    eventually(agent.step, 60)
    agent.kill()
