"""A reader gets what changed since its version; a version of another document, or from too long ago, gets all."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dljob.report.live import document as documents
from dljob.report.live.document import LaneTail, LiveDocument


def answer(document: LiveDocument, known: str) -> dict[str, Any]:
    found = document.answer(known)
    assert found is not None
    return json.loads(found)


@pytest.fixture
def made() -> LiveDocument:
    document = LiveDocument("d")
    document.put({"job": {"phase": "Running"}, "ledger": 1, "lanes": {"a": [[1.0, 0]]}}, [{"seq": 1}])
    return document


def merged(old: dict[str, Any], fresh: dict[str, Any]) -> dict[str, Any]:
    """Do what the page's script does."""
    if "since" not in fresh:
        return fresh
    lanes = json.loads(json.dumps(old["lanes"]))
    for role, rank, keep, values in fresh.get("tails", []):
        ranks = lanes.setdefault(role, [])
        ranks.extend([] for _ in range(rank + 1 - len(ranks)))
        ranks[rank][keep:] = values
    parts = {key: value for key, value in fresh.items() if key not in ("since", "tails", "events")}
    return {**old, "lanes": lanes, **parts, "events": [*old["events"], *fresh["events"]]}


def test_nothing_new_is_no_answer(made: LiveDocument) -> None:
    assert made.answer(made.version) is None
    assert not made.put({"ledger": 1})


def test_a_reader_gets_changed_parts_and_further_events_alone(made: LiveDocument) -> None:
    known = made.version
    assert made.put({"job": {"phase": "Failed"}, "ledger": 1}, [{"seq": 2}])
    found = answer(made, known)
    assert found == {"job": {"phase": "Failed"}, "since": known, "version": made.version, "events": [{"seq": 2}]}


def test_the_newest_events_are_kept_and_the_others_are_counted(
    made: LiveDocument, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "EVENTS", 3)
    versions = [made.version]
    for number in (2, 3, 4):
        made.put({}, [{"seq": number}])
        versions.append(made.version)
    assert [event["seq"] for event in made.all_data()["events"]] == [2, 3, 4]
    assert made.all_data()["eventsLeftOut"] == 1
    assert [event["seq"] for event in answer(made, versions[1])["events"]] == [3, 4]
    made.put({"ledger": 9}, [{"seq": 5}])
    assert [event["seq"] for event in answer(made, versions[1])["events"]] == [3, 4, 5]
    # The event behind the first version is not kept any more: its reader begins anew.
    assert "since" not in answer(made, versions[0])
    assert answer(made, f"d.1.{made.told}")["events"] == []


def test_ends_of_lanes_make_the_same_page_as_the_whole(made: LiveDocument) -> None:
    whole, known = json.loads(json.dumps(made.all_data())), made.version
    made.put({}, tails=[LaneTail("a", 0, 2, [5.0, 1]), LaneTail("b", 1, 0, [6.0, 2])])
    made.put({}, tails=[LaneTail("a", 0, 2, [4.0, 3, 7.0, 1])])
    assert "lanes" not in answer(made, known)
    assert merged(whole, answer(made, known)) == json.loads(json.dumps(made.all_data()))
    assert made.parts["lanes"] == {"a": [[1.0, 0, 4.0, 3, 7.0, 1]], "b": [[], [6.0, 2]]}


def test_new_lanes_replace_all_ends(made: LiveDocument) -> None:
    known = made.version
    made.put({}, tails=[LaneTail("a", 0, 2, [5.0, 1])])
    between = made.version
    made.put({"lanes": {"a": [[9.0, 0]]}})
    for version in (known, between):
        assert answer(made, version)["lanes"] == {"a": [[9.0, 0]]}
        assert "tails" not in answer(made, version)


def test_a_reader_far_behind_gets_whole_lanes(made: LiveDocument, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "TAILS", 2)
    versions = [made.version]
    for at in (2.0, 3.0, 4.0):
        made.put({}, tails=[LaneTail("a", 0, 0, [at, 1])])
        versions.append(made.version)
    assert answer(made, versions[0])["lanes"] == {"a": [[4.0, 1]]}
    assert [tail[3] for tail in answer(made, versions[1])["tails"]] == [[3.0, 1], [4.0, 1]]


@pytest.mark.parametrize("known", ["", "x.1.1", "d.9.1", "d.1.9", "d.a.1", "d.1", "d.1.b", "d.1.1.1"])
def test_an_unknown_version_gets_everything(made: LiveDocument, known: str) -> None:
    found = answer(made, known)
    assert found == json.loads(json.dumps(made.all_data()))
    assert "since" not in found


def test_equal_readers_share_one_answer_and_few_are_kept(made: LiveDocument) -> None:
    known = made.version
    made.put({"ledger": 2})
    assert made.answer(known) is made.answer(known)
    for number in range(documents.ANSWERS + 1):
        made.answer(f"other.{number}")
    assert len(made._answers) <= documents.ANSWERS


def test_half_characters_do_not_break_an_answer(made: LiveDocument) -> None:
    made.put({"job": {"name": "\udcff</script>"}})
    assert answer(made, "")["job"] == {"name": "?</script>"}
