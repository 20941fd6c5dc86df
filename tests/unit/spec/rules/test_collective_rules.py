"""What the loader says of collectives that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from dljob.errors import SpecError
from dljob.spec.loading.load import parse


def refused(**collectives: Any) -> str:
    roles = [{"name": name, "entrypoint": {"class": "a.B"}} for name in ("actor", "rollout")]
    document: Any = {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": "j"},
        "spec": {"roles": roles, "collectives": collectives},
    }
    with pytest.raises(SpecError) as caught:
        parse(document)
    return str(caught.value)


def backend(name: str) -> dict[str, str]:
    return {"name": name, "class": "a.B"}


def test_backends_have_one_name_each_whatever_their_capitals() -> None:
    said = refused(backends=[backend("MyCcl"), backend("MYCCL"), backend("auto")])
    assert "spec.collectives.backends[1].name: two backends of one name: MYCCL" in said
    assert "the first is backends[0]; case is ignored" in said
    assert "spec.collectives.backends[2].name: Auto is a reserved name" in said


def test_groups_have_one_name_each_and_name_roles_once() -> None:
    said = refused(groups=[{"name": "w", "roles": ["actor", "actor"]}, {"name": "w", "roles": ["rolout"]}])
    assert "spec.collectives.groups[0].roles[1]: actor is listed twice" in said
    assert "spec.collectives.groups[1].name: two groups of one name: w" in said
    assert "collectives.groups[].roles must name roles: there is no role rolout" in said
    assert "rollout" in said
