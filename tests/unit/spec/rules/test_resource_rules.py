"""What is refused of amounts of resources, and with which words."""

from __future__ import annotations

from typing import Any

from cel_cases import job, role

from dljob.errors import SpecError
from dljob.plan.devices import BY_RAY
from dljob.spec.loading.load import parse

CPU_TWICE = "spec.roles[0].resources.custom.CPU: CPU is no custom resource (set resources.cpu)"


def problems(*roles: dict[str, Any], **spec: Any) -> list[str]:
    try:
        parse(job({"roles": list(roles) or [role()], **spec}))
    except SpecError as error:
        return [str(one) for one in error.problems]
    return []


def test_a_resource_with_a_field_of_its_own_is_no_custom_one() -> None:
    names = ("CPU", "memory", "object_store_memory", *BY_RAY)
    found = problems(role(resources={"cpu": 2, "custom": dict.fromkeys((*names, "licence"), 1)}))
    assert len(found) == len(names)
    assert found[0] == CPU_TWICE
    assert found[-1].endswith("neuron_cores is no custom resource (set accelerator: {type: Neuron})")
