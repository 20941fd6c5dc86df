"""Thirty labelled faults, told to the core as they would be: it names the first cause, or says that it is unknown."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from causes_kit import Story

CASES = sorted(Path(__file__).with_name("causes").glob("*.yaml"))


def test_the_corpus_holds_thirty_cases():
    assert len(CASES) == 30


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_each_case_of_the_corpus_names_its_first_cause(path):
    case = yaml.safe_load(path.read_text())
    told = Story(case).tell()
    assert [(fault["first"], fault["reason"]) for fault in told] == [(e["first"], e["reason"]) for e in case["expect"]]
    for fault, expected in zip(told, case["expect"], strict=True):
        assert fault["secondary"] == set(expected.get("secondary", fault["secondary"]))
