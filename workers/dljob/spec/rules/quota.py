"""The rules about roles with `reserve: Quota`: their ranks must be scripts that are Ray drivers, each on its own."""

from __future__ import annotations

from collections.abc import Iterator

from dljob.spec import cel
from dljob.spec.model import DLJobSpec
from dljob.spec.rules.findings import Check, Finding
from dljob.spec.text.tree import Loc


# Each rank calls ray.init() and makes placement groups of its own, so dljob can neither place nor grow what it runs on.
def _drivers(spec: DLJobSpec) -> Iterator[Finding]:
    for index, role in enumerate(spec.roles):
        if role.reserve != "Quota":
            continue
        loc: Loc = ("spec", "roles", index)
        reserve_loc = (*loc, "reserve")
        if role.type != "Actor":
            words = f"{cel.QUOTA.message}: the ranks of {role.name} form one torch world"
            yield Finding(reserve_loc, words, "leave type out, or reserve", (reserve_loc, (*loc, "type")))
        if role.entrypoint.class_ is not None:
            words = f"{cel.QUOTA.message}: a class runs in an actor, where ray.init() cannot be called"
            yield Finding(
                reserve_loc,
                words,
                "give the script that calls ray.init() as module or command",
                (reserve_loc, (*loc, "entrypoint")),
            )
        if role.restart_policy.out_of_memory is not None:
            words = f"{role.name} reserves no memory, so none can be added"
            policy_loc = (*loc, "restartPolicy", "outOfMemory")
            yield Finding(policy_loc, words, "leave outOfMemory out, or reserve", (reserve_loc, policy_loc))
        yield from _shared(spec, role.name, reserve_loc)


def _shared(spec: DLJobSpec, name: str, reserve: Loc) -> Iterator[Finding]:
    for index, collocation in enumerate(spec.collocations):
        if name in collocation.roles:
            loc: Loc = ("spec", "collocations", index, "roles")
            words = f"{name} reserves Quota: its framework decides where its processes run"
            yield Finding((*loc, collocation.roles.index(name)), words, "take it out", (reserve, loc))


QUOTA_RULES: tuple[Check, ...] = (_drivers,)
