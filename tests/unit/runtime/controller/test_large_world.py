"""A restart of a large world does not keep PrimeMaster's loop from what else it has to answer."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from master_shell_kit import FIRST, HANG_S, World, end_all, ended, running, until

from dljob.master.state.actions import KillHost, StartRanks
from dljob.master.state.events import Tick
from dljob.master.state.views import HostId
from dljob.runtime.controller import executor as executor_module
from dljob.runtime.controller import master_loop as shell_module
from dljob.runtime.controller import prime, prime_actor
from dljob.runtime.controller.decisions import Folded


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    yield (made := World(tmp_path))
    made.close()


async def test_a_large_batch_is_folded_while_the_loop_goes_on(world, shell, monkeypatch):
    fold = shell_module.fold
    begun, may, waited = threading.Event(), threading.Event(), list[bool]()

    def held(*batch: Any) -> Folded:
        begun.set()
        waited.append(may.wait(HANG_S))
        return fold(*batch)

    monkeypatch.setattr(shell_module, "fold", held)
    monkeypatch.setattr(shell_module, "ASIDE_RANKS", 0)
    before = shell.state
    await world.backend.kill(await world.backend.lookup(FIRST))
    await until(begun.is_set)
    assert shell.state is before  # nothing is shown that is not written
    may.set()
    await until(lambda: "01234567/worker/0/2" in world.backend.hosts)
    end_all(world)
    assert (await ended(world))["phase"] == "Succeeded"
    assert all(waited)


async def test_a_large_job_takes_more_events_at_once(world, monkeypatch):
    monkeypatch.setattr(shell_module, "BATCH", 1)
    monkeypatch.setattr(shell_module, "BATCHES", 1)
    shell = world.master()
    await until(running(shell))
    world.masters[-1][1].cancel()
    await asyncio.wait([world.masters[-1][1]])
    for _ in range(5):
        shell._inbox.put_nowait((Tick(), None))
    assert len(await shell._batch()) == len(shell.state.ranks) == 2


async def test_many_orders_are_begun_in_slices(world, monkeypatch):
    """All that ends something is still done before anything begins."""
    monkeypatch.setattr(executor_module, "AT_ONCE", 2)
    shell = world.master()
    await until(running(shell))
    turn, done = 0, list[tuple[str, int]]()

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def end(_: object) -> None:
        done.append(("end", turn))

    monkeypatch.setattr(shell.executor, "_end", end)
    monkeypatch.setattr(shell.executor, "_begin", lambda _: done.append(("begin", turn)))
    counting = asyncio.create_task(count())
    host = HostId("worker", 0)
    starts = [StartRanks(host, 9, "", (), 2, 1, "") for _ in range(5)]
    shell.executor.execute([*starts, *(KillHost(HostId("worker", life), 1, "") for life in range(5))])
    await until(lambda: len(done) == 10)
    counting.cancel()
    assert [kind for kind, _ in done] == ["end"] * 5 + ["begin"] * 5
    assert len({at for kind, at in done if kind == "end"}) == 3
    assert len({at for kind, at in done if kind == "begin"}) == 3


def test_the_collector_of_prime_master_seldom_walks_the_state(monkeypatch):
    said: list[tuple[int, ...]] = []
    monkeypatch.setattr(gc, "set_threshold", lambda *values: said.append(values))
    monkeypatch.setattr("dljob.linux.priority.raise_priority", lambda: None)
    monkeypatch.setattr("dljob.runtime.controller.master_log.MasterLog", lambda folder: SimpleNamespace(close=folder))
    monkeypatch.setattr(prime, "MasterServer", lambda order, close_log: order)
    order: Any = SimpleNamespace(dir="/job")
    assert prime_actor.PrimeMaster(order)._own is order
    assert said == [prime_actor.COLLECT]
