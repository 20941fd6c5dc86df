"""The builder knows a role's fields from the spec's models, and from nowhere else."""

from __future__ import annotations

from typing import Literal

import pytest

from dljob.api.builder import DLJobBuilder
from dljob.api.workload import Workload, choices
from dljob.errors import UsageError
from dljob.spec import model
from dljob.spec.rank import RoleAccelerator


class LouderAccelerator(RoleAccelerator):
    clock: Literal["Low", "High"] | None = None


class LargerRole(model.Role):
    accelerator: LouderAccelerator | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    warm_up: int = 3
    mirror_of: str | None = None
    tags: tuple[str, ...] = ()


def test_a_field_of_the_model_is_one_of_the_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "Role", LargerRole)
    role = DLJobBuilder().role("a").run("m.A").resource(gpu=1).build().workloads["a"]
    before = role.to_dict()
    assert (role.warm_up, role.mirror_of, role.tags, role.clock) == (3, None, [], None)
    role.warm_up, role.mirror_of, role.tags, role.clock = 5, "b", ["x"], "High"
    told = role.to_dict()
    assert told["accelerator"] == {"count": "1", "type": "GPU", "clock": "High"}
    assert told == {**before, "accelerator": told["accelerator"], "warmUp": 5, "mirrorOf": "b", "tags": ["x"]}
    role.warm_up, role.tags, role.clock = 3, [], None
    assert role.to_dict() == {**before, "mirrorOf": "b"}


def test_a_field_that_left_the_model_is_refused() -> None:
    with pytest.raises(UsageError, match="no attribute 'warm_up'"):
        Workload("a").warm_up = 5


def test_defaults_of_two_roles_are_not_one_object() -> None:
    one, other = Workload("a"), Workload("a")
    assert one == other
    one.env["X"] = "1"
    one.args.append("--x")
    assert (other.env, other.args) == ({}, [])
    assert one != other
    assert "env={'X': '1'}" in repr(one)


def test_the_words_of_a_field_are_those_of_its_literal() -> None:
    assert choices("Dependency", "condition") == ("Ready", "Complete")
    assert choices("RoleAccelerator", "visibility") == ("Isolated", "Shared")
