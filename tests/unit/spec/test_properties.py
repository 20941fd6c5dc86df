"""Laws: what is dumped loads again; whatever is read, only a SpecError comes out."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from dljob.errors import Problem, SpecError
from dljob.spec.emit import to_yaml
from dljob.spec.load import dump, load, load_all, parse
from dljob.spec.model import DLJobManifest

NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
PLAIN_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | TEXTS | st.floats(allow_nan=False, allow_infinity=False)
)
TREES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3))
CONFIGS = st.dictionaries(TEXTS, TREES, max_size=3)
ENVS = st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True), PLAIN_TEXTS, max_size=3).map(
    lambda env: [{"name": name, "value": value} for name, value in env.items()]
)
ENTRYPOINTS = st.one_of(
    st.just({"class": "app.A"}),
    st.builds(lambda text: {"module": f"x{text}"}, PLAIN_TEXTS),
    st.lists(PLAIN_TEXTS, max_size=3).map(lambda rest: {"command": ["run", *rest]}),
)


@st.composite
def manifests(draw: st.DrawFn) -> dict[str, Any]:
    """A valid job, as YAML would hold it."""
    names = draw(
        st.lists(NAMES.filter(lambda n: n not in ("job", "master", "node")), min_size=1, max_size=4, unique=True)
    )
    size = draw(st.integers(1, 4))
    roles = [
        {
            "name": name,
            "entrypoint": draw(ENTRYPOINTS),
            "args": draw(st.lists(PLAIN_TEXTS, max_size=2)),
            "env": draw(ENVS),
            "config": draw(CONFIGS),
            "replicas": size * draw(st.sampled_from([1, 2, 4])),
            "replicasPerGroup": size,
            "resources": draw(
                st.sampled_from([{}, {"cpu": "500m"}, {"cpu": 2, "memory": "8Gi", "custom": {"x": "0.5"}}])
            ),
            "dependsOn": [{"role": other} for other in names[:index]],
            **draw(
                st.sampled_from([{}, {"accelerator": {"count": "0.25"}}, {"accelerator": {"type": "NPU", "count": 2}}])
            ),
            **draw(st.sampled_from([{}, {"type": "Elastic", "comm": {"backend": "gloo", "preCheck": False}}])),
        }
        for index, name in enumerate(names)
    ]
    levels = st.sampled_from(["Host", "Separate"])
    collocations = [{"name": "c", "roles": names, "level": draw(levels)}] if len(names) > 1 else []
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": draw(NAMES), "labels": draw(st.dictionaries(NAMES, NAMES, max_size=2))},
        "spec": {"roles": roles, "config": draw(CONFIGS), "env": draw(ENVS), "collocations": collocations},
    }


def refused(text: str | bytes) -> tuple[Problem, ...]:
    """The problems of a text; none when it loads. Anything but a SpecError goes through."""
    try:
        load_all(text)
    except SpecError as error:
        return error.problems or (Problem("", ""),)
    return ()


@given(manifests())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_what_is_dumped_loads_again(data: dict[str, Any]) -> None:
    manifest = parse(data)
    assert load(dump(manifest)) == manifest
    assert load(json.dumps(data)) == manifest
    assert DLJobManifest.model_validate_json(manifest.model_dump_json(by_alias=True)) == manifest


@given(TREES)
@settings(max_examples=200, deadline=None)
def test_what_is_emitted_reads_back_in_both_versions_of_yaml(value: Any) -> None:
    text = to_yaml(value)
    for version in ((1, 1), (1, 2)):
        reader = YAML(typ="safe", pure=True)
        reader.version = version
        assert reader.load(text) == value


@given(st.text(max_size=60) | st.text("{}[]:,&*a-?|>!%@`'\"#\n\t <0.~\\x", max_size=60))
@settings(max_examples=400, deadline=None)
def test_any_text_loads_or_is_refused(text: str) -> None:
    assert all(problem.message for problem in refused(text))


@given(st.binary(max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_bytes_load_or_are_refused(raw: bytes) -> None:
    assert all(problem.message for problem in refused(raw))


@given(manifests(), st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_any_tree_in_any_place_loads_or_is_refused(data: dict[str, Any], drawn: st.DataObject) -> None:
    """Anything put in place of anything: never another exception, always a place."""
    node: Any = data
    for _ in range(drawn.draw(st.integers(0, 4))):
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = drawn.draw(st.sampled_from(keys)) if keys else None
        if key is None or not isinstance(node[key], dict | list):
            break
        node = node[key]
    keys = [*node, "odd"] if isinstance(node, dict) else list(range(len(node)))
    if keys:
        node[drawn.draw(st.sampled_from(keys))] = drawn.draw(TREES)
    for problem in refused(to_yaml(data)):
        assert problem.message
        assert problem.line >= 1
        assert problem.column >= 1
