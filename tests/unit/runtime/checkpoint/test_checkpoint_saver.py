"""Saving through shared memory: what a rank copied is there after its death, bit for bit, from memory and from disk."""

from __future__ import annotations

import gc
import os
import select
import signal
import threading
import weakref
from contextlib import suppress
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from checkpoint_kit import Rank, a_saver, client, copies, place

from dljob.errors import CheckpointError, UsageError
from dljob.master.state.checkpoint_ids import CheckpointId
from dljob.runtime.checkpoint import client as client_module
from dljob.runtime.checkpoint import disk, final_save
from dljob.runtime.checkpoint import saver as saver_module
from dljob.runtime.checkpoint.book import FileBook
from dljob.runtime.checkpoint.checkpoints import Checkpoints
from dljob.runtime.checkpoint.files import Folder
from dljob.runtime.checkpoint.final_save import SAVING, FinalSave
from dljob.runtime.checkpoint.pack import pack
from dljob.runtime.checkpoint.slot import Slot, check_room
from dljob.runtime.checkpoint.wire import Wire

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch


def state(step: int) -> dict[str, Any]:
    made = torch.Generator().manual_seed(step)
    return {
        "model": {"w": torch.randn(64, 33, generator=made), "b": torch.randn(7, generator=made).to(torch.bfloat16)},
        "lr": [0.1 * step, {"name": "x" * step}],
        "rng": made.get_state(),
    }


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def saves_and_stays(*steps: int, persist: bool = True) -> Any:
    def body(mine: Any, tell: Any) -> None:
        for step in steps:
            mine.save(step, state(step), persist=persist)
        tell("saved")
        signal.pause()

    return body


@pytest.mark.parametrize("persist", [True, False])
def test_a_killed_rank_is_restored_from_memory_and_a_new_saver_restores_it_from_disk(tmp_path, persist):
    with a_saver() as (saver, _):
        rank = Rank(place(saver, tmp_path), saves_and_stays(1, 2, 3, persist=persist))
        assert rank.heard() == "saved"
        rank.kill()
        log: list[str] = []
        again = client(place(saver, tmp_path, number=2, incarnation=2), log)
        step, found = again.load() or (None, None)
        assert (step, same(found, state(3))) == (3, True)
        assert "from memory" in log[-1]
        assert saver.flush(20) == ""
        again.close()
    with a_saver() as (other, _):
        log = []
        third = client(place(other, tmp_path, number=3, incarnation=3), log)
        step, found = third.load() or (None, None)
        assert (step, same(found, state(3))) == (3, True)
        assert "from disk" in log[-1]
        third.close()


def test_copies_of_a_dead_rank_are_flushed_before_its_death_is_known(tmp_path, monkeypatch):
    real, heard = Wire.readable_from, threading.Event()

    def late(wire: Wire, process: int) -> bool:
        said = real(wire, process)
        if select.select([process], [], [], 0)[0]:
            assert heard.wait(60)
        return said

    monkeypatch.setattr(Wire, "readable_from", late)
    with a_saver() as (saver, _):
        rank = Rank(place(saver, tmp_path), saves_and_stays(1, 2, 3, persist=False))
        assert rank.heard() == "saved"
        rank.kill()
        assert saver.flush(20) == ""
        assert [mark.step for mark in Folder(tmp_path).marks()][-1:] == [3]
        heard.set()


def test_without_save_on_exit_memory_alone_is_lost_with_its_rank(tmp_path):
    def body(mine: Any, tell: Any) -> None:
        mine.save(1, state(1), persist=True)
        mine.save(2, state(2), persist=False)
        tell("saved")
        signal.pause()

    with a_saver() as (saver, _):
        rank = Rank(place(saver, tmp_path, save_on_exit=False), body)
        assert rank.heard() == "saved"
        rank.kill()
        assert saver.flush(20) == ""
    with a_saver() as (other, _):
        again = client(place(other, tmp_path, number=2))
        assert (again.load() or (None,))[0] == 1
        again.close()


def test_a_copy_that_its_rank_did_not_finish_is_passed_over(tmp_path):
    def body(mine: Any, tell: Any) -> None:
        mine.save(1, state(1), persist=False)
        mine.save(2, state(2), persist=False)
        slot = max(mine._slots, key=lambda s: s.head.order)
        slot.begin()  # as the next save would, before it copies
        slot.map[5000:6000] = bytes(1000)
        tell("torn")
        signal.pause()

    with a_saver() as (saver, _):
        rank = Rank(place(saver, tmp_path), body)
        assert rank.heard() == "torn"
        rank.kill()
        again = client(place(saver, tmp_path, number=2))
        step, found = again.load() or (None, None)
        assert (step, same(found, state(1))) == (1, True)
        again.close()


def test_lives_that_load_and_crash_leave_one_decision(tmp_path):
    with a_saver() as (saver, _):
        rank = Rank(place(saver, tmp_path), saves_and_stays(1, persist=True))
        assert rank.heard() == "saved"
        rank.kill()
        for number in range(2, 5):
            again = client(place(saver, tmp_path, number=number, incarnation=number, grace_s=0.0))
            assert again.load() is not None
            again.close()
    assert [path.name for path in tmp_path.glob("restore-*.json")] == ["restore-1-4.json"]


def test_a_world_counts_only_when_all_its_parts_are_there(tmp_path):
    """Two ranks: one is killed a step behind the other; both go on from the step that both have."""
    with a_saver() as (saver, told):
        ahead = Rank(place(saver, tmp_path, rank=0, world=2), saves_and_stays(1, 2, 3))
        behind = Rank(place(saver, tmp_path, rank=1, world=2), saves_and_stays(1, 2))
        for rank in (ahead, behind):
            assert rank.heard() == "saved"
            rank.kill()
        steps = []
        for number in range(2):
            again = client(place(saver, tmp_path, rank=number, world=2, number=2))
            step, found = again.load() or (None, None)
            assert same(found, state(2))
            steps.append(step)
            again.close()
        assert steps == [2, 2]
        assert any("step 2 is saved: 2 x" in text for text in told.of("Saved"))
        assert not any("step 3 " in text for text in told.of("Saved"))


@pytest.mark.parametrize("harm", ["corrupt", "torn", "gone"])
def test_a_damaged_checkpoint_is_skipped_with_a_word(tmp_path, harm):
    with a_saver() as (saver, _):
        mine = client(place(saver, tmp_path))
        for step in (1, 2):
            mine.save(step, state(step), persist=True)
            mine.wait(20)
        mine.close()
    part = next(tmp_path.glob("step-000000000002.*")) / "rank-00000.part"
    if harm == "gone":
        part.unlink()
    elif harm == "torn":
        with part.open("r+b") as file:
            file.truncate(part.stat().st_size // 2)
    else:
        with part.open("r+b") as file:
            file.seek(part.stat().st_size // 2)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 1]))
    log: list[str] = []
    with a_saver() as (other, _):
        again = client(place(other, tmp_path, number=2), log)
        step, found = again.load() or (None, None)
        assert (step, same(found, state(1))) == (1, True)
        again.close()
    words = {"corrupt": "is corrupt: CRC-32", "torn": "is torn", "gone": "cannot be read"}
    assert f"step 2 of run 1.1 was passed over: rank-00000.part {words[harm]}" in log[0]


def test_a_process_of_the_past_saves_in_vain(tmp_path):
    """A frozen rank that thaws after another life has gone on from before it."""
    with a_saver() as (saver, _), a_saver() as (elsewhere, told):
        old = client(place(elsewhere, tmp_path))
        old.save(1, state(1), persist=True)
        old.wait(20)
        new = client(place(saver, tmp_path, number=2))
        assert (new.load() or (None,))[0] == 1
        old.save(5, state(5), persist=True)
        with pytest.raises(CheckpointError, match=r"run 1\.2 has restored step 1 of run 1\.1"):
            old.wait(20)
        assert told.of("Fenced")
        third = client(place(saver, tmp_path, number=3))
        assert (third.load() or (None,))[0] == 1
        for one in (old, new, third):
            one.close()


def test_a_rank_that_failed_does_not_wait_for_the_disk(tmp_path, monkeypatch):
    disk = threading.Event()
    write = Folder.write_part

    def slow(self: Folder, *what: Any) -> int:
        assert disk.wait(20)
        return write(self, *what)

    monkeypatch.setattr(Folder, "write_part", slow)
    with a_saver() as (saver, told):
        failed, well = Checkpoints(), Checkpoints()
        for rank, one in enumerate((failed, well)):
            one._client = client(place(saver, tmp_path / str(rank), grace_s=20.0))  # type: ignore[reportPrivateUsage]
            one.save(1, state(1))
        failed.close(wait=False)
        assert told.words == [], "and the disk has nothing yet"
        disk.set()
        well.close()
        assert saver.flush(20) == ""
        assert len(told.of("Saved")) == 2


def test_other_nodes_are_asked_when_an_earlier_life_may_have_saved_there(tmp_path):
    asked: list[int] = []
    with a_saver(lambda _: asked.append(1)) as (saver, _):
        for life, times in ((1, 0), (2, 1)):
            mine = client(place(saver, tmp_path, number=life))
            assert mine.load() is None
            mine.close()
            assert len(asked) == times
        mine = client(place(saver, tmp_path, attempt=2))
        assert mine.load() is None
        mine.close()
    assert len(asked) == 2


def test_memory_that_nobody_came_for_is_given_back_when_another_rank_comes(tmp_path, monkeypatch):
    with a_saver() as (saver, _):
        gone = client(place(saver, tmp_path / "gone", name="gone/0"))
        gone.save(1, state(1), persist=True)
        gone.close()
        assert saver.flush(20) == ""
        with saver._changed:
            assert saver._changed.wait_for(lambda: not any(h.alive for hs in saver._holdings.values() for h in hs), 10)
        assert copies("gone/0") > 0
        monkeypatch.setattr(saver_module, "KEPT_S", -1.0)
        again = client(place(saver, tmp_path / "gone", name="gone/0", incarnation=2))
        assert again.latest() == 1
        assert copies("gone/0") > 0, "its own next process comes for it"
        other = client(place(saver, tmp_path / "other"))
        assert other.latest() is None
        assert copies("gone/0") == 0
        again.close()
        other.close()


def test_two_whole_checkpoints_stay_on_disk(tmp_path):
    with a_saver() as (saver, _):
        mine = client(place(saver, tmp_path))
        for step in range(1, 6):
            mine.save(step, state(step), persist=True)
        mine.wait(20)
        assert mine.latest() == 5
        mine.close()
    assert sorted(p.name for p in tmp_path.glob("step-*")) == ["step-000000000004.1-1", "step-000000000005.1-1"]


def test_the_newest_save_is_restored_also_at_a_lower_step(tmp_path):
    """By the same and by the next life, and the disk keeps it."""
    with a_saver() as (saver, _):
        mine = client(place(saver, tmp_path))
        assert mine.load() is None
        assert mine.saved == (-1, 0)
        for step, revision in ((10, 0), (4, 2), (10, 2), (9, 4)):
            mine.save(step, state(step), persist=True)
            assert mine.saved == (step, revision)
        mine.wait(20)
        step, _state = mine.load() or (0, None)
        assert (step, mine.saved, mine.latest()) == (9, (9, 4), 9)
        mine.close()
        again = client(place(saver, tmp_path, number=2))
        step, _state = again.load() or (0, None)
        assert step == 9
        again.close()
    assert [mark.step for mark in Folder(tmp_path).marks()] == [10, 9]


def test_a_later_load_goes_back_to_the_last_save_though_it_was_in_memory_alone(tmp_path):
    """Else it would undo work that the next life finds in a newer checkpoint."""
    with a_saver() as (saver, _):
        mine = client(place(saver, tmp_path))
        assert mine.load() is None
        mine.save(1, state(1), persist=True)
        mine.wait(20)
        mine.save(2, state(2), persist=False)
        step, found = mine.load() or (None, None)
        assert (step, same(found, state(2))) == (2, True)
        mine.close()


def test_a_later_load_waits_for_the_parts_of_other_ranks_and_says_whose_are_missing(tmp_path):
    with a_saver() as (saver, _):
        one, other = (client(place(saver, tmp_path, rank=rank, world=2, grace_s=1.0)) for rank in (0, 1))
        one.save(3, state(3), persist=True)
        with pytest.raises(CheckpointError, match=r"cannot go back to step 3 .*, its newest one: it is not whole: 1 p"):
            one.load()
        other.save(3, state(3), persist=True)
        assert [(mine.load() or (None,))[0] for mine in (one, other)] == [3, 3]
        for mine in (one, other):
            mine.close()


def test_only_a_later_load_tells_data_sets_that_their_rank_went_back(tmp_path):
    back: list[Any] = []
    feed = SimpleNamespace(
        unreported_positions=dict, close=lambda: None, went_back=lambda mine: back.append(mine.loaded)
    )
    with a_saver() as (saver, _):
        mine = Checkpoints()
        mine.feeds.append(cast("Any", feed))
        mine._client = client(place(saver, tmp_path))
        assert (mine.load(), back) == (None, [])
        assert (mine.load(), back) == (None, [None])
        mine.save(3, state(3))
        mine.wait(20)
        assert mine.load() is not None
        assert [str(one) for one in back] == ["None", "step 3 of run 1.1"]
        mine.close()


def test_what_a_save_told_reaches_primemaster_before_a_later_load_goes_back(tmp_path):
    heard, back = list[Any](), threading.Event()

    class BookOfSlowMaster(FileBook):
        def shards(self, question: Any) -> None:
            assert back.wait(20)
            heard.append(question)

    with a_saver(book=BookOfSlowMaster()) as (saver, _):
        mine = client(place(saver, tmp_path))
        assert mine.load() is None
        mine.save(1, state(1), persist=False, shards=[{"done": [1]}])
        threading.Timer(0.2, back.set).start()
        mine.load()
        assert heard == [{"done": [1]}]
        mine.close()


def test_a_rank_that_ends_right_after_its_copy_has_reported_the_data_in_it(tmp_path, monkeypatch):
    events, committed = list[Any](), threading.Event()

    class NotedBook(FileBook):
        def shards(self, question: Any) -> None:
            events.append(question)

        def commit(self, place: Any, mark: CheckpointId) -> str | None:
            events.append(mark.step)
            committed.set()
            return super().commit(place, mark)

    def fill_and_end(slot: Any, packed: Any, head: Any) -> None:
        fill(slot, packed, head)
        raise SystemExit

    with a_saver(book=NotedBook()) as (saver, _):
        mine, fill = client(place(saver, tmp_path)), client_module._fill
        monkeypatch.setattr(client_module, "_fill", fill_and_end)
        with pytest.raises(SystemExit):
            mine.save(1, state(1), persist=True, shards=[{"done": [1]}])
        mine._disconnect()
        assert committed.wait(20)
        assert events == [{"done": [1]}, 1]
        mine.close(wait=False)


def test_a_failed_write_is_told_and_tried_again(tmp_path):
    folder = tmp_path / "ckpt"
    folder.write_text("a file where the folder should be")
    with a_saver() as (saver, _):
        mine = client(place(saver, folder))
        mine.save(1, state(1), persist=True)
        with pytest.raises(CheckpointError, match=r"step 1 is not saved: .*ckpt"):
            mine.wait(20)
        folder.unlink()
        mine.wait(20)
        assert mine.latest() == 1
        mine.close()


def test_no_room_in_memory_is_said_before_it_is_taken(tmp_path):
    (tmp_path / "memory.max").write_text(str(300 << 20))
    (tmp_path / "memory.current").write_text(str(200 << 20))
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 0\n")
    check_room("trainer/0", 40 << 20, cgroups=tmp_path)
    with pytest.raises(UsageError, match=r"trainer/0: a checkpoint of 60 MiB needs 120 MiB .* 100 MiB are left"):
        check_room("trainer/0", 60 << 20, cgroups=tmp_path)


def test_an_object_that_cannot_be_saved_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"state\['model'\]\['hooks'\]\[1\] cannot be saved"):
        pack({"model": {"w": torch.ones(1), "hooks": [1, lambda: 0]}})


def test_a_filled_state_keeps_its_tensors(tmp_path):
    with a_saver() as (saver, _):
        mine = client(place(saver, tmp_path))
        tied = torch.arange(6.0)
        saved = {
            "a": tied,
            "again": tied,
            "t": torch.ones(3, 2).t(),
            "none": torch.empty(0),
            "n": 4,
            "b": bytearray(b"x"),
        }
        mine.save(1, saved, persist=True)
        mine.wait(20)
        into = {"a": torch.zeros(6), "t": torch.zeros(2, 3), "n": 0}
        step, found = mine.load(into) or (None, {})
        assert step == 1
        assert found["a"] is into["a"]
        assert torch.equal(into["a"], tied)
        assert torch.equal(into["t"], torch.ones(2, 3))
        assert (found["n"], found["b"], found["none"].numel()) == (4, b"x", 0)
        plain = (mine.load() or (None, {}))[1]
        assert plain["a"] is plain["again"]
        with pytest.raises(CheckpointError, match=r"state\['a'\]: \(6,\) was saved, \(5,\) is to be filled"):
            mine.load({"a": torch.zeros(5)})
        mine.close()


def test_a_disk_that_hangs_holds_nobody_up_for_ever(tmp_path, monkeypatch):
    """Parts whose names are FIFOs that nobody reads: opening them never returns."""
    monkeypatch.setattr(disk, "temporary", lambda path: path.with_name(f".{path.name}.temp"))
    fifos = [tmp_path / f"step-{step:012d}.1-1" / ".rank-00000.part.temp" for step in (1, 2)]
    for fifo in fifos:
        fifo.parent.mkdir()
        os.mkfifo(fifo)
    log: list[str] = []
    with a_saver() as (saver, _):
        mine = client(place(saver, tmp_path, grace_s=0.2), log)
        for step in (1, 2, 3):
            mine.save(step, state(step), persist=True)
        assert log == [f"checkpoint: {tmp_path} has taken nothing for 0.2 s; steps stay in memory"]
        ends = [os.open(fifo, os.O_RDONLY | os.O_NONBLOCK) for fifo in fifos]
        for end in ends:
            os.close(end)
        with suppress(CheckpointError):  # what waited for the disk hears that it broke
            mine.wait(20)
        mine.wait(20)
        assert mine.latest() == 3
        mine.close()


def test_answer_to_an_interrupted_request_is_not_taken_for_the_next_one(tmp_path, monkeypatch):
    real, interrupts = Wire.readable, [KeyboardInterrupt()]

    def interrupted(wire: Wire, seconds: float) -> bool:
        there = real(wire, seconds)
        if interrupts:  # its answer is there, and has not been read
            raise interrupts.pop()
        return there

    log: list[str] = []
    with a_saver() as (saver, _):
        mine = client(place(saver, tmp_path), log)
        mine.save(1, state(1), persist=True)
        mine.wait(20)
        monkeypatch.setattr(Wire, "readable", interrupted)
        with pytest.raises(KeyboardInterrupt):
            mine.latest()
        mine.save(2, state(2), persist=True)
        mine.wait(20)
        assert mine.latest() == 2
        step, found = mine.load() or (0, None)
        assert (step, same(found, state(2))) == (2, True)
        mine.close()
    assert log == ["checkpoint: restored step 2 from memory"]


def test_a_process_that_lives_on_in_another_life_restores_what_it_had_in_memory(tmp_path):
    with a_saver() as (saver, _):
        where = [place(saver, tmp_path), place(saver, tmp_path, number=2, incarnation=2)]
        mine = client(where[0])
        mine._ask = lambda: asdict(where[0])
        mine.save(7, state(7), persist=False)
        assert (mine.saved, mine.renewed().run_id) == ((7, 0), where[0].run_id)
        del where[0]
        step, found = mine.load() or (0, None)
        assert (step, mine.saved) == (7, (-1, 0))
        assert same(found, state(7))
        mine.save(8, state(8), persist=True)
        mine.wait(20)
        assert next(str(f.mark) for f in Folder(tmp_path).candidates() if not f.bad) == "step 8 of run 1.2"
        mine.close()


def test_all_ranks_of_a_life_have_the_other_nodes_asked_once(tmp_path):
    asked: list[int] = []
    with a_saver(lambda _: asked.append(1)) as (saver, _):
        first = [client(place(saver, tmp_path, rank=rank, world=2)) for rank in (0, 1)]
        for mine in first:
            mine.save(4, state(4), persist=True)
        for mine in first:
            mine.close()
        asked.clear()
    with a_saver(lambda _: asked.append(1)) as (saver, _):
        for rank in (0, 1):
            mine = client(place(saver, tmp_path, rank=rank, world=2, number=2))
            assert (mine.load() or (0,))[0] == 4
            mine.close()
    assert asked == [1]


def test_two_parts_that_are_written_last_at_once_make_one_manifest(tmp_path):
    """Both writers see that all is there, and both write it."""
    both = threading.Barrier(2)

    class Slow(FileBook):
        def commit(self, place: Any, mark: Any) -> str | None:
            both.wait(60)
            return super().commit(place, mark)

    with a_saver(book=Slow()) as (saver, told):
        ranks = [client(place(saver, tmp_path, rank=rank, world=2)) for rank in (0, 1)]
        entered = threading.Barrier(2)
        commit = Folder.commit

        def together(self: Folder, *given: Any) -> str:
            entered.wait(60)
            return commit(self, *given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Folder, "commit", together)
            for mine in ranks:
                mine.save(1, state(1), persist=True)
            for mine in ranks:
                mine.wait(60)
        for mine in ranks:
            mine.close()
    assert told.of("Failed") == []
    assert [f.mark.step for f in Folder(tmp_path).candidates() if not f.bad] == [1]


def test_packed_state_is_released_with_its_last_name_and_no_later():
    array = np.ones(9)
    kept = weakref.ref(array)
    gc.disable()
    try:
        packed = pack({"a": array, "b": [1]})
        assert packed.plain
        del packed, array
        assert kept() is None
    finally:
        gc.enable()


def test_a_copy_that_begins_between_the_last_saves_flag_and_its_look_is_taken_back(tmp_path, monkeypatch):
    """The rank saw no flag; before it begins its copy, the last save of its node has come and gone."""
    with a_saver() as (saver, _):
        mine, held = client(place(saver, tmp_path)), threading.Event()
        mine.save(1, state(1), persist=False)
        begin, hold = Slot.begin, FinalSave.hold

        def late(slot: Slot) -> None:
            monkeypatch.setattr(Slot, "begin", begin)
            assert saver.final_save.save_all(20.0) == ""
            begin(slot)

        def told(last: FinalSave, rank: Any, asked: str) -> None:
            if asked in SAVING:
                held.set()
            hold(last, rank, asked)

        monkeypatch.setattr(Slot, "begin", late)
        monkeypatch.setattr(FinalSave, "hold", told)
        rank = threading.Thread(target=mine.save, args=(2, state(2)), kwargs={"persist": False})
        rank.start()
        assert held.wait(60)
        assert mine.saved == (1, 0)
        assert [mark.step for mark in Folder(tmp_path).marks()] == [1]
        with saver._changed:  # the node stays after all
            saver.final_save._until = 0.0
            saver._changed.notify_all()
        rank.join(60)
        assert mine.saved == (2, 0)
        mine.close()


def test_a_shorter_last_save_does_not_release_the_ranks_that_a_longer_one_holds(monkeypatch):
    """The hook of a pod that ends and PrimeMaster may both order it."""
    monkeypatch.setattr(final_save, "HELD_S", 0.0)
    flushes, goes_on, looks = threading.Event(), threading.Event(), list[str]()

    def flush(timeout_s: float, *, alive: bool) -> str:
        assert alive
        if timeout_s > 60:
            flushes.set()
            assert goes_on.wait(60)
        return ""

    saving = FinalSave(threading.Condition(), list, flush, lambda *_: "")
    longer = threading.Thread(target=saving.save_all, args=(600.0,))
    longer.start()
    assert flushes.wait(60)
    saving.save_all(0.0)
    rank: Any = SimpleNamespace(ended=lambda: looks.append("held") or True)
    saving.hold(rank, "slots")
    goes_on.set()
    longer.join(60)
    assert looks == ["held"]


def test_what_a_world_restored_from_memory_stays_until_all_its_ranks_have_saved_again(tmp_path):
    """Nothing is written: of two ranks one saves anew, and both die; the next life restores the same step."""

    def again(*steps: int) -> Any:
        def body(mine: Any, tell: Any) -> None:
            tell(str((mine.load() or (0,))[0]))
            for step in steps:
                mine.save(step, state(step), persist=False)
            tell("saved")
            signal.pause()

        return body

    with a_saver() as (saver, _):
        for number, steps, restored in ((1, ((7,), (7,)), "0"), (2, ((8,), ()), "7"), (3, ((8, 9), (8,)), "7")):
            where = [
                place(saver, tmp_path, rank=rank, world=2, number=number, incarnation=number, save_on_exit=False)
                for rank in (0, 1)
            ]
            ranks = [Rank(one, again(*saves)) for one, saves in zip(where, steps, strict=True)]
            heard = [(rank.heard(), rank.heard()) for rank in ranks]
            for rank in ranks:
                rank.kill()
            assert heard == [(restored, "saved")] * 2
        last = client(place(saver, tmp_path, rank=0, world=2, number=4, save_on_exit=False))
        assert (last.load() or (0,))[0] == 8
        last.close()
    assert Folder(tmp_path).marks() == []


def test_a_copy_that_the_disk_refused_is_dropped_when_a_newer_one_is_whole(tmp_path):
    folder = tmp_path / "ckpt"
    folder.write_text("a file where the folder should be")
    with a_saver() as (saver, told):
        first = client(place(saver, folder, name="a/0"))
        first.save(1, state(1), persist=False)
        first.close(wait=False)
        with saver._changed:
            assert saver._changed.wait_for(lambda: any(h.failed for h in saver._all()), 20)
        second = client(place(saver, folder, name="b/0", number=2))
        second._make_room(second.place(), 1000)
        assert copies("a/0") > 0
        second.save(2, state(2), persist=False)
        with saver._changed:
            assert saver._changed.wait_for(lambda: len(saver._all()) == 1, 20)
        assert copies("a/0") == 0
        assert told.of("Failed")
        second.close(wait=False)


@pytest.mark.parametrize("save_on_exit", [True, False])
def test_a_state_that_outgrows_its_memory_leaves_the_copies_that_are_not_on_disk(tmp_path, save_on_exit):
    """The rank dies in its first save into the new memory."""

    def body(mine: Any, tell: Any) -> None:
        mine.save(1, {"a": b"x"}, persist=False)
        mine._make_room(mine.place(), 1 << 20)
        mine._slots[0].begin()
        tell("torn")
        signal.pause()

    with a_saver() as (saver, _):
        rank = Rank(place(saver, tmp_path, name="grows/0", save_on_exit=save_on_exit), body)
        assert rank.heard() == "torn"
        rank.kill()
        again = client(place(saver, tmp_path, name="grows/0", number=2, incarnation=2, save_on_exit=save_on_exit))
        assert again.load() == (1, {"a": b"x"})
        again.save(2, {"a": b"y"}, persist=False)
        again.wait(20, everything=save_on_exit)
        with saver._changed:
            assert saver._changed.wait_for(lambda: len(saver._all()) == 1, 20), "a newer one is whole"
        again.close(wait=False)
    assert [mark.step for mark in Folder(tmp_path).marks()] == ([1, 2] if save_on_exit else [])


def test_copies_of_outgrown_memory_go_when_a_newer_step_is_whole(tmp_path):
    with a_saver() as (saver, _):
        mine = client(place(saver, tmp_path, save_on_exit=False))
        for step, size in ((1, 1), (2, 1 << 20), (3, 1 << 22)):
            mine.save(step, {"a": b"x" * size}, persist=False)
        with saver._changed:
            assert saver._changed.wait_for(lambda: len(saver._all()) == 1, 20)
        mine.close(wait=False)
