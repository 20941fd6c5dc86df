"""What somebody changed in a RayCluster after it was made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import cast

from dljob.control import accept, children, names
from dljob.control.accept import Refused
from dljob.control.case import Case
from dljob.control.fields import number, text
from dljob.control.model import Object

SHOWN = 3


def edits(case: Case) -> str:
    """How the RayCluster differs from what was made, as long as that is known; empty: not at all.

    What others add (a queue's nodeSelector, the server's defaults) is no difference, nor is `suspend`.
    """
    cluster = case.cluster
    if cluster is None or case.ref or number(cluster, "metadata", "generation") <= 1 or isinstance(case.terms, Refused):
        return ""
    made = children.ray_cluster(case, accept.blueprint(case.source, case.settings), case.terms.hash)
    if text(cluster, "metadata", "annotations", names.MADE_HASH) != children.made_hash(made):
        return ""  # another spec, or another version of the operator, made it
    return "; ".join(islice(_differences(made["spec"], cluster["spec"], "spec"), SHOWN))


def _differences(ours: object, theirs: object, path: str) -> Iterator[str]:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        yours = cast("Object", theirs)
        for key, value in cast("Object", ours).items():
            yield from _differences(value, yours.get(key), f"{path}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list):
        mine, others = cast("list[object]", ours), cast("list[object]", theirs)
        if len(mine) > len(others):
            yield f"{path} has {len(others)} items, {len(mine)} were made"
        for at, (one, other) in enumerate(zip(mine, others, strict=False)):
            yield from _differences(one, other, f"{path}[{at}]")
    elif ours != theirs:
        yield f"{path} is {theirs!r:.60}, {ours!r:.60} was made"
