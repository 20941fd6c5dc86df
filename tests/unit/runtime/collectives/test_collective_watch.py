"""A member's questions: who is in its group, whether all have come, and every loss, whatever the master does."""

from __future__ import annotations

import concurrent.futures
import queue
import threading
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from dljob.errors import CollectiveError, DeadlineError, UnreachableError
from dljob.runtime.collectives import rendezvous as module
from dljob.runtime.collectives.rendezvous import Assembly, MemberLossWatch, RendezvousClient

MEMBERS = [["a", 0, 1], ["b", 0, 1]]
MADE = Assembly("j.1", 2, 1, (("a", 0, 1), ("b", 0, 1)), 1)


class Master:
    """Gives these answers in their turn, an error by raising it, then the last one for ever; keeps the questions."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[Mapping[str, Any]] = []

    def __call__(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        self.asked.append(question)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def muster(master: Any, deadline: float = 60.0) -> RendezvousClient:
    me: Any = SimpleNamespace(role="b", rank=0, incarnation=1)
    return RendezvousClient("w", me, master, lambda _epoch: 3, time.monotonic() + deadline)


def told(absent: Any = (), members: Any = MEMBERS, *, ended: bool = False, why: str = "") -> dict[str, Any]:
    return {"job": "j.1", "epoch": 2, "members": members, "absent": list(absent), "ended": ended, "why": why}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.001)
    monkeypatch.setattr(module, "ENDED_GRACE_S", 0.05)
    monkeypatch.setattr(module, "LOOK_S", 0.01)


def test_a_member_asks_until_all_members_have_a_process():
    master = Master(UnreachableError("away"), told([["a", 0, "has not started yet"]]), told())
    assert muster(master).assembly() == Assembly("j.1", 2, 3, MADE.members, 1)
    asked = {"group": "w", "me": ["b", 0, 1], "epoch": 0, "round": 0, "offer": ""}
    assert master.asked[0] == {**asked, "met": False, "busy": False}


def test_a_group_that_is_over_is_not_waited_for():
    with pytest.raises(CollectiveError, match="group w: the job is ending"):
        muster(Master({"over": "the job is ending"})).assembly()


def test_a_process_that_was_replaced_while_it_asked_is_told_so():
    with pytest.raises(CollectiveError, match="group w: this process is no member of it any more: b/0, whose incarna"):
        muster(Master(told(members=[["a", 0, 1], ["b", 0, 2]]))).assembly()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (told([["a", 0, "restarts (OOMKilled)"]]), "a/0 restarts (OOMKilled)"),
        (UnreachableError("no answer within 60 s"), "no answer within 60 s"),
    ],
)
def test_a_member_that_waits_too_long_is_told_for_whom(answer, words):
    with pytest.raises(DeadlineError) as caught:
        muster(Master(answer), 0.05).assembly()
    assert f"group w was not formed in time: {words}" in str(caught.value)


def test_a_master_that_is_away_is_not_asked_in_a_tight_loop(monkeypatch):
    monkeypatch.setattr(module, "AGAIN_S", 0.02)
    master = Master(UnreachableError("away"))
    with pytest.raises(DeadlineError):
        muster(master, 0.1).assembly()
    assert len(master.asked) <= 6


def test_members_meet_or_look_again_after_a_change():
    master = Master({"missing": ["a/0"]}, UnreachableError("away"), {"offer": "host:1"})
    assert muster(master).meet(MADE, "") == "host:1"
    for changed in (told(), {"over": "it was replaced"}):
        assert muster(Master(changed)).meet(MADE, "") is None
    with pytest.raises(DeadlineError, match=r"a/0 has not called CollectiveGroup\('w'\)"):
        muster(Master({"missing": ["a/0"]}), 0.05).meet(MADE, "")


@pytest.mark.parametrize(
    ("answer", "lost"),
    [
        (told([["a", 0, "restarts (killed)"]]), {"a/0": "restarts (killed)"}),
        (told(members=[["a", 0, 2], ["b", 0, 1]]), {"a/0": "was started again"}),
        (told(members=[["b", 0, 1]]), {"a/0": "is no rank of its role any more"}),
    ],
)
def test_a_loss_is_told_once_with_who_it_was(answer, lost):
    cut: queue.Queue[bool] = queue.Queue()
    watch = MemberLossWatch(
        muster(Master({"missing": []}, UnreachableError("away"), answer)), MADE, "", lambda: cut.put(True)
    )
    assert cut.get(timeout=60)
    assert watch.lost.is_set()
    assert watch.lost_members == lost
    error = watch.error("w", "allreduce", recreate=True)
    assert (error.lost, error.epoch, error.group) == (tuple(lost), 2, "w")
    assert f"allreduce: group w (epoch 2) is broken: a/0 {lost['a/0']}" in str(error)
    assert "makes it anew once its members are back" in str(error)
    assert "onRestart is Fail" in str(watch.error("w", "allreduce", recreate=False))


def test_a_watch_outlives_any_error_of_its_requests_and_logs_it_once(caplog):
    failing = KeyError("w"), KeyError("w"), concurrent.futures.CancelledError(), RuntimeError("loop is closed")
    watch = MemberLossWatch(muster(Master(*failing, told([["a", 0, "restarts"]]))), MADE, "", lambda: None)
    assert watch.lost.wait(60)
    assert watch.lost_members == {"a/0": "restarts"}
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == [
        "KeyError('w')",
        "CancelledError()",
        "RuntimeError('loop is closed')",
    ]


def test_the_last_words_of_one_that_ended_well_may_still_come():
    watch = MemberLossWatch(muster(Master(ended("a"))), MADE, "", lambda: None)
    watch.close()
    assert not watch.lost.wait(0.2)
    watch = MemberLossWatch(muster(Master(ended("a"))), MADE, "", lambda: None)
    with watch.at_work():
        assert watch.lost.wait(60)


def ended(*who: str, busy: Any = (), why: str = "") -> dict[str, Any]:
    absent = [[role, 0, "has ended"] for role in who]
    return {**told(absent, ended=True, why=why or f"{who[0]}/0 has ended"), "busy": [[role, 0] for role in busy]}


def test_each_operation_has_the_grace_and_the_error_says_who_ended():
    cut = threading.Event()
    watch = MemberLossWatch(muster(Master(ended("a"))), MADE, "", cut.set)
    assert not watch.lost.wait(0.3)  # nobody waits for it
    assert watch.ended
    with watch.at_work():
        pass  # what it had sent was there
    with watch.at_work():
        assert cut.wait(60)
    assert watch.lost.is_set()
    error = watch.error("w", "recv", recreate=True)
    assert (error.ended, error.lost) == (True, ("a/0",))
    assert "recv: group w (epoch 2) is broken: a/0 has ended" in str(error)
    assert "the group cannot be formed again" in str(error)


def test_an_operation_that_began_late_has_the_grace_too(monkeypatch):
    monkeypatch.setattr(module, "ENDED_GRACE_S", 60.0)
    watch = MemberLossWatch(muster(Master(ended("a"))), MADE, "", lambda: None)
    while not watch.ended:
        time.sleep(0.01)
    watch._ended_since -= 100
    with watch.at_work():
        assert not watch.lost.wait(0.3)
        watch._works[next(iter(watch._works))] -= 100
        assert watch.lost.wait(60)


def test_an_operation_that_a_thread_of_an_ended_rank_is_at_goes_on():
    there = Master(ended("a", busy="a"))
    watch = MemberLossWatch(muster(there), MADE, "", lambda: None)
    with watch.at_work():
        assert not watch.lost.wait(0.5)
        assert there.asked[-1]["busy"]
        there.answers = [ended("a")]
        assert watch.lost.wait(60)


def test_the_end_of_ones_own_rank_is_no_loss_to_its_threads():
    there = Master(ended("b"))
    watch = MemberLossWatch(muster(there), MADE, "", lambda: None)
    with watch.at_work():
        assert not watch.lost.wait(0.5)
        assert (watch.ended, there.asked[-1]["busy"]) == (False, True)
        there.answers = [ended("b", "a", busy="b")]  # now whom it waits for has ended too
        assert watch.lost.wait(60)
    assert watch.lost_members == {"a/0": "has ended"}


def test_a_member_that_ended_does_not_hide_a_lost_one():
    there = Master(ended("a", busy="a"))
    watch = MemberLossWatch(muster(there), MADE, "", lambda: None)
    with watch.at_work():
        assert not watch.lost.wait(0.2)
        there.answers = [{**ended("a"), "epoch": 3, "members": [["a", 0, 1], ["b", 0, 2]]}]
        assert watch.lost.wait(60)
    assert not watch.ended


def test_a_process_that_was_replaced_hears_it_and_a_closed_group_breaks_nothing():
    watch = MemberLossWatch(muster(Master({"over": "this process is no member of it"})), MADE, "", lambda: None)
    assert watch.lost.wait(60)
    assert "this process is no member of it" in str(watch.error("w", "send", recreate=True))
    go, cut = threading.Event(), threading.Event()

    def slow(_question: Mapping[str, Any]) -> Mapping[str, Any]:
        go.wait(60)
        return told([["a", 0, "restarts"]])

    closed = MemberLossWatch(muster(slow), MADE, "", cut.set)
    closed.close()
    go.set()
    assert closed.lost.wait(60)
    assert not cut.wait(0.05)
