"""Check of the served CRD: one older than the operator silently drops fields that the operator writes.

Helm leaves CRDs unchanged when `crds.install` is false, and the API server prunes fields that a schema lacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from dljob.kube.api import DLJOBS, Kube, NotThereError
from dljob.reconcile.state.fields import items, part, text
from dljob.spec.crd import crd

# Fields by name in one log line; the rest is counted.
SHOWN = 6


async def lacking(kube: Kube) -> str:
    """Return the fields that the served DLJob lacks, some of them by name; empty: none, or DLJobs are not served.

    Raises:
        ApiError: the API server did not answer the question.
    """
    # Every account may read this document (system:discovery); reading CRDs takes an administrator's rights.
    try:
        said = await kube.call("GET", f"/openapi/v3/apis/{DLJOBS.group}/{DLJOBS.version}")
    except NotThereError:
        return ""
    return lacks(crd(), said)


def lacks(ours: Mapping[str, Any], said: Mapping[str, Any]) -> str:
    """Return what a served OpenAPI document (v3) lacks of a CRD; empty when it does not contain DLJobs."""
    theirs = next((one for one in part(said, "components", "schemas").values() if _is_dljob(one)), None)
    if theirs is None:
        return ""
    mine = part(items(ours, "spec", "versions")[0], "schema", "openAPIV3Schema")
    found = list(_missing(mine, cast("Mapping[str, Any]", theirs), ""))
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return ", ".join(found[:SHOWN]) + more


def _is_dljob(schema: object) -> bool:
    kinds = items(cast("Mapping[str, Any]", schema), "x-kubernetes-group-version-kind")
    return any((text(kind, "group"), text(kind, "kind")) == (DLJOBS.group, DLJOBS.kind) for kind in kinds)


def _missing(mine: Mapping[str, Any], theirs: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield missing paths, only the topmost of each; a free-form object lacks nothing."""
    if theirs.get("x-kubernetes-preserve-unknown-fields"):
        return
    there = part(theirs, "properties")
    for name, field in part(mine, "properties").items():
        where = f"{path}.{name}" if path else name
        if name in there:
            yield from _missing(field, there[name], where)
        else:
            yield where
    if "items" in mine and "items" in theirs:
        yield from _missing(mine["items"], theirs["items"], f"{path}[]")
