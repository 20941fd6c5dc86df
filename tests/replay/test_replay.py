"""Journals of past incidents replay, for ever, to what they led to then."""

from __future__ import annotations

from pathlib import Path

import pytest
from replay_kit import summary

from dljob.master.persistence.codec import replay
from dljob.plan.plan import plan
from dljob.spec.model import DLJobManifest
from dljob.telemetry.records import scan

JOURNALS = sorted(Path(__file__).parent.glob("*.jsonl"))


def test_the_corpus_holds_the_recorded_journals():
    assert {path.stem for path in JOURNALS} >= {"three-faults", "lost-node", "used-up", "same-error"}


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: path.stem)
def test_a_recorded_journal_replays_to_its_recorded_end(path):
    records = scan(path.read_bytes(), name=path.name).records
    begin, expected = records[0], {key: value for key, value in records[-1].items() if key != "k"}
    manifest = DLJobManifest.model_validate(begin["manifest"])
    own = begin.get("ownNodes", False)
    state = replay(plan(manifest), manifest.spec, begin["uid"], records, start=begin["at"], own_nodes=own)
    assert summary(state) == expected
