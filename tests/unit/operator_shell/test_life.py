"""Whole operators that stand by, take over, wait for an API server that is away, and begin anew."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import kopf
import pytest
from fake_cluster import FakeCluster
from shell_kit import SETTINGS, dljob, shell
from test_app import World

from dljob.kube.api import DLJOBS
from dljob.kube.objects import Objects
from dljob.kube.token_key import TokenKey
from dljob_operator import app as app_module
from dljob_operator.app import App, Options
from dljob_operator.leader.probes import SickError
from dljob_operator.process import OperatorProcess
from dljob_operator.watch.relist import Relist, ResyncSource
from dljob_operator.watch.workqueue import Key, WorkQueue

pytestmark = [  # a whole operator, whose requests and watches wait by the clock
    pytest.mark.slow,
    pytest.mark.live,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    await made.start()
    yield made
    await made.end()


def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


async def asked(number: int, path: str) -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession() as session:
        for _ in range(200):
            with contextlib.suppress(aiohttp.ClientConnectionError):
                async with session.get(f"http://127.0.0.1:{number}{path}") as answer:
                    return answer.status, await answer.json()
            await asyncio.sleep(0.02)
    raise AssertionError(f"nobody answers {path}")


async def test_an_api_server_that_is_away_at_the_start_is_waited_for_with_probes_that_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe, pods = port(), [403]
    monkeypatch.setattr(app_module, "LOOK_TWICE", 0.05)
    world.fake.fail("GET", "ray.io", 503, times=10**6)
    world.fake.fail("GET", "/pods", pods[0], times=10**6, message="pods is forbidden")
    async with world.operator(health_port=probe):
        status, said = await asked(probe, "/healthz")
        assert (status, said["operator"]["role"]) == (200, "starting")
        status, said = await asked(probe, "/readyz")
        assert (status, said["failed"]) == (500, "the caches are not complete: the first lists")
        world.fake.faults.pop(0)

        async def words() -> str:
            return (await asked(probe, "/readyz"))[1].get("failed", "")

        async with asyncio.timeout(15):
            while "cannot list pods: pods is forbidden" not in await words():  # noqa: ASYNC110 - a probe is asked
                await asyncio.sleep(0.05)
        world.fake.put("dljobs", dljob())
        world.fake.faults.clear()
        await world.until(lambda: world.fake.names("rayclusters"))
        assert (await asked(probe, "/readyz"))[0] == 200


async def test_kopf_that_gives_up_is_begun_again_by_the_process_itself(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def gives_up(**_: Any) -> None:
        raise RuntimeError("Error in the watch-stream")

    monkeypatch.setattr(kopf, "operator", gives_up)
    monkeypatch.setattr(app_module, "ANEW_SECONDS", 0.05)
    async with world.operator() as app:
        await world.until(lambda: app.restarts)
    assert "kopf has given up" in caplog.text


async def test_an_operator_told_to_end_while_kopf_has_given_up_ends(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def gives_up(**_: Any) -> None:
        raise RuntimeError("Error in the watch-stream")

    monkeypatch.setattr(kopf, "operator", gives_up)
    async with world.operator() as app:
        await world.until(lambda: "kopf has given up" in caplog.text)
    assert not app.restarts


@pytest.mark.parametrize("told", [True, False])
async def test_kopf_that_hangs_while_it_ends_is_left_behind(
    world: World, monkeypatch: pytest.MonkeyPatch, *, told: bool
) -> None:
    """As kopf 1.45 does where credentials are refused: our life in it has ended, and it does not."""
    acts: list[Any] = []
    stuck = asyncio.Event()

    async def hangs(**_: Any) -> None:
        begin, end = acts
        await begin()
        await end()
        stuck.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(kopf, "operator", hangs)
    monkeypatch.setattr(app_module.handlers, "register_start_and_stop", lambda _registry, *given: acts.extend(given))
    monkeypatch.setattr(app_module, "HANGS_SECONDS", 0.3)
    monkeypatch.setattr(app_module, "ANEW_SECONDS", 0.05)
    async with world.operator() as app:
        await asyncio.wait_for(stuck.wait(), 10)
        if told:
            app.stop()
        await world.until(lambda: app.hangs and (told or app.restarts))
    assert app.restarts != told


async def test_credentials_that_are_refused_once_are_given_again_as_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kopf ends, else, beside an API server that refuses what is good while it starts."""
    monkeypatch.setattr(app_module, "HANGS_SECONDS", 3.0)
    async with world.operator() as app:
        await world.until(lambda: not app.restarts and world.fake.calls)
        world.fake.put("dljobs", dljob())
        await world.until(lambda: world.fake.names("rayclusters"))
        world.fake.fail("GET", "/dljobs$", 401, times=1)
        # One watch alone begins anew, and is refused. kopf (1.45) ends with a RuntimeError where it closes its session
        # while the answer to another watch comes in; then the process begins anew, which other tests show.
        world.fake.cut("dljobs")
        await world.until(lambda: not world.fake.faults[0].times)
        world.fake.put("dljobs", dljob("other"))
        await world.until(lambda: len(world.fake.names("rayclusters")) == 2, 30)
        assert not app.restarts


async def test_dljobs_that_are_served_later_are_watched_from_a_new_start_on(world: World) -> None:
    world.fake.missing.add("dljobs")
    async with world.operator() as app:
        await world.until(lambda: any("dljobs" in path for _, path in world.fake.calls))
        world.fake.missing.clear()
        await world.until(lambda: app.restarts)


async def test_a_probe_says_what_a_new_start_would_help() -> None:
    app = App(Options(SETTINGS, TokenKey(b"k" * 32)))
    life = OperatorProcess(app)
    assert life.health()["role"] == "starting"
    app._last_tick -= 3600
    with pytest.raises(SickError, match="the event loop is 3"):
        life.health()
    app._last_tick += 3600
    life._relist._deaf["Pod"] = 2
    with pytest.raises(SickError, match="the watch of Pod is dead"):
        life.health()
    await life.close()


async def test_a_watch_is_dead_that_tells_nothing_while_lists_tell_changes() -> None:
    async with shell(FakeCluster()) as it:
        relist = Relist(it.queue, (None,), lambda _kind, _count: None)
        source = ResyncSource(Objects(it.kube, DLJOBS), "", it.cache.jobs, it.cache.put_job, it.cache.drop_job)
        assert not await relist.fill([source])
        assert relist.waits_for == ""
        for number in range(3):
            it.fake.put("dljobs", dljob(f"j{number}"))
            it.cache.jobs.events_received += 1  # the watch lives, and the list was a moment faster
            await relist.once(source)
        assert not relist.deaf
        it.fake.put("dljobs", dljob("j3"))
        await relist.once(source)
        await relist.once(source)  # nothing new, so nothing missed
        it.fake.put("dljobs", dljob("j4"))
        await relist.once(source)
        assert not relist.deaf
        it.fake.put("dljobs", dljob("j5"))
        await relist.once(source)
        assert relist.deaf == "DLJob"


async def test_the_first_lists_are_made_until_they_are_read_and_each_error_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dljob_operator.watch.relist.AGAIN", 0.01)
    async with shell(FakeCluster()) as it:
        relist = Relist(it.queue, (None,), lambda _kind, _count: None)
        source = ResyncSource(Objects(it.kube, DLJOBS), "", it.cache.jobs, it.cache.put_job, it.cache.drop_job)
        odd = ResyncSource(source.objects, "", source.store, _stumbling([2], it.cache.put_job), source.drop)
        it.fake.put("dljobs", dljob())
        it.fake.fail("GET", "dljobs", 404, times=1)
        assert await relist.fill([odd]), "it was not served at first"
        assert Key("default", "hello") in it.cache.jobs.entries
        told = [record for record in caplog.records if "the list of dljobs" in record.getMessage()]
        assert [record.name for record in told] == ["dljob_operator.watch"] * 2
        assert ["KeyError: 'spec'" in record.getMessage() for record in told] == [False, True]


async def test_a_list_that_fails_for_long_is_told_once_and_ends_no_later_list(caplog: pytest.LogCaptureFixture) -> None:
    async with shell(FakeCluster()) as it:
        relist = Relist(it.queue, (None,), lambda _kind, _count: None)
        source = ResyncSource(Objects(it.kube, DLJOBS), "", it.cache.jobs, it.cache.put_job, it.cache.drop_job)
        odd = ResyncSource(source.objects, "", source.store, _stumbling([5], it.cache.put_job), source.drop)
        it.fake.put("dljobs", dljob())
        running = asyncio.create_task(relist.run(lambda: [odd], every=0.001))
        async with asyncio.timeout(10):
            while Key("default", "hello") not in it.cache.jobs.entries:  # noqa: ASYNC110 - some turns of the loop
                await asyncio.sleep(0.01)
        running.cancel()
    assert caplog.text.count("the list of dljobs failed and is tried again") == 1


def _stumbling(left: list[int], put: Any) -> Any:
    def stumble(body: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise KeyError("spec")
        return put(body)

    return stumble


def test_a_closed_queue_takes_nothing_and_has_forgotten_all() -> None:
    queue, key, other = WorkQueue(), Key("ns", "a"), Key("ns", "b")
    queue.add(key)
    assert queue.take() == key
    queue.add(key)
    queue.add(other)
    queue.close()
    queue.add(other)
    queue.add_after(other, 0.0)
    queue.done(key)
    assert queue.take() is None
    assert len(queue) == 0
    queue.open()
    queue.add(other)
    assert queue.take() == other
