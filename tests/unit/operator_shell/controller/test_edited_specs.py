"""A spec that is edited while its children are made: what has the names of one attempt is of one spec."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_cluster import FakeCluster
from shell_kit import JOB, ROLE, Shell, cluster_of, dljob, shell

from dljob.raycluster.pods import SPEC_KEY
from dljob.reconcile.state import names
from dljob.reconcile.state.model import Create
from dljob.reconcile.state.names import spec_map
from dljob_operator.watch.workqueue import Key

MENDED = {**ROLE, "entrypoint": {"class": "hello.mended"}}


class Crash(BaseException):
    """The process is gone."""


def edit(fake: FakeCluster) -> None:
    job = fake.one("dljobs", "hello")
    fake.put("dljobs", {**job, "spec": {**job["spec"], "roles": [MENDED]}})


def is_whole(it: Shell) -> None:
    """The attempt that is there is of the mended spec, and so is all that belongs to it."""
    name = cluster_of(it.fake, attempt=it.status()["attempt"])
    assert it.fake.names("rayclusters") == [name]
    spec = json.loads(it.fake.one("configmaps", spec_map(name))["data"][SPEC_KEY])["spec"]
    assert spec["roles"][0]["entrypoint"] == MENDED["entrypoint"]
    made = it.fake.one("rayclusters", name)["metadata"]["annotations"]
    assert made[names.SPEC_HASH] == it.status()["attemptSpecHash"]


def before_cluster(it: Shell, happen: Any) -> None:
    """Something happens when the RayCluster is to be made, once."""
    perform, done = it.executor.perform, []

    async def performed(key: Key, memory: Any, action: Any) -> None:
        if isinstance(action, Create) and action.kind == "RayCluster" and not done:
            done.append(True)
            happen()
        await perform(key, memory, action)

    it.executor.perform = performed  # type: ignore[method-assign]


async def test_the_operator_dies_before_the_cluster_is_made() -> None:
    fake = FakeCluster()

    def die() -> None:
        raise Crash

    async with shell(fake) as it:
        fake.put("dljobs", dljob())
        before_cluster(it, die)
        with pytest.raises(Crash):
            await it.settle()
    edit(fake)
    async with shell(fake) as it:
        await it.settle()
        is_whole(it)


async def test_the_cluster_is_refused_and_the_spec_edited_meanwhile() -> None:
    async with shell() as it:
        it.fake.put("dljobs", dljob())

        def refuse() -> None:
            edit(it.fake)
            it.fake.fail("POST", "rayclusters", 500, message="failed calling webhook: context deadline exceeded")

        before_cluster(it, refuse)
        await it.settle()
        it.queue.add(JOB)
        await it.settle()
        is_whole(it)


async def test_no_children_are_made_of_a_spec_whose_edit_is_not_in_the_cache() -> None:
    async with shell() as it:
        it.fake.put("dljobs", dljob())
        it.sync()
        edit(it.fake)
        await it.controller.step(JOB)
        assert it.fake.names("configmaps") == it.fake.names("rayclusters") == []
        await it.settle()
        is_whole(it)
        assert it.status()["attempt"] == 1


async def test_a_cluster_of_the_last_attempt_that_no_watch_told_of_goes_first() -> None:
    fake = FakeCluster()
    async with shell(fake) as it:
        fake.put("dljobs", dljob())
        it.sync()
        await it.controller.step(JOB)
        assert "uid" not in it.status()["rayCluster"]
    edit(fake)
    async with shell(fake) as it:
        it.cache.put_job(fake.one("dljobs", "hello"))
        for _ in range(4):
            await it.controller.step(JOB)
        is_whole(it)
        assert it.status()["attempt"] == 2
