"""The jobs that are drawn for simulations: valid ones, and of each kind."""

from __future__ import annotations

import json
from typing import Any

from dljob.spec.loading.load import load
from dljob.testing.world.fault_schedule import chance
from dljob.testing.world.jobs import small, with_coupling

HEAD = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob"}


def drawn() -> list[dict[str, Any]]:
    return [small(chance(f"seed {seed}")) for seed in range(100)]


def test_drawn_jobs_have_roles_of_each_type_level_and_dependency() -> None:
    roles = [role for manifest in drawn() for role in manifest["spec"]["roles"]]
    assert {role.get("type") for role in roles} == {None, "Elastic"}
    assert {role["restartPolicy"].get("level") for role in roles} == {
        None,
        "InProcess",
        "Process",
        "RoleGroup",
        "Role",
        "Job",
    }
    assert {each["condition"] for role in roles for each in role.get("dependsOn", ())} == {"Ready", "Complete"}


def test_some_drawn_jobs_have_roles_that_restart_together_and_all_of_those_are_valid() -> None:
    coupled = 0
    for seed, manifest in enumerate(drawn()):
        made = load(json.dumps({**HEAD, **with_coupling(seed, manifest)}))
        coupled += any(role.restart_policy.with_ for role in made.spec.roles)
    assert coupled > 10


def test_every_drawn_job_is_a_valid_one_with_a_driver() -> None:
    for manifest in drawn():
        made = load(json.dumps({**HEAD, **manifest}))
        assert any(role.driver for role in made.spec.roles)
