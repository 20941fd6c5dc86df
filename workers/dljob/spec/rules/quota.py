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
        here = (*loc, "reserve")
        if role.type != "Actor":
            words = f"{cel.QUOTA.message}: the ranks of {role.name} form one torch world"
            yield Finding(here, words, "leave type out, or reserve", (here, (*loc, "type")))
        if role.entrypoint.class_ is not None:
            words = f"{cel.QUOTA.message}: a class runs in an actor, where ray.init() cannot be called"
            yield Finding(
                here, words, "give the script that calls ray.init() as module or command", (here, (*loc, "entrypoint"))
            )
        if role.restart_policy.out_of_memory is not None:
            words = f"{role.name} reserves no memory, so none can be added"
            what = (*loc, "restartPolicy", "outOfMemory")
            yield Finding(what, words, "leave outOfMemory out, or reserve", (here, what))
        yield from _shared(spec, role.name, here)


def _shared(spec: DLJobSpec, name: str, reserve: Loc) -> Iterator[Finding]:
    for index, collocation in enumerate(spec.collocations):
        if name in collocation.roles:
            loc: Loc = ("spec", "collocations", index, "roles")
            words = f"{name} reserves Quota: its framework decides where its processes run"
            yield Finding((*loc, collocation.roles.index(name)), words, "take it out", (reserve, loc))


QUOTA_RULES: tuple[Check, ...] = (_drivers,)
