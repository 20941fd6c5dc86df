"""What a host of forked ranks keeps of each: the facts that it is told, and one report of its end."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from role_kit import role_plan

from dljob.master.state import causes
from dljob.master.state.actions import RankStart
from dljob.master.state.views import Reason
from dljob.runtime.process import preload
from dljob.runtime.process.messages import HostSpec, JobInfo, StartOrder
from dljob.runtime.worker.fork_host import UNSEEN, ForkHost, _Rank

START = RankStart(1, 3, 0, 1, 1, restart_reason="HostLost")


def bare() -> Any:
    host: Any = ForkHost.__new__(ForkHost)
    host._helper = SimpleNamespace(failure="", failure_code=None)
    host._lock, host._start_lock = threading.RLock(), threading.Lock()
    return host


def test_an_order_that_a_new_primemaster_repeats_at_once_starts_a_rank_once():
    host, forked = bare(), list[RankStart]()
    host._ranks, host._barred = {}, {}
    both_wait, both_register = threading.Barrier(2), threading.Barrier(2)
    host._helper = SimpleNamespace(up=SimpleNamespace(wait=lambda _seconds: both_wait.wait(10) >= 0))
    host._cores, host._imports_changed = SimpleNamespace(find=lambda *_: None), lambda: False
    host.spec = SimpleNamespace(role=role_plan("w", ("script", "train.py")))

    def register(_order: StartOrder, start: RankStart) -> tuple[Any, Any, None]:
        with suppress(threading.BrokenBarrierError):
            both_register.wait(0.5)  # Breaks where the other order waits for this one, as it should.
        host._ranks[start.rank] = SimpleNamespace(start=start, ended=threading.Event())
        return host.spec, host._ranks[start.rank], None

    host._register = register
    host._fork = lambda _order, _spec, rank, _refused, *, fresh: forked.append(rank.start) if not fresh else None
    order = StartOrder(1, 1, (START,), 2, 1, "")
    orders = [threading.Thread(target=host.start_ranks, args=(order,)) for _ in range(2)]
    for thread in orders:
        thread.start()
    for thread in orders:
        thread.join(20)
    assert forked == [START]


def test_the_end_of_a_rank_is_reported_once():
    host, reports = bare(), list[Any]()
    host.reports = SimpleNamespace(add=lambda *said: reports.append(said) or len(reports))
    host._serving = SimpleNamespace(ended=lambda _rank: None)
    rank = SimpleNamespace(
        start=START, pid=7, ended=threading.Event(), progress=SimpleNamespace(with_last_step=lambda outcome: outcome)
    )
    host._ended(rank, UNSEEN)
    host._ended(rank, UNSEEN)
    assert rank.ended.is_set()
    assert (reports, host._last_report) == ([(1, 3, 7, UNSEEN)], 1)


def test_a_rank_is_told_its_place_its_config_and_the_present_sizes_of_roles():
    job = JobInfo("u", "j", "/j", "dljob", "u/master", 30, 0.2, "/code", (("w", 2), ("v", 1)))
    host = bare()
    host.spec = HostSpec(job, role_plan("w", ("script", "train.py"), config={"depth": 3}, replicas=2), 1)
    told = host._facts(host.spec, StartOrder(1, 1, (START,), 2, 1, "", (("v", 4),)), START)
    assert {name: told["facts"][name] for name in ("role", "rank", "world_size", "incarnation", "restart_reason")} == {
        "role": "w",
        "rank": 1,
        "world_size": 2,
        "incarnation": 3,
        "restart_reason": "HostLost",
    }
    assert (told["config"], told["peers"]) == ({"depth": 3}, {"w": 2, "v": 4})


def test_only_another_beginning_of_the_script_makes_ranks_import_anew(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import a\nimport b\n")
    host = bare()
    role, job = role_plan("w", ("module", "train.py")), SimpleNamespace(code_dir=str(tmp_path))
    host.spec, host._early = SimpleNamespace(role=role, job=job), preload.of(role, str(tmp_path))
    host._helper = SimpleNamespace(import_count=1)
    assert not host._imports_changed()
    script.write_text("import a\nimport c\n")
    assert not host._imports_changed()
    script.write_text("import os\nos.environ['A'] = 'b'\nimport a\n")
    assert host._imports_changed()
    host._helper.import_count = 0
    assert not host._imports_changed()


def test_an_error_that_was_reported_before_the_order_to_end_is_the_end_of_the_rank():
    host = bare()
    words = {"ok": False, "reason": "UserError", "error_type": "AssertionError", "message": "bad loss", "code": 1}
    rank = _Rank(START, "", 0, {}, dict, 0, SimpleNamespace(), {}, pid=7)  # type: ignore[arg-type]
    host._ranks = {1: rank}
    assert host.failing_ranks() == {}
    host._on_event({"event": "failing", "rank": 1, "incarnation": 3, "pid": 7, "words": words})
    ((incarnation, failure),) = host.failing_ranks().values()
    assert (incarnation, failure.reason, failure.error_type) == (3, Reason.USER_ERROR, "AssertionError")
    rank.stop_reason = "restart"
    assert host._outcome(rank, {"status": 15, "words": words}) == failure
    rank.ended.set()
    assert host.failing_ranks() == {}


@pytest.mark.parametrize(("code", "is_same"), [(139, True), (3, False)])
def test_a_rank_that_ends_as_the_fork_server_in_its_early_imports_says_so_in_its_cause(tmp_path, code, is_same):
    host, words = bare(), "importing bad ended the fork server by SIGSEGV after 0.1 s"
    host._helper = SimpleNamespace(failure=words, failure_code=code)
    host.evidence = SimpleNamespace(clues=lambda _pid, killed, children: ())
    job, role = SimpleNamespace(code_dir=str(tmp_path)), SimpleNamespace(entrypoint=("module", "t.py"), quota=None)
    host.spec = SimpleNamespace(job=job, role=role)
    rank = _Rank(START, str(tmp_path / "w-1.log"), 0, {}, dict, 0, SimpleNamespace(), {}, pid=7)  # type: ignore[arg-type]
    outcome = host._outcome(rank, {"status": signal.SIGSEGV, "words": {}})
    assert outcome.message == "ended by SIGSEGV"
    assert causes.describe_root_cause(outcome) == (f"; before that, {words}" if is_same else "")


@pytest.mark.parametrize("words", ["", "1 process still ran after its end and was killed: cp a b (pid 5)"])
def test_processes_that_were_killed_after_a_good_end_are_in_the_log_and_the_outcome(tmp_path, words):
    host, log = bare(), tmp_path / "w-1.log"
    log.write_text("done\n")
    host.reports = SimpleNamespace(add=lambda *_: 1)
    host._serving, host._traces = SimpleNamespace(ended=lambda _: None), SimpleNamespace(write_out=lambda: None)
    progress: Any = SimpleNamespace(with_last_step=lambda outcome: outcome)
    rank = _Rank(START, str(log), 0, {}, dict, 0, progress, {}, pid=7)
    outcome = host._outcome(rank, {"status": 0, "words": {}, "left": words})
    host._ended(rank, outcome)
    assert (outcome.ok, outcome.message) == (True, words)
    assert log.read_text() == "done\n" + (f"[dljob] {words}\n" if words else "")


def test_an_error_after_the_order_to_end_is_none_of_its_own():
    host = bare()
    rank = _Rank(START, "", 0, {}, dict, 0, SimpleNamespace(), {}, pid=7, stop_reason="restart")  # type: ignore[arg-type]
    host._ranks = {1: rank}
    host._on_event({"event": "failing", "rank": 1, "incarnation": 3, "pid": 7, "words": {"ok": False}})
    assert rank.failing is None


def driver(monkeypatch: Any, told: Any) -> Any:
    """Return a host of a role that reserves Quota; `told` is what Ray says was lost first."""
    host = bare()
    job = JobInfo("u", "j", "/j", "dljob", "u/master", 30, 0.2, "/code", (("w", 1),))
    host.spec = SimpleNamespace(job=job, role=SimpleNamespace(name="w", quota=(), entrypoint=("module", "t.py")))
    host.evidence = SimpleNamespace(clues=lambda _pid, killed, children: ())
    monkeypatch.setattr("dljob.runtime.worker.fork_host._tail", lambda _rank: "ActorDiedError")
    monkeypatch.setattr("dljob.runtime.worker.fork_host.ray_drivers.first_lost", told)
    rank = SimpleNamespace(start=START, pid=7, stop_reason="", failed=None, failing=None)
    return lambda: host._outcome(rank, {"status": 1 << 8, "words": {}})


def test_a_driver_that_lost_an_actor_ends_with_that_loss(monkeypatch):
    end = driver(monkeypatch, lambda owner: f"its actor of {owner} was lost first")()
    assert (end.reason, end.error_type, end.code) == (Reason.UNKNOWN, "ActorLost", 1)
    assert end.message == "exited with code 1; its actor of u/w/1/1.3 was lost first"


def test_a_driver_of_which_ray_tells_no_loss_ends_with_its_own_error(monkeypatch):
    def gone(_owner: str) -> str:
        raise OSError("the GCS is gone")

    for told in (gone, lambda _owner: ""):
        end = driver(monkeypatch, told)()
        assert (end.reason, end.error_type, end.message) == (Reason.USER_ERROR, "", "exited with code 1")
