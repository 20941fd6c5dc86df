"""The rules about resources.auto: bounds in their order, and values that lie within them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

from dljob.spec.model import DLJobSpec, Role
from dljob.spec.quantity import parse_cpu, parse_memory
from dljob.spec.rules.findings import Check, Finding
from dljob.spec.text.tree import Loc

CHOSEN = "dljob.io/chosen-resources"
"""The annotation that tells PrimeMaster what was chosen: JSON, a list of [role, sentence]."""


def chosen(annotations: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return (role, sentence) of each choice that a job's annotations tell; of a damaged annotation nothing."""
    try:
        return tuple((str(role), str(text)) for role, text in json.loads(annotations.get(CHOSEN, "[]")))
    except (ValueError, TypeError):
        return ()


def _auto(spec: DLJobSpec) -> Iterator[Finding]:
    for index, role in enumerate(spec.roles):
        auto, resources_loc = role.resources.auto, ("spec", "roles", index, "resources")
        if auto is None:
            continue
        if auto.cpu is None and auto.memory is None:
            yield Finding(
                (*resources_loc, "auto"),
                "auto needs cpu, memory or both",
                "add cpu: {min: 500m, max: '4'}",
                at_key=True,
            )
        if auto.cpu is not None:
            yield from _bounds(resources_loc, "cpu", (auto.cpu.min, auto.cpu.max, role.resources.cpu), parse_cpu)
        if auto.memory is not None:
            yield from _bounds(
                resources_loc, "memory", (auto.memory.min, auto.memory.max, role.resources.memory), parse_memory
            )
            yield from _below_growth(role, (*resources_loc, "auto", "memory", "max"), auto.memory.max)


def _bounds(
    resources_loc: Loc, key: str, texts: tuple[str, str, str | None], parse: Callable[[str], int]
) -> Iterator[Finding]:
    least, most, first = texts
    low, high = (*resources_loc, "auto", key, "min"), (*resources_loc, "auto", key, "max")
    # Compared as amounts: 1024Mi is not above 1Gi.
    if parse(least) > parse(most):
        yield Finding(low, f"min must not be above max: {least} is above {most}", reads=(low, high))
    elif first is not None and not parse(least) <= parse(first) <= parse(most):
        words = f"resources.{key} must lie within auto.{key}: {first} is not between {least} and {most}"
        yield Finding(
            (*resources_loc, key),
            words,
            f"leave it out: {least} is the value to begin with",
            ((*resources_loc, key), low, high),
        )


def _below_growth(role: Role, high: Loc, most: str) -> Iterator[Finding]:
    """Refuse bounds beyond those of outOfMemory, whose growth begins with the chosen memory."""
    policy = role.restart_policy.out_of_memory
    if policy is not None and parse_memory(policy.max_memory) <= parse_memory(most):
        limit: Loc = (*high[:3], "restartPolicy", "outOfMemory", "maxMemory")
        words = f"auto.memory.max must be below outOfMemory.maxMemory: {most} is not below {policy.max_memory}"
        yield Finding(high, words, reads=(high, limit))


AUTO_RULES: tuple[Check, ...] = (_auto,)
