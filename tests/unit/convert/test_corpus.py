"""Manifests with the key paths of public ones: all are read, and most become jobs that lose nothing."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from dljob.convert.manifest import ConvertedJob, ConvertedPiece, ConvertOptions, RefusedManifest, convert
from dljob.convert.report import converted_text, diff, lines
from dljob.spec.loading.load import load_all
from dljob.spec.text import tree
from dljob.spec.text.tree import Loc

JOBS = ("RayJob", "RayCluster", "PyTorchJob", "TrainJob", "JobSet", "ElasticJob")
KINDS = (*JOBS, "TrainingRuntime", "ClusterTrainingRuntime")
CORPUS = Path(__file__).parents[2] / "golden" / "convert"
GIVEN = ConvertOptions(command=("python", "/data/train.py"))
"""A RayCluster, and a RayJob of InteractiveMode, run what they are given."""
ORIGIN = re.compile(
    r"# Key paths of ([\w-]+/[\w-]+), (\S+)\n# at ([0-9a-f]{40}) \((Apache-2\.0|MIT|BSD-3-Clause)\); .*\n# (.*)\n"
)


def converted(file: Path) -> tuple[list[ConvertedPiece], str]:
    """Return the pieces of a file, and the flags that it took: --workdir where the report asks for it."""
    text = file.read_text(encoding="utf-8")
    pieces = convert(text, file.name, GIVEN)
    flags = "--command" if re.search(r"kind: RayCluster|InteractiveMode", text) else ""
    asked = any(
        "add --workdir" in row.fate.reason for piece in pieces if isinstance(piece, ConvertedJob) for row in piece.rows
    )
    if asked:
        pieces, flags = (
            convert(text, file.name, ConvertOptions(GIVEN.command, workdir="/work")),
            f"{flags} --workdir".strip(),
        )
    return pieces, flags


@pytest.mark.slow
def test_most_of_the_corpus_becomes_jobs_that_lose_nothing() -> None:
    """At least 80 % validate, plan, and have no field that is not carried; nothing ends in a traceback."""
    kinds, good = Counter[str](), Counter[str]()
    for file in sorted(CORPUS.glob("*.yaml")):
        pieces, flags = converted(file)
        assert list(lines(pieces, file.name))
        assert list(diff(file.read_text(encoding="utf-8"), pieces))
        for piece in pieces:
            if isinstance(piece, ConvertedJob):
                lost = [row for row in piece.rows if row.fate.kind == "dropped"]
                fine = not lost and not piece.problems
                why = "; ".join([*(f"{row.path}: {row.fate.reason}" for row in lost), *piece.problems])
            elif isinstance(piece, RefusedManifest):
                fine, why = False, piece.message
            else:
                continue
            kinds[piece.kind] += 1
            good[piece.kind] += fine
            print(f"{'yes' if fine else 'no ':3} {piece.kind:11} {file.name:44} {flags:20} {why[:120]}")
        jobs = [piece for piece in pieces if isinstance(piece, ConvertedJob)]
        if jobs and not any(piece.problems for piece in jobs):
            assert len(load_all(converted_text(pieces))) == len(jobs)
    for kind in JOBS:
        print(f"{kind}: {good[kind]} of {kinds[kind]}")
    assert kinds.total() >= 40
    assert all(kinds[kind] >= 5 for kind in JOBS)
    assert good.total() >= 0.8 * kinds.total()


def key_paths(data: Any, loc: Loc = ()) -> Iterator[Loc]:
    """Yield all key paths of a document."""
    if isinstance(data, dict):
        for name, one in cast("dict[str, Any]", data).items():
            yield (*loc, name)
            yield from key_paths(one, (*loc, name))
    elif isinstance(data, list):
        for at, one in enumerate(cast("list[Any]", data)):
            yield from key_paths(one, (*loc, at))


def seal(text: str) -> str:
    """Return the number of key paths of the jobs and runtimes of a text, and their SHA-256."""
    documents = [one.data for one in tree.read(text) if isinstance(one.data, dict) and one.data.get("kind") in KINDS]
    rows = ["/".join(map(str, loc)) for data in documents for loc in key_paths(data)]
    return f"{len(rows)} key paths, SHA-256 {hashlib.sha256(chr(10).join(rows).encode()).hexdigest()}"


def test_each_manifest_names_its_origin_and_has_all_of_its_key_paths() -> None:
    """Repository, path, commit and licence; the seal was made of the original."""
    files = sorted(CORPUS.glob("*.yaml"))
    assert files
    for file in files:
        text = file.read_text(encoding="utf-8")
        origin = ORIGIN.match(text)
        assert origin, file.name
        assert origin[5] == seal(text), file.name
