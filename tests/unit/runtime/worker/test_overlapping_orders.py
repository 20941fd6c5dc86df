"""Orders to a host of forked ranks that overlap: a stop beside a start that has not been carried out yet."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from role_kit import role_plan

from dljob.master.state.actions import RankStart
from dljob.runtime.process.messages import CUT, HostSpec, JobInfo, StartOrder, StopOrder
from dljob.runtime.process.step_counters import StepCounters
from dljob.runtime.serving.monitor import ProbedRank
from dljob.runtime.worker.fork_host import ForkHost
from dljob.runtime.worker.reports import Reports
from dljob.runtime.worker.thread_host import ThreadHost

WAIT_S = 20.0


def start(incarnation: int) -> StartOrder:
    return StartOrder(1, 1, (RankStart(0, incarnation, 0, 1, 0),), 1, 1, "")


def stop(incarnation: int) -> StopOrder:
    return StopOrder(1, (0,), 0.0, "restart", (incarnation,))


class Scene:
    """A host whose start of a rank is held at one place, until another order has been carried out."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.orders: list[tuple[str, int]] = []
        self.reached, self.goes_on = threading.Event(), threading.Event()
        self.stopped_probes: list[Any] = []
        job = JobInfo("u", "j", str(folder), "dljob", "u/master", 30, 0.2, "/code", (("w", 1), ("v", 2)))
        host: Any = ForkHost.__new__(ForkHost)
        host._socket = SimpleNamespace(stopping=lambda *_: None, tell_sizes=lambda *_: None, path="@socket")
        host.spec, host.reports = HostSpec(job, role_plan("w", ("script", "train.py")), 1), Reports()
        monkeypatch.setattr("dljob.runtime.worker.fork_host.HostSocket", lambda *_: host._socket)
        host._prepare(host.spec, lambda: "127.0.0.1")
        host.counters = StepCounters.create(1)
        host.logs = SimpleNamespace(begin=lambda *_: None)
        host._helper = SimpleNamespace(up=threading.Event(), order=self.order, import_count=0)
        host._helper.up.set()
        host._early = SimpleNamespace(imports=())
        self.host = host

    def order(self, kind: str, _rank: int, incarnation: int, **_details: Any) -> None:
        self.orders.append((kind, incarnation))

    def held(self, result: Any) -> Callable[..., Any]:
        """Return a function that returns `result` once the other order has been carried out."""

        def hold(*_: Any) -> Any:
            self.reached.set()
            assert self.goes_on.wait(WAIT_S)
            return result

        return hold

    def start_beside(self, other: Callable[[], None], incarnation: int = 1) -> None:
        """Start a rank; carry another order out while the start is held."""
        thread = threading.Thread(target=self.host.start_ranks, args=(start(incarnation),))
        thread.start()
        assert self.reached.wait(WAIT_S)
        other()
        self.goes_on.set()
        thread.join(WAIT_S)
        assert not thread.is_alive()

    @property
    def ends(self) -> list[int]:
        return [report.incarnation for report in self.host.reports._reports if report.outcome is not None]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


def test_a_rank_that_is_stopped_while_its_start_waits_for_the_fork_server_is_not_started(scene):
    scene.host._helper.up = SimpleNamespace(wait=scene.held(True))
    scene.start_beside(lambda: scene.host.stop_ranks(stop(1)))
    scene.host.stop_ranks(stop(1))
    scene.host.start_ranks(start(1))  # again from a new PrimeMaster
    assert (scene.orders, scene.ends) == ([], [1])
    scene.host.start_ranks(start(2))
    assert scene.orders == [("fork", 2)]


def test_a_rank_that_is_stopped_while_its_start_asks_for_the_endpoints_is_not_started(scene):
    scene.host._serving.resolved = scene.held(scene.host.spec)
    scene.start_beside(lambda: scene.host.stop_ranks(stop(1)))
    assert (scene.orders, scene.ends) == ([], [1])
    scene.host._serving.resolved = lambda _start: scene.host.spec
    scene.host.start_ranks(start(2))
    assert scene.orders == [("fork", 2)]


def test_a_rank_that_is_stopped_just_before_its_fork_is_not_forked(scene, monkeypatch):
    monkeypatch.setattr("dljob.runtime.worker.fork_host.KILLED_S", 0.0)
    scene.host._serving.meet = scene.held({})
    scene.start_beside(lambda: scene.host.stop_ranks(stop(1)))
    assert ([one for one in scene.orders if one[0] == "fork"], scene.ends) == ([], [1])
    assert "not started: restart" in scene.host.reports._reports[0].outcome.message


def test_an_incarnation_that_was_not_forked_yet_is_not_forked_beside_its_successor(scene, monkeypatch):
    monkeypatch.setattr("dljob.runtime.worker.fork_host.KILLED_S", 0.0)
    first = scene.held({})
    scene.host._serving.meet = lambda started, _stopped: first() if started.incarnation == 1 else {}
    scene.start_beside(lambda: scene.host.start_ranks(start(2)))
    assert [one for one in scene.orders if one[0] == "fork"] == [("fork", 2)]


def test_a_late_order_to_stop_leaves_the_later_incarnation_and_its_probes(scene, monkeypatch):
    scene.host.start_ranks(start(2))
    scene.host.stop_ranks(stop(1))
    assert (scene.orders, scene.ends) == ([("fork", 2)], [])
    monkeypatch.setattr(scene.host._serving._probes, "end", scene.stopped_probes.append)
    scene.host._serving.ended(start(1).ranks[0])
    assert scene.stopped_probes == [ProbedRank(0, 1)]


def test_a_size_that_is_told_while_a_start_waits_reaches_the_rank(scene):
    scene.host._helper.up = SimpleNamespace(wait=scene.held(True))
    scene.start_beside(lambda: scene.host.learn_sizes({"v": 3, CUT: 7}, {"v": (0, 1, 4), "w": ()}))
    told = scene.host._facts_of(0, 1)
    assert (told["peers"], told["numbers"]) == ({"w": 1, "v": 3}, {"v": [0, 1, 4]})
    calls = scene.host._calls_of(0)
    assert (calls.sizes, calls.numbers) == ({"v": 3}, {"v": (0, 1, 4), "w": ()})


def test_a_class_hears_of_a_size_that_was_told_before_its_older_order_to_start():
    job = JobInfo("u", "j", "/j", "dljob", "u/master", 30, 0.2, "/code", (("w", 1), ("v", 2)))
    host: Any = ThreadHost.__new__(ThreadHost)
    host.spec, host._traces = HostSpec(job, role_plan("w", ("class", "m.W")), 1), SimpleNamespace(of=lambda _: None)
    host._lock, host._calls, host._sizes, host._numbers = threading.Lock(), None, {}, {}
    host.learn_sizes({"v": 3, CUT: 7}, {"v": (0, 1, 4)})
    calls = host._client(0, StartOrder(1, 1, (), 1, 1, "", (("v", 2),), (("v", (0, 1)),)))
    assert (calls.sizes, calls.numbers) == ({"v": 3}, {"v": (0, 1, 4)})
