"""The DLJob's own CRD, as it is served: an older one than the operator's drops what the operator writes, silently.

Helm leaves CRDs as they are when `crds.install` is false, and what a schema lacks, the API server prunes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from dljob.control.fields import items, part, text
from dljob.kube.api import DLJOBS, Kube, NotThereError
from dljob.spec.crd import crd

SHOWN = 6


async def lacking(kube: Kube) -> str:
    """The fields that the served DLJob lacks, some of them by name; empty: none, or it is not served at all.

    Raises:
        ApiError: The API server does not say.
    """
    # Every account may read this document (system:discovery); CRDs are for administrators.
    try:
        said = await kube.call("GET", f"/openapi/v3/apis/{DLJOBS.group}/{DLJOBS.version}")
    except NotThereError:
        return ""
    return lacks(crd(), said)


def lacks(ours: Mapping[str, Any], said: Mapping[str, Any]) -> str:
    """What a served OpenAPI document (v3) lacks of a CRD; a document without DLJobs says nothing."""
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
    """Paths that are not there, the topmost alone; what is tolerated is there."""
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
