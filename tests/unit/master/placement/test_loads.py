"""Loads as PrimeMaster reads them, and when the core hears of one."""

from __future__ import annotations

import asyncio

import pytest
from master_kit import DONE, World, job

from dljob.master.state import events as ev
from dljob.runtime.controller import sampler
from dljob.runtime.controller.heartbeat_log import HeartbeatLog, calls_under_way
from dljob.runtime.controller.sampler import Autoscaler, SampledMaster


def world_of(**policy):
    how = {"target": 10, "cooldownSeconds": 60, **policy}
    fleet = {"name": "e", "driver": False, "replicas": 2, "minReplicas": 1, "maxReplicas": 4, "autoscale": how}
    return World(job(fleet, {"name": "d", "replicas": 2}, {"name": "f", "driver": False, "maxReplicas": 2})).boot()


def view_of(world, progress=None, usage=None):
    return SampledMaster(world.now, world.state, progress or {}, usage or {})


def looked(world, queues=None, **told):
    scaler = Autoscaler(lambda: view_of(world), lambda: queues or {}, lambda *_: asyncio.sleep(0))
    return [(event.role, event.count) for event in scaler.look(view_of(world, **told))]


def test_the_fill_of_a_queue_is_its_load():
    world = world_of(by="queue", name="prompts")
    assert looked(world, {"queues/prompts": [35, 100]}) == [("e", 4)]
    assert looked(world, {"queues/prompts": [12, 100]}) == []
    assert looked(world, {"queues/others": [35, 100]}) == []


def test_calls_under_way_at_present_processes_are_its_load():
    world = world_of(by="calls")
    (one, other) = (world.state.hosts[world.state.job.roles["e"].host_of(rank)].actor for rank in range(2))
    usage = {
        one: ("e", {"busy": [[0, 20]], "open": [[0, 3]]}),
        other: ("e", {"busy": [[1, 11]]}),
        "gone": ("e", {"busy": [[1, 90]]}),
    }
    assert calls_under_way(world.state, "e", usage) == {0: 20, 1: 11}
    assert looked(world, usage=usage) == [("e", 4)]
    heard = HeartbeatLog()
    heard.usage = usage
    order = ev.Commanded("c", "scale", "e", "me", 1)
    assert heard.with_heartbeats(world.now, world.state, order).calls == ((0, 23), (1, 11)), (
        "connections to its ports count"
    )
    assert heard.with_heartbeats(world.now, world.state, ev.LoadSeen("e", 1, "low")).calls == ((0, 23), (1, 11))
    assert heard.with_heartbeats(world.now, world.state, ev.Commanded("c", "stop")).calls == ()


def test_a_metric_of_the_lowest_rank_of_the_driver_is_its_load():
    world = world_of(by="metric", name="waiting")
    progress = {("d", 1): (3, {"waiting": 31.0}), ("d", 0): (3, {"loss": 1.0}), ("e", 0): (1, {"waiting": 2.0})}
    assert looked(world, progress=progress) == [("e", 4)]
    assert looked(world) == []


def test_fewer_ranks_are_asked_for_when_a_whole_cooldown_is_known():
    world = world_of(by="calls")
    scaler = Autoscaler(lambda: view_of(world), dict, lambda *_: asyncio.sleep(0))
    found = []
    for _ in range(70):
        found += scaler.look(view_of(world))
        world.now += 1.0
    assert found[0] == ev.LoadSeen("e", 1, "0 calls under way, 10 for each rank, for 60 s: 1 rank instead of 2")
    assert len(scaler._readings["e"]) <= 62


def test_nothing_is_read_while_the_job_does_not_run():
    world = world_of(by="calls")
    for rank in range(2):
        world.send(ev.RankEnded("d", rank, 1, DONE))
    assert looked(world) == []


async def test_what_the_load_asks_for_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "LOOK_S", 0.0)
    world, heard = world_of(by="queue", name="q"), asyncio.Queue[ev.Event]()

    async def offer(*events: ev.Event) -> None:
        heard.put_nowait(*events)

    task = asyncio.create_task(Autoscaler(lambda: view_of(world), lambda: {"queues/q": [40, 50]}, offer).run())
    async with asyncio.timeout(10):
        found = await heard.get()
    task.cancel()
    assert isinstance(found, ev.LoadSeen)
