"""Orders to hosts: what becomes of one that does not come through."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from executor_kit import executor_of
from memory_backend import MemoryBackend, MemoryHost

from dljob.master.state import events as ev
from dljob.master.state.views import HostId, Outcome
from dljob.runtime.backend.interface import ActorCallError, ActorLostError, ActorRef
from dljob.runtime.controller import worker_hosts as hosts_module
from dljob.runtime.controller.executor import HOST_CLASSES, STORE_CLASS, SUB_MASTER_CLASS
from dljob.runtime.controller.worker_hosts import WorkerHosts
from dljob.runtime.process.messages import LoadResult, NewestVersion, Report, Serves
from dljob.tasks import TaskOwner

ACTOR, WHO = "j/w/0/1", HostId("w", 0)
SILENT = ActorLostError("it is unavailable", certain=False)


class Deaf(MemoryBackend):
    """A backend whose calls break so, one by one, and then come through; `lookups` as well."""

    def __init__(self, *breaks: Exception, lookups: bool = False) -> None:
        super().__init__()
        self.hosts[ACTOR] = MemoryHost(ACTOR, "n1")
        self.left, self._lookups = list(breaks), lookups

    async def lookup(self, name: str) -> ActorRef | None:
        if self._lookups and self.left:
            raise self.left.pop(0)
        return await super().lookup(name)

    async def call(self, ref: ActorRef, method: str, *args: Any) -> Any:
        if self.left:
            raise self.left.pop(0)
        self.hosts[ACTOR].orders.append((method, *args))


async def told(backend: Deaf, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the core hears of a host that was told something."""
    monkeypatch.setattr(hosts_module, "RETRY_S", 0.0)
    heard: list[Any] = []

    async def offer(*events: Any) -> None:
        heard.extend(events)

    hosts = WorkerHosts(cast("Any", backend), offer, lambda: 1, lambda: None, "j/agent/", owner=TaskOwner(print))
    hosts._watch(ACTOR, WHO, 3)
    await hosts.tell(ACTOR, "start", "order")
    assert hosts.knows(ACTOR) is not bool(heard)
    return heard


@pytest.mark.parametrize("lookups", [False, True])
async def test_an_order_that_comes_through_at_last_is_no_loss(lookups, monkeypatch):
    backend = Deaf(*[SILENT] * 3, lookups=lookups)
    assert await told(backend, monkeypatch) == []
    assert backend.hosts[ACTOR].orders == [("start", "order")]


@pytest.mark.parametrize("lookups", [False, True])
async def test_a_host_that_no_order_reaches_is_lost(lookups, monkeypatch):
    (lost,) = await told(Deaf(*[SILENT] * 4, lookups=lookups), monkeypatch)
    assert isinstance(lost, ev.HostLost)
    assert (lost.host, lost.incarnation, lost.outcome.detail) == (WHO, 3, "it is unavailable")


async def test_a_host_that_refuses_is_lost_and_a_dead_one_is_heard_of_elsewhere(monkeypatch):
    (lost,) = await told(Deaf(ActorCallError("no", error_type="E", remote_traceback="")), monkeypatch)
    assert lost.outcome.error_type == "E"
    assert await told(Deaf(ActorLostError("dead")), monkeypatch) == []


def test_a_report_is_news_of_readiness_or_of_a_start_or_of_an_end():
    serves = Serves((("http", "h:1"),), ready=False, reason="status 503")
    assert hosts_module._event("r", Report(1, 2, 3, 4, None, serves)) == ev.RankServes(
        "r", 2, 3, (("http", "h:1"),), ready=False, why="status 503"
    )
    newest, loaded = NewestVersion(7, 70.0, 60.0, 5, (("t/0", 3),)), LoadResult(7, 70.0, "status 500", untouched=True)
    assert hosts_module._event("r", Report(1, 2, 3, 4, None, weights=newest)) == ev.WeightsPublished(
        "r", 7, 70.0, 60.0, 5, (("t/0", 3),)
    )
    assert hosts_module._event("r", Report(1, 2, 3, 4, None, weights=loaded)) == ev.WeightsLoaded(
        "r", 2, 3, 7, 70.0, "status 500", untouched=True
    )
    assert hosts_module._event("r", Report(1, 2, 3, 4, None)) == ev.RankReady("r", 2, 3, 4)
    done = Outcome(ok=True)
    assert hosts_module._event("r", Report(1, 2, 3, 4, done)) == ev.RankEnded("r", 2, 3, done)


@pytest.mark.parametrize(("entry", "names"), [({"module": "s.py"}, ["HOME"]), ({"class": "m.C"}, ["A", "HOME"])])
async def test_only_workers_with_user_code_have_all_variables_of_a_role(entry, names):
    """Each set of variables needs a server of workers of its own. The store of a class has the server of its ranks."""
    env = [{"name": "A", "value": "1"}, {"name": "HOME", "value": "/h"}]
    role = {"name": "w", "entrypoint": entry, "env": env}
    executor = executor_of(MemoryBackend(), job={"metadata": {"name": "j"}, "spec": {"roles": [role]}})
    plan = executor._plan.roles["w"]
    for cls in (HOST_CLASSES[plan.host], STORE_CLASS):
        assert [name for name, _ in executor._spec(plan, "x", cls).env] == names
    assert [name for name, _ in executor._spec(plan, "x", SUB_MASTER_CLASS).env] == ["A", "HOME"]


async def test_a_host_that_has_heard_of_a_later_master_is_not_asked_at_once_again(monkeypatch):
    polls, pauses = list[str](), list[float]()

    class Later(MemoryBackend):
        async def call(self, ref: ActorRef, method: str, *args: Any) -> Any:
            polls.append(method)
            return ()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise asyncio.CancelledError

    backend = Later()
    hosts = WorkerHosts(cast("Any", backend), print, lambda: 1, lambda: None, "j/agent/", owner=TaskOwner(print))  # type: ignore[arg-type]
    monkeypatch.setattr(hosts_module.asyncio, "sleep", pause)
    with pytest.raises(asyncio.CancelledError):
        await hosts._listen(hosts._watch(ACTOR, WHO, 3), ActorRef(ACTOR, None))
    assert polls == ["watch"] * 3
    assert pauses == [hosts_module.RETRY_S] * 3
