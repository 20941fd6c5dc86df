"""Output that the how-tos show is what the commands print: `UPDATE_GOLDEN=1` writes it into the pages anew.

A page's commands run in one folder, in order; `train.yaml` is in it, and `train` is a simulated job that has ended.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pages import BLOCKS, ROOT, Block
from past_kit import past_of

from dljob.cli import main
from dljob.master.status import status
from dljob.report.replay import Past
from dljob.runtime.journal.sample_rows import SampleRow
from dljob.runtime.journal.samples import SampleWriter
from dljob.testing.simulate.drive import Case
from dljob.testing.world.fault_schedule import Timed
from dljob.testing.world.model import FaultMove
from dljob.testing.world.state import EPOCH_S, UID

NAME = "test_output_shown_is_what_the_commands_print"
SHOWN = [block for block in BLOCKS if block.key == "run by" and block.value.endswith(f"::{NAME}")]
PAGES = sorted({block.page for block in SHOWN})
GPU = {"count": 1}
TRAIN: dict[str, Any] = {
    "apiVersion": "dljob.io/v1alpha1",
    "kind": "DLJob",
    "metadata": {"name": "train"},
    "spec": {
        "roles": [
            {"name": "trainer", "replicas": 4, "entrypoint": {"class": "train.Trainer"}, "accelerator": GPU,
             "resources": {"cpu": "4"}, "restartPolicy": {"level": "Role"}},
            {"name": "evaluator", "driver": False, "entrypoint": {"class": "train.Evaluator"},
             "resources": {"cpu": "2"}},
        ],
        "nodeGroups": [{"name": "gpu", "replicas": 2, "cpu": "16", "accelerator": {"type": "GPU", "count": 2}}],
    },
}  # fmt: skip
FAULTS = (Timed(60.0, FaultMove("kill", 0, 1, "trainer/1")), Timed(150.0, FaultMove("kill", 0, 1, "trainer/3")))
CHANGING = re.compile(r"dljob \d\S+ [0-9a-f]{12}|\(\d+ kB\)")
"""The version that wrote a journal, another one with each change of the core; and sizes of files."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of an ended job, `train`."""
    home = tmp_path_factory.mktemp("home")
    folder = home / "jobs" / f"train-{UID[:8]}"
    folder.parent.mkdir()
    past_of(folder, Case(4, TRAIN, FAULTS), every=100, work=300.0)
    last = Past(folder).last()
    (folder / "events.jsonl").touch()
    writer = SampleWriter(folder)
    writer.append(SampleRow(EPOCH_S + 10, {"steps/trainer": [1, 1, 1, 1]}))
    writer.close()
    (folder / "status.json").write_text(json.dumps({**status(last.state, last.at, {}), "uid": UID}))
    entry = {"name": "train", "uid": UID, "dir": str(folder), "address": "", "environment": {}, "started": EPOCH_S}
    (folder / "job.json").write_text(json.dumps(entry))
    return home


def printed(block: Block) -> str:
    """A block as its commands make it: each with what it prints."""
    lines: list[str] = []
    for line, words in zip(re.findall(r"^\$ .*$", block.text, re.M), block.commands, strict=True):
        to = words.index(">") if ">" in words else len(words)
        out, said = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
            assert main.run(words[1:to]) == 0, said.getvalue()
        if to < len(words):
            Path(words[to + 1]).write_text(out.getvalue())
            out = io.StringIO()
        lines += [line, *out.getvalue().splitlines(), *said.getvalue().splitlines()]
    return "\n".join(text.rstrip() for text in lines) + "\n"


@pytest.mark.parametrize("page", PAGES)
def test_output_shown_is_what_the_commands_print(
    page: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(TRAIN, sort_keys=False))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DLJOB_HOME", str(made))
    monkeypatch.setenv("COLUMNS", "120")
    for block in SHOWN:
        if block.page != page:
            continue
        found = printed(block)
        same = CHANGING.sub("", found) == CHANGING.sub("", block.text)
        if not same and os.environ.get("UPDATE_GOLDEN"):
            file = ROOT / "docs" / "howto" / page
            file.write_text(file.read_text().replace(block.text, found))
        else:
            assert same, f"{block.id}: UPDATE_GOLDEN=1 writes it anew:\n{found}"
    for drawing in tmp_path.glob("*.svg"):
        assert "<svg" in drawing.read_text()
    for trace in tmp_path.glob("*.json"):
        assert json.loads(trace.read_text())["traceEvents"]
