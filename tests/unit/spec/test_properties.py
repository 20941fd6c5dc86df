"""Laws: what is dumped loads again; whatever is read, only a SpecError comes out."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML
from spec_strategies import TREES, manifests, spoilt

from dljob.errors import Problem, SpecError
from dljob.spec.loading.load import dump, load, load_all, parse
from dljob.spec.model import DLJobManifest
from dljob.spec.text.emit import to_yaml


def refused(text: str | bytes) -> tuple[Problem, ...]:
    """The problems of a text; none when it loads. Anything but a SpecError goes through."""
    try:
        load_all(text)
    except SpecError as error:
        return error.problems or (Problem("", ""),)
    return ()


@given(manifests())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_a_dumped_manifest_loads_again(data: dict[str, Any]) -> None:
    manifest = parse(data)
    assert load(dump(manifest)) == manifest
    assert load(json.dumps(data)) == manifest
    assert DLJobManifest.model_validate_json(manifest.model_dump_json(by_alias=True)) == manifest


@given(TREES)
@settings(max_examples=200, deadline=None)
def test_emitted_yaml_reads_back_in_both_yaml_versions(value: Any) -> None:
    text = to_yaml(value)
    for version in ((1, 1), (1, 2)):
        reader = YAML(typ="safe", pure=True)
        reader.version = version
        assert reader.load(text) == value


@pytest.mark.parametrize(("value", "text"), [(math.inf, ".inf"), (-math.inf, "-.inf"), (math.nan, ".nan")])
def test_numbers_that_json_has_no_word_for_are_emitted_as_yaml_has_them(value: float, text: str) -> None:
    assert to_yaml({"x": value}) == f"x: {text}\n"


@given(st.text(max_size=60) | st.text("{}[]:,&*a-?|>!%@`'\"#\n\t <0.~\\x", max_size=60))
@settings(max_examples=400, deadline=None)
def test_any_text_loads_or_is_refused(text: str) -> None:
    assert all(problem.message for problem in refused(text))


@given(st.binary(max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_bytes_load_or_are_refused(raw: bytes) -> None:
    assert all(problem.message for problem in refused(raw))


@pytest.mark.slow
@given(spoilt())
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_any_tree_in_any_place_loads_or_is_refused(data: dict[str, Any]) -> None:
    """Never another exception, always a place."""
    for problem in refused(to_yaml(data)):
        assert problem.message
        assert problem.line >= 1
        assert problem.column >= 1
