"""What a rank says of what it does and waits for."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import pdb
import sys
import threading
import weakref
from collections.abc import Iterator
from time import monotonic, sleep
from typing import Any

import pytest

from dljob.master.state.waits import parse
from dljob.runtime.process import activities, step_counters
from dljob.runtime.process.activities import AwaitedTask, CallActivity, Waiting
from dljob.runtime.process.loop import settle
from dljob.runtime.process.step_counters import StepCounters
from dljob.runtime.process.torch_groups import GroupWait


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    activities._forget()
    monkeypatch.setattr(activities, "OLD_S", 0.0)
    yield
    activities._forget()


def rows() -> dict[str, list[Any]]:
    return {row[0]: row for row in activities.report(0.0)["rows"]}


def waiting_for(name: str, *targets: tuple[str, int, str]) -> Waiting:
    return Waiting("call", name, "score", lambda: targets)


def test_a_wait_is_reported_with_its_targets_and_line_while_it_lasts():
    activities.begin_main()
    with waiting_for("reward", ("reward", 0, "c:1")):
        row = rows()["main"]
    assert row[6].startswith("test_activities.py:")
    kind, name, method, since, usual, targets = row[7][0]
    assert (kind, name, method, usual, targets) == ("call", "reward", "score", [0, 0.0, 0.0], [["reward", 0, "c:1"]])
    assert since > 0
    assert rows()["main"][7] == []


@pytest.mark.parametrize("file", [pdb.__file__, "/x/site-packages/debugpy/adapter/a.py"])
def test_code_at_a_debugger_s_prompt_is_reported_as_that(file):
    names: dict[str, Any] = {}
    exec(compile("def prompt(typed): typed.wait()", file, "exec"), names)  # noqa: S102 - a debugger's frame
    typed, at_prompt = threading.Event(), threading.Event()

    def run() -> None:
        activities.begin_main()
        at_prompt.set()
        names["prompt"](typed)

    thread = threading.Thread(target=run)
    thread.start()
    at_prompt.wait()
    while file not in str(_chain_of(thread)):
        pass
    row = rows()["main"]
    typed.set()
    thread.join()
    assert (row[3], row[6].partition(":")[0]) == ("a debugger", "test_activities.py")


def _chain_of(thread: threading.Thread) -> list[str]:
    frames = activities._chain(sys._current_frames().get(thread.ident or 0))
    return [frame.f_code.co_filename for frame in frames]


def test_earlier_waits_of_a_kind_are_counted_and_measured():
    activities.begin_main()
    for _ in range(3):
        with waiting_for("reward"):
            pass
    with waiting_for("reward"):
        assert rows()["main"][7][0][4][0] == 3
    with waiting_for("other"):
        assert rows()["main"][7][0][4][0] == 0


def test_what_a_call_waits_for_is_put_down_to_the_call_also_from_its_tasks_and_threads():
    running = CallActivity("t/0:p:1", "score", "t/0")
    done = threading.Event()

    async def inner() -> None:
        with AwaitedTask("call", "other", "f", lambda: ()):
            await asyncio.sleep(0)
            report.append(rows())
            done.set()

    report: list[Any] = []
    with running:
        asyncio.run(inner())
        own = activities.context()
    assert done.is_set()
    assert report[0]["t/0:p:1"][7][0][1] == "other"
    assert "test_activities.py" in report[0]["t/0:p:1"][6]
    threading.Thread(target=own.run, args=(activities.moved_here,)).start()
    with contextlib.ExitStack() as stack:
        own.run(stack.enter_context, waiting_for("third"))
        assert rows()["t/0:p:1"][7][0][1] == "third"
    running.end()
    assert "t/0:p:1" not in rows()


def test_a_bare_thread_of_the_user_s_is_an_activity_of_its_own():
    seen: list[Any] = []

    def work() -> None:
        with waiting_for("reward"):
            seen.append(rows())

    thread = threading.Thread(target=work, name="loader")
    thread.start()
    thread.join()
    (row,) = (row for row in seen[0].values() if row[1] == "thread")
    assert row[2] == "loader"


def test_a_call_that_has_not_begun_says_what_it_waits_for():
    queued = CallActivity("t/0:p:1", "score", "t/0")
    queued.note_wait("score")
    assert rows()["t/0:p:1"][3] == "score"
    queued.note_wait("")
    assert rows()["t/0:p:1"][3] == ""


def test_the_line_of_a_call_is_where_it_runs_or_what_keeps_it_from_beginning():
    assert activities.line_of_call("t/0:p:1") == "", "nothing runs"
    activities.begin_main()
    queued = CallActivity("t/0:p:1", "score", "t/0")
    queued.note_wait("setup")
    here = " in test_the_line_of_a_call_is_where_it_runs_or_what_keeps_it_from_beginning"
    assert activities.line_of_call("t/0:p:1").endswith(here)
    queued.note_wait("score")
    with CallActivity("t/1:p:1", "other", "t/1"):
        assert activities.line_of_call("t/0:p:1") == "", "it keeps no place of this method"
        assert activities.line_of_call("t/0:p:2").endswith(here), "one that has not come waits for all"
        with CallActivity("t/2:p:1", "score", "t/2"):
            assert activities.line_of_call("t/0:p:1").endswith(here)
    queued.note_wait("")
    assert activities.line_of_call("t/0:p:1").endswith(here)


def test_a_rank_that_nobody_calls_is_idle():
    assert [row[1] for row in activities.report(0.0)["rows"]] == ["idle"]
    call = CallActivity("t/0:p:1", "score", "t/0")
    assert "idle" not in rows()
    call.end()
    assert "idle" in rows()


def test_a_call_that_was_refused_is_no_work():
    before = activities.report(0.0)["finished"]
    CallActivity("t/0:p:1", "score", "t/0").end()
    assert activities.report(0.0)["finished"] == before
    ran = CallActivity("t/0:p:2", "score", "t/0")
    with ran:
        pass
    ran.end()
    assert activities.report(0.0)["finished"] == before + 1


def test_a_wait_that_ends_by_an_error_is_no_progress_and_no_measure_of_the_next_one():
    activities.begin_main()
    last_finished = activities.present().last_finished
    before = activities.report(0.0)["finished"]
    with contextlib.suppress(TimeoutError), Waiting("queue", "it", "get", lambda: ()):
        raise TimeoutError
    assert not activities._durations
    assert (activities.report(0.0)["finished"], activities.present().last_finished) == (before, last_finished)
    with Waiting("queue", "it", "get", lambda: ()):
        pass
    assert activities.present().last_finished > last_finished


def test_a_step_and_an_item_are_progress():
    activities.begin_main()
    before = rows()["main"][5], activities.report(0.0)["finished"]
    threading.Event().wait(0.11)
    activities.progressed()
    assert rows()["main"][5] > before[0]
    assert activities.report(0.0)["finished"] == before[1] + 1
    for kind in ("master", "cut", "queue"):
        with Waiting(kind, "it", "get", lambda: ()):
            pass
    assert activities.report(0.0)["finished"] == before[1] + 2, "how often PrimeMaster is asked is no work"


def test_a_stream_that_is_ahead_of_its_caller_rests():
    running = CallActivity("t/0:p:1", "tokens", "t/0")
    with running, activities.paused("its caller"):
        assert rows()["t/0:p:1"][3] == "its caller"
    assert rows()["t/0:p:1"][3] == ""


def test_queues_that_are_used_are_named_with_their_ways():
    activities.use("queue", "samples", "put")
    activities.use("queue", "samples", "get")
    assert activities.report(0.0)["uses"] == {"queue:samples": ["get", "put"]}
    for number in range(100):
        activities.use("queue", str(number), "put")
    assert len(activities.report(0.0)["uses"]) == activities.MOST_USES


def test_a_report_reaches_its_reader_through_shared_memory_once_it_has_changed():
    counters = StepCounters.create(2)
    slot = counters.slots[1]
    reporter = activities.Reporter(slot, 5, 2)
    activities.begin_main()
    with waiting_for("reward", ("reward", 0, "c:1")):
        reporter.look()
        number = slot.activities_number()
        reporter.look()
        assert slot.activities_number() == number
        report = slot.activities()
    assert report is not None
    assert (report.rank, report.incarnation) == (5, 2)
    read = parse(report.incarnation, report.text, 100.0)
    assert read.activities[0].waits[0].targets == (("reward", 0, "c:1"),)
    reporter.look()
    assert slot.activities_number() > number
    assert counters.slots[0].activities() is None
    counters.close()


def test_a_process_that_no_longer_looks_is_told_to_be_silent(monkeypatch):
    counters = StepCounters.create(1)
    slot = counters.slots[0]
    for name, value in {"_pid": os.getpid(), "_reporter": None}.items():  # no thread is started that looks
        monkeypatch.setattr(activities, name, value)
    activities.report_to(slot, 3, 2)
    number, first = slot.activities_number(), slot.activities()
    assert first is not None
    assert (first.number, parse(2, first.text, 0.0).silent_since) == (number, None)
    looked = step_counters.now()
    monkeypatch.setattr(step_counters, "now", lambda: looked + 60.0)
    assert slot.activities_number() != number
    silent = slot.activities()
    assert silent is not None
    assert parse(2, silent.text, 0.0).silent_since == pytest.approx(looked, abs=1.0)
    slot.count_report()
    monkeypatch.undo()
    assert slot.activities_number() == number
    counters.close()


def test_an_asynchronous_call_is_told_by_what_its_task_awaits():
    begun = threading.Event()

    async def generate() -> None:
        begun.set()
        await asyncio.sleep(30)

    def run() -> None:
        with CallActivity("t/0:p:1", "generate", "t/0"):
            settle(generate())

    threading.Thread(target=run, daemon=True).start()
    assert begun.wait(10)
    deadline = monotonic() + 10
    while "in generate" not in (line := activities.line_of_call("t/0:p:1")) and monotonic() < deadline:
        sleep(0.01)
    assert line.endswith("in generate")


def test_a_report_that_is_too_long_loses_its_youngest_activities():
    counters = StepCounters.create(1)
    calls = [CallActivity(f"{'t' * 100}/0:p:{number}", "m" * 200, "t/0") for number in range(40)]
    activities.Reporter(counters.slots[0], 0, 1).look()
    report = counters.slots[0].activities()
    assert report is not None
    kept = [row[0] for row in json.loads(report.text)["rows"]]
    assert kept[0] == calls[0].activity.id
    assert 0 < len(kept) < 32
    counters.close()


def test_a_forked_child_reports_nothing_of_its_parent():
    activities.begin_main()
    with waiting_for("reward"):
        child = os.fork()
        if not child:
            os._exit(0 if [row[1] for row in activities.report(0.0)["rows"]] == ["idle"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_script_that_asks_nothing_is_reported_from_its_first_group_on(monkeypatch):
    begun, asked, connected = threading.Event(), threading.Event(), threading.Event()

    def have_begun() -> bool:
        asked.set()
        return begun.is_set()

    monkeypatch.setattr(activities, "EVERY_S", 0.01)
    monkeypatch.setattr(activities.torch_groups, "have_begun", have_begun)
    activities.report_script(connected.set)
    assert asked.wait(10)
    assert not connected.is_set()
    begun.set()
    assert connected.wait(10)


def test_a_script_that_asks_nothing_is_reported_once_it_has_stood_still(monkeypatch):
    connected = threading.Event()

    class Still:
        since: float | None = 5.0

        def look(self) -> None:
            pass

        def skip(self) -> None:
            pass

        def lasts(self, seconds: float) -> bool:
            return seconds == activities.STILL_S

    monkeypatch.setattr(activities, "EVERY_S", 0.01)
    monkeypatch.setattr(activities, "Standstill", Still)
    monkeypatch.setattr(activities, "_standstill", None)
    monkeypatch.setattr(activities._Totals, "finished", 0)
    activities.report_script(connected.set)
    assert connected.wait(10)
    activities.begin_main()
    assert activities.report(1.5)["still"] == 6.5
    activities.progressed()
    assert "still" not in activities.report(1.5), "who reports steps is judged by them"


def test_dead_links_are_looked_for_while_a_thread_waits_for_a_group(monkeypatch):
    looks: list[None] = []
    monkeypatch.setattr(activities.own_sockets, "look_for_dead_links", lambda: looks.append(None))
    activities._look_for_dead_links([["main", "", "", "", 0, 0, "", [["call"]]]])
    assert not looks
    activities._look_for_dead_links([["main", "", "", "", 0, 0, "", [["call"], ["group"]]]])
    assert len(looks) == 1


def test_a_wait_for_a_group_is_a_row_of_the_activity_once_it_is_old(monkeypatch):
    begun = monotonic() - 100.0

    class Groups:
        def look(self, now: float, *, is_idle: bool) -> int:
            return 3

        def wait(self, *_: object) -> GroupWait:
            return GroupWait("dp", "all_reduce", begun, [20, 0.1, 2.0], [[0, 8, 1]])

    monkeypatch.setattr(activities, "_groups", Groups())
    activities.begin_main()
    main = rows()["main"]
    assert main[7] == [["group", "dp", "all_reduce", round(begun, 1), [20, 0.1, 2.0], [], [[0, 8, 1]]]]
    assert main[5] >= round(begun + 100.0, 1), "collectives that have begun are progress"
    monkeypatch.setattr(activities, "OLD_S", 1000.0)
    assert activities.report(0.0)["rows"] == []


@pytest.mark.parametrize("look", ["report", "line of a call", "threads that have ended"])
def test_a_look_at_all_threads_keeps_no_locals_of_the_user_s_alive(look, monkeypatch):
    class Tensor:
        """What a user's function works with."""

    tensors: list[weakref.ref[Tensor]] = []
    begun, goes_on = threading.Event(), threading.Event()

    def step() -> None:
        tensor = Tensor()
        tensors.append(weakref.ref(tensor))
        begun.set()
        goes_on.wait(10)

    def takes_a_look() -> None:
        if look == "report":
            activities.begin_main(thread.ident)
            activities.report(0.0)
        elif look == "line of a call":
            call = CallActivity("t/0:p:1", "step", "t/0")
            call.activity.thread = thread.ident or 0
            assert "test_activities.py" in activities.line_of_call("t/0:p:1")
            call.end()
        else:
            activities._of_thread(1)

    monkeypatch.setattr(activities, "_threads", dict.fromkeys(range(10**6, 10**6 + 5 * activities.MOST_ROWS)))
    thread = threading.Thread(target=step)
    thread.start()
    assert begun.wait(10)
    if look != "threads that have ended":
        monkeypatch.setattr(activities, "_threads", {})
    gc.disable()
    try:
        looking = threading.Thread(target=takes_a_look)
        looking.start()
        looking.join(10)
        goes_on.set()
        thread.join(10)
        assert tensors[0]() is None
    finally:
        gc.enable()
