"""What is refused of amounts of resources, and with which words."""

from __future__ import annotations

from typing import Any

import pytest
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


def test_memory_without_a_unit_that_is_a_few_bytes_is_refused_in_each_field() -> None:
    small = role(
        resources={"memory": 8, "auto": {"cpu": {"min": 1, "max": 2}}},
        restartPolicy={"outOfMemory": {"memoryFactor": "1.5", "maxMemory": 16}},
    )
    auto = role("b", resources={"auto": {"memory": {"min": 1, "max": "900k"}}})
    group = {"name": "g", "cpu": 8, "memory": 64, "sharedMemory": 2}
    found = problems(small, auto, head={"memory": 4}, master={"memory": 1}, nodeGroups=[group])
    assert [line.partition(" (")[0] for line in found] == [
        f"spec.{field}: {amount} bytes, in which no process runs"
        for field, amount in (
            ("head.memory", "4 is 4"),
            ("master.memory", "1 is 1"),
            ("nodeGroups[0].memory", "64 is 64"),
            ("nodeGroups[0].sharedMemory", "2 is 2"),
            ("roles[0].resources.memory", "8 is 8"),
            ("roles[0].restartPolicy.outOfMemory.maxMemory", "16 is 16"),
            ("roles[1].resources.auto.memory.min", "1 is 1"),
            ("roles[1].resources.auto.memory.max", "900k is 900000"),
        )
    ]
    assert found[2].endswith('(write "64Gi" or "64Mi")')


@pytest.mark.parametrize("memory", ["0", "1Mi", "1048576", "4Gi"])
def test_memory_in_bytes_is_what_it_is_for_kubernetes(memory: str) -> None:
    assert problems(role(resources={"memory": memory})) == []
