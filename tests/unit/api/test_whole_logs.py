"""Whole logs of a job on Kubernetes: where they are said to be, and read where this machine has the volume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dljob.api import logs
from dljob.api.kubernetes import whole_logs

UID = "01234567-89ab-cdef-0123-456789abcdef"


def job(path: str | None, **spec: Any) -> dict[str, Any]:
    checkpoint = {"checkpoint": {"path": path, "claimName": "ckpt"}} if path else {}
    return {"metadata": {"name": "j", "uid": UID}, "spec": {**checkpoint, **spec}}


def test_the_place_of_the_whole_logs_is_named() -> None:
    assert whole_logs.whereabouts(job(None)) == ""
    assert whole_logs.whereabouts(job("/ckpt", rayClusterRef={"name": "shared"})) == ""
    assert whole_logs.whereabouts(job("/ckpt")) == (
        "each process's whole log is on claim ckpt: /ckpt/j-01234567/logs/attempt-<n>/<role>-<rank>.<incarnation>.log"
    )
    assert "in its pods, if that is a volume: /ckpt" in whole_logs.whereabouts(job(None, checkpoint={"path": "/ckpt"}))


def test_whole_logs_are_read_in_order_where_the_volume_is_mounted(tmp_path: Path) -> None:
    made = job(str(tmp_path))
    assert whole_logs.files(made, [("a", 0)]) == {}
    assert whole_logs.files(job(None), [("a", 0)]) == {}
    folder = tmp_path / "j-01234567" / "logs"
    files = {
        "attempt-1/a-b-0.1.log": "1\n",
        "attempt-1/a-b-0.2.log": "2\n",
        "attempt-1/a-b-0.10.log": "10\n",
        "attempt-2/a-b-0.1.log": "again\n",
        "attempt-1/a-b-1.1.log": "other\n",
        "attempt-1/notes.log": "no rank's\n",
        "attempt-x/a-b-0.1.log": "no attempt's\n",
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = whole_logs.files(made, [("a-b", 0), ("a-b", 7)])
    assert {key: "".join(whole_logs.pieces(paths)) for key, paths in found.items()} == {("a-b", 0): "1\n2\n10\nagain\n"}


def test_a_whole_log_is_read_in_pieces_that_break_no_character(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "PIECE", 3)
    (tmp_path / "a-0.1.log").write_text("aß→b\n")
    (tmp_path / "a-0.2.log").write_text("")
    pieces = list(whole_logs.pieces([tmp_path / "a-0.1.log", tmp_path / "a-0.2.log"]))
    assert "".join(pieces) == "aß→b\n"
    assert max(map(len, pieces)) <= 3
    assert pieces[-1] == "", "also an empty log is there"
