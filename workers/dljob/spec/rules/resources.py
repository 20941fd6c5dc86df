"""The rules about amounts: `resources.custom` holds those that no other field has."""

from __future__ import annotations

from collections.abc import Iterator

from dljob.spec.devices import RAY
from dljob.spec.model import DLJobSpec
from dljob.spec.rules.findings import Check, Finding

_TYPED = {
    "CPU": "set resources.cpu",
    "memory": "set resources.memory",
    "object_store_memory": "leave it out: Ray's object store has no amount for each rank",
    **{name: f"set accelerator: {{type: {kind}}}" for kind, name in RAY.items()},
}
"""Ray's resource that is no custom one -> the field for it."""


# The plan would add both amounts up, and a device taken so is visible to no rank.
def _custom(spec: DLJobSpec) -> Iterator[Finding]:
    for index, role in enumerate(spec.roles):
        for name in role.resources.custom:
            if name in _TYPED:
                loc = ("spec", "roles", index, "resources", "custom", name)
                yield Finding(loc, f"{name} is no custom resource", _TYPED[name], at_key=True)


RESOURCE_RULES: tuple[Check, ...] = (_custom,)
