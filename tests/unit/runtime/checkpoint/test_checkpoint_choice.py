"""What a run_id restores, what is void, what may go: decisions on values."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob.master.state.checkpoint_ids import CheckpointId, RestoreDecision, RunId, fence
from dljob.runtime.checkpoint import disk
from dljob.runtime.checkpoint.choice import Candidate, choose, expired_checkpoints, unneeded_decisions
from dljob.runtime.checkpoint.files import RUNS, Folder

A, B, C = RunId(1, 1), RunId(1, 2), RunId(2, 1)

lives = st.builds(RunId, st.integers(1, 3), st.integers(1, 3))
marks = st.builds(CheckpointId, lives, st.integers(0, 5))
decisions = st.lists(st.builds(RestoreDecision, lives, st.none() | marks), max_size=4)


def test_the_newest_life_goes_before_the_greatest_step():
    best, skipped = choose([Candidate(CheckpointId(A, 90), 1), Candidate(CheckpointId(B, 40), 1)], [], C)
    assert best is not None
    assert (best.mark, skipped) == (CheckpointId(B, 40), ())


def test_memory_goes_before_disk_for_the_same_step():
    best, _ = choose([Candidate(CheckpointId(A, 1), 1), Candidate(CheckpointId(A, 1), 1, memory=True)], [], B)
    assert best is not None
    assert best.memory


def test_a_bad_checkpoint_is_passed_over_with_its_reason():
    best, skipped = choose(
        [Candidate(CheckpointId(A, 2), 1, bad="rank-00000.part is torn"), Candidate(CheckpointId(A, 1), 1)], [], B
    )
    assert best is not None
    assert best.mark.step == 1
    assert skipped == ("step 2 of run 1.1 was passed over: rank-00000.part is torn",)


@pytest.mark.parametrize(
    ("decision", "void"),
    [
        (RestoreDecision(B, CheckpointId(A, 3)), {4, 5}),
        (RestoreDecision(B, None), {1, 2, 3, 4, 5}),
        (RestoreDecision(A, CheckpointId(A, 1)), set[int]()),
    ],
)
def test_a_decision_voids_what_earlier_lives_save_beyond_it(decision, void):
    assert {step for step in range(1, 6) if fence(CheckpointId(A, step), [decision])} == void


@given(st.lists(marks, max_size=8), decisions, lives)
def test_the_restored_checkpoint_is_never_void_and_is_the_newest_that_counts(there, made, run_id):
    best, _ = choose([Candidate(mark, 1) for mark in there], made, run_id)
    good = [mark for mark in there if mark.run_id <= run_id and not fence(mark, made)]
    assert (best and best.mark) == max(good, default=None)


@given(st.sets(marks, max_size=8), st.sets(marks, max_size=8), decisions, st.integers(1, 3))
def test_a_checkpoint_that_may_be_restored_is_not_deleted(there, whole, made, keep):
    gone = expired_checkpoints(there | whole, whole, made, keep)
    good = sorted((mark for mark in whole if not fence(mark, made)), reverse=True)
    assert not set(gone) & set(good[:keep])
    assert not gone or len(good) >= keep


def test_of_many_who_decide_at_once_one_is_heeded(tmp_path):
    heard: list[RestoreDecision] = []

    def decide(step: int) -> None:
        heard.append(Folder(tmp_path).decide(RestoreDecision(B, CheckpointId(A, step))))

    threads = [threading.Thread(target=decide, args=(step,)) for step in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(heard)) == 1
    assert Folder(tmp_path).decisions() == [heard[0]]
    assert [p.name for p in tmp_path.iterdir()] == ["restore-1-2.json"]


def test_a_decisions_file_is_read_once_however_often_it_is_asked_for(tmp_path, monkeypatch):
    folder = Folder(tmp_path)
    made = [folder.decide(RestoreDecision(RunId(1, number), None)) for number in range(2, 6)]
    read: list[str] = []
    real = disk.read_file

    def reads(path: Path) -> bytes:
        read.append(path.name)
        return real(path)

    monkeypatch.setattr(disk, "read_file", reads)
    for _ in range(3):
        assert sorted(folder.decisions(), key=lambda one: one.run_id) == made
    assert sorted(read) == [f"restore-1-{number}.json" for number in range(2, 6)]


@given(st.lists(marks, max_size=6), decisions)
def test_forgotten_decisions_follow_from_those_that_are_left(there, made):
    once = list({one.run_id: one for one in made}.values())
    left = [one for one in once if one not in unneeded_decisions(once, 100)]
    assert [bool(fence(mark, once)) for mark in there] == [bool(fence(mark, left)) for mark in there]


def test_of_lives_that_all_saved_the_last_decisions_are_left_and_older_lives_save_nothing_more(tmp_path):
    folder = Folder(tmp_path / "t")
    for number in range(2, 302):
        folder.decide(RestoreDecision(RunId(1, number), CheckpointId(RunId(1, number - 1), number)))
        folder.forget()
    assert len(folder.decisions()) == RUNS
    assert (
        folder.commit(CheckpointId(RunId(1, 200), 900), 1)
        == "fenced: run 1.200 is longer ago than the last 64 that saved"
    )
    assert folder.commit(CheckpointId(RunId(1, 301), 302), 1) == "waiting"


def test_a_decision_that_cannot_be_deleted_stays(tmp_path, monkeypatch):
    folder = Folder(tmp_path / "t")
    for number in (1, 2):
        folder.decide(RestoreDecision(RunId(1, number), None))

    def refuse(_: Path) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "unlink", refuse)
    folder.forget()
    assert len(folder.decisions()) == 2
