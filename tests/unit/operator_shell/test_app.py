"""The whole operator with kopf, in this process, on an API server in memory."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from fake_cluster import FakeCluster
from shell_kit import SETTINGS, cluster_of, dljob, run_head
from stub_head import StubHead

from dljob.kube.kuberay_client import RayClusters
from dljob.kube.token_key import TokenKey
from dljob_operator import app as app_module
from dljob_operator.app import App, Options
from dljob_operator.process import run
from dljob_operator.watch.workqueue import Key

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


async def test_a_job_goes_from_apply_to_running_and_is_deleted(world: World) -> None:
    fake, head = world.fake, world.head
    async with world.operator() as app:
        fake.put("dljobs", dljob())
        name = await world.until(lambda: fake.names("rayclusters"))
        assert name == [cluster_of(fake)]
        run_head(fake, head)
        await world.until(lambda: head.posted)
        uid = fake.one("dljobs", "hello")["metadata"]["uid"].replace("-", "")
        head.say(uid, phase="Running", epoch=1)
        await world.until(lambda: fake.one("dljobs", "hello")["status"]["phase"] == "Running")
        fake.take("dljobs", "hello")
        await world.until(lambda: not app.cache.jobs.entries and not app.queue.busy and not len(app.queue))
        assert fake.names("rayclusters") == []
        assert not any("kopf" in json.dumps(body) for body in fake.objects.values())


async def test_existing_children_are_seen_at_the_start_before_any_is_made(world: World) -> None:
    fake = world.fake
    async with world.operator():
        fake.put("dljobs", dljob())
        await world.until(lambda: fake.one("dljobs", "hello").get("status", {}).get("rayCluster", {}).get("uid"))
    fake.calls.clear()
    async with world.operator() as app:
        await world.until(lambda: app.cache.jobs.entries)
        fake.put("dljobs", dljob("other"))
        await world.until(lambda: len(fake.names("rayclusters")) == 2)
    own = [path for method, path in fake.writes if "hello" in path or method == "POST"]
    assert [path for path in own if path.endswith("rayclusters")] == [
        "/apis/ray.io/v1/namespaces/default/rayclusters"
    ]  # the other's: nothing was made, or tried, for the first


async def test_without_kuberay_jobs_wait_and_say_why(world: World) -> None:
    fake = world.fake
    fake.missing.add("rayclusters")
    async with world.operator(look_again_seconds=0.05) as app:
        fake.put("dljobs", dljob())
        await world.until(lambda: world.condition("ClusterReady").get("reason") == "KubeRayMissing")
        assert not app.restarts
        fake.missing.clear()
        await world.until(lambda: app.restarts)
    async with world.operator():
        await world.until(lambda: fake.names("rayclusters"))


async def test_an_old_kuberay_is_waited_for(world: World) -> None:
    fake = world.fake
    fake.fields = ("upgradeStrategy",)
    async with world.operator(look_again_seconds=0.05) as app:
        fake.put("dljobs", dljob())
        await world.until(lambda: world.condition("ClusterReady").get("reason") == "KubeRayTooOld")
        fake.fields = ("authOptions", "secretName", "upgradeStrategy")
        await world.until(lambda: fake.names("rayclusters"))
        assert not app.restarts


async def test_an_older_crd_is_told_of_until_it_is_mended(world: World, caplog: pytest.LogCaptureFixture) -> None:
    from dljob.spec.crd import crd

    def served() -> dict[str, Any]:
        kinds = [{"group": "dljob.io", "version": "v1alpha1", "kind": "DLJob"}]
        schema = copy.deepcopy(crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
        return {"components": {"schemas": {"DLJob": {**schema, "x-kubernetes-group-version-kind": kinds}}}}

    old = served()
    del old["components"]["schemas"]["DLJob"]["properties"]["spec"]["properties"]["code"]
    world.fake.documents["dljob.io"] = old
    async with world.operator(look_again_seconds=0.05) as app:
        assert await world.until(lambda: app.lacks) == "spec.code"
        world.fake.documents["dljob.io"] = {"components": "nonsense"}
        await world.until(lambda: not app.lacks)
    assert caplog.text.count("lacks spec.code: values written there are lost; apply") == 1


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


async def test_a_job_that_came_in_too_large_is_invalid_and_little_of_it_is_kept(world: World) -> None:
    fake = world.fake
    fake.put("dljobs", dljob("large", config={"a": [{}] * 50_000}))
    async with world.operator() as app:
        await world.until(lambda: world.condition("SpecAccepted", "large") or world.condition("Accepted", "large"))
        status = fake.one("dljobs", "large")["status"]
        assert status["phase"] == "Invalid"
        assert "the spec has more than 20000 values" in json.dumps(status)
        assert "config" not in app.cache.jobs.entries[Key("default", "large")].value["spec"]
        fake.put("dljobs", {**fake.one("dljobs", "large"), "spec": dljob()["spec"]})
        assert await world.until(lambda: fake.names("rayclusters"))


async def test_the_watch_of_dljobs_goes_on_after_its_history_is_gone(world: World) -> None:
    fake = world.fake
    async with world.operator() as app:
        fake.put("dljobs", dljob())
        await world.until(lambda: fake.names("rayclusters"))
        fake.quietly(lambda: fake.put("dljobs", dljob("missed")))
        await world.until(lambda: len(app.cache.jobs.entries) == 2)
        fake.put("dljobs", dljob("later"))
        await world.until(lambda: len(app.cache.jobs.entries) == 3)


async def test_an_api_server_that_fails_for_a_while_ends_nothing(world: World) -> None:
    fake = world.fake
    fake.fail("GET", "ray.io", 503, times=1)
    async with world.operator():
        await world.until(lambda: fake.calls)
        fake.put("dljobs", dljob())
        fake.fail("POST", "rayclusters", 500, times=3, message="etcd is away")
        assert await world.until(lambda: fake.names("rayclusters")) == [cluster_of(fake)]


async def test_a_task_that_dies_takes_the_operator_with_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: App) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(App, "record_ticks", broken)
    with pytest.raises(ZeroDivisionError):
        async with world.operator() as app:
            await asyncio.wait_for(app._stop.wait(), 10)


async def test_probe_and_metrics_are_served(world: World) -> None:
    import socket

    import aiohttp

    ports = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    async with world.operator(health_port=ports[0], metrics_port=ports[1]), aiohttp.ClientSession() as session:
        world.fake.put("dljobs", dljob())
        await world.until(lambda: world.fake.names("rayclusters"))

        async def get(port: int, path: str) -> tuple[int, str]:
            for _ in range(100):
                with contextlib.suppress(aiohttp.ClientConnectionError):
                    async with session.get(f"http://127.0.0.1:{port}{path}") as answer:
                        return answer.status, await answer.text()
                await asyncio.sleep(0.05)
            raise AssertionError(port)

        status, text = await get(ports[0], "/healthz")
        assert (status, json.loads(text)["operator"]["jobs"]) == (200, 1)
        _, text = await get(ports[1], "/metrics")
        assert 'dljob_status_phase{dljob="hello",namespace="default",phase=' in text
        assert 'rest_client_requests_total{code="201",method="POST"}' in text
