"""Nobody can say for a while which actors there are: nothing is lost by that, and whoever is to end does end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from executor_kit import INFO, executor_of
from memory_backend import MemoryBackend, MemoryHost
from ray.exceptions import GetTimeoutError

from dljob import tasks
from dljob.errors import UsageError
from dljob.master.state import actions as ac
from dljob.master.state import events as ev
from dljob.master.state.views import HostId
from dljob.runtime.backend import interface as backend_module
from dljob.runtime.backend.interface import ActorLostError, ActorRef, ActorSpec, find_actor
from dljob.runtime.controller import executor as executor_module
from dljob.runtime.controller.worker_hosts import HostLaunch, WorkerHosts
from dljob.runtime.process.messages import saver_name
from dljob.tasks import TaskOwner

WHO, ACTOR = HostId("w", 0), "01234567/w/0/1"


class Silent(MemoryBackend):
    """Says nothing of actors for so many looks."""

    def __init__(self, looks: int, certain: bool = False) -> None:
        super().__init__()
        self.hosts[ACTOR] = MemoryHost(ACTOR, "n1")
        self.left, self.certain = looks, certain
        self.ended = asyncio.Event()

    async def lookup(self, name: str) -> ActorRef | None:
        if self.left:
            self.left -= 1
            raise ActorLostError("nobody answers", certain=self.certain)
        return await super().lookup(name)

    async def kill(self, ref: ActorRef) -> None:
        await super().kill(ref)
        self.ended.set()


class Core:
    """What it hears."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[Any] = asyncio.Queue()

    async def offer(self, *events: Any) -> None:
        for event in events:
            self.heard.put_nowait(event)

    async def next(self) -> Any:
        async with asyncio.timeout(60):
            return await self.heard.get()


def hosts_of(backend: MemoryBackend, core: Core) -> WorkerHosts:
    return WorkerHosts(cast("Any", backend), core.offer, lambda: 1, lambda: None, "j/agent/", owner=TaskOwner(print))


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_module, "AGAIN_S", 0.0)


async def test_an_actor_that_is_certainly_gone_is_looked_up_once():
    assert await find_actor(cast("Any", backend := Silent(2, certain=True)), ACTOR) is None
    assert backend.left == 1


class OthersSpawn(MemoryBackend):
    """Ray, where the order of a master that has died, to spawn an actor, comes after the first look for it."""

    async def spawn(self, spec: ActorSpec) -> ActorRef:
        self.hosts[spec.name] = MemoryHost(spec.name, "n1")
        raise UsageError(f"an actor named {spec.name} exists already")


async def test_a_host_that_the_lost_master_spawns_after_all_is_taken_over():
    backend, core = OthersSpawn(), Core()
    hosts = hosts_of(backend, core)
    hosts.bring_up(WHO, 1, HostLaunch(ActorSpec(ACTOR, "x.Y", node="n1"), 10.0))
    assert isinstance(await core.next(), ev.HostReady)
    assert hosts.knows(ACTOR)
    hosts.close()


async def test_a_host_of_an_earlier_master_is_heard_once_somebody_can_say_where_it_is():
    backend, core = Silent(9), Core()
    hosts = hosts_of(backend, core)
    hosts.attach(WHO, 1, ACTOR)
    host = backend.hosts[ACTOR]
    host.report(0, 1, None)
    assert isinstance(await core.next(), ev.RankReady)
    host.dead = True
    host.news.set()
    assert isinstance(await core.next(), ev.HostLost)
    hosts.close()


async def test_a_host_is_brought_up_once_somebody_can_say_that_there_is_none():
    backend, core = Silent(3), Core()
    hosts = hosts_of(backend, core)
    name = "01234567/w/0/2"
    hosts.bring_up(WHO, 2, HostLaunch(ActorSpec(name, "dljob.runtime.backend.interface.ActorSpec"), 60.0))
    assert isinstance(await core.next(), ev.HostReady)
    hosts.close()


async def test_a_host_that_nobody_finds_is_ended_later_and_the_job_goes_on():
    backend, core, failures = Silent(2), Core(), list[BaseException]()
    made = executor_of(backend, core.offer)
    made.failed = failures.append
    made.execute([ac.KillHost(WHO, 1, "")])
    async with asyncio.timeout(60):
        await backend.ended.wait()
    assert ACTOR not in backend.hosts
    assert failures == []
    made.close()


def muted(monkeypatch: pytest.MonkeyPatch, backend: MemoryBackend, method: str, name: str, times: int) -> list[int]:
    """Let a method raise so often for a reservation, as of a GCS whose head is replaced; clear the list to end that."""
    left, real = list(range(times)), getattr(backend, method)

    async def asked(*given: Any) -> Any:
        if left and name in given:
            left.pop()
            backend.calls.append(f"silent {method}")
            raise GetTimeoutError("It is probably because GCS server is dead")
        return await real(*given)

    monkeypatch.setattr(backend, method, asked)
    monkeypatch.setattr(tasks, "FIRST_S", 0.001)
    return left


async def test_a_reservation_that_ray_cannot_give_back_yet_holds_up_its_own_unit_alone(monkeypatch):
    backend, core, failures = MemoryBackend(), Core(), list[Exception]()
    left = muted(monkeypatch, backend, "release", "01234567/w/0/1", 7)
    backend.groups["01234567/w/0/1"] = "n1"
    made = executor_of(backend, core.offer, failed=failures.append)
    made.execute([ac.Unreserve("w/0", 1), ac.Reserve("w/0", 2, "n1", 60.0), ac.Reserve("w/1", 1, "n1", 60.0)])
    assert await core.next() == ev.UnitReserved("w/1", 1, "n1")
    assert "reserve 01234567/w/0/2" not in backend.calls
    left.clear()
    assert await core.next() == ev.UnitReserved("w/0", 2, "n1")
    assert backend.calls[-2:] == ["release 01234567/w/0/1", "reserve 01234567/w/0/2"]
    assert backend.groups.keys() == {"01234567/w/0/2", "01234567/w/1/1"}
    assert failures == []
    made.close()


async def test_copies_are_saved_once_ray_says_again_which_actors_there_are(monkeypatch):
    backend, core, failures = MemoryBackend(), Core(), list[Exception]()
    muted(monkeypatch, backend, "actors", "01234567/", 2)
    made = executor_of(backend, core.offer, failed=failures.append)
    made.execute([ac.SaveCopies("n1", 5.0)])
    assert isinstance(await core.next(), ev.NodesSeen)
    assert await core.next() == ev.CopiesSaved("n1", "")
    assert (backend.calls.count("silent actors"), failures) == (2, [])
    made.close()


async def test_a_reservation_that_ray_does_not_answer_is_asked_for_again(monkeypatch):
    backend, core, failures = MemoryBackend(), Core(), list[Exception]()
    muted(monkeypatch, backend, "reserve", "01234567/w/0/1", 2)
    made = executor_of(backend, core.offer, failed=failures.append)
    made.execute([ac.Reserve("w/0", 1, "n1", 60.0)])
    assert await core.next() == ev.UnitReserved("w/0", 1, "n1")
    assert backend.calls == ["silent reserve", "silent reserve", "reserve 01234567/w/0/1"]
    assert failures == []
    made.close()


async def test_a_reservation_that_is_given_back_is_asked_for_no_longer(monkeypatch):
    backend, core = MemoryBackend(), Core()
    muted(monkeypatch, backend, "reserve", "01234567/w/0/1", 7)
    made = executor_of(backend, core.offer)
    made.execute([ac.Reserve("w/0", 1, "n1", 60.0)])
    made.execute([ac.Unreserve("w/0", 1), ac.Reserve("w/1", 1, "n1", 60.0)])
    assert await core.next() == ev.UnitReserved("w/1", 1, "n1")
    asked = backend.calls.count("silent reserve")
    for _ in range(9):
        await asyncio.sleep(0)
    assert (made._reserving, backend.calls.count("silent reserve")) == ({}, asked)
    made.close()


async def test_closed_host_handles_end_no_host_later():
    backend = Silent(1)
    hosts = hosts_of(backend, Core())
    await hosts.end(ACTOR)
    (later,) = hosts._endings
    hosts.close()
    await asyncio.wait([later])
    assert ACTOR in backend.hosts
    assert not hosts._endings


@pytest.mark.parametrize("saves", [False, True])
@pytest.mark.parametrize(("silent", "ended"), [(3, True), (1000, False)])
async def test_the_last_sweep_repeats_while_an_actors_place_is_unknown(saves, silent, ended, monkeypatch):
    backend = Silent(silent)
    if saves:
        name = saver_name(INFO, "n1")
        backend.hosts[name] = MemoryHost(name, "n1")
    backend.groups[ACTOR] = "n1"
    clock = SimpleNamespace(time=lambda: -60.0 * backend.left)  # each look that nobody answers takes a minute
    shown = SimpleNamespace(**{name: getattr(asyncio, name) for name in ("gather", "sleep", "timeout", "to_thread")})
    shown.get_running_loop = lambda: clock
    made = executor_of(backend, Core().offer)
    monkeypatch.setattr(executor_module, "asyncio", shown)
    await made.sweep()
    monkeypatch.undo()
    made.close()
    assert (not backend.hosts) is ended
    assert not backend.groups


async def test_the_last_sweep_ends_a_queue_that_is_called_master_and_spares_primemaster():
    backend = Silent(0)
    queue = "01234567/queue/master"
    for name in (queue, INFO.master):
        backend.hosts[name] = MemoryHost(name, "n1")
    made = executor_of(backend, Core().offer)
    await made.sweep()
    made.close()
    assert backend.hosts.keys() == {INFO.master}


@pytest.mark.parametrize("mute", ["actors", "reservations", "release"])
async def test_a_backend_that_is_silent_for_a_while_does_not_break_the_last_sweep_off(mute, monkeypatch):
    backend = Silent(0)
    backend.groups[ACTOR] = "n1"
    real, left = getattr(backend, mute), [2]

    async def silent(*given: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise TimeoutError("the GCS does not answer")
        return await real(*given)

    monkeypatch.setattr(backend, mute, silent)
    made = executor_of(backend, Core().offer)
    await made.sweep()
    made.close()
    assert (backend.hosts, backend.groups) == ({}, {})
