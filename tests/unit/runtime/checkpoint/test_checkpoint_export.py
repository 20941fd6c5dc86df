"""`dljob checkpoint`: lists and verifies without unpickling, and exports what other tools read, byte by byte."""

from __future__ import annotations

import json
import os
import pickle
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dljob.cli import main
from dljob.master.state.checkpoint_ids import CheckpointId, RestoreDecision, RunId
from dljob.runtime.checkpoint import shards
from dljob.runtime.checkpoint.files import Copy, Folder
from dljob.runtime.checkpoint.pack import pack
from dljob.runtime.checkpoint.slot import PAGE, WHOLE, CopyHeader, Slot

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

pytestmark = pytest.mark.torch
A, B = RunId(1, 1), RunId(1, 2)
RAN: list[str] = []


def runs() -> str:
    """What unpickling of `Loud` calls."""
    RAN.append("ran")
    return "made"


class Loud:
    """A class of the user's whose unpickling runs code."""

    def __reduce__(self) -> tuple[Any, ...]:
        return runs, ()


def save(folder: Folder, mark: CheckpointId, states: Sequence[Any]) -> None:
    """A whole checkpoint of so many ranks."""
    for rank, state in enumerate(states):
        packed = pack(state)
        slot = Slot.make(-(-packed.size // PAGE) * PAGE, "t")
        packed.copy_into(slot.map, PAGE)
        life = (mark.run_id.attempt, mark.run_id.number)
        sizes = {"persist": True, "size": packed.size, "revision": mark.revision}
        head = CopyHeader(WHOLE, 1, mark.step, *life, 1, rank, len(states), len(packed.index), **sizes)
        folder.write_part(mark, rank, slot.clean_head(head), Copy(slot.map, head.total, lambda: True))
        slot.close()
    assert folder.commit(mark, len(states)) == "committed"


def tensors() -> dict[str, Any]:
    made = torch.Generator().manual_seed(1)
    return {
        "w": torch.randn(33, 7, generator=made),
        "half": torch.randn(5, generator=made).to(torch.bfloat16),
        "transposed": torch.arange(6.0).reshape(2, 3).t(),
        "empty": torch.empty(0, 3),
        "flag": torch.tensor([True, False]),
        "blocks": [torch.arange(4), torch.arange(3, dtype=torch.uint8)],
        "tied": (shared := torch.ones(2)),
        "again": shared,
        "array": numpy.arange(12, dtype=numpy.int32).reshape(3, 4),
        "parameter": torch.nn.Parameter(torch.ones(3)),
    }


FLAT = ("w", "half", "transposed", "empty", "flag", "blocks.0", "blocks.1", "tied", "again", "array", "parameter")


def flat(state: dict[str, Any]) -> dict[str, Any]:
    named = {**state, "blocks.0": state["blocks"][0], "blocks.1": state["blocks"][1]}
    return {name: torch.as_tensor(named[name]).detach() for name in FLAT}


def the_same(one: Any, other: Any) -> bool:
    return (one.dtype, one.shape) == (other.dtype, other.shape) and bool(torch.equal(one, other))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A job's folder with the role `trainer`: step 10, whose state has all kinds, and what else."""
    folder = Folder(tmp_path / "job" / "trainer")
    save(
        folder,
        CheckpointId(A, 10),
        [{"model": tensors(), "epoch": 3, "name": "x", "lr": [0.1, None], "od": OrderedDict(a=1)}],
    )
    return tmp_path / "job"


def run(*words: object) -> int:
    return main.run(["checkpoint", *map(str, words)])


def test_safetensors_reads_an_export_byte_by_byte(root, tmp_path):
    library = pytest.importorskip("safetensors.torch")
    assert run("export", root, tmp_path / "x.safetensors", "--to", "safetensors", "--only", "model") == 0
    found, wanted = library.load_file(tmp_path / "x.safetensors"), flat(tensors())
    assert found.keys() == wanted.keys()
    assert all(the_same(found[name], wanted[name]) for name in wanted)


def test_dcp_of_torch_reads_an_export_byte_by_byte(root, tmp_path):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    assert run("export", root, tmp_path / "dcp", "--to", "dcp") == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        dcp_to_torch_save(tmp_path / "dcp", tmp_path / "x.pt")
    found: Any = torch.load(tmp_path / "x.pt", weights_only=False)
    wanted = flat(tensors())
    assert all(the_same(flat(found["model"])[name], wanted[name]) for name in wanted)
    assert (found["epoch"], found["name"], found["lr"], found["od"]) == (3, "x", [0.1, None], {"a": 1})


def test_dcp_fills_a_state_from_an_export(root, tmp_path):
    from torch.distributed.checkpoint.state_dict_loader import load

    assert run("export", root, tmp_path / "dcp", "--to", "dcp") == 0
    into = {"model": {"w": torch.zeros(33, 7)}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        load(into, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert torch.equal(into["model"]["w"], tensors()["w"])


def test_values_that_safetensors_cannot_hold_are_refused_by_name(root, tmp_path, capsys):
    assert run("export", root, tmp_path / "x", "--to", "safetensors") == 2
    said = capsys.readouterr().err
    assert "safetensors cannot hold epoch (int), name (str), lr.0 (float), lr.1 (NoneType), od.a (int)" in said
    assert "--only PATH" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job"]


@pytest.mark.parametrize("form", ["safetensors", "dcp"])
@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_an_export_never_overwrites(root, tmp_path, form, kind):
    out = tmp_path / "out"
    match kind:
        case "file":
            out.write_text("mine")
        case "folder":
            out.mkdir()
        case _:
            out.symlink_to(tmp_path / "nowhere")
    assert run("export", root, out, "--to", form, "--only", "model") == 2
    assert kind != "file" or out.read_text() == "mine"
    assert kind != "folder" or list(out.iterdir()) == []
    assert kind != "link" or out.is_symlink()


def test_foreign_classes_are_named_and_imported_only_when_trusted(tmp_path, capsys):
    names = f"posix.system, {__name__}.runs"
    save(
        Folder(tmp_path / "t"),
        CheckpointId(A, 1),
        [{"w": torch.ones(1), "loud": Loud(), "bomb": Evil(), "d": defaultdict(list)}],
    )
    assert run("export", tmp_path, tmp_path / "x", "--to", "dcp") == 2
    said = capsys.readouterr().err
    assert f"code that is not on the allow-list: {names}\n" in said
    assert RAN == []
    assert not (tmp_path / "x").exists()
    assert run("export", tmp_path, tmp_path / "x", "--to", "dcp", "--trust") == 0
    assert capsys.readouterr().err.startswith(f"unpickling runs this code: {names}\n")
    assert RAN == ["ran"]


class Evil:
    """What an attacker would put there."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("true",)


def test_listing_and_verifying_unpickle_nothing(root, monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr("dljob.runtime.checkpoint.pack.unpack", refuse)
    assert run("ls", root) == 0
    assert run("verify", root) == 0


def test_ls_lists_checkpoints_and_verify_finds_damage(root, capsys):
    folder = Folder(root / "trainer")
    save(folder, CheckpointId(A, 20), [{"a": 1}, {"a": 2}])
    save(folder, CheckpointId(A, 30), [{"a": 1}])
    folder.decide(RestoreDecision(B, CheckpointId(A, 20)))
    save(folder, CheckpointId(B, 21, 4), [{"a": 1}])
    assert run("ls", root, "-o", "json") == 0
    rows = {row["step"]: row for row in json.loads(capsys.readouterr().out)}
    assert {step: row["state"] for step, row in rows.items()} == {10: "whole", 20: "whole", 21: "whole", 30: "void"}
    assert rows[30]["why"] == "run 1.2 has restored step 20 of run 1.1"
    assert (rows[20]["world"], rows[20]["ranks"], rows[21]["revision"]) == ("trainer", 2, 4)
    part = folder.part(CheckpointId(A, 20), 1)
    part.write_bytes(part.read_bytes()[:-30] + b"x" * 30)
    (folder.at(CheckpointId(A, 10)) / "manifest.json").unlink()
    (root / "trainer" / "restore-1-1.json").write_text("{}")
    assert run("ls", root / "trainer") == 0, "a listing reads no part"
    assert run("verify", root) == 1
    shown = capsys.readouterr()
    assert [line.split()[-1] for line in shown.out.splitlines()[-4:]] == ["whole", "void", "damaged", "torn"]
    assert "trainer: step 20 of run 1.1: rank-00001.part is corrupt" in shown.err
    assert "trainer: step 10 of run 1.1: it is not whole: 1 part and no manifest" in shown.err
    assert "trainer: restore-1-1.json is passed over, it is damaged" in shown.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("ls", "nowhere-at-all"), 3, "nowhere-at-all"),
        (("ls", "."), 3, "no checkpoints in"),
        (("ls", "job", "--world", "x"), 3, "no world x in job"),
        (("ls", "job", "out"), 2, "are for export"),
        (("export", "job", "out"), 2, "export needs a target"),
        (("export", "job", "out", "--to", "dcp", "--step", "7"), 3, "no checkpoint of step 7 is valid"),
        (("export", "job", "out", "--to", "dcp", "--rank", "1"), 2, "has no rank 1"),
        (("export", "job", "out", "--to", "dcp", "--only", "model.x"), 2, "there is no 'x'"),
        (("export", "job", "out", "--to", "dcp", "--only", "epoch"), 2, "the state is a int"),
    ],
)
def test_wrong_arguments_of_the_command_are_told(root, words, code, said, *, capsys, monkeypatch):
    (root.parent / "empty").mkdir()
    monkeypatch.chdir(root.parent / "empty" if words == ("ls", ".") else root.parent)
    assert run(*words) == code
    assert said in capsys.readouterr().err


def test_a_damaged_checkpoint_is_not_exported(root, tmp_path, capsys):
    part = Folder(root / "trainer").part(CheckpointId(A, 10), 0)
    part.write_bytes(part.read_bytes()[:-30] + b"x" * 30)
    assert run("export", root, tmp_path / "x", "--to", "dcp") == 1
    assert "step 10 of run 1.1 cannot be exported: rank-00000.part is corrupt" in capsys.readouterr().err


def sharded(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a tensor a rank's piece of a whole one, as a DTensor is, without a process group."""
    layouts: dict[int, Any] = {}

    def piece(tensor: Any, whole: tuple[int, ...], offset: tuple[int, ...]) -> Any:
        layouts[id(tensor)] = (whole, offset)
        return tensor

    monkeypatch.setattr(shards, "is_shard", lambda tensor: id(tensor) in layouts)
    monkeypatch.setattr(shards, "local", lambda tensor: tensor)
    monkeypatch.setattr(shards, "layout", lambda tensor: layouts[id(tensor)])
    return piece


def test_sharded_tensors_are_put_together_from_all_ranks(tmp_path, monkeypatch):
    library = pytest.importorskip("safetensors.torch")
    piece, whole = sharded(monkeypatch), torch.arange(12.0).reshape(4, 3)
    halves = [piece(whole[rank * 2 : rank * 2 + 2].clone(), (4, 3), (rank * 2, 0)) for rank in (0, 1)]
    save(
        Folder(tmp_path / "t"),
        CheckpointId(A, 1),
        [{"w": half, "own": torch.full((1,), n)} for n, half in enumerate(halves)],
    )
    assert run("export", tmp_path, tmp_path / "x", "--to", "safetensors", "--rank", "1") == 0
    found = library.load_file(tmp_path / "x")
    assert torch.equal(found["w"], whole)
    assert torch.equal(found["own"], torch.ones(1, dtype=torch.int64))


def test_a_sharded_tensor_that_lacks_a_piece_is_refused(tmp_path, monkeypatch, capsys):
    half = sharded(monkeypatch)(torch.ones(2, 3), (4, 3), (0, 0))
    save(Folder(tmp_path / "t"), CheckpointId(A, 1), [{"w": half}])
    assert run("export", tmp_path, tmp_path / "x", "--to", "dcp") == 1
    assert "state['w']: the saved pieces do not fill the tensor" in capsys.readouterr().err
