"""What a life restores, what is void, what may go: decisions on values."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob.master.marks import Decision, Life, Mark, fence
from dljob.runtime.checkpoint.choice import Found, choose, expired
from dljob.runtime.checkpoint.files import Folder

A, B, C = Life(1, 1), Life(1, 2), Life(2, 1)

lives = st.builds(Life, st.integers(1, 3), st.integers(1, 3))
marks = st.builds(Mark, lives, st.integers(0, 5))
decisions = st.lists(st.builds(Decision, lives, st.none() | marks), max_size=4)


def test_the_newest_life_goes_before_the_greatest_step():
    best, skipped = choose([Found(Mark(A, 90), 1), Found(Mark(B, 40), 1)], [], C)
    assert best is not None
    assert (best.mark, skipped) == (Mark(B, 40), ())


def test_memory_goes_before_disk_for_the_same_step():
    best, _ = choose([Found(Mark(A, 1), 1), Found(Mark(A, 1), 1, memory=True)], [], B)
    assert best is not None
    assert best.memory


def test_what_is_bad_is_passed_over_with_its_reason():
    best, skipped = choose([Found(Mark(A, 2), 1, bad="rank-00000.part is torn"), Found(Mark(A, 1), 1)], [], B)
    assert best is not None
    assert best.mark.step == 1
    assert skipped == ("step 2 of life 1.1 was passed over: rank-00000.part is torn",)


@pytest.mark.parametrize(
    ("decision", "void"),
    [
        (Decision(B, Mark(A, 3)), {4, 5}),
        (Decision(B, None), {1, 2, 3, 4, 5}),
        (Decision(A, Mark(A, 1)), set[int]()),
    ],
)
def test_a_decision_voids_what_earlier_lives_save_beyond_it(decision: Decision, void: set[int]):
    assert {step for step in range(1, 6) if fence(Mark(A, step), [decision])} == void


@given(st.lists(marks, max_size=8), decisions, lives)
def test_what_is_restored_is_never_void_and_nothing_newer_counts(there: list[Mark], made: list[Decision], life: Life):
    best, _ = choose([Found(mark, 1) for mark in there], made, life)
    good = [mark for mark in there if mark.life <= life and not fence(mark, made)]
    assert (best and best.mark) == max(good, default=None)


@given(st.sets(marks, max_size=8), st.sets(marks, max_size=8), decisions, st.integers(1, 3))
def test_what_may_be_restored_is_not_deleted(there: set[Mark], whole: set[Mark], made: list[Decision], keep: int):
    gone = expired(there | whole, whole, made, keep)
    good = sorted((mark for mark in whole if not fence(mark, made)), reverse=True)
    assert not set(gone) & set(good[:keep])
    assert not gone or len(good) >= keep


def test_of_many_who_decide_at_once_one_is_heeded(tmp_path: Path):
    heard: list[Decision] = []

    def decide(step: int) -> None:
        heard.append(Folder(tmp_path).decide(Decision(B, Mark(A, step))))

    threads = [threading.Thread(target=decide, args=(step,)) for step in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(heard)) == 1
    assert Folder(tmp_path).decisions() == [heard[0]]
    assert [p.name for p in tmp_path.iterdir()] == ["restore-1-2.json"]


def test_a_decisions_file_is_read_once_however_often_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = Folder(tmp_path)
    made = [folder.decide(Decision(Life(1, number), None)) for number in range(2, 6)]
    read: list[str] = []
    text = Path.read_text

    def reads(path: Path, *args: str, **kwargs: str) -> str:
        read.append(path.name)
        return text(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", reads)
    for _ in range(3):
        assert sorted(folder.decisions(), key=lambda one: one.life) == made
    assert sorted(read) == [f"restore-1-{number}.json" for number in range(2, 6)]
