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
        document = await kube.call("GET", f"/openapi/v3/apis/{DLJOBS.group}/{DLJOBS.version}")
    except NotThereError:
        return ""
    return lacks(crd(), document)


def lacks(own_crd: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """Return what a served OpenAPI document (v3) lacks of a CRD; empty when it does not contain DLJobs."""
    served_schema = next(
        (schema for schema in part(document, "components", "schemas").values() if _is_dljob(schema)), None
    )
    if served_schema is None:
        return ""
    own_schema = part(items(own_crd, "spec", "versions")[0], "schema", "openAPIV3Schema")
    missing_paths = list(_missing(own_schema, cast("Mapping[str, Any]", served_schema), ""))
    more = f" and {len(missing_paths) - SHOWN} more" if len(missing_paths) > SHOWN else ""
    return ", ".join(missing_paths[:SHOWN]) + more


def _is_dljob(schema: object) -> bool:
    kinds = items(cast("Mapping[str, Any]", schema), "x-kubernetes-group-version-kind")
    return any((text(kind, "group"), text(kind, "kind")) == (DLJOBS.group, DLJOBS.kind) for kind in kinds)


def _missing(own_schema: Mapping[str, Any], served_schema: Mapping[str, Any], path: str) -> Iterator[str]:
    """Yield missing paths, only the topmost of each; a free-form object lacks nothing."""
    if served_schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    served_fields = part(served_schema, "properties")
    for name, field in part(own_schema, "properties").items():
        field_path = f"{path}.{name}" if path else name
        if name in served_fields:
            yield from _missing(field, served_fields[name], field_path)
        else:
            yield field_path
    if "items" in own_schema and "items" in served_schema:
        yield from _missing(own_schema["items"], served_schema["items"], f"{path}[]")
