"""One flipped bit anywhere in a checkpoint folder: it costs at most the checkpoint that it is in, and is told."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import queue
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoint_kit import a_saver, client, place

from dljob.errors import CheckpointError, UsageError
from dljob.master.state.checkpoint_ids import CheckpointId, RestoreDecision, RunId
from dljob.runtime.checkpoint import disk
from dljob.runtime.checkpoint.book import FileBook, JournalBook
from dljob.runtime.checkpoint.choice import Candidate, choose
from dljob.runtime.checkpoint.client import CheckpointClient, SaveCount
from dljob.runtime.checkpoint.files import Copy, Folder
from dljob.runtime.checkpoint.listing import rows
from dljob.runtime.checkpoint.sealed import DamagedError, seal
from dljob.runtime.checkpoint.slot import MAGIC, PAGE, WHOLE, CopyHeader, Slot

A, B, C = RunId(1, 1), RunId(1, 2), RunId(1, 3)
BYTES = 64


def write(folder: Folder, mark: CheckpointId, rank: int = 0, world: int = 1) -> None:
    """One part of a few bytes."""
    slot = Slot.make(PAGE, "t")
    lives = (mark.run_id.attempt, mark.run_id.number)
    head = CopyHeader(WHOLE, 1, mark.step, *lives, 1, rank, world, 40, persist=True, size=BYTES, revision=mark.revision)
    slot.map[PAGE : PAGE + BYTES] = bytes([mark.step] * BYTES)
    slot.finish(head)
    folder.write_part(mark, rank, slot.clean_head(head), Copy(slot.map, head.total, lambda: True))
    slot.close()


def make(folder: Folder, mark: CheckpointId) -> None:
    """A whole checkpoint of one rank."""
    write(folder, mark)
    assert folder.commit(mark, 1) == "committed"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Steps 10 and 20 of run 1.1, and the decisions of lives 1.1 and 1.2."""
    made = Folder(tmp_path / "t")
    made.decide(RestoreDecision(A, None))
    make(made, CheckpointId(A, 10))
    make(made, CheckpointId(A, 20))
    made.decide(RestoreDecision(B, CheckpointId(A, 20)))
    return made


def chosen(folder: Folder, life: RunId = C) -> CheckpointId | None:
    """What a life would restore, as the one who decides looks for it."""
    found = (Candidate(mark, 0) for mark in folder.marks())
    best, _ = choose(found, folder.decisions(), life, lambda one: folder.check(one.mark))
    return best and best.mark


def flips(path: Path, few: range = range(0)) -> Iterator[tuple[int, int]]:
    """Each bit of a file flipped, for one turn of the loop; of the bytes `few` one bit each."""
    fd = os.open(path, os.O_RDWR)
    times = os.fstat(fd).st_mtime_ns
    for at, byte in enumerate(path.read_bytes()):
        for bit in (at % 8,) if at in few else range(8):
            os.pwrite(fd, bytes([byte ^ 1 << bit]), at)
            times += 1000  # decisions are remembered by their file's time, which a test may be too quick for
            os.utime(fd, ns=(times, times))
            yield at, bit
        os.pwrite(fd, bytes([byte]), at)
    os.close(fd)


@pytest.mark.parametrize(("step", "left"), [(10, CheckpointId(A, 20)), (20, CheckpointId(A, 10))])
def test_each_bit_of_a_manifest_costs_at_most_its_checkpoint(folder, step, left):
    for at in flips(folder.at(CheckpointId(A, step)) / "manifest.json"):
        assert chosen(folder) == left, at
        with pytest.raises(DamagedError, match="its manifest is damaged"):
            folder.manifest(CheckpointId(A, step))
    assert chosen(folder) == CheckpointId(A, 20)


@pytest.mark.parametrize("name", ["restore-1-1.json", "restore-1-2.json"])
def test_each_bit_of_a_decision_costs_nothing(folder, name):
    for at in flips(folder.path / name):
        (text,) = folder.records().damaged
        assert text.startswith(f"{name} is passed over, it is damaged: "), at
        assert chosen(folder) == CheckpointId(A, 20), at
    assert folder.records().damaged == ()


def test_each_bit_of_a_part_is_noticed_with_its_manifest_and_without(folder):
    """All bits of what the header says, of the state and of the trailer, and one of each byte of padding."""
    mark, padding = CheckpointId(A, 20), range(512, PAGE)
    for at in flips(folder.part(mark, 0), few=padding):
        assert folder.check(mark), at
        assert folder.check_part(mark, 0, 1), at
    assert folder.check(mark) == ""


def flip(path: Path, at: int = -2) -> None:
    """Flip one bit."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


class Told(FileBook):
    """What PrimeMaster would hear of."""

    def __init__(self) -> None:
        self.damaged: list[str] = []

    def decide(self, place: Any, folder: Folder, chosen: CheckpointId | None, damaged: Any = ()) -> RestoreDecision:
        self.damaged += damaged
        return super().decide(place, folder, chosen)


def saved(saver: Any, where: Path, *steps: int, **changes: Any) -> CheckpointClient:
    """A rank that has saved these steps on disk."""
    mine = client(place(saver, where, save_on_exit=False, **changes))
    for step in steps:
        mine.save(step, {"step": step}, persist=True)
        mine.wait(20)
    return mine


def loaded(where: Path, number: int, log: list[str] | None = None) -> tuple[int | None, list[str]]:
    """What another life of the rank restores by a new saver, and what PrimeMaster hears of."""
    book = Told()
    with a_saver(book=book) as (saver, _):
        mine = client(place(saver, where, number=number, save_on_exit=False), log)
        found = mine.load()
        mine.close(wait=False)
    assert found is None or found[1] == {"step": found[0]}
    return found and found[0], book.damaged


def test_a_damaged_part_is_told_and_the_older_checkpoint_is_restored(tmp_path):
    with a_saver() as (saver, _):
        saved(saver, tmp_path, 10, 20).close()
    flip(Folder(tmp_path).part(CheckpointId(A, 20), 0), 5000)
    step, told = loaded(tmp_path, 2)
    assert step == 10
    assert told[0].startswith("step 20 of run 1.1 is passed over: rank-00000.part is corrupt: CRC-32 ")


def test_a_damaged_manifest_is_written_anew_from_the_parts_that_it_names(tmp_path):
    with a_saver() as (saver, _):
        saved(saver, tmp_path, 10, 20).close()
    manifest = Folder(tmp_path).at(CheckpointId(A, 20)) / "manifest.json"
    before = manifest.read_bytes()
    flip(manifest)
    part = Folder(tmp_path).part(CheckpointId(A, 20), 0)
    for is_whole in (False, True):
        flip(part, 5000)
        assert next(rows("t", Folder(tmp_path), read_all=True)).reason.endswith("a load repairs it") == is_whole
    assert loaded(tmp_path, 2)[0] == 20
    assert manifest.read_bytes() == before


class RefusingDisk:
    """A volume that refuses new files by name, as a full or a read-only one does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refuses: Callable[[Path], object] = lambda _path: False
        self.number = errno.ENOSPC
        self.tries = list[str]()
        self._replacing, self._create = disk.replacing, disk.create
        monkeypatch.setattr(disk, "replacing", self.replacing)
        monkeypatch.setattr(disk, "create", self.create)

    def replacing(self, path: Path) -> Any:
        self._check(path)
        return self._replacing(path)

    def create(self, path: Path, data: bytes) -> bool:
        self._check(path)
        return self._create(path, data)

    def _check(self, path: Path) -> None:
        if self.refuses(path):
            self.tries.append(path.name)
            raise OSError(self.number, os.strerror(self.number))


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> RefusingDisk:
    return RefusingDisk(monkeypatch)


def without_manifest(where: Path, step: int) -> Path:
    """Delete a manifest, as if its writer had died before it, and return its path."""
    path = Folder(where).at(CheckpointId(A, step)) / "manifest.json"
    path.unlink()
    return path


def test_a_manifest_that_the_disk_refuses_is_told_and_an_older_checkpoint_is_restored(tmp_path, refusing):
    with a_saver() as (saver, _):
        saved(saver, tmp_path, 10, 20).close()
    without_manifest(tmp_path, 20)
    refusing.refuses = lambda path: path.name == "manifest.json"
    step, told = loaded(tmp_path, 2)
    assert (step, refusing.tries) == (10, ["manifest.json"] * 2)
    said = "step 20 of run 1.1 is passed over: its manifest cannot be written: No space left on device"
    assert told == [said]
    refusing.refuses = lambda _path: False
    with a_saver() as (saver, _):
        saved(saver, tmp_path, 21, number=3).close()
    assert loaded(tmp_path, 4) == (21, []), "the next save is as any other"


def test_the_only_whole_parts_are_not_deleted_for_a_manifest_that_the_disk_refuses(tmp_path, refusing):
    with a_saver() as (saver, _):
        saved(saver, tmp_path, 10).close()
    without_manifest(tmp_path, 10)
    refusing.refuses = lambda path: path.name == "manifest.json"
    with pytest.raises(CheckpointError, match=r"cannot load step 10 of run 1.1: its manifest cannot be written: No sp"):
        loaded(tmp_path, 2)
    refusing.refuses = lambda _path: False
    assert loaded(tmp_path, 3)[0] == 10


def test_a_manifest_finds_room_on_a_disk_that_is_full_of_what_no_life_restores(tmp_path, refusing):
    folder = Folder(tmp_path)
    for step in (5, 6, 9, 10):
        make(folder, CheckpointId(A, step))
    write(folder, CheckpointId(A, 20))
    refusing.refuses = lambda _path: CheckpointId(A, 6) in folder.marks()
    assert folder.commit(CheckpointId(A, 20), 1, needed=lambda: [CheckpointId(A, 5)]) == "committed"
    assert [mark.step for mark in folder.marks()] == [5, 9, 10, 20], "a cut needs the first of them"


def test_a_save_whose_manifest_the_disk_refuses_is_told_and_tried_again(tmp_path, refusing):
    refusing.refuses = lambda path: path.name == "manifest.json"
    with a_saver() as (saver, _):
        mine = client(place(saver, tmp_path, save_on_exit=False))
        mine.save(10, {"step": 10}, persist=True)
        with pytest.raises(CheckpointError, match=r"step 10 is not saved: No space left on device"):
            mine.wait(20)
        refusing.refuses = lambda _path: False
        mine.save(20, {"step": 20}, persist=True)
        mine.wait(20)
        mine.close()
    assert [one.mark.step for one in Folder(tmp_path).candidates() if not one.bad] == [20, 10]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_disk_that_takes_no_checkpoint_is_told_to_primemaster(tmp_path, refusing, number):
    asked, answered = queue.SimpleQueue[Any](), threading.Event()

    def answer(question: Any) -> dict[str, Any]:
        if question["what"] == "not saved":
            asked.put(question)
            answered.wait(20)
        return {"why": ""}

    refusing.refuses, refusing.number = lambda path: path.suffix == ".part", number
    (volume := tmp_path / "volume").mkdir()
    (link := tmp_path / "checkpoints").symlink_to(volume)
    with a_saver(book=JournalBook(answer)) as (saver, _):
        mine = client(place(saver, link, save_on_exit=False))
        for step in (10, 20):  # the second while PrimeMaster has not answered yet
            mine.save(step, {"step": step}, persist=True)
            # `wait` tries step 10 again beside step 20, and either may fail last.
            with pytest.raises(CheckpointError, match=rf"step (10|{step}) is not saved: {os.strerror(number)}"):
                mine.wait(20)
        question = asked.get(timeout=20)
        assert asked.empty()
        answered.set()
        mine.close(wait=False)
    assert (question["why"], question["folder"]) == (os.strerror(number), str(volume))
    assert (question["world"], question["rank"], question["mark"]["step"]) == ("trainer", "trainer/0", 10)


def test_a_life_restores_from_a_disk_that_can_only_be_read(tmp_path, refusing):
    """PrimeMaster has the decision in its journal, and needs no file."""
    with a_saver() as (saver, _):
        saved(saver, tmp_path, 10, 20).close()
    without_manifest(tmp_path, 20)
    refusing.refuses, refusing.number = lambda _path: True, errno.EROFS
    book = JournalBook(lambda asked: {"why": "", "yours": asked["what"] == "turn", "chosen": asked.get("chosen")})
    with a_saver(book=book) as (saver, told):
        mine = client(place(saver, tmp_path, number=2, save_on_exit=False))
        assert mine.load() == (10, {"step": 10})
        mine.close(wait=False)
    assert told.of("Damaged") == [
        "trainer: step 20 of run 1.1 is passed over: its manifest cannot be written: Read-only file system"
    ]


def test_a_commit_names_the_oldest_checkpoint_that_stays_on_disk(tmp_path):
    asked = list[Any]()

    def answer(question: Any) -> dict[str, Any]:
        asked.append(question["oldest"] and question["oldest"]["step"])
        return {"why": ""}

    with a_saver(book=JournalBook(answer)) as (saver, _):
        saved(saver, tmp_path, 1, 2, 3, 4).close()
    assert asked == [None, 1, 1, 2]


def test_a_damaged_decision_is_told_and_does_not_stop_a_load(tmp_path):
    with a_saver() as (saver, _):
        mine = client(place(saver, tmp_path, save_on_exit=False))
        assert mine.load() is None
        mine.save(10, {"step": 10}, persist=True)
        mine.close()
    (tmp_path / "restore-1-1.json").write_bytes(b"")
    assert loaded(tmp_path, 2) == (10, ["restore-1-1.json is passed over, it is damaged: it is empty"])


def test_a_life_whose_own_decision_is_damaged_makes_it_anew(tmp_path):
    with a_saver() as (saver, _):
        saved(saver, tmp_path, 10).close()
    assert loaded(tmp_path, 2)[0] == 10
    flip(tmp_path / "restore-1-2.json")
    assert loaded(tmp_path, 2)[0] == 10
    assert Folder(tmp_path).decisions() == [RestoreDecision(B, CheckpointId(A, 10))]


def test_a_job_whose_only_checkpoint_is_damaged_begins_anew_but_says_so(tmp_path):
    with a_saver() as (saver, _):
        saved(saver, tmp_path, 10).close()
    flip(Folder(tmp_path).part(CheckpointId(A, 10), 0), 5000)
    step, told = loaded(tmp_path, 2)
    assert (step, len(told)) == (None, 1)
    assert Folder(tmp_path).marks() == [CheckpointId(A, 10)], (
        "it may be unreadable only now: what once counted is not deleted"
    )


def of_a_later_dljob(where: Path, step: int, how: str) -> Path:
    """Let a checkpoint look as a later version may write it, and return the file that says so."""
    folder, mark = Folder(where), CheckpointId(A, step)
    manifest, part = folder.at(mark) / "manifest.json", folder.part(mark, 0)
    if how == "sealed":
        manifest.write_bytes(seal({"version": 99, "shape": "another"}))
        return manifest
    if how == "another seal":
        manifest.write_text('{"version": 99, "sha256": "..."}')
        return manifest
    part.write_bytes(MAGIC.replace(b"1", b"9") + part.read_bytes()[len(MAGIC) :])
    manifest.unlink()
    return part


@pytest.mark.parametrize("how", ["sealed", "another seal", "parts without a manifest"])
def test_a_checkpoint_of_a_later_dljob_is_neither_passed_over_nor_deleted(tmp_path, how):
    with a_saver() as (saver, _):
        saved(saver, tmp_path, 10, 20).close()
    later = of_a_later_dljob(tmp_path, 20, how)
    before, number = later.read_bytes(), 9 if "parts" in how else 99
    said = rf"cannot load step 20 of run 1.1: format {number} is newer than this dljob's, \d \({later.parent}\)"
    with pytest.raises(CheckpointError, match=said):
        loaded(tmp_path, 2)
    (row, _) = rows("t", Folder(tmp_path))
    assert (row.state, row.reason[:11]) == ("newer", f"format {number} is"[:11])
    # Somebody decided to go on without it: nothing may delete it then.
    with a_saver() as (saver, _):
        Folder(tmp_path).decide(RestoreDecision(C, CheckpointId(A, 10)))
        saved(saver, tmp_path, 30, 40, 50, number=3).close()
    Folder(tmp_path).collect()
    assert later.read_bytes() == before
    assert CheckpointId(A, 10) not in Folder(tmp_path).marks(), "what this version can read is deleted as ever"


def test_what_the_disk_refuses_to_read_now_is_not_deleted(tmp_path, monkeypatch):
    folder, read = Folder(tmp_path), disk.read_file
    for step in (10, 20, 30, 40):
        make(folder, CheckpointId(A, step))

    def refusing(path: Path) -> bytes:
        if "step-000000000020" in str(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(path)

    monkeypatch.setattr(disk, "read_file", refusing)
    folder.retain(2)
    assert [mark.step for mark in folder.marks()] == [20, 30, 40]


def test_a_decision_of_a_later_dljob_stops_a_load_and_stays(tmp_path):
    with a_saver() as (saver, _):
        saved(saver, tmp_path, 10).close()
    later = seal({"version": 99})
    for number in (1, 2):
        path = tmp_path / f"restore-1-{number}.json"
        path.write_bytes(later)
        with pytest.raises(CheckpointError, match=f"cannot load: restore-1-{number}.json: format 99 is newer than"):
            loaded(tmp_path, 2)
        with pytest.raises(CheckpointError, match=f"restore-1-{number}.json: format 99 is newer than"):
            Folder(tmp_path).decide(RestoreDecision(RunId(1, number), None))
        assert path.read_bytes() == later
        path.unlink()
    assert loaded(tmp_path, 2)[0] == 10


def test_a_whole_part_of_a_later_format_is_no_damage(folder):
    mark = CheckpointId(A, 20)
    part, manifest = folder.part(mark, 0), folder.at(mark) / "manifest.json"
    body = part.read_bytes()[:-16]
    later = MAGIC.replace(b"1", b"3") + body[len(MAGIC) :]
    part.write_bytes(later + part.read_bytes()[-16:])
    assert folder.check(mark).startswith("rank-00000.part is torn: "), "its magic number is not what was written"
    said = json.loads(manifest.read_text())
    said["parts"][0]["crc32"] = zlib.crc32(later)
    manifest.write_bytes(seal({key: value for key, value in said.items() if key != "crc32"}))
    assert folder.check(mark) == "rank-00000.part is of a later dljob: format 3 is newer than this dljob's, 1"
    for step in (50, 51):
        make(folder, CheckpointId(C, step))
    folder.retain(2)
    assert [made.step for made in folder.marks()] == [20, 50, 51]


def test_metadata_without_a_checksum_is_damaged_and_the_manifest_made_again_from_the_parts(tmp_path):
    with a_saver() as (saver, _):
        saved(saver, tmp_path, 10).close()
    decision, manifest = tmp_path / "restore-1-1.json", tmp_path / "step-000000000010.1-1" / "manifest.json"
    decision.write_text('{"restored": null}')
    sealed = manifest.read_bytes()
    body = json.loads(sealed)
    del body["crc32"]
    manifest.write_text(json.dumps(body, indent=1))
    step, damage = loaded(tmp_path, 2)
    assert (step, manifest.read_bytes()) == (10, sealed)
    assert "restore-1-1.json is passed over, it is damaged: it is not sealed by a checksum" in damage


@pytest.mark.parametrize(
    "text",
    ["", "{", "[" * 100_000, "[]", '{"restored": 7}', '{"restored": {"attempt": "1", "number": 1, "step": 2}}', "{}"],
)
def test_a_file_that_is_no_decision_is_passed_over(folder, text):
    (folder.path / "restore-1-9.json").write_text(text)
    assert len(folder.records().damaged) == 1
    assert chosen(folder, RunId(2, 1)) == CheckpointId(A, 20)


@pytest.mark.parametrize(
    "change",
    [
        {"step": 21}, {"revision": 1}, {"life": {"attempt": 1}}, {"life": None}, {"world": 0}, {"world": 2},
        {"parts": 7},
        {"parts": [{"rank": 0, "file": "../../x", "bytes": 1, "crc32": 1}]}, {"parts": [{"rank": 0}]},
        {"parts": [{"rank": 0, "file": "rank-00000.part", "bytes": "x", "crc32": 1}]},
    ],
)  # fmt: skip
def test_a_manifest_of_another_format_is_passed_over(folder, change):
    path = folder.at(CheckpointId(A, 20)) / "manifest.json"
    body = {key: value for key, value in json.loads(path.read_text()).items() if key != "crc32"}
    path.write_bytes(seal({**body, **change}))
    with pytest.raises(DamagedError, match="its manifest is damaged"):
        folder.manifest(CheckpointId(A, 20))


def test_a_second_load_of_one_life_is_checked(tmp_path):
    with a_saver() as (saver, _):
        mine = client(place(saver, tmp_path))
        mine.load()
        mine.save(10, {"w": bytearray(50_000)}, persist=True)
        mine.wait(20)
        assert (mine.load() or (0,))[0] == 10
        flip(Folder(tmp_path).part(CheckpointId(A, 10), 0), 20_000)
        with pytest.raises(CheckpointError, match=r"cannot load what it has saved: step 10 .*rank-00000\.part is corr"):
            mine.load()
        (tmp_path / "step-000000000010.1-1" / "manifest.json").write_text("")
        with pytest.raises(CheckpointError, match=r"cannot load what it has saved: step 10 .* its manifest is damaged"):
            mine.load()
        mine.close(wait=False)


def test_an_actor_rank_that_loads_again_passes_over_what_is_damaged(tmp_path):
    log: list[str] = []
    with a_saver() as (saver, told):
        mine = client(place(saver, tmp_path), log)
        mine.load()
        for step in (10, 20):
            mine.save(step, {"step": step}, persist=True)
            mine.wait(20)
        flip(Folder(tmp_path).part(CheckpointId(A, 20), 0), 5000)
        assert mine.load() == (10, {"step": 10})
        mine.close(wait=False)
        assert len(told.of("Damaged")) == 1
    assert log[0].startswith("checkpoint: step 20 of run 1.1 is passed over: rank-00000.part is corrupt: CRC-32 ")


def test_a_rank_that_did_not_decide_checks_its_part_too(tmp_path):
    with a_saver() as (saver, _):
        ranks = [saved(saver, tmp_path, rank=rank, world=2) for rank in (0, 1)]
        for mine in ranks:
            mine.save(10, {"rank": ranks.index(mine)}, persist=True)
        for mine in ranks:
            mine.wait(20)
            mine.close()
    with a_saver() as (saver, _):
        first, second = (client(place(saver, tmp_path, rank=rank, world=2, number=2)) for rank in (0, 1))
        assert first.load() == (10, {"rank": 0})
        flip(Folder(tmp_path).part(CheckpointId(A, 10), 1), 5000)
        with pytest.raises(CheckpointError, match=r"rank-00001\.part is corrupt"):
            second.load()
        for mine in (first, second):
            mine.close(wait=False)


def test_a_step_that_is_saved_twice_never_mixes_its_versions(tmp_path):
    """Rank 0 saves step 10 again; rank 1 dies before its second save of it."""
    with a_saver() as (saver, _):
        ranks = [saved(saver, tmp_path, rank=rank, world=2) for rank in (0, 1)]
        for mine in ranks:
            mine.save(10, {"v": "first"}, persist=True)
        for mine in ranks:
            mine.wait(20)
        ranks[0].save(10, {"v": "second"}, persist=True)
        ranks[0].wait(20)
        for mine in ranks:
            mine.close(wait=False)
    assert restored(tmp_path, 2) == [(10, {"v": "first"})] * 2


def test_the_second_save_of_a_step_counts_once_all_ranks_have_made_it(tmp_path):
    with a_saver() as (saver, _):
        ranks = [saved(saver, tmp_path, rank=rank, world=2) for rank in (0, 1)]
        for text in ("first", "second"):
            for mine in ranks:
                mine.save(10, {"v": text}, persist=True)
            for mine in ranks:
                mine.wait(20)
        for mine in ranks:
            mine.close(wait=False)
    assert [str(mark) for mark in Folder(tmp_path).marks()] == [
        "step 10 of run 1.1",
        "step 10, revision 2 of run 1.1",
    ]
    assert restored(tmp_path, 2) == [(10, {"v": "second"})] * 2


def restored(where: Path, number: int) -> list[tuple[int, Any] | None]:
    """What both ranks of a new life restore."""
    with a_saver() as (saver, _):
        ranks = [client(place(saver, where, rank=rank, world=2, number=number, save_on_exit=False)) for rank in (0, 1)]
        found = [mine.load() for mine in ranks]
        for mine in ranks:
            mine.close(wait=False)
    return found


def test_ranks_that_make_the_same_saves_count_the_same_revisions():
    one, other = SaveCount(), SaveCount()
    steps = [1, 2, 2, 1, 3, 3]
    assert [one.next(A, step) for step in steps] == [other.next(A, step) for step in steps]
    assert [one.next(B, step) for step in steps] == [(1, 0), (2, 0), (3, 3), (4, 4), (5, 4), (6, 6)]


def test_torn_checkpoints_of_crashed_lives_are_collected_at_the_next_decision(tmp_path):
    folder = Folder(tmp_path)
    for step in (11, 12):
        make(folder, CheckpointId(A, step))
    for number in range(2, 8):
        loaded_step, _ = loaded_world(tmp_path, number)
        assert loaded_step == 12
        write(folder, CheckpointId(RunId(1, number), 20), world=2)  # rank 1 crashes before it saves
        assert [mark.step for mark in folder.marks()] == [11, 12, 20]


def loaded_world(where: Path, number: int) -> tuple[int | None, list[str]]:
    """As `loaded`; the states of this file's parts cannot be unpickled, so it is asked what would be restored."""
    with a_saver() as (saver, told):
        said, _ = saver._restorer.choose(place(saver, where, number=number), memory=False)
    return said["mark"]["step"], told.of("Damaged")


def test_a_decision_finds_room_on_a_disk_that_is_full_of_what_it_voids(folder, monkeypatch):
    write(folder, CheckpointId(B, 30), world=2)
    real = disk.create

    def full(path: Path, data: bytes) -> bool:
        if CheckpointId(B, 30) in folder.marks():
            raise OSError(28, "No space left on device")
        return real(path, data)

    monkeypatch.setattr(disk, "create", full)
    assert folder.decide(RestoreDecision(C, CheckpointId(A, 20))) == RestoreDecision(C, CheckpointId(A, 20))
    assert folder.marks() == [CheckpointId(A, 10), CheckpointId(A, 20)]


@pytest.mark.parametrize("step", [-1, 1 << 63, 1 << 80])
def test_a_step_that_cannot_be_a_files_name_is_refused(tmp_path, step):
    with a_saver() as (saver, _):
        mine = client(place(saver, tmp_path))
        with pytest.raises(UsageError, match=r"a step is a whole number from 0 to 2\*\*63 - 1"):
            mine.save(step, {}, persist=True)
        mine.close(wait=False)


@pytest.mark.parametrize("step", [0, 10**12, (1 << 63) - 1])
def test_the_least_and_the_greatest_steps_are_saved_and_found(tmp_path, step):
    with a_saver() as (saver, _):
        saved(saver, tmp_path, step).close()
    assert loaded(tmp_path, 2)[0] == step


def test_temporary_names_differ_between_pods_with_the_same_process_ids(tmp_path):
    assert len({disk.temporary(tmp_path / "manifest.json") for _ in range(100)}) == 100


def test_files_and_folders_are_synced_before_a_checkpoint_counts(tmp_path, monkeypatch):
    synced: list[str] = []
    real = os.fsync

    def sync(fd: int) -> None:
        synced.append(os.path.relpath(Path(f"/proc/self/fd/{fd}").readlink(), tmp_path).partition(".part.")[0])
        real(fd)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(disk, "temporary", lambda path: path.with_name(f"{path.name}.temp"))
    make(Folder(tmp_path / "t"), CheckpointId(A, 10))
    at = "t/step-000000000010.1-1"
    assert synced == [".", "t", f"{at}/rank-00000", at, f"{at}/manifest.json.temp", at]


def test_foreign_files_links_and_many_entries_are_passed_over(tmp_path, monkeypatch):
    """100,000 foreign entries, and names that only look like ours."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "manifest.json").write_text("somebody else's")
    where = tmp_path / "t"
    folder = Folder(where)
    make(folder, CheckpointId(A, 10))
    real = disk.names_in
    foreign = [f"step-{number}" for number in range(100_000)]
    monkeypatch.setattr(disk, "names_in", lambda path: [*real(path), *(foreign if path == where else ())])
    for name in ("step-5.1-1", "step-000000000030.1-1", "step-000000000031.1-1.r0", f"step-{'9' * 300}.1-1"):
        with contextlib.suppress(OSError):
            (where / name).mkdir()
    (where / "step-000000000040.1-1").symlink_to(outside)
    (where / "step-000000000041.1-1").symlink_to(where / "step-000000000041.1-1")
    (where / "step-000000000042.1-1").write_text("a file")
    os.mkfifo(where / "restore-1-1.json")
    (where / "restore-1-2.json").mkdir()
    folder.at(CheckpointId(A, 30)).mkdir(exist_ok=True)
    os.mkfifo(folder.part(CheckpointId(A, 30), 0))
    os.mkfifo(folder.at(CheckpointId(A, 30)) / "manifest.json")
    assert chosen(folder) == CheckpointId(A, 10)
    assert [mark.step for mark in folder.marks()] == [10, 30, 40, 41, 42]
    assert len(folder.records().damaged) == 2
    for step in (50, 51):
        make(folder, CheckpointId(C, step))
    folder.decide(RestoreDecision(C, CheckpointId(A, 10)))
    folder.retain(2)
    folder.collect()
    assert {mark.step for mark in folder.marks()} <= {42, 50, 51}
    assert (outside / "manifest.json").read_text() == "somebody else's"


def test_a_rank_hears_of_a_few_of_thousands_that_are_passed_over(tmp_path):
    """A message to a rank has 64 KiB."""
    with a_saver() as (saver, _):
        saved(saver, tmp_path, 1).close()
    for step in range(2, 1500):
        Folder(tmp_path).at(CheckpointId(A, step)).mkdir()
    log: list[str] = []
    assert loaded(tmp_path, 2, log) == (1, [])
    assert "checkpoint: step 1499 of run 1.1 was passed over: it is not whole: 0 parts and no manifest" in log
    assert "checkpoint: 1482 more were passed over: see dljob checkpoint ls" in log
    assert Folder(tmp_path).marks() == [CheckpointId(A, 1)], "they are deleted"
