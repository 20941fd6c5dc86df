"""The folder of cuts: what a later attempt finds there."""

from __future__ import annotations

from dljob.master.state.checkpoint_ids import CheckpointId, RunId
from dljob.master.state.cuts import Cut, CutQueue
from dljob.runtime.data.cut_folder import MANIFEST, CutFolder


def made(number: int) -> Cut:
    marks = (("t", CheckpointId(RunId(1, 2), number, 3)), ("w/0", CheckpointId(RunId(1, 1), 5)))
    return Cut(number, 12.5, marks, (CutQueue("samples", "/x", 3, 4, 5),))


def test_the_cuts_that_are_kept_are_found_and_others_are_deleted(tmp_path):
    folder = CutFolder(tmp_path / "cuts")
    assert folder.found() == ()
    for number in (1, 2, 3):
        path = folder.queue(number, "samples/../x")
        path.parent.mkdir(parents=True)
        path.write_bytes(b"items")
    folder.keep([made(2), made(3)])
    folder.keep([made(2), made(3)])
    assert folder.found() == (made(2), made(3))
    assert sorted(path.name for path in folder.path.iterdir()) == ["cut-2", "cut-3"]
    damaged = folder.path / "cut-3" / MANIFEST
    damaged.write_bytes(damaged.read_bytes().replace(b'"at": 12.5', b'"at": 13.5'))
    assert folder.found() == (made(2),)
