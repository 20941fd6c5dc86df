"""Reservations on Ray: what is read of its table of placement groups, which has a row for each of them."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest
from ray import exceptions as rx

from dljob.plan.model import Unit
from dljob.runtime.backend import ray_backend
from dljob.runtime.backend.interface import ActorLostError
from dljob.runtime.backend.ray_backend import RayBackend

UNIT = Unit("w/0", (), (), ())


class InstantGroup:
    """A placement group that is created at once."""

    def __init__(self, name: str) -> None:
        self.name = name

    def ready(self) -> Any:
        return self

    def future(self) -> Future[None]:
        done = Future[None]()
        done.set_result(None)
        return done


class CountingGcs:
    """Stands for Ray's tables and its functions for placement groups; counts the reads of the whole table."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.groups_there: dict[str, InstantGroup] = {}
        self.reads = 0
        self.silent = 0
        """How many creations it carries out without an answer."""
        monkeypatch.setattr(ray_backend, "RayTables", lambda: self)
        monkeypatch.setattr(ray_backend, "placement_group", self.create)
        monkeypatch.setattr(ray_backend, "remove_placement_group", lambda group: self.groups_there.pop(group.name))

    def create(self, *_: Any, name: str, **__: Any) -> InstantGroup:
        assert name not in self.groups_there, "Ray refuses a name that is taken"
        made = self.groups_there[name] = InstantGroup(name)
        if self.silent:
            self.silent -= 1
            raise rx.GetTimeoutError("There was timeout in creating the placement group")
        return made

    def groups(self) -> list[dict[str, Any]]:
        self.reads += 1
        return [{"name": name, "group": group} for name, group in self.groups_there.items()]

    def group_of(self, row: dict[str, Any]) -> InstantGroup:
        return row["group"]

    def group_by_id(self, group: InstantGroup) -> dict[str, Any]:
        there = self.groups_there.get(group.name) is group
        return {"state": "CREATED" if there else "REMOVED", "stats": {"scheduling_state": ""}}


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> CountingGcs:
    return CountingGcs(monkeypatch)


def names(count: int) -> list[str]:
    return [f"c0ffee00/w/{number}/1" for number in range(count)]


async def reserve(backend: RayBackend, count: int) -> None:
    await asyncio.gather(*(backend.reserve(UNIT, "n1", name, 60.0) for name in names(count)))


async def test_the_units_of_a_job_are_reserved_with_one_read_of_rays_whole_table(gcs):
    await reserve(RayBackend(), 50)
    assert (len(gcs.groups_there), gcs.reads) == (50, 1)


async def test_a_later_master_finds_and_gives_back_all_units_with_one_read_of_the_table(gcs):
    await reserve(RayBackend(), 50)
    made, gcs.reads, later = dict(gcs.groups_there), 0, RayBackend()
    await reserve(later, 50)
    assert gcs.groups_there == made, "none is made anew"
    assert [await later._group(name) for name in names(50)] == list(made.values())
    for name in (*names(50), "c0ffee00/w/0/0"):
        await later.release(name)
    assert (gcs.groups_there, gcs.reads) == ({}, 1)
    with pytest.raises(ActorLostError, match="c0ffee00/w/0/1 is gone"):
        await later._group(names(1)[0])


async def test_the_last_sweep_gives_back_what_it_has_listed_without_another_read(gcs):
    backend = RayBackend()
    await reserve(backend, 3)
    await reserve(RayBackend(), 9)
    gcs.reads = 0
    assert await backend.reservations("c0ffee00/") == tuple(names(9))
    for name in names(9):
        await backend.release(name)
    assert (gcs.groups_there, gcs.reads) == ({}, 1)


@pytest.mark.parametrize("then", ["reserve", "release"])
async def test_a_group_that_a_silent_gcs_has_made_is_found_when_it_answers_again(gcs, then):
    backend = RayBackend()
    await reserve(backend, 1)
    gcs.silent, name = 1, "c0ffee00/w/1/1"
    with pytest.raises(rx.GetTimeoutError):
        await backend.reserve(UNIT, "n1", name, 60.0)
    if then == "reserve":
        await backend.reserve(UNIT, "n1", name, 60.0)
    else:
        await backend.release(name)
    assert (name in gcs.groups_there) is (then == "reserve")
    assert gcs.reads == 2
