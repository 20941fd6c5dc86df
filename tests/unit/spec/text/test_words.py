"""Near spellings."""

from __future__ import annotations

import pytest

from dljob.spec.text import words
from dljob.spec.text.words import nearest, one_of, path_of

KNOWN = ("replicas", "replicasPerGroup", "nodeGroup", "dependsOn", "class")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("replica", "replicas"),
        ("Replicas", "replicas"),
        ("replicas_per_group", "replicasPerGroup"),
        ("replicasPerGruop", "replicasPerGroup"),
        ("nodegroups", "nodeGroup"),
        ("depends-on", "dependsOn"),
        ("klass", "class"),
        ("nodeGroups1", "nodeGroup"),
        ("nodeGroups12", ""),
        ("minReplicas", ""),
        ("gcs", ""),
        ("", ""),
    ],
)
def test_a_misspelling_is_told_from_another_word(word: str, meant: str) -> None:
    assert nearest(word, KNOWN) == meant


def test_names_that_are_not_near_are_listed() -> None:
    assert one_of("actr", ["critic", "actor"]) == "did you mean actor?"
    assert one_of("x", ["critic", "actor", "actor"]) == "there is critic, actor"
    assert one_of("x", [f"role{i}" for i in range(9)]).endswith("role7, ...")


def test_a_path_is_written_as_people_do() -> None:
    assert path_of(("spec", "roles", 0, "args", 2)) == "spec.roles[0].args[2]"
    assert path_of(()) == ""


def test_thousands_of_unknown_fields_walk_the_models_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    model_in = words.model_in
    monkeypatch.setattr(words, "model_in", lambda annotation: (read.append(annotation), model_in(annotation))[1])
    once = words.describe({"type": "extra_forbidden", "input": 1, "loc": (), "msg": ""}, ("spec", "wrong"))
    read.clear()
    for number in range(2000):
        error = {"type": "extra_forbidden", "input": 1, "loc": (), "msg": ""}
        assert words.describe(error, ("spec", f"wrong{number}")) == once == ("unknown field", "")
    # The model of `spec`, and no other.
    assert len(read) <= 2 * 2000
