"""The loader on both sides of every rule and bound; tests/kube/plane/test_crd_server.py asks the server the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bound_cases import WHOLE, Bound, bounds
from cel_cases import RULES, Case, job

from dljob.errors import SpecError
from dljob.spec import cel
from dljob.spec.crd import crd
from dljob.spec.loading.load import dump, load, parse
from dljob.spec.model import DLJobManifest

ROOT = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
BOUNDS = list(bounds())
CHANGES = {
    rule.message
    for rule in (
        *(cel.TYPE_IMMUTABLE, cel.MANAGED_BY, cel.REF_IMMUTABLE),
        *(cel.ROLES_FIXED, cel.GROUPS_FIXED, cel.IMAGE_FIXED),
    )
}
"""Rules about what a job was before, of which only the server knows."""


def messages(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for rule in node.get("x-kubernetes-validations", ()):
            yield rule["message"]
        for value in node.values():
            yield from messages(value)


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in RULES} == set(messages(ROOT))
    assert {case.rule for case in RULES if case.before} == CHANGES


def test_the_job_with_every_field_is_right() -> None:
    manifest = parse(job(WHOLE))
    assert manifest.spec.scheduling.queue_name == "q"
    assert load(dump(manifest)) == manifest
    assert len(BOUNDS) > 300
    assert {bound.path.split("[")[0] for bound in BOUNDS} > {
        f".{name}" for name in WHOLE if name != "rayClusterTemplate"
    }


@pytest.mark.parametrize("case", RULES, ids=lambda case: case.rule)
def test_each_rule_accepts_its_right_case_and_refuses_its_wrong_one(case: Case) -> None:
    parse(case.accepted)
    if case.before:
        parse(case.refused)
        parse(case.before)
        return
    with pytest.raises(SpecError) as caught:
        parse(case.refused)
    if case.rule != cel.NAME.message:  # the loader names the pattern, or the length
        assert any(case.rule in problem.message for problem in caught.value.problems), caught.value


def is_accepted(bound: Bound) -> bool:
    try:
        parse(bound.job)
    except SpecError:
        return False
    return True


def test_each_bound_accepts_its_last_value_and_refuses_the_next() -> None:
    assert [str(bound) for bound in BOUNDS if is_accepted(bound) != bound.ok] == []


def stored(value: Any, schema: dict[str, Any]) -> Any:
    """What the API server stores: defaults filled in, at every object that is there."""
    if isinstance(value, list):
        return [stored(item, schema["items"]) for item in value]
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    made = {name: stored(item, schema["properties"][name]) for name, item in value.items()}
    for name, field in schema["properties"].items():
        if "default" in field and name not in made:
            made[name] = field["default"]
    return made


def test_a_document_with_the_servers_defaults_means_the_same() -> None:
    for document in (job(WHOLE), *(case.accepted for case in RULES)):
        spec, manifest = stored(document["spec"], ROOT["properties"]["spec"]), parse(document)
        assert spec != document["spec"], "some default was filled in"
        assert parse({**document, "spec": spec}) == manifest
        assert DLJobManifest.model_validate(document) == manifest
