"""The rules about outOfMemory: the role must declare its memory, and maxMemory must be above it."""

from __future__ import annotations

from collections.abc import Iterator

from dljob.spec import cel
from dljob.spec.model import DLJobSpec
from dljob.spec.quantity import parse_memory
from dljob.spec.rules.findings import Check, Finding
from dljob.spec.text.tree import Loc


# The growth multiplies the declared memory of a rank, up to maxMemory.
def _out_of_memory(spec: DLJobSpec) -> Iterator[Finding]:
    for index, role in enumerate(spec.roles):
        policy, memory = role.restart_policy.out_of_memory, role.resources.memory
        loc: Loc = ("spec", "roles", index)
        policy_loc, memory_loc = (*loc, "restartPolicy", "outOfMemory"), (*loc, "resources", "memory")
        if policy is not None and memory is None:
            words = f"{cel.OUT_OF_MEMORY.message}: {role.name} declares no memory, so none can be added"
            yield Finding(
                policy_loc, words, "declare the memory of a rank, or leave outOfMemory out", (policy_loc, memory_loc)
            )
        # Compared as amounts: 1024Mi is not above 1Gi.
        elif policy is not None and memory is not None and parse_memory(policy.max_memory) <= parse_memory(memory):
            words = f"maxMemory must be above resources.memory: {policy.max_memory} is not above {memory}"
            yield Finding((*policy_loc, "maxMemory"), words, reads=((*policy_loc, "maxMemory"), memory_loc))


MEMORY_RULES: tuple[Check, ...] = (_out_of_memory,)
