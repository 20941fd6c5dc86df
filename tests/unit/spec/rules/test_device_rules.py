"""What each kind of device can be asked for: by shares, in which numbers, and who sees whose."""

from __future__ import annotations

from typing import Any

import pytest

from dljob.errors import SpecError
from dljob.spec.loading.load import parse


def job(**accelerator: Any) -> dict[str, Any]:
    role = {"name": "a", "entrypoint": {"class": "app.A"}, "accelerator": accelerator}
    return {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "j"}, "spec": {"roles": [role]}}


@pytest.mark.parametrize(
    ("accelerator", "words"),
    [
        ({"type": "HPU", "count": "0.5"}, "count: HPU is assigned whole, not by 0.5"),
        ({"type": "Neuron", "count": "0.5"}, "count: Neuron is assigned whole, not by 0.5"),
        ({"type": "TPU", "count": "0.5"}, "count: TPU is assigned whole, not by 0.5"),
        ({"type": "TPU", "count": 3}, "count: a rank takes 1, 2, 4, 8 TPU chips, not 3"),
        ({"type": "TPU", "visibility": "Shared"}, "visibility: ranks on TPU cannot see each other's devices"),
        ({"type": "Neuron", "visibility": "Shared"}, "visibility: ranks on Neuron cannot see"),
        ({"type": "GPU", "visibility": "All"}, "visibility: must be"),
        (
            {"type": "TPU", "numaBinding": "Node"},
            "numaBinding: torch knows no NUMA node of a TPU, only of GPU, NPU, HPU",
        ),
        ({"type": "GPU", "numaBinding": "node"}, "numaBinding: must be"),
        ({"type": "NPU", "memoryLimit": "Share"}, "memoryLimit: torch limits the memory of a GPU, not of NPU"),
        ({"type": "GPU", "memoryLimit": "0.5"}, "memoryLimit: must be"),
    ],
)
def test_options_that_the_device_lacks_are_refused_before_anything_starts(
    accelerator: dict[str, Any], words: str
) -> None:
    with pytest.raises(SpecError) as caught:
        parse(job(**accelerator))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "accelerator",
    [
        {"type": "GPU", "count": "0.5"},
        {"type": "NPU", "count": "0.25", "visibility": "Isolated"},
        {"type": "TPU", "count": 4},
        {"type": "HPU", "count": 3, "visibility": "Shared"},
        {"type": "GPU", "numaBinding": "CoreComplex"},
        {"type": "GPU", "count": "0.5", "memoryLimit": "Share"},
        {"type": "NPU", "count": "0.5", "memoryLimit": "None"},
    ],
)
def test_options_that_the_device_supports_are_accepted(accelerator: dict[str, Any]) -> None:
    taken = parse(job(**accelerator)).spec.roles[0].accelerator
    assert taken is not None
    assert (taken.type, taken.visibility) == (accelerator["type"], accelerator.get("visibility"))


@pytest.mark.parametrize(
    ("role", "words"),
    [
        (
            {"entrypoint": {"module": "a.py"}, "reserve": "Quota", "accelerator": {"numaBinding": "Node"}},
            "numaBinding: a reserves Quota, so its ranks have no device of their own to bind to",
        ),
        (
            {"entrypoint": {"module": "a.py"}, "reserve": "Quota", "accelerator": {"memoryLimit": "Share"}},
            "memoryLimit: a reserves Quota, so its ranks have no share of a device",
        ),
        (
            {"entrypoint": {"command": ["python", "a.py"]}, "accelerator": {"memoryLimit": "Share"}},
            "memoryLimit: a runs a command, and only in classes and modules can dljob tell torch of a limit",
        ),
        (
            {"type": "Elastic", "accelerator": {"visibility": "Shared"}, "comm": {"virtualLocalRank": True}},
            "visibility: Shared shows a rank its own device at LOCAL_RANK, which comm.virtualLocalRank makes 0",
        ),
    ],
)
def test_options_that_the_role_cannot_obey_are_refused(role: dict[str, Any], words: str) -> None:
    data = job(type="GPU")
    accelerator = {"type": "GPU", **role["accelerator"]}
    data["spec"]["roles"][0] |= {**role, "accelerator": accelerator}
    with pytest.raises(SpecError) as caught:
        parse(data)
    assert words in str(caught.value)
