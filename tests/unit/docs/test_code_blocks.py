"""Each code block of README and the how-tos runs in a test; at most one in five is only checked, and says why.

A manifest, or a part of one, runs when `dljob validate` passes and `dljob plan` places it; a file of faults when
`dljob sim` plays it; Python when it is executed, in tests/ray/cli/test_pages.py where it belongs into a job; a command
when it is executed, in tests/unit/cli/test_howto.py on a cluster in memory, or in tests/ray/cli/test_pages.py. What a
program prints is held against the texts of the product.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sources
import yaml
from pages import BLOCKS, PAGES, ROOT, Block

from dljob.cli import main

KINDS = {"text", "commands", "manifest", "part", "faults", "python", "toml", "lua"}
WHOLE = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "part"}}
ROLE = {"name": "any", "entrypoint": {"class": "any.Any"}}


def of(kind: str) -> list[Any]:
    return [pytest.param(block, id=block.id) for block in BLOCKS if block.kind == kind]


def test_each_block_is_of_a_known_kind() -> None:
    assert [block.id for block in BLOCKS if block.kind not in KINDS] == []
    loose = [
        page.name for page in PAGES if re.search(r"\n\n    \S", re.sub(r"```.*?```", "", page.read_text(), flags=re.S))
    ]
    assert loose == [], "a code block has a fence, and its language"
    assert len(BLOCKS) > 90


def test_at_most_one_block_in_five_is_not_run_and_says_what_it_needs() -> None:
    marked = [block for block in BLOCKS if block.marked]
    assert [block.id for block in marked if not block.needs.startswith("needs ")] == []
    assert 5 * len(marked) <= len(BLOCKS), [block.id for block in marked]


def test_a_test_that_a_page_names_is_there() -> None:
    for block in BLOCKS:
        if block.key != "run by":
            continue
        file, _, name = block.value.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), block.id


def runnable(words: list[str]) -> bool:
    """Whether tests run it without a mark."""
    return next((word for word in words if not re.fullmatch(r"[A-Z_0-9]+=\S*", word)), "") == "dljob"


@pytest.mark.parametrize("block", of("commands"))
def test_a_command_runs_or_says_what_it_needs(block: Block) -> None:
    assert block.commands
    if not block.key:
        assert [words for words in block.commands if not runnable(words)] == []
    for words in block.commands:
        if words[0] == "make":
            target = next(word for word in words[1:] if "=" not in word)
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M), target
        for path in re.findall(r"\b(?:tests|examples|charts)/[\w./-]+\b", " ".join(words)):
            assert (ROOT / path).exists(), path


# -- YAML


def whole(block: Block) -> dict[str, Any]:
    """A part of a spec as a DLJob: with the role that it is of, or with one that fits anything."""
    shown = yaml.safe_load(textwrap.dedent(block.text))
    if isinstance(shown, list):
        shown = {"roles": shown}
    if "template" in shown:
        shown = {"nodeGroups": [{"name": "one", "replicas": 1, "cpu": "1", **shown}]}
    return {**WHOLE, "spec": {"roles": [ROLE], **shown.get("spec", shown)}}


@pytest.mark.parametrize("block", [*of("manifest"), *of("part")])
def test_a_manifest_is_valid_and_finds_its_place(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = block.text if block.kind == "manifest" else yaml.safe_dump(whole(block))
    Path("dljob.yaml").write_text(text)
    for script in re.findall(r"module: ([\w./]+\.py)", text):
        Path(script).touch()
    assert main.run(["validate", "dljob.yaml"]) == 0, capsys.readouterr().err
    assert main.run(["plan", "dljob.yaml"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("page", ["servers", "queues-and-weights", "checkpoints", "elastic"])
def test_the_first_yaml_of_a_page_is_a_whole_file(page: str) -> None:
    first = next(block for block in BLOCKS if block.page == f"{page}.md" and block.language == "yaml")
    assert list(yaml.safe_load(first.text)) == ["apiVersion", "kind", "metadata", "spec"]


def test_a_server_that_a_page_shows_logs_no_line_for_each_request() -> None:
    shown = [block for block in BLOCKS if "(BaseHTTPRequestHandler)" in block.text]
    assert shown
    assert [block.id for block in shown if "def log_message(" not in block.text] == []


@pytest.mark.parametrize("block", of("faults"))
def test_a_file_of_faults_is_played(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command of the page, on the job that the page shows, or on the example that it is about."""
    monkeypatch.chdir(tmp_path)
    Path("faults.yaml").write_text(block.text)
    commands = [words for b in BLOCKS if (b.page, b.kind) == (block.page, "commands") for words in b.commands]
    lines = [words[1:] for words in commands if words[1:2] == ["sim"]]
    if lines:
        Path("dljob.yaml").symlink_to(ROOT / "examples" / "grpo-tiny" / "dljob.yaml")
        Path("grpo_tiny.py").symlink_to(ROOT / "examples" / "grpo-tiny" / "grpo_tiny.py")
    else:
        Path("dljob.yaml").write_text(next(b.text for b in BLOCKS if (b.page, b.kind) == (block.page, "manifest")))
    (line,) = lines or [["sim", "dljob.yaml", "--faults", "faults.yaml"]]
    assert main.run(line) == 0


@pytest.mark.parametrize("block", of("toml"))
def test_an_entry_point_is_one_that_is_looked_for(block: Block) -> None:
    groups = tomllib.loads(block.text)["project"]["entry-points"]
    homes = [*(ROOT / "workers" / "dljob").rglob("extensions.py"), ROOT / "workers/dljob/runtime/data/source.py"]
    looked_for = "".join(path.read_text() for path in homes)
    assert groups
    assert [group for group in groups if f'"{group}"' not in looked_for] == []


# -- Python


def run(*command: str | Path, cwd: Path) -> str:
    """What is wrong, by its words; empty where it is not."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("page", sorted({b.page for b in BLOCKS if (b.kind, b.key) == ("python", "")}))
def test_a_job_that_a_page_builds_is_placed(page: str, tmp_path: Path) -> None:
    """The blocks that want no Ray, one after the other."""
    text = "".join(b.text for b in BLOCKS if (b.kind, b.page, b.key) == ("python", page, ""))
    ask = "from dljob.plan.plan import plan\nassert plan(builder.build().manifest('p')).units"
    assert not run(sys.executable, "-W", "error", "-c", text + ask, cwd=tmp_path)


def test_python_that_no_test_runs_is_right_by_its_types(tmp_path: Path) -> None:
    """Its names are there, and are called as they may be; what a page leaves to its reader stands in its source."""
    for block in BLOCKS:
        if block.kind == "python" and block.marked:
            known = [b.text for b in BLOCKS if (b.page, b.kind, b.key) == (block.page, "python", "")]
            file = tmp_path / f"{Path(block.page).stem.replace('-', '_')}_{block.line}.py"
            file.write_text("\n".join([*known, block.job.get("before", ""), block.text]))
    settings = {"extraPaths": [os.fspath(ROOT / "workers")], "typeCheckingMode": "basic"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    words = (Path(sys.executable).parent / "pyright", "--pythonpath", sys.executable, "-p", tmp_path)
    assert not run(*words, cwd=tmp_path)


# -- what programs print


@cache
def texts() -> str:
    """The literal texts of the product."""
    constants = [
        node.value
        for folder in ("workers", "operator")
        for path in (ROOT / folder).rglob("*.py")
        for node in sources.nodes(path.read_text(encoding="utf-8"))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return " \n".join(constants)


@pytest.mark.parametrize("block", of("text"))
def test_printed_output_on_a_page_has_words_of_the_product(block: Block) -> None:
    phrases = {" ".join(pair) for line in block.text.splitlines() for pair in pairwise(line.split())}
    phrases |= set(re.findall(r"\b(?:[A-Z][a-z]+){2,}\b", block.text))
    assert [phrase for phrase in phrases if len(phrase) > 7 and phrase in texts()], "nothing of ours says so (any more)"
