"""A rank that leaves its torch group and meets again in the same process: its code, its host, its callers."""

from __future__ import annotations

import pickle
import sys
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from life_kit import Life, context
from role_kit import role_plan

from dljob import Worker, rpc
from dljob.errors import PeerLostError, UsageError
from dljob.master.state.actions import RankStart
from dljob.master.state.views import Outcome
from dljob.runtime.process.messages import Call, LeaveOrder, NotRun, Peer, Reply, StartOrder, StopOrder
from dljob.runtime.process.step_counters import StepCounters
from dljob.runtime.process.thread_interrupt import ThreadInterrupt, ThreadInterrupted
from dljob.runtime.process.worker_context import ProgressCounter, RankCall, Stopping, renew
from dljob.runtime.rpc.call_lines import LargeAnswers
from dljob.runtime.rpc.call_trace import RankTrace
from dljob.runtime.rpc.client import RpcClient
from dljob.runtime.rpc.server import RpcServer
from dljob.runtime.worker import lifecycle, thread_host, torch_group
from dljob.runtime.worker.lifecycle import Lifecycle
from dljob.runtime.worker.reports import Reports
from dljob.runtime.worker.thread_host import ThreadHost


class Steps(Worker):
    def __init__(self):
        self.steps = ["__init__"]

    def setup(self):
        self.steps.append("setup")

    def on_restart(self, reason):
        self.steps.append(f"on_restart:{reason}")

    def run(self):
        self.steps.append("run")
        return self.steps


def again(life: Life, kept: Any, **changes: Any) -> Lifecycle:
    """The next life in this process."""
    sys.modules["users_module"] = SimpleNamespace(target=type(kept))  # type: ignore[assignment]
    said = context(restart_reason="Unknown", incarnation=2)
    return Lifecycle(said, life.lifecycle._role, "", ready=lambda _: None, kept_object=kept, **changes)


def test_a_kept_object_runs_again_without_being_made_or_set_up():
    life = Life(Steps)
    life.live()
    kept = Steps()
    kept.setup()
    assert again(life, kept).live().result == '["__init__", "setup", "on_restart:Unknown", "run"]'


@pytest.mark.parametrize(
    ("where", "usable"),
    [("join", True), ("__init__", False), ("setup", False), ("on_restart", True), ("run", True), ("shutdown", False)],
)
def test_whether_a_process_can_go_on_depends_on_where_its_code_was_left(where, usable):
    recall = ThreadInterrupt()

    def leave():
        recall.order()
        raise ConnectionError("closed by peer")

    def leaves_in(hook):
        return lambda *_: leave() if hook == where else None

    hooks = ("__init__", "setup", "on_restart", "run")
    Left = type("Left", (Worker,), {hook: leaves_in(hook) for hook in hooks})  # noqa: N806 - it is a class

    life = Life(Left, join=leave if where == "join" else None, restart_reason="Unknown")
    life.lifecycle._recall = recall
    with nullcontext() if where == "shutdown" else pytest.raises(ThreadInterrupted):
        life.live()
    can, kept = life.lifecycle.left_over
    assert can is usable
    assert not can or isinstance(kept, Left) is (where != "join")


def test_a_function_is_called_again():
    calls: list[int] = []

    def work():
        calls.append(1)

    life = Life(work)
    life.live()
    assert life.lifecycle.left_over == (False, None), "it ended well: nothing goes on"
    assert calls == [1]


def test_an_order_that_comes_while_the_group_forms_is_obeyed_before_user_code_runs():
    recall = ThreadInterrupt()
    life = Life(Steps, join=recall.order)
    life.lifecycle._recall = recall
    with pytest.raises(ThreadInterrupted):
        life.live()
    assert life.lifecycle.left_over == (True, None)


def test_an_import_is_not_interrupted_and_nothing_is_made_of_it(monkeypatch):
    recall, imported = ThreadInterrupt(), list[int]()
    life = Life(Steps)
    life.lifecycle._recall = recall

    def importing(_path):
        recall.order()
        other = threading.Thread(target=recall.interrupt)
        other.start()
        other.join(30)
        imported.append(sum(range(1000)))
        return Steps

    monkeypatch.setattr(lifecycle, "resolve", importing)
    ended: list[Any] = []
    thread = threading.Thread(target=lambda: ended.append(recall.run(life.lifecycle.live)))
    thread.start()
    thread.join(30)
    assert imported == [499500]
    assert ended == [None], "it was called back"
    assert life.lifecycle.left_over == (True, None)


def test_a_context_that_user_code_holds_says_what_the_later_one_says():
    held, report = context(), ProgressCounter().put
    renew(held, context(incarnation=2, restart_reason="Unknown", report=report))
    assert (held.incarnation, held.restart_reason, held.report) == (2, "Unknown", report)


def test_an_order_to_end_can_be_withdrawn():
    stopping = Stopping()
    stopping.order("restart in process")
    stopping.withdraw()
    assert not stopping
    stopping.order("the job ends")
    assert stopping.reason == "the job ends"


# -- the host


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> ThreadHost:
    """One whose rank's thread does what a test says."""
    made: Any = ThreadHost.__new__(ThreadHost)
    made._hold = 0, 0, ""
    made.broken, made.lives = [], []
    monkeypatch.setattr(torch_group, "abort", made.broken.append)
    # Else a host that is late would end the whole run of tests.
    monkeypatch.setattr(thread_host, "end", lambda code, why: pytest.fail(f"the process ends with code {code}: {why}"))
    role = role_plan("t", ("class", "m.T"), elastic=True, comm_backend="gloo", init_process_group=True, replicas=2)
    made.spec = SimpleNamespace(role=role, job=SimpleNamespace(code_dir=""))
    made.actor_name = "t/0/1"
    made.reports = Reports()
    made._serving = SimpleNamespace(
        why_behind=lambda _call: "",
        environment=lambda _start: {},
        resolved=lambda _start: made.spec,
        started=lambda start: made.ready(start.rank, start.incarnation),
        ended=lambda _: None,
    )
    made.evidence = SimpleNamespace(clues=lambda *_, **__: ())
    made.counters = StepCounters.create(1)
    made._lock, made._done, made._recall = threading.Lock(), threading.Event(), ThreadInterrupt()
    made._start = made._order = made._lifecycle = None
    made._left = made._report = 0
    made._parts = False
    made._earlier = []
    made._killed = ""
    made._stopping, made._progress, made._callee = Stopping(), ProgressCounter(), RpcServer("t")
    made._traces = SimpleNamespace(of=lambda _: None, write_out=lambda _: None)
    made._large, made._lines = LargeAnswers(), None

    def live_on(order: StartOrder, start: RankStart) -> Outcome:
        made.lives.append(start.incarnation)
        return made.work(order, start)

    made._live_on = live_on
    return made


def order(incarnation: int) -> StartOrder:
    return StartOrder(1, 1, (RankStart(0, incarnation, 0, 1, 0),), 2, incarnation, "127.0.0.1:7")


def leave(incarnation: int, *, parts: bool = False) -> LeaveOrder:
    return LeaveOrder(1, 0, incarnation, "Unknown", parts)


def stop(incarnation: int, grace_s: float = 20.0) -> StopOrder:
    return StopOrder(1, (0,), grace_s, "restart", (incarnation,))


def reports(host: ThreadHost) -> list[tuple[int, bool | None]]:
    return [(r.incarnation, r.outcome and r.outcome.ok) for r in host.reports._reports]


def until_stopping(host: Any) -> Any:
    """User code that ends when it is asked to."""

    def work(_order: Any, _start: Any) -> Outcome:
        host._stopping.wait(30)
        return Outcome(ok=False, message="connection closed by peer")

    return work


def test_a_rank_that_left_says_so_and_its_host_starts_the_next_incarnation(host):
    host.work = until_stopping(host)
    host.start_ranks(order(1))
    host.leave_rank(leave(1))
    assert reports(host) == [(1, True)]
    assert host.broken == ["127.0.0.1:7"]
    host.start_ranks(order(2))
    assert not host._stopping
    assert host._progress._who == (0, 2), "its steps are counted as the next incarnation's"
    host.leave_rank(leave(2))
    assert host.lives == [1, 2]
    assert reports(host) == [(1, True), (2, True)]


@pytest.mark.parametrize("parts", [True, False])
def test_a_rank_that_leaves_for_good_is_shut_down_and_what_it_made_is_not_used_again(host, parts):
    made = Life(Steps)
    made.live()
    host._lifecycle, shut, reason = made.lifecycle, [], []
    host._lifecycle._shut, host._lifecycle._object.shutdown = False, lambda: shut.append(1)

    def work(_order, _start):
        host._stopping.wait(30)
        reason.append(host._stopping.reason)

    host.work = work
    host.start_ranks(order(1))
    host.leave_rank(leave(1, parts=parts))
    assert reports(host) == [(1, True)]
    assert shut == [1] * parts
    assert reason == ["leaves for good: Unknown" if parts else "restart in process: Unknown"]
    assert (host._kept_object() is None) is parts


@pytest.mark.parametrize("watches", [False, True])
def test_a_function_that_does_not_end_when_it_is_to_stop_is_interrupted(host, watches):
    going, cleaned, cleanup = threading.Event(), [], []

    def work(_order, _start):
        host._lifecycle = SimpleNamespace(shutdown=lambda: None, in_function=True)
        assert not watches or not host._stopping.is_set()
        going.set()
        try:
            while True:
                pass
        finally:
            cleaned.append(host._stopping.reason)

    def interrupt_at_once(deadline, cleanup_s):
        cleanup.append(cleanup_s)
        ThreadHost._interrupt_function(host, deadline, 600.0)

    host.work, host._interrupt_function = work, interrupt_at_once
    host.start_ranks(order(1))
    going.wait(30)
    host.stop_ranks(StopOrder(1, (0,), 600.0, "the job is over"))
    assert cleanup == [thread_host.CLEANUP_S if watches else 600.0]
    assert (reports(host), cleaned) == ([(1, True)], ["the job is over"])
    assert "interrupted, as ordered (the job is over)" in host.reports._reports[0].outcome.message


def test_a_function_that_ends_by_itself_is_not_interrupted(host):
    def work(_order, _start):
        host._lifecycle = SimpleNamespace(shutdown=lambda: None, in_function=True)
        host.ready(0, 1)
        host._stopping.wait(30)
        return Outcome(ok=True, result=7)

    host.work = work
    host.start_ranks(order(1))
    while host._lifecycle is None or not host._stopping.watched:
        threading.Event().wait(0.01)
    host.stop_ranks(StopOrder(1, (0,), 600.0, "the job is over"))
    assert [report.outcome.result for report in host.reports._reports if report.outcome] == [7]


def test_code_that_cleans_up_is_left_to_it(host, monkeypatch):
    monkeypatch.setattr(thread_host, "AGAIN_S", 0.01)
    going, cleaned = threading.Event(), []

    def work(_order, _start):
        try:
            going.set()
            while True:
                pass
        finally:
            while len(host.broken) < 5:
                pass
            cleaned.append(True)

    host.work = work
    host.start_ranks(order(1))
    going.wait(30)
    host.leave_rank(leave(1))
    assert cleaned == [True]
    assert reports(host) == [(1, True)]


def test_where_code_is_that_does_not_leave_is_told_once(host, monkeypatch, capfd):
    """In a wait inside C nothing can be raised: the rank's log has where that is, before its process is ended.

    Nothing is raised here: an error on its way to a thread in C leaves the process's other threads, where coverage
    traces them, in the first function that they enter (recall.py says why).
    """
    monkeypatch.setattr(ThreadInterrupt, "interrupt", lambda *_: True)
    monkeypatch.setattr(thread_host, "AGAIN_S", 0.01)
    monkeypatch.setattr(thread_host, "PATIENCE_S", 0.0)
    stuck, going = threading.Lock(), threading.Event()
    stuck.acquire()

    def waits_in_c(_order, _start):
        going.set()
        stuck.acquire()

    host.work = waits_in_c
    host.start_ranks(order(1))
    going.wait(30)
    leaving = threading.Thread(target=host.leave_rank, args=(leave(1),))
    leaving.start()
    said = ""
    while len(host.broken) < 5 or "in waits_in_c" not in said:
        time.sleep(0.01)
        said += capfd.readouterr().err
    stuck.release()
    leaving.join()
    said += capfd.readouterr().err
    assert said.count("has not left after") == 1
    assert reports(host) == [(1, True)]


def test_an_order_to_leave_means_the_life_that_it_found_and_no_later_one(host):
    """The rank ends and is started again here while the order is being obeyed, where nothing keeps it from that."""
    go = threading.Event()

    class Slow(ThreadInterrupt):
        def order(self):
            super().order()
            if not host._lock.locked():
                ended = host._done
                go.set()
                assert ended.wait(30)
                host.work = until_stopping(host)
                host.start_ranks(order(2))

    def work(_order, _start):
        while not go.is_set() and not host._stopping:
            pass
        return Outcome(ok=False, message="connection closed by peer")

    host.work, host._recall = work, Slow()
    host.start_ranks(order(1))
    host.leave_rank(leave(1))
    host._done.wait(30)
    host.work = until_stopping(host)
    host.start_ranks(order(2))
    assert not host._stopping
    assert not host._callee._closed
    host.leave_rank(leave(2))


def test_an_order_to_leave_that_overtakes_the_order_to_start_wins(host):
    host.leave_rank(leave(1))
    host.leave_rank(leave(1))
    host.start_ranks(order(1))
    assert host.lives == []
    assert reports(host) == [(1, True)]


def test_an_order_to_stop_that_overtakes_the_order_to_start_wins(host):
    host.work = until_stopping(host)
    host.stop_ranks(stop(1))
    host.stop_ranks(stop(1))
    host.start_ranks(order(1))
    assert host.lives == []
    assert reports(host) == [(1, True)]
    host.start_ranks(order(2))
    host.stop_ranks(stop(1))
    assert not host._stopping
    host.stop_ranks(stop(2))
    assert reports(host) == [(1, True), (2, False)]


def test_a_repeated_order_to_start_that_comes_after_the_next_one_is_of_the_past(host):
    host.work = lambda *_: Outcome(ok=False, message="a collective failed")
    host.start_ranks(order(1))
    assert host._done.wait(30)
    host.work = until_stopping(host)
    host.start_ranks(order(2))
    host.start_ranks(order(1))
    host.stop_ranks(stop(2))
    assert host.lives == [1, 2]


@pytest.mark.parametrize("where", ["drain", "shutdown"])
def test_an_order_to_stop_means_the_incarnation_that_it_found(host, where, monkeypatch):
    """The rank ends meanwhile, and a new PrimeMaster starts its next incarnation in the same process."""
    ends, waits, goes_on = [], threading.Event(), threading.Event()
    monkeypatch.setattr(thread_host, "end", lambda *why: ends.append(why))

    def hold(*_):
        waits.set()
        assert goes_on.wait(30)

    leaves = threading.Event()

    def work(_order, _start):
        assert leaves.wait(30)
        return Outcome(ok=False, message="a collective failed")

    host.work, host._lifecycle = work, SimpleNamespace(shutdown=lambda: None, in_function=False)
    host.start_ranks(order(1))
    setattr(host._callee if where == "drain" else host._lifecycle, where, hold)
    stopping = threading.Thread(target=host.stop_ranks, args=(stop(1, grace_s=1.0),))
    stopping.start()
    assert waits.wait(30)
    ended = host._done
    leaves.set()
    assert ended.wait(30)
    host.work = until_stopping(host)
    host.start_ranks(order(2))
    goes_on.set()
    stopping.join(30)
    assert (ends, bool(host._stopping)) == ([], False)
    host.stop_ranks(stop(2))
    assert [incarnation for incarnation, _ in reports(host)] == [1, 2]


@pytest.mark.parametrize("leaves", [False, True])
def test_a_second_order_to_end_does_not_break_off_the_cleanup(host, leaves):
    going, cleans, cleaned, asked = threading.Event(), threading.Event(), [], []

    class Counted(ThreadInterrupt):
        def interrupt(self, *patience):
            raised = super().interrupt(*patience)
            asked.append(raised)
            return raised

    def work(_order, _start):
        host._lifecycle = None if leaves else SimpleNamespace(shutdown=lambda: None, in_function=True)
        try:
            going.set()
            while True:
                pass
        finally:
            cleans.set()
            while asked.count(True) < 2:
                pass
            cleaned.append(True)

    def end():
        host.leave_rank(leave(1)) if leaves else host.stop_ranks(stop(1, grace_s=600.0))

    host.work, host._recall = work, Counted()
    host.start_ranks(order(1))
    assert going.wait(30)
    orders = [threading.Thread(target=end, daemon=True) for _ in range(2)]
    orders[0].start()
    assert cleans.wait(30)
    orders[1].start()
    for thread in orders:
        thread.join(30)
    assert cleaned == [True]
    assert reports(host) == [(1, True)]


def test_an_order_to_leave_an_earlier_incarnation_is_of_the_past(host):
    host.work = until_stopping(host)
    host.start_ranks(order(2))
    host.leave_rank(leave(1))
    assert reports(host) == []
    assert not host._stopping
    host.leave_rank(leave(2))


def test_a_group_that_is_left_of_a_rank_that_failed_by_itself_goes_before_the_next(host):
    host.work = lambda _order, _start: Outcome(ok=False, message="connection closed by peer")
    host.start_ranks(order(1))
    host._done.wait(30)
    host.leave_rank(leave(1))
    assert reports(host) == [(1, False)]
    assert host.broken == []
    host.start_ranks(order(2))
    assert host.broken == ["127.0.0.1:7"]


def test_a_rank_that_runs_is_not_started_twice_and_only_torch_groups_meet_again(host):
    host.work = until_stopping(host)
    host.start_ranks(order(1))
    host.start_ranks(order(1))
    with pytest.raises(UsageError, match="cannot become rank 0, 2"):
        host.start_ranks(order(2))
    host.leave_rank(leave(1))
    host.spec.role = role_plan("t", ("class", "m.T"))
    with pytest.raises(UsageError, match="cannot become rank 0, 2"):
        host.start_ranks(order(2))


def test_a_process_whose_code_was_left_half_set_up_ends(host, monkeypatch):
    said: list[str] = []

    def end(_code, why):
        said.append(why)
        raise SystemExit

    monkeypatch.setattr(thread_host, "end", end)
    host._lifecycle = SimpleNamespace(left_over=(False, None))
    with pytest.raises(SystemExit):
        host._report_left(RankStart(0, 1, 0, 1, 0))
    assert reports(host) == []
    assert "half set up" in said[0]


# -- who calls it


class Served:
    def __init__(self):
        self.begun, self.go = threading.Event(), threading.Event()

    @rpc
    def once(self) -> None:
        self.begun.set()
        self.go.wait(30)
        raise RuntimeError("connection closed by peer")


def test_calls_that_their_callers_trace_are_recorded(host, tmp_path):
    trace = host._callee.trace = RankTrace(tmp_path, "t", 0, 100_000)
    host._callee.close(Outcome(ok=True))
    for traced in (True, False):
        assert host.answer(Call("c/0:ab:1", 0, 1, "m", None, "c/0", traced=traced), b"").refused is NotRun.ENDED
    trace.flush(1.0)
    (file,) = tmp_path.iterdir()
    assert len(file.read_text().splitlines()) == 2


def test_a_call_that_is_broken_off_is_told_as_such_and_waited_for():
    served, callee, replies = Served(), RpcServer("t"), list[Reply]()
    callee.open(served)
    payload = pickle.dumps(((), {}))
    thread = threading.Thread(
        target=lambda: replies.append(callee.answer(Call("1", 0, 1, "once", None, "w/0"), payload))
    )
    thread.start()
    served.begun.wait(30)
    callee.close(Outcome(ok=True), cut=True)
    served.go.set()
    callee.wait_idle()
    thread.join(30)
    assert replies[0].refused is NotRun.CUT_OFF
    assert callee.answer(Call("2", 0, 1, "once", None, "w/0"), payload).refused is NotRun.ENDED


@pytest.mark.parametrize(
    ("idempotent", "known", "goes"), [(True, None, True), (False, True, True), (False, False, False)]
)
def test_a_call_that_was_broken_off_is_sent_again_where_that_does_no_harm(idempotent, known, goes):
    calls = RpcClient(cast("Any", SimpleNamespace(namespace="n", uid="u")), "w/0")
    call, peer = RankCall("t", 0, "once", b"", None, idempotent, id="1"), Peer("t", 0, 3, "a", ready=True)
    calls._peers["t", 0] = peer
    if known is not None:
        calls._idempotent["t", "once"] = known
    if goes:
        assert calls._judge(call, peer, Reply(refused=NotRun.CUT_OFF)) is None
        assert call.again is not idempotent
    else:
        with pytest.raises(PeerLostError):
            calls._judge(call, peer, Reply(refused=NotRun.CUT_OFF))
    assert call.after == 3
    assert calls._peers == {}
