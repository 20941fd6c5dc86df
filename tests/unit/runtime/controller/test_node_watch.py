"""PrimeMaster's ear for nodes: an agent on each, silence by a clock that stands still while nobody listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from memory_backend import MemoryBackend, MemoryHost

from dljob.errors import UsageError
from dljob.master.state import events as ev
from dljob.master.state.actions import Note, RankStart, StartRanks
from dljob.master.state.state import Exclusion, HostPhase
from dljob.master.state.views import Clue, HostId, NodeView
from dljob.plan.labels import NODE_NAME
from dljob.runtime.backend import ray_processes
from dljob.runtime.backend.interface import ActorCallError, ActorLostError, ActorRef, ActorSpec
from dljob.runtime.backend.ray_processes import ProcessFile, ProcessReader
from dljob.runtime.controller import node_watch
from dljob.runtime.controller.node_watch import SMALL, NodeWatch, may_go, nodes_to_watch
from dljob.runtime.controller.worker_hosts import SpareId
from dljob.runtime.process.messages import AgentRequest, BeaconReply, Heartbeat, JobInfo, NodeHeartbeat, saver_name
from dljob.spec.policy import FaultTolerance
from dljob.tasks import TaskOwner
from dljob.telemetry.process_ends import ProcessEnd

INFO = JobInfo("0123456789abcdef" * 2, "j", "/dir", "dljob", "01234567/master", 30, 0.2, "", (("w", 1),))


def name_of(node: str) -> str:
    return f"01234567/agent/{node}"


class Agent(MemoryHost):
    """An agent whose beats the test gives."""

    def __init__(self, name: str) -> None:
        super().__init__(name, name[-2:])
        self.beats: asyncio.Queue[NodeHeartbeat | Exception] = asyncio.Queue()
        self.asked: list[AgentRequest] = []

    async def beat(self, packed: bytes) -> bytes:
        self.asked.append(AgentRequest.unpacked(packed))
        answer = await self.beats.get()
        if isinstance(answer, Exception):
            raise answer
        return answer.packed()

    async def reap(self, *what: Any) -> int:
        self.orders.append(("reap", what))
        return 1


class Nodes(MemoryBackend):
    def __init__(self) -> None:
        super().__init__()
        self.specs: list[ActorSpec] = []
        self.taken = False
        self.slow: asyncio.Event | None = None

    async def spawn(self, spec: ActorSpec) -> ActorRef:
        if self.slow is not None:
            await self.slow.wait()
        if self.taken:
            self.taken = False
            raise UsageError(f"an actor named {spec.name} exists already")
        self.specs.append(spec)
        self.hosts[spec.name] = made = Agent(spec.name)
        return ActorRef(spec.name, made)


ALIVE = NodeHeartbeat(1, 1)


class Listener:
    """A watch over nodes n0, n1, n2, and what it told the core."""

    def __init__(self) -> None:
        self.backend = Nodes()
        self.told: list[ev.Event] = []
        views = tuple(NodeView(f"n{i}", (), (), ()) for i in range(3))
        self.state = SimpleNamespace(
            nodes=views,
            units={"w/0": SimpleNamespace(node="n0")},
            hosts={
                HostId("w", 0): SimpleNamespace(node="n1", phase=HostPhase.SPAWNING),
                HostId("w", 1): SimpleNamespace(node="n9", phase=HostPhase.SPAWNING),
            },
            exclusions={},
            departures={},
            running_at=1.0,
            verdict=None,
            job=SimpleNamespace(own_nodes=False, fault_tolerance=FaultTolerance()),
        )
        self.now = 0.0
        self.beacons: list[Heartbeat] = []
        self.known = {"w/0"}
        self.watch = NodeWatch(
            INFO,
            self.backend,
            self._offer,
            lambda: self.state,
            epoch=lambda: 3,
            on_heartbeat=self._hear,
            owner=TaskOwner(print),
        )  # type: ignore[arg-type]

    def _hear(self, beacon: Heartbeat) -> BeaconReply:
        self.beacons.append(beacon)
        return BeaconReply(3, beacon.actor in self.known)

    async def _offer(self, *events: ev.Event) -> None:
        self.told += events

    async def pass_time(self, seconds: float, *beating: str) -> None:
        """Time goes by on a loop that is never late; these nodes beat."""
        for _ in range(round(seconds / node_watch.TICK_S)):
            self.now += node_watch.TICK_S
            await self.beat(*beating)
            await self.watch.turn(self.now)
            await breathe()

    async def beat(self, *nodes: str, answer: NodeHeartbeat | Exception = ALIVE) -> None:
        await breathe()
        for node in nodes:
            self.backend.hosts[name_of(node)].beats.put_nowait(answer)  # type: ignore[attr-defined]
        await breathe()

    def frozen(self) -> list[str]:
        return [event.node for event in self.told if isinstance(event, ev.NodeFrozen)]


async def breathe() -> None:
    """Let everything that can go on do so."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
async def here(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Listener]:
    monkeypatch.setattr(node_watch, "RETRY_S", 0)
    monkeypatch.setattr(node_watch, "SPREAD_S", 0)
    made = Listener()
    yield made
    made.watch.close()


ALL = ("n0", "n1", "n2")


async def up(here: Listener) -> None:
    await here.watch.turn(0.0)
    await here.beat(*ALL)


async def test_each_node_has_an_agent_once_the_job_runs_and_none_before(here):
    here.state.running_at = None
    await up_or_not(here)
    assert here.backend.specs == []
    here.state.running_at = 1.0
    await up(here)
    assert [(spec.name, spec.node, spec.resources) for spec in sorted(here.backend.specs, key=lambda s: s.name)] == [
        (name_of(node), node, ()) for node in ALL
    ]
    await here.pass_time(60, *ALL)
    assert here.told == []


async def test_a_node_has_an_agent_before_the_job_runs_where_its_ranks_take_long_to_start(here):
    here.state.running_at = None
    await here.pass_time(60)
    assert here.backend.specs == [], "no host: the job waits for a machine"
    here.state.hosts = {HostId("w", 0): SimpleNamespace(node="n0", phase=HostPhase.READY)}
    await here.pass_time(9)
    assert here.backend.specs == []
    await here.pass_time(2)
    assert [spec.node for spec in here.backend.specs] == ["n0"]
    await here.pass_time(60, "n0")
    assert here.told == []


async def test_nodes_without_units_get_their_agents_later(here, monkeypatch):
    monkeypatch.setattr(node_watch, "SPREAD_S", 5.0)
    await here.pass_time(4)
    assert [spec.node for spec in here.backend.specs] == ["n0"]
    await here.pass_time(2, "n0")
    assert sorted(spec.node for spec in here.backend.specs) == list(ALL)


async def up_or_not(here: Listener) -> None:
    await here.watch.turn(0.0)
    await breathe()


async def test_a_silent_node_is_frozen_after_its_time_and_told_once_more_only_while_the_core_does_not_know(here):
    await up(here)
    await here.pass_time(2.75, "n0", "n2")
    assert here.told == []
    await here.pass_time(0.25, "n0", "n2")
    assert [type(event) for event in here.told] == [ev.NodesSeen, ev.NodeFrozen]
    assert here.frozen() == ["n1"]
    here.state.exclusions = {"n1": Exclusion("NodeFrozen", 0, 9e9, None, silent=True)}
    await here.pass_time(10, "n0", "n2")
    assert here.frozen() == ["n1"]
    await here.beat("n1")
    assert here.told[-1] == ev.NodeThawed("n1")
    here.state.exclusions = {"n1": replace(here.state.exclusions["n1"], silent=False)}
    await here.pass_time(10, *ALL)
    assert here.told[-1] == ev.NodeThawed("n1")


async def test_a_node_that_freezes_again_while_it_is_excluded_is_told_of(here):
    here.state.exclusions = {"n1": Exclusion("NodeFrozen", 0, 9e9, None)}
    await up(here)
    await here.pass_time(3, "n0", "n2")
    assert here.frozen() == ["n1"]


async def test_a_loop_that_was_late_takes_nobody_for_frozen(here):
    await up(here)
    for _ in range(5):
        here.now += 1000
        await here.watch.turn(here.now)
    assert here.told == []
    await here.pass_time(0.5, "n0", "n2")
    assert here.frozen() == ["n1"], "five turns count for half a second each"


async def test_the_watch_waits_and_says_so_when_most_nodes_are_silent(here, caplog):
    await up(here)
    await here.pass_time(14.75, "n0")
    assert here.told == []
    await here.pass_time(15, "n0")
    assert here.told == [ev.PartSilent("node/n1", 15.0), ev.PartSilent("node/n2", 15.0)]
    await here.pass_time(0.25, "n0")
    assert sorted(here.frozen()) == ["n1", "n2"]
    assert caplog.messages == ["2 of 3 nodes are silent; 2 may be for 30 s"]


async def test_a_silence_that_ends_in_time_is_told_with_its_end(here):
    await up(here)
    await here.pass_time(16, "n0")
    await here.pass_time(1, *ALL)
    assert here.told[2:] == [ev.PartAnswers("node/n1"), ev.PartAnswers("node/n2")]


@pytest.fixture
def embedded(here: Listener, tmp_path: Path) -> ProcessFile:
    """The watch is one of an embedded Ray, whose parent has this file; the name of node n1 is cpu-1."""
    here.watch._processes = ProcessReader(tmp_path)
    here.state.nodes = tuple(
        replace(view, labels=((NODE_NAME, f"cpu-{number}"),)) for number, view in enumerate(here.state.nodes)
    )
    return ProcessFile(tmp_path)


async def test_the_end_of_a_raylet_is_told_as_soon_as_its_parent_knows(here, embedded):
    await up(here)
    embedded.add_start("raylet", "cpu-1", 2**22 + 1)
    embedded.add_end(ProcessEnd("raylet", "cpu-1", 2**22 + 1, 9))
    embedded.add_end(ProcessEnd("raylet", "of another job", 2**22 + 2, 9))
    await here.pass_time(1, *ALL)
    words = f"the raylet (pid {2**22 + 1}) of cpu-1 was ended by SIGKILL from outside"
    assert here.told == [ev.CauseLearned("node/n1", (Clue("node", words),))]


async def test_a_stopped_raylet_and_head_are_told_and_their_answers_too(here, embedded, monkeypatch):
    states = {5: "T", 7: "S"}
    monkeypatch.setattr(ray_processes, "_state", lambda pid: states[pid])
    await up(here)
    embedded.add_start("gcs_server", "the head", 5)
    embedded.add_start("raylet", "cpu-1", 7)
    await here.pass_time(10, *ALL)
    assert here.told == [ev.PartSilent("head", 3.0, "the gcs_server (pid 5) of the head is stopped (state T)")]
    states[5], states[7] = "S", "T"
    await here.pass_time(10, *ALL)
    words = "the raylet (pid 7) of cpu-1 is stopped (state T)"
    # If Ray gives the node up, its loss is put down to that.
    learned = ev.CauseLearned("node/n1", (Clue("node", words),))
    assert here.told[1:] == [ev.PartAnswers("head"), learned, ev.PartSilent("node/n1", 3.0, words)]


async def test_a_primemaster_that_did_not_run_for_seconds_tells_so(here, embedded):
    await up(here)
    here.now += 15
    await here.watch.turn(here.now)
    why = "its process did not run: it was stopped, or the machine had no time for it"
    assert here.told == [ev.PartSilent("master", 15.0, why), ev.PartAnswers("master")]


async def test_an_agent_that_dies_is_made_again_and_its_node_is_not_frozen(here):
    await up(here)
    lost = here.backend.hosts.pop(name_of("n1"))
    here.backend.taken = True  # the name is free a moment later
    lost.beats.put_nowait(ActorLostError("killed"))  # type: ignore[attr-defined]
    await here.pass_time(60, "n0", "n2")
    assert [spec.name for spec in here.backend.specs].count(name_of("n1")) == 2
    assert here.told == [], "it is heard for the first time, however long that takes"


async def test_an_agent_that_cannot_be_reached_is_silent(here):
    await up(here)
    await here.beat("n1", answer=ActorLostError("unavailable", certain=False))
    await here.pass_time(3, "n0", "n2")
    assert here.frozen() == ["n1"]


@pytest.mark.parametrize("error", [ActorCallError("m", error_type="E", remote_traceback=""), RuntimeError("of Ray's")])
async def test_an_agents_error_is_no_silence(here, error, caplog):
    await up(here)
    for _ in range(12):
        await here.beat("n1", answer=error)
        await here.pass_time(1, "n0", "n2")
    assert here.told == []
    assert caplog.text.count("the heartbeat of node n1 failed") == 1, "said once"
    await here.beat("n1")
    await here.pass_time(3, "n0", "n2")
    assert here.frozen() == ["n1"]


async def test_the_node_of_this_process_is_not_frozen(monkeypatch):
    def on_n1(_: Nodes) -> str:
        return "n1"

    monkeypatch.setattr(Nodes, "own_node", on_n1)
    monkeypatch.setattr(node_watch, "SPREAD_S", 0)
    here = Listener()
    await up(here)
    await here.pass_time(60, "n0", "n2")
    here.watch.close()
    assert here.told == []


async def test_nobody_waits_for_the_saver_of_a_frozen_node(here):
    savers = [saver_name(INFO, node) for node in ALL]
    here.backend.hosts |= {name: MemoryHost(name, "") for name in savers}
    await up(here)
    await here.pass_time(3, "n0", "n2")
    assert here.frozen() == ["n1"]
    assert [name in here.backend.hosts for name in savers] == [True, False, True]


async def test_a_new_master_hears_the_agents_of_the_last_one_and_gives_them_longer_at_first(here):
    for node in ALL:
        here.backend.hosts[name_of(node)] = Agent(name_of(node))
    await up_or_not(here)
    await here.beat("n0", "n2")
    assert here.backend.specs == []
    await here.pass_time(7.75, "n0", "n2")
    assert here.told == []
    await here.pass_time(0.25, "n0", "n2")
    assert here.frozen() == ["n1"]


async def test_a_node_that_is_gone_is_heard_no_more(here):
    await up(here)
    here.state.nodes = here.state.nodes[:2]
    await here.pass_time(60, "n0", "n1")
    assert here.told == []


async def test_no_node_is_judged_when_the_job_ends(here):
    await up(here)
    here.state.verdict = object()
    await here.pass_time(60)
    assert here.told == []
    await here.beat(*ALL)
    assert all(not here.backend.hosts[name_of(node)].beats.empty() for node in ALL), "nobody listens"  # type: ignore[attr-defined]


async def test_the_core_is_told_even_if_the_nodes_cannot_be_looked_at(here):
    async def broken() -> Any:
        raise OSError("the GCS is away")

    here.backend.nodes = broken  # type: ignore[method-assign]
    await up(here)
    await here.pass_time(3, "n0", "n2")
    assert [type(event) for event in here.told] == [ev.NodeFrozen]


async def test_a_policy_that_ignores_makes_no_agents(here):
    here.state.job.fault_tolerance = FaultTolerance.model_validate({"node": {"action": "Ignore"}})
    await here.watch.run()
    assert here.backend.specs == []


def test_on_a_large_cluster_only_nodes_that_matter_to_the_job_are_heard(here):
    many = tuple(NodeView(f"n{i}", (), (), (), head=i == 0) for i in range(SMALL + 2))
    state = here.state
    state.nodes, state.units = many, {"w/0": SimpleNamespace(node="n7"), "w/1": SimpleNamespace(node="")}
    state.exclusions = {"n9": Exclusion("NodeFrozen", 0, 9, None)}
    assert nodes_to_watch(state, spread=True) == {"n7", "n9"}  # type: ignore[arg-type]
    state.nodes = many[:-1]
    assert len(nodes_to_watch(state, spread=True)) == SMALL  # type: ignore[arg-type]
    assert nodes_to_watch(state, spread=False) == {"n7", "n9"}  # type: ignore[arg-type]
    state.nodes, state.job.own_nodes = many, True
    assert len(nodes_to_watch(state, spread=False)) == SMALL + 1  # type: ignore[arg-type]


def start(index: int, *incarnations: int) -> StartRanks:
    ranks = tuple(RankStart(rank, incarnation, 0, 1, 0) for rank, incarnation in enumerate(incarnations))
    return StartRanks(HostId("w", index), 1, "a", ranks, 1, 0, "")


async def test_leftovers_of_earlier_rank_processes_are_ended_where_the_ranks_start_again(here):
    await up(here)
    here.watch.reap([Note("r", "t", "m"), start(0, 1, 1), start(0, 1, 3), start(1, 2)])
    await breathe()
    orders = {node: here.backend.hosts[name_of(node)].orders for node in ALL}
    assert orders == {"n0": [], "n1": [("reap", (INFO.uid, "w", {1: 3}))], "n2": []}
    here.backend.hosts[name_of("n1")].dead = True
    here.watch.reap([start(0, 2)])
    await breathe()
    assert here.told == [], "an agent that died meanwhile is no trouble"


async def test_an_agent_that_ends_with_the_job_is_not_made_again(here):
    await up(here)
    here.state.verdict = object()
    for node in ALL:
        agent = here.backend.hosts.pop(name_of(node))
        agent.beats.put_nowait(ActorLostError("killed"))  # type: ignore[attr-defined]
    await breathe()
    await here.watch.turn(1.0)
    await breathe()
    assert len(here.backend.specs) == len(ALL)


@pytest.mark.parametrize("how", ["the job ends", "the master gives up"])
async def test_an_agent_that_comes_up_after_the_end_is_ended_too(here, how):
    here.backend.slow = asyncio.Event()
    await up_or_not(here)
    if how == "the job ends":
        here.state.verdict = object()
        await here.watch.turn(1.0)
    else:
        here.watch.close()
    here.backend.slow.set()
    await breathe()
    assert len(here.backend.specs) == len(ALL)
    assert here.backend.hosts == {}


async def test_a_node_is_asked_again_to_end_what_a_host_left_that_was_killed_only_just_now(here, monkeypatch):
    monkeypatch.setattr(node_watch, "REAP_AGAIN_S", 0)
    await up(here)
    here.watch.reap([start(0, 2)])
    await breathe()
    assert here.backend.hosts[name_of("n1")].orders == [("reap", (INFO.uid, "w", {0: 2}))] * 2


async def test_heartbeats_that_hosts_send_by_their_agent_are_heard_and_answered(here):
    await up(here)
    said = Heartbeat("w", "w/0", 3, {0: (1, 7, {})}), Heartbeat("w", "w/old", 3)
    await here.beat("n1", answer=NodeHeartbeat(1, 41, said))
    assert here.beacons == list(said)
    first, *_, last = here.backend.hosts[name_of("n1")].asked  # type: ignore[attr-defined]
    assert first == AgentRequest(3, 0.0, 0.0), "nothing is known before the first answer: it comes at once"
    assert last == AgentRequest(3, 0.5, 0.2, 41, ("w/old",))


async def test_a_node_whose_hosts_speak_for_themselves_is_not_frozen(here):
    await up(here)
    for _ in range(8):
        await here.pass_time(1, "n0", "n2")
        here.watch.record_answer(HostId("w", 0))
    assert here.told == []
    for who in (None, HostId("w", 7), HostId("w", 1), SpareId("w", "n9", 0)):
        here.watch.record_answer(who)
    await here.pass_time(2, "n0", "n2")
    here.watch.record_answer(SpareId("w", "n1", 0))
    await here.pass_time(2.75, "n0", "n2")
    assert here.told == []
    await here.pass_time(0.25, "n0", "n2")
    assert here.frozen() == ["n1"]


@pytest.mark.parametrize(
    ("nodes", "pauses"),
    [(3, (0.5, 0.2)), (100, (0.5, 0.25)), (400, (1.0, 1.0)), (1000, (1.5, 1.5)), (7000, (10.0, 10.0))],
)
async def test_many_nodes_are_asked_less_often(here, nodes, pauses):
    here.state.nodes = tuple(NodeView(f"n{i}", (), (), ()) for i in range(nodes))
    here.state.job.own_nodes = True
    await here.watch.turn(0.0)
    assert here.watch.pauses() == pauses


async def test_a_nodes_departure_is_told_once_and_its_agent_hears_whether_ranks_may_leave(here):
    going = NodeHeartbeat(1, 1, leaving="pod p is told to end")
    await up(here)
    for _ in range(3):
        await here.beat("n0", answer=going)
    told = [event for event in here.told if isinstance(event, ev.CauseLearned)]
    assert [(event.target, event.clues[0].source, event.clues[0].text) for event in told] == [
        ("node/n0", "notice", "pod p is told to end")
    ]
    agent: Any = here.backend.hosts[name_of("n0")]
    assert agent.asked[-1].may_go == ""
    here.state.departures["n0"] = SimpleNamespace(saved=True, stays="")
    await here.beat("n0", answer=going)
    assert agent.asked[-1].may_go == "nothing of the job runs there"
    here.state.departures.clear()
    here.watch.all_go = "the head goes"
    await here.beat("n0", answer=going)
    assert agent.asked[-1].may_go == "the head goes"


def test_whether_ranks_may_leave_is_decided_once_copies_are_saved():
    def said(host: HostPhase, **departure: Any) -> str:
        hosts = {HostId("w", 0): SimpleNamespace(node="n0", phase=host)}
        state: Any = SimpleNamespace(departures={"n0": SimpleNamespace(**departure)}, hosts=hosts)
        assert may_go(state, "n1") == ""
        return may_go(state, "n0")

    assert said(HostPhase.READY, saved=False, stays="no room") == ""
    assert said(HostPhase.READY, saved=True, stays="no room") == "no other node can have its ranks: no room"
    assert said(HostPhase.READY, saved=True, stays="") == "", "they are on their way"
    assert said(HostPhase.DOWN, saved=True, stays="") == "nothing of the job runs there"
