"""Which roles may leave what they take to a framework."""

from __future__ import annotations

from typing import Any

import pytest

from dljob.errors import SpecError
from dljob.spec.loading.load import parse

SCRIPT = {"module": "main.py"}


def problems(
    entry: dict[str, Any] = SCRIPT,
    spec: dict[str, Any] | None = None,
    others: tuple[dict[str, Any], ...] = (),
    **role: Any,
) -> list[str]:
    own = {"name": "d", "entrypoint": entry, "reserve": "Quota", **role}
    roles = [own, {"name": "o", "entrypoint": SCRIPT}, *others]
    document = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "j"}}
    try:
        parse({**document, "spec": {"roles": roles, **(spec or {})}})
    except SpecError as error:
        return [f"{problem.path}: {problem.message}" for problem in error.problems]
    return []


@pytest.mark.parametrize("entry", [SCRIPT, {"command": ["python", "main.py"]}])
def test_scripts_and_commands_may_reserve_a_quota(entry: dict[str, Any]) -> None:
    assert problems(entry, accelerator={"count": "16"}, replicas=2) == []


def test_a_quotas_devices_may_be_on_several_hosts_of_their_kind() -> None:
    machines = {"nodeGroups": [{"name": "g", "replicas": 2, "cpu": "32", "accelerator": {"type": "GPU", "count": 8}}]}
    assert problems(spec=machines, accelerator={"count": "16"}) == []
    (said,) = problems(spec=machines, accelerator={"type": "NPU", "count": "16"})
    assert said == "spec.roles[0].accelerator: d needs NPU, node group g has none"


def test_a_class_an_elastic_role_and_a_memory_policy_may_not_reserve_a_quota() -> None:
    (said,) = problems({"class": "app.A"})
    assert said.startswith("spec.roles[0].reserve: reserve Quota is for Actor roles with a module or command: a class")
    (said,) = problems(type="Elastic")
    assert said.endswith("the ranks of d form one torch world")
    more = {"outOfMemory": {"maxMemory": "8Gi"}}
    (said,) = problems(restartPolicy=more, resources={"memory": "4Gi"})
    assert said == "spec.roles[0].restartPolicy.outOfMemory: d reserves no memory, so none can be added"


@pytest.mark.parametrize("level", ["Host", "Separate"])
def test_a_quota_role_is_refused_in_a_collocation(level: str) -> None:
    both = {"collocations": [{"name": "c", "roles": ["o", "d"], "level": level}]}
    (said,) = problems(spec=both)
    assert said.startswith("spec.collocations[0].roles[1]: d reserves Quota")


def test_other_roles_may_be_collocated_beside_a_quota_role() -> None:
    another = {"name": "p", "entrypoint": SCRIPT}
    spec = {"collocations": [{"name": "c", "roles": ["o", "p"], "level": "Host"}]}
    assert problems(spec=spec, others=(another,)) == []
