"""Versions as files, their checksums, and their place in time."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dljob.errors import UsageError
from dljob.runtime.weights.buckets import flat
from dljob.runtime.weights.files import NamedTensor, digest, named, weight_files
from dljob.runtime.weights.keeper import dated
from dljob.runtime.weights.model import Version

LAYER = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
STATE = {
    "b": OrderedDict(w=torch.nn.Parameter(LAYER.float())),
    "a": [np.arange(3, dtype=np.int32), LAYER],
    "e": torch.zeros(0),
}


def published(state: Any) -> dict[str, NamedTensor]:
    index, buckets = flat(state, "test")
    return named(index, buckets.views_of_all())


def test_the_end_of_a_load_leaves_the_files_of_the_next_incarnations_load(tmp_path):
    """A command that loads may outlive its rank, whose next incarnation is ordered to load meanwhile."""
    begun, ends = threading.Event(), threading.Event()

    def load() -> None:
        with weight_files(tmp_path, {"policy": published({"a": np.zeros(1)})}):
            begun.set()
            assert ends.wait(20)

    earlier = threading.Thread(target=load)
    earlier.start()
    assert begun.wait(20)
    with weight_files(tmp_path, {"policy": published({"a": np.ones(1)})}) as paths:
        ends.set()
        earlier.join(20)
        assert Path(paths["policy"]).read_bytes().endswith(np.ones(1).tobytes())
    assert list(tmp_path.iterdir()) == []


def test_a_file_has_the_tensors_by_name_and_is_gone_after_the_block(tmp_path):
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "policy%2F0.safetensors").symlink_to("/proc/1/fd/77")  # of a host that was killed
    before = len(list(Path("/proc/self/fd").iterdir()))
    with weight_files(folder, {"policy/0": published(STATE)}) as paths:
        whole = Path(paths["policy/0"]).read_bytes()
        assert Path(paths["policy/0"]).parent == folder
    start = 8 + int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8:start])
    assert start % 8 == 0
    assert header["a.1"] == {"dtype": "BF16", "shape": [2, 3], "data_offsets": [12, 24]}
    assert {name: (one["dtype"], one["shape"]) for name, one in header.items()} == {
        "a.0": ("I32", [3]),
        "a.1": ("BF16", [2, 3]),
        "b.w": ("F32", [2, 3]),
        "e": ("F32", [0]),
    }
    begin, end = header["b.w"]["data_offsets"]
    assert torch.equal(
        torch.frombuffer(bytearray(whole[start + begin : start + end]), dtype=torch.float32), LAYER.float().flatten()
    )
    assert len(whole) == start + max(one["data_offsets"][1] for one in header.values())
    assert list(folder.iterdir()) == []
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_file_that_cannot_be_written_leaves_no_memory(tmp_path, monkeypatch):
    def full(_fd: int, _data: object) -> int:
        raise OSError("no memory")

    before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="no memory"), weight_files(tmp_path, {"p": published(STATE)}):
        pass
    monkeypatch.undo()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_the_checksum_is_over_names_and_bytes_in_order():
    found = hashlib.sha256()
    for name, value in (("a", np.arange(3)), ("b", np.ones(2))):
        found.update(name.encode())
        found.update(value.tobytes())
    assert digest(published({"b": np.ones(2), "a": np.arange(3)})) == found.hexdigest()


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"a": {"step": 7}}, "a.step is int, which no file of weights holds"),
        (7, "the state is int"),
        ({"a": torch.zeros(1, dtype=torch.complex128)}, "a has the type complex128"),
        ({"a": np.zeros(1, dtype=">f4")}, "a is ndarray, which no file of weights holds"),
    ],
)
def test_what_no_file_holds_is_refused_by_name(state, said):
    with pytest.raises(UsageError, match=said):
        published(state)


def test_versions_have_a_time_and_a_series_of_growing_numbers():
    first = dated(Version("a", 5, b""), None, 10.0)
    assert (first.taken_at, first.since, first.first) == (10.0, 0.0, 5)
    second = dated(Version("b", 6, b""), first, 9.0)
    assert second.taken_at > 10.0, "the clock has gone back"
    assert (second.since, second.first) == (0.0, 5)
    back = dated(Version("c", 6, b""), second, 12.0)
    assert (back.taken_at, back.since, back.first) == (12.0, 12.0, 6)
