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
    digest, spec_made = _spec_of_attempt(case.source, case.uid, case.attempt, case.settings)
    if text(cluster, "metadata", "annotations", names.MADE_HASH) != digest:
        return ""  # another spec, or another version of the operator, made it: what it was then is not known
    own_spec = json.loads(spec_made)
    # The operator's own patches are applied to the expected spec, so that only others' edits remain as differences.
    away = patches.excluded(cluster)
    own_spec = patches.with_exclusions(own_spec, away) if away else own_spec
    own_spec = patches.scaled(own_spec, cluster)
    return "; ".join(islice(_differences(own_spec, cluster["spec"], "spec"), SHOWN))


@cached_by_digest(1024)
def _spec_of_attempt(source: str, uid: str, attempt: int, settings: Settings) -> tuple[str, str]:
    """Return digest and text of the spec that the RayCluster of an attempt is created with.

    Cached, since a queue's admission counts as an edit: each pass of each job that waited in a queue needs this.
    """
    job = json.loads(source)
    job["metadata"]["uid"], job["status"] = uid, {"attempt": attempt}
    case = ReconcileContext(Observed(job), settings, 0.0)
    blueprint = accept.blueprint(source, settings)
    cluster_made = children.ray_cluster(case, blueprint, blueprint.hash)
    return children.made_hash(cluster_made), json.dumps(cluster_made["spec"], separators=(",", ":"))


def _differences(own_value: object, served_value: object, path: str) -> Iterator[str]:
    if isinstance(own_value, Mapping) and isinstance(served_value, Mapping):
        yours = cast("Object", served_value)
        # Keys that only the other side has are additions of others, such as defaults of the API server.
        for key, value in cast("Object", own_value).items():
            yield from _differences(value, yours.get(key), f"{path}.{key}")
    elif isinstance(own_value, list) and isinstance(served_value, list):
        own_items, others = cast("list[object]", own_value), cast("list[object]", served_value)
        if len(own_items) > len(others):
            yield f"{path} has {counted(len(others), 'item')}, {len(own_items)} were made"
        for at, (own_item, served_item) in enumerate(zip(own_items, others, strict=False)):
            yield from _differences(own_item, served_item, f"{path}[{at}]")
    elif own_value != served_value:
        yield f"{path} is {served_value!r:.60}, {own_value!r:.60} was made"
