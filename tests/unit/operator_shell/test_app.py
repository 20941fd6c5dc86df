"""The whole operator with kopf, in this process, on an API server in memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from fake_cluster import FakeCluster
from shell_kit import SETTINGS, dljob
from stub_head import StubHead

from dljob.kube.kuberay_client import RayClusters
from dljob.kube.token_key import TokenKey
from dljob_operator import app as app_module
from dljob_operator.app import App, Options
from dljob_operator.process import run

pytestmark = [  # a whole operator, whose requests and watches wait by the clock
    pytest.mark.slow,
    pytest.mark.live,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
]


class World:
    """An API server and a head in memory, and the operators that run on them."""

    def __init__(self, folder: Path) -> None:
        self.fake, self.head = FakeCluster(), StubHead()
        self._file = folder / "config"

    async def start(self) -> None:
        self.api, self.port = await self.fake.serve(), await self.head.serve()
        names = {"clusters": [{"name": "c", "cluster": {"server": str(self.api.make_url("")).rstrip("/")}}]}
        context = [{"name": "x", "context": {"cluster": "c", "user": "u"}}]
        users = [{"name": "u", "user": {"token": "t"}}]
        self._file.write_text(json.dumps({**names, "users": users, "contexts": context, "current-context": "x"}))

    async def end(self) -> None:
        self.fake.cut()
        await self.api.close()
        await self.port.close()

    @contextlib.asynccontextmanager
    async def operator(self, **options: Any) -> AsyncIterator[App]:
        url = str(self.port.make_url("")).rstrip("/")
        defaults = {"kubeconfig": str(self._file), "metrics_port": 0, "health_port": 0, "workers": 4}
        given = {"head_url": lambda _host, _port: url, **defaults, **options}
        app = App(Options(SETTINGS, TokenKey(b"k" * 32), **given))
        running = asyncio.create_task(run(app))
        try:
            yield app
        finally:
            app.stop()
            await asyncio.wait_for(running, 20)

    async def until(self, check: Callable[[], Any], seconds: float = 15) -> Any:
        """The first true answer; every write to the server is news."""
        async with asyncio.timeout(seconds):
            while not (got := check()):  # noqa: ASYNC110 - an API server tells nobody
                await asyncio.sleep(0.01)
        return got

    def condition(self, kind: str, name: str = "hello") -> dict[str, Any]:
        conditions = self.fake.one("dljobs", name).get("status", {}).get("conditions", [])
        return next((one for one in conditions if one["type"] == kind), {})


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    await made.start()
    yield made
    await made.end()


async def test_a_malformed_answer_about_kuberay_is_asked_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    trouble = RayClusters.trouble

    async def odd(self: RayClusters) -> Any:
        asked.append(1)
        if len(asked) < 3:
            raise ValueError("no JSON")
        return await trouble(self)

    monkeypatch.setattr(RayClusters, "trouble", odd)
    monkeypatch.setattr(app_module, "LOOK_TWICE", 0.01)
    async with world.operator():
        world.fake.put("dljobs", dljob())
        await world.until(lambda: world.fake.names("rayclusters"))
    assert len(asked) == 3


async def test_only_the_namespaces_of_the_release_are_watched(world: World) -> None:
    fake = world.fake
    async with world.operator(namespaces=("a", "b")) as app:
        for namespace in ("c", "b", "a"):
            fake.put("dljobs", dljob(), namespace)
        await world.until(lambda: len(fake.names("rayclusters")) == 2)
        assert {key.namespace for key in app.cache.jobs.entries} == {"a", "b"}


async def test_a_deletion_that_no_watch_told_is_found_by_a_list(world: World) -> None:
    fake = world.fake
    async with world.operator(relist_seconds=0.2) as app:
        fake.put("dljobs", dljob())
        await world.until(lambda: fake.one("dljobs", "hello").get("status", {}).get("rayCluster", {}).get("uid"))
        await world.until(lambda: not app.queue.busy and not len(app.queue))
        fake.quietly(lambda: fake.take("dljobs", "hello"))
        assert await world.until(lambda: not app.cache.jobs.entries)


async def test_the_watch_of_dljobs_goes_on_after_its_history_is_gone(world: World) -> None:
    fake = world.fake
    async with world.operator() as app:
        fake.put("dljobs", dljob())
        await world.until(lambda: fake.names("rayclusters"))
        fake.quietly(lambda: fake.put("dljobs", dljob("missed")))
        await world.until(lambda: len(app.cache.jobs.entries) == 2)
        fake.put("dljobs", dljob("later"))
        await world.until(lambda: len(app.cache.jobs.entries) == 3)


async def test_a_task_that_dies_takes_the_operator_with_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: App) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(App, "record_ticks", broken)
    with pytest.raises(ZeroDivisionError):
        async with world.operator() as app:
            await asyncio.wait_for(app._stop.wait(), 10)
