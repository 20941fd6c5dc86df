"""The thread host, as far as it goes without a Ray."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from role_kit import role_plan

from dljob import rpc
from dljob.master.state.actions import RankStart
from dljob.master.state.views import Outcome, Reason
from dljob.plan.amounts import GRAIN
from dljob.runtime.process import guard, wire
from dljob.runtime.process.messages import Call, StartOrder
from dljob.runtime.process.thread_interrupt import ThreadInterrupt
from dljob.runtime.rpc.server import RpcServer
from dljob.runtime.worker import numa, rank_settings, thread_host
from dljob.runtime.worker.reports import Reports
from dljob.runtime.worker.thread_host import ThreadHost


def test_a_host_whose_rank_has_ended_says_nothing_of_its_own_end(monkeypatch, capfd):
    """Its last line would be on the console of a job that ended well."""
    codes: list[int] = []
    heard: list[int] = []

    def exit_once(code: int) -> NoReturn:
        codes.append(code)
        raise SystemExit(code)

    monkeypatch.setattr(guard.os, "_exit", exit_once)
    monkeypatch.setattr(guard.descendants, "kill_all", lambda: None)
    monkeypatch.setattr(guard, "_ended", threading.Lock())
    monkeypatch.setattr(guard, "_last_actions", [])
    host = ThreadHost.__new__(ThreadHost)
    host._done = threading.Event()
    host._done.set()
    host._report = 4
    host.reports = cast("Reports", SimpleNamespace(wait_acked=lambda seq, _seconds: heard.append(seq)))
    with pytest.raises(SystemExit):
        host.terminated()
    assert heard == [4], "its last word was heard before it went"
    assert (codes, capfd.readouterr().err) == ([0], "")


class Life:
    """Of `Lifecycle`, what is looked at when it is left."""

    def __init__(self) -> None:
        self.shut = 0

    @property
    def left_over(self) -> tuple[bool, str]:
        return not self.shut, "the user's object"

    def shutdown(self) -> None:
        self.shut += 1


def test_a_rank_that_parted_and_came_back_keeps_its_object_at_the_next_restart(monkeypatch):
    monkeypatch.setattr(thread_host.last_save, "close", lambda ok: None)
    host = ThreadHost.__new__(ThreadHost)
    host._callee = cast("Any", SimpleNamespace(wait_idle=lambda: None))
    ends: list[int] = []
    monkeypatch.setattr(host, "_ended", lambda start, _outcome: ends.append(start.incarnation))
    host._parts, parted, back = 2, Life(), Life()

    host._lifecycle = cast("Any", parted)
    host._report_left(cast("Any", SimpleNamespace(incarnation=2)))
    assert (parted.shut, host._kept_object()) == (1, None), "its role had it no more"

    host._lifecycle = cast("Any", back)
    host._report_left(cast("Any", SimpleNamespace(incarnation=3)))
    assert (back.shut, host._kept_object()) == (0, "the user's object")
    assert ends == [2, 3]


@pytest.mark.parametrize("cores", [True, False])
def test_a_class_is_bound_before_its_code_is_entered_and_one_that_cannot_be_is_not_tried_again(
    cores, monkeypatch, capsys
):
    """Its process is asked to be what it is anyway: the test's own is not to be bound to anything."""
    here = tuple(sorted(os.sched_getaffinity(0)))
    near = numa.Near(here) if cores else numa.Near(error="RuntimeError: no accelerator")
    monkeypatch.setattr(numa, "probe_cores", lambda _mode, devices, *_more: dict.fromkeys(devices, near))
    start = RankStart(0, 1, 0, 1, 0, devices=(("GPU", ("3",)),))
    role = role_plan("w", ("class", "m.W"), accelerator=("GPU", GRAIN))
    said: list[Outcome] = []
    host = ThreadHost.__new__(ThreadHost)
    host._cores, host._kind, host._killed, host._recall = numa.Cores("node"), "GPU", "", ThreadInterrupt()
    host._ended = lambda _start, outcome: said.append(outcome) or 0  # type: ignore[method-assign]

    def live_on(_order: object, start: RankStart) -> Outcome:
        host._cores.find((start,), "GPU")
        rank_settings.apply(rank_settings.settings_of(role, start, host._cores))
        return Outcome(ok=True)

    host._live_on = live_on  # type: ignore[method-assign]
    host._live(cast("StartOrder", None), start)
    if cores:
        assert said == [Outcome(ok=True)]
        assert f"[dljob] bound to {numa.ranges(here)}, the cores near GPU 3" in capsys.readouterr().err
    else:
        assert (said[0].ok, said[0].fatal, said[0].reason) == (False, True, Reason.USER_ERROR)
        assert "RuntimeError: no accelerator" in said[0].message


def test_a_class_that_may_not_have_its_niceness_is_not_tried_again(monkeypatch):
    def refuse(*_: object) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "setpriority", refuse)
    start, outcomes = RankStart(0, 1, 0, 1, 0), list[Outcome]()
    host = ThreadHost.__new__(ThreadHost)
    host._killed, host._recall = "", ThreadInterrupt()
    host._ended = lambda _start, outcome: outcomes.append(outcome) or 0  # type: ignore[method-assign]

    def live_on(_order: object, start: RankStart) -> Outcome:
        role = role_plan("w", ("class", "m.W"), nice=-3)
        rank_settings.apply(rank_settings.settings_of(role, start, numa.Cores("")))
        return Outcome(ok=True)

    host._live_on = live_on  # type: ignore[method-assign]
    host._live(cast("StartOrder", None), start)
    (outcome,) = outcomes
    assert (outcome.ok, outcome.fatal, outcome.reason) == (False, True, Reason.USER_ERROR)
    assert outcome.message.startswith("nice: -3 asks for niceness ")


class Called:
    """An object that other roles may call."""

    @rpc
    def score(self) -> int:
        return 1


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), RuntimeError("can't start new thread")])
def test_rank_that_can_open_no_line_is_ready_and_called_by_ray(error, monkeypatch, caplog):
    def fails(*_: object) -> NoReturn:
        raise error

    monkeypatch.setattr(thread_host, "LineServer", fails)
    started: list[int] = []
    host = ThreadHost.__new__(ThreadHost)
    host.spec = cast("Any", SimpleNamespace(job=SimpleNamespace(uid="u")))
    host.actor_name, host._lines, host._callee = "u/t-0", None, RpcServer("t")
    host._serving = cast("Any", SimpleNamespace(started=lambda start: started.append(start.rank)))
    host._ready(RankStart(0, 1, 0, 1, 0), Called())
    assert started == [0]
    assert host._callee.answer(Call("w/0:x:1", 0, 1, "score", None, "w/0"), wire.dump(((), {}), "")).error_type == ""
    assert f"u/t-0 is called by Ray alone, as no line to it can be opened: {error}" in caplog.text
