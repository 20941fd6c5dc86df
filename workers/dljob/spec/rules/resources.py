"""The rules about amounts: `resources.custom` holds those that no other field has, and memory is not a few bytes."""

from __future__ import annotations

from collections.abc import Iterator

from dljob.spec.devices import RAY
from dljob.spec.model import DLJobSpec
from dljob.spec.quantity import GRAIN, parse_memory
from dljob.spec.rules.findings import Check, Finding
from dljob.spec.text.tree import Loc

_TYPED = {
    "CPU": "set resources.cpu",
    "memory": "set resources.memory",
    "object_store_memory": "leave it out: Ray's object store has no amount for each rank",
    **{name: f"set accelerator: {{type: {kind}}}" for kind, name in RAY.items()},
}
"""Ray's resource that is no custom one -> the field for it."""
_LEAST = 2**20 * GRAIN
"""Memory in which no process runs: less is an amount whose unit was forgotten, which Kubernetes reads as bytes."""


# The plan would add both amounts up, and a device taken so is visible to no rank.
def _custom(spec: DLJobSpec) -> Iterator[Finding]:
    for index, role in enumerate(spec.roles):
        for name in role.resources.custom:
            if name in _TYPED:
                loc = ("spec", "roles", index, "resources", "custom", name)
                yield Finding(loc, f"{name} is no custom resource", _TYPED[name], at_key=True)


def _memory(spec: DLJobSpec) -> Iterator[Finding]:
    for loc, text in _amounts(spec):
        amount = parse_memory(text or "0")
        # None at all is an amount that people mean.
        if text and 0 < amount < _LEAST:
            hint = f'write "{text}Gi" or "{text}Mi"' if text.isdecimal() else "ask for at least 1Mi"
            yield Finding(loc, f"{text} is {amount // GRAIN} bytes, in which no process runs", hint)


def _amounts(spec: DLJobSpec) -> Iterator[tuple[Loc, str | None]]:
    yield ("spec", "head", "memory"), spec.head.memory
    yield ("spec", "master", "memory"), spec.master.memory
    for index, group in enumerate(spec.node_groups):
        yield ("spec", "nodeGroups", index, "memory"), group.memory
        yield ("spec", "nodeGroups", index, "sharedMemory"), group.shared_memory
    for index, role in enumerate(spec.roles):
        loc: Loc = ("spec", "roles", index)
        auto, policy = role.resources.auto, role.restart_policy.out_of_memory
        yield (*loc, "resources", "memory"), role.resources.memory
        if auto and auto.memory:
            yield (*loc, "resources", "auto", "memory", "min"), auto.memory.min
            yield (*loc, "resources", "auto", "memory", "max"), auto.memory.max
        if policy:
            yield (*loc, "restartPolicy", "outOfMemory", "maxMemory"), policy.max_memory


RESOURCE_RULES: tuple[Check, ...] = (_custom, _memory)
