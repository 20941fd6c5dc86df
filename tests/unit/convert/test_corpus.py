"""Manifests with the key paths of public ones (`anew.py`): all are read, and most become jobs that lose nothing."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from tests.unit.convert.anew import JOBS, anew, jobs, seal

from dljob.convert.manifest import ConvertedJob, ConvertedPiece, ConvertOptions, RefusedManifest, convert
from dljob.convert.report import diff, lines, whole
from dljob.spec.loading.load import load_all

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
        "add --workdir" in row.fate.why for piece in pieces if isinstance(piece, ConvertedJob) for row in piece.rows
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
                why = "; ".join([*(f"{row.path}: {row.fate.why}" for row in lost), *piece.problems])
            elif isinstance(piece, RefusedManifest):
                fine, why = False, piece.message
            else:
                continue
            kinds[piece.kind] += 1
            good[piece.kind] += fine
            print(f"{'yes' if fine else 'no ':3} {piece.kind:11} {file.name:44} {flags:20} {why[:120]}")
        jobs = [piece for piece in pieces if isinstance(piece, ConvertedJob)]
        if jobs and not any(piece.problems for piece in jobs):
            assert len(load_all(whole(pieces))) == len(jobs)
    for kind in JOBS:
        print(f"{kind}: {good[kind]} of {kinds[kind]}")
    assert kinds.total() >= 40
    assert all(kinds[kind] >= 5 for kind in JOBS)
    assert good.total() >= 0.8 * kinds.total()
    page = (CORPUS.parents[2] / "docs" / "howto" / "convert.md").read_text(encoding="utf-8")
    share = round(100 * good.total() / kinds.total())
    assert f"Of their {kinds.total()} jobs, {good.total()} ({share} %) validate" in page


def test_each_manifest_names_its_origin_and_has_all_of_its_key_paths() -> None:
    """Repository, path, commit and licence; `anew.py --check` has compared the key paths with the original's."""
    files = sorted(CORPUS.glob("*.yaml"))
    assert files
    for file in files:
        text = file.read_text(encoding="utf-8")
        origin = ORIGIN.match(text)
        assert origin, file.name
        assert origin[5] == seal(jobs(text)), file.name


def test_a_manifest_written_anew_has_the_key_paths_of_its_original_and_none_of_its_names() -> None:
    """Of each kind."""
    for kind in ("ray-job-sample", "elastic-job-gang-scheduling", "train-job-02-runtime-patches"):
        text = (CORPUS / f"{kind}.yaml").read_text(encoding="utf-8").replace("name: a1\n", "name: theirs\n")
        again = anew(text)
        assert seal(again) == seal(jobs(text))
        assert "theirs" not in str(again)
