"""Which namespaces are served: all without a selector, else those that the API server selects, as they come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from fake_cluster import FakeCluster, client_of
from shell_kit import JOB, dljob, shell

from dljob_operator.watch import namespaces as namespaces_module
from dljob_operator.watch.cache import Cache
from dljob_operator.watch.namespaces import ServedNamespaces
from dljob_operator.watch.workqueue import WorkQueue


def space(fake: FakeCluster, name: str, **labels: str) -> None:
    fake.put("namespaces", {"metadata": {"name": name, "labels": labels}}, "")


async def until(check: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not check():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_without_a_selector_all_are_served() -> None:
    assert "kube-system" in ServedNamespaces("", Cache(), WorkQueue())


async def test_a_namespace_is_served_while_it_is_selected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces_module, "AGAIN", 0.01)
    fake, cache, queue = FakeCluster(), Cache(), WorkQueue()
    server = await fake.serve()
    kube = client_of(server)
    for name in ("default", "elsewhere"):
        cache.put_job(fake.put("dljobs", dljob(), name))
    fake.fail("GET", "/namespaces$", 403, times=2, message="namespaces is forbidden")
    space(fake, "default", served="yes")
    space(fake, "elsewhere")
    served = ServedNamespaces("served=yes", cache, queue)
    assert (served.known, "default" in served) == (False, False)
    following = asyncio.create_task(served.follow(kube))
    await until(lambda: "default" in served)
    assert served.known
    assert "elsewhere" not in served
    assert (queue.take(), queue.take()) == (JOB, None), "a DLJob there gets a pass, and no other"
    queue.done(JOB)
    fake.take("namespaces", "default", "")
    await until(lambda: "default" not in served)
    assert queue.take() == JOB
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await kube.close()
    await server.close()


async def test_nothing_is_done_for_a_dljob_in_a_namespace_that_is_not_served() -> None:
    fake, served = FakeCluster(), set[str]()
    async with shell(fake, served=served) as life:
        fake.put("dljobs", dljob())
        await life.settle()
        assert (fake.writes, life.status()) == ([], {})
        served.add("default")
        life.queue.add(JOB)
        await life.settle()
        assert fake.names("rayclusters")
        served.clear()
        body = fake.one("dljobs", "hello")
        fake.put("dljobs", {**body, "spec": {**body["spec"], "suspend": True}})
        before = len(fake.writes)
        await life.settle()
        assert len(fake.writes) == before, "its RayCluster goes on, and nobody acts on it"
