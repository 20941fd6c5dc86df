"""The folder of cuts: what a later attempt finds there."""

from __future__ import annotations

import zlib

from dljob.master.state.checkpoint_ids import CheckpointId, RunId
from dljob.master.state.cuts import Cut, CutQueue
from dljob.master.state.evolve import evolve
from dljob.master.state.shard_table import STATELESS, Acked, cut_mark, new_table
from dljob.runtime.checkpoint.sealed import seal
from dljob.runtime.data.cut_folder import MANIFEST, CutFolder, FoundCuts, damage_of


def made(number: int) -> Cut:
    marks = (("t", CheckpointId(RunId(1, 2), number, 3)), ("w/0", CheckpointId(RunId(1, 1), 5)))
    return Cut(number, 12.5, marks, (CutQueue("samples", "/x", 3, 4, 5),))


def test_the_cuts_that_are_kept_are_found_and_others_are_deleted(tmp_path):
    folder = CutFolder(tmp_path / "cuts")
    assert folder.find() == FoundCuts()
    for number in (1, 2, 3):
        path = folder.queue(number, "samples/../x")
        path.parent.mkdir(parents=True)
        path.write_bytes(b"items")
    table = evolve(new_table(10, 2, 1), todo=((4, 10),), acked=(Acked(STATELESS, cut_mark(1), 0, 4),))
    data = {"prompts": [10, 2, 1, [[4, 10]], [[STATELESS, 1, 1, 1, 0, 4]]]}
    folder.keep([made(2), made(3)], data)
    folder.keep([made(2), made(3)])
    assert folder.find() == ((made(2), made(3)), (), (), (("prompts", table),))
    assert sorted(path.name for path in folder.path.iterdir()) == ["cut-2", "cut-3"]
    damaged = folder.path / "cut-3" / MANIFEST
    damaged.write_bytes(damaged.read_bytes().replace(b'"at": 12.5', b'"at": 13.5'))
    whole, ((number, why),), worlds, _ = folder.find()
    assert (whole, number, worlds) == ((made(2),), 3, ())
    assert f"{damaged} cannot be read: " in why


def test_a_cut_of_a_later_dljob_is_named_and_not_deleted(tmp_path):
    folder = CutFolder(tmp_path / "cuts")
    folder.keep([made(1), made(2)])
    later = folder.path / "cut-1" / MANIFEST
    later.write_bytes(seal({"version": 99}))
    assert folder.find().damaged == ((1, f"{later} cannot be read: format 99 is newer than this dljob's, 1"),)
    unreadable = folder.path / "cut-0" / MANIFEST
    unreadable.mkdir(parents=True)
    folder.keep([made(3)])
    assert sorted(path.name for path in folder.path.iterdir()) == ["cut-0", "cut-1", "cut-3"]


def test_without_a_readable_manifest_the_worlds_are_told_that_do_not_fit_empty_queues(tmp_path):
    folder = CutFolder(tmp_path / "cuts")
    for name in ("cut-1", "cut-x"):
        (folder.path / name).mkdir(parents=True)
        (folder.path / name / MANIFEST).write_text("{}")
    (tmp_path / "t" / "step-000000000040.1-3").mkdir(parents=True)
    assert folder.find().worlds == ()  # one world, no queues: its checkpoints are consistent
    (tmp_path / "w" / "0" / "step-000000000040.1-3").mkdir(parents=True)
    found = folder.find()
    assert (found.readable, [number for number, _ in found.damaged], found.worlds) == ((), [1], ("t", "w/0"))
    (tmp_path / "w" / "0" / "step-000000000040.1-3").rmdir()
    folder.queue(1, "samples").write_bytes(b"items")
    assert folder.find().worlds == ("t",)
    (folder.path / "cut-1" / MANIFEST).unlink()
    (folder.path / "cut-1" / MANIFEST).symlink_to(tmp_path / "nowhere")
    assert folder.find() == FoundCuts()  # deleted since it was listed


def test_the_damaged_queue_of_a_cut_is_named(tmp_path):
    paths = [tmp_path / name for name in ("first", "second")]
    for path in paths:
        path.write_bytes(b"items")
    queues = tuple(CutQueue(path.name, str(path), 1, 5, zlib.crc32(b"items")) for path in paths)
    cut = Cut(1, 1.0, (), queues)
    assert damage_of(cut) == ""
    paths[1].write_bytes(b"itemz")
    assert "queue second: " in damage_of(cut)
    assert "is damaged: its checksum" in damage_of(cut)
    paths[0].unlink()
    assert damage_of(cut) == f"queue first: {paths[0]} cannot be read: No such file or directory"
