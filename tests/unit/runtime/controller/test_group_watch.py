"""When PrimeMaster says that a framework's placement group waits."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from memory_backend import MemoryBackend

from dljob.master.state.views import AskedGroup, NodeView
from dljob.master.transition import transition
from dljob.plan.model import GRAIN
from dljob.plan.plan import plan
from dljob.runtime.backend.sweeper import MARK
from dljob.runtime.controller import group_watch
from dljob.runtime.controller.group_watch import AGAIN_S, GONE, LOOK_S, WAITS_S, GroupWatch
from dljob.runtime.journal.setup import Setup
from dljob.runtime.process.messages import JobInfo
from dljob.spec.model import DLJobManifest

GROUP = AskedGroup("id1", "pool", "driver/0", "PACK", ((("GPU", 9 * GRAIN),),))


class Here(MemoryBackend):
    free = 8

    async def nodes(self) -> tuple[NodeView, ...]:
        return (NodeView("n1", (("GPU", 8 * GRAIN),), (("GPU", self.free * GRAIN),), ()),)


class Watched:
    def __init__(self, reserve: str = "Quota") -> None:
        role = {"name": "driver", "entrypoint": {"module": "main.py"}, "reserve": reserve}
        manifest = DLJobManifest.model_validate({"metadata": {"name": "j"}, "spec": {"roles": [role]}})
        info = JobInfo("u" * 32, "j", "/tmp", "dljob", "m", 30.0, 0.2, "", (("driver", 1),))
        setup = Setup(info, manifest.spec, plan(manifest))
        self.backend = Here()
        self.state = setup.initial(0.0)
        self.told: list[tuple[bool, str]] = []
        self.watch = GroupWatch(setup, self.backend, self.offer, lambda: self.state)

    async def offer(self, *events: Any) -> None:
        for event in events:
            self.told.append((event.waits, event.why))
            self.state = transition(self.state, event, 0.0).state


@pytest.mark.asyncio
async def test_a_group_that_waits_is_explained_within_ten_seconds_and_once():
    seen = Watched()
    seen.backend.asked = (GROUP,)
    at = 0.0
    while not seen.told:
        await seen.watch.turn(at)
        at += LOOK_S
    assert at + LOOK_S <= 10
    assert seen.told[0][0]
    assert "no node has 9 GPU" in seen.told[0][1]
    await seen.watch.turn(at)
    assert len(seen.told) == 1
    seen.backend.free = 3
    await seen.watch.turn(at + AGAIN_S)
    assert "3 GPU of 8" in seen.told[1][1]
    seen.backend.asked = ()
    await seen.watch.turn(at + AGAIN_S + LOOK_S)
    assert seen.told[2:] == [(False, GONE)]
    await seen.watch.turn(at + AGAIN_S + 2 * LOOK_S)
    assert len(seen.told) == 3


@pytest.mark.asyncio
async def test_a_group_that_is_placed_at_once_is_not_told():
    seen = Watched()
    seen.backend.asked = (GROUP,)
    await seen.watch.turn(0.0)
    seen.backend.asked = (replace(GROUP, id="id2"),)
    await seen.watch.turn(WAITS_S["placement group"])
    assert seen.told == []


@pytest.mark.asyncio
async def test_a_new_master_ends_the_notices_of_the_one_before():
    seen = Watched()
    seen.backend.asked = (GROUP,)
    await seen.watch.turn(0.0)
    await seen.watch.turn(WAITS_S["placement group"])
    other = GroupWatch(Setup(*_parts(seen)), seen.backend, seen.offer, lambda: seen.state)
    seen.backend.asked = ()
    await other.turn(0.0)
    assert seen.told[-1] == (False, GONE)


@pytest.mark.asyncio
async def test_tasks_that_wait_are_told_after_half_a_minute_in_which_none_of_them_was_placed():
    seen = Watched()
    for at in (0.0, 20.0, 40.0):  # every time one less
        seen.backend.asked = (_tasks(9 - int(at) // 20),)
        await seen.watch.turn(at)
    assert seen.told == []
    for at in (50.0, 60.0, 69.0):
        await seen.watch.turn(at)
    assert seen.told == []
    await seen.watch.turn(70.0)
    ((waits, why),) = seen.told
    assert waits
    assert why.startswith(
        "each of 7 Ray tasks or actors started by a rank waits for 1 x (9 GPU); these nodes can never"
    )
    assert {owner for owner, _ in seen.state.groups.values()} == {"job"}


def _tasks(count: int) -> AskedGroup:
    return AskedGroup(f"t{count}", f"each of {count} Ray tasks or actors", "job", "PACK", GROUP.bundles, "task")


@pytest.mark.asyncio
async def test_a_ray_of_one_machine_is_watched_without_a_quota(monkeypatch):
    monkeypatch.setenv(MARK, "/tmp/dlj-x")
    monkeypatch.setattr(group_watch, "LOOK_AT_TASKS_S", 0.01)
    seen = Watched("Placement")
    looks = asyncio.Event()

    async def turn(_now: float) -> None:
        looks.set()

    monkeypatch.setattr(seen.watch, "turn", turn)
    run = asyncio.ensure_future(seen.watch.run())
    await asyncio.wait_for(looks.wait(), 5)
    run.cancel()


def _parts(seen: Watched) -> tuple[Any, ...]:
    info = JobInfo("u" * 32, "j", "/tmp", "dljob", "m", 30.0, 0.2, "", (("driver", 1),))
    return info, seen.state.job.spec, seen.state.job.plan


@pytest.mark.asyncio
async def test_a_job_without_a_quota_watches_no_groups():
    seen = Watched("Placement")
    seen.backend.asked = (GROUP,)
    await seen.watch.run()  # it ends at once, though the job goes on
    assert (seen.told, seen.state.verdict) == ([], None)
