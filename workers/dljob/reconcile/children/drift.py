"""Edits: changes that others made to a RayCluster after the operator created it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import cast

from dljob.reconcile.children import children, patches
from dljob.reconcile.state import accept, names
from dljob.reconcile.state.accept import Refused
from dljob.reconcile.state.context import ReconcileContext
from dljob.reconcile.state.fields import number, text
from dljob.reconcile.state.model import Object, Observed, Settings
from dljob.reconcile.state.text_cache import cached_by_digest
from dljob.telemetry.wording import counted

SHOWN = 3


def edits(case: ReconcileContext) -> str:
    """Return how the RayCluster differs from the one that the operator made; empty: it does not, or it is not known.

    Not counted as edits: additions by others (a queue's nodeSelector, the API server's defaults), `suspend`, and the
    operator's own patches.
    """
    cluster = case.cluster
    # The API server counts the generation up with each change of the spec: at 1 nobody has changed it.
    if cluster is None or case.ref or number(cluster, "metadata", "generation") <= 1 or isinstance(case.terms, Refused):
        return ""
    digest, made = _spec_of_attempt(case.source, case.uid, case.attempt, case.settings)
    if text(cluster, "metadata", "annotations", names.MADE_HASH) != digest:
        return ""  # another spec, or another version of the operator, made it: what it was then is not known
    ours = json.loads(made)
    # The operator's own patches are applied to the expected spec, so that only others' edits remain as differences.
    away = patches.excluded(cluster)
    ours = patches.with_exclusions(ours, away) if away else ours
    ours = patches.scaled(ours, cluster)
    return "; ".join(islice(_differences(ours, cluster["spec"], "spec"), SHOWN))


@cached_by_digest(1024)
def _spec_of_attempt(source: str, uid: str, attempt: int, settings: Settings) -> tuple[str, str]:
    """Return digest and text of the spec that the RayCluster of an attempt is created with.

    Cached, since a queue's admission counts as an edit: each pass of each job that waited in a queue needs this.
    """
    job = json.loads(source)
    job["metadata"]["uid"], job["status"] = uid, {"attempt": attempt}
    case = ReconcileContext(Observed(job), settings, 0.0)
    blueprint = accept.blueprint(source, settings)
    made = children.ray_cluster(case, blueprint, blueprint.hash)
    return children.made_hash(made), json.dumps(made["spec"], separators=(",", ":"))


def _differences(ours: object, theirs: object, path: str) -> Iterator[str]:
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        yours = cast("Object", theirs)
        # Keys that only the other side has are additions of others, such as defaults of the API server.
        for key, value in cast("Object", ours).items():
            yield from _differences(value, yours.get(key), f"{path}.{key}")
    elif isinstance(ours, list) and isinstance(theirs, list):
        mine, others = cast("list[object]", ours), cast("list[object]", theirs)
        if len(mine) > len(others):
            yield f"{path} has {counted(len(others), 'item')}, {len(mine)} were made"
        for at, (one, other) in enumerate(zip(mine, others, strict=False)):
            yield from _differences(one, other, f"{path}[{at}]")
    elif ours != theirs:
        yield f"{path} is {theirs!r:.60}, {ours!r:.60} was made"
