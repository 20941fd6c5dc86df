"""The rules of a job on an existing RayCluster: fields that would make or change its pods are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from pydantic import BaseModel
from pydantic.alias_generators import to_snake

from dljob.spec import cel
from dljob.spec.cluster import Master
from dljob.spec.model import DLJobSpec
from dljob.spec.rules.findings import Check, Finding
from dljob.spec.text.tree import Loc


def _beside(spec: DLJobSpec) -> Iterator[Finding]:
    if spec.ray_cluster_ref is None:
        return
    for path, rule in cel.BESIDE_REF.items():
        if _written(spec, path):
            yield Finding(("spec", *path.split(".")), rule.message, at_key=True)
    # As in CEL, only values other than the defaults count: the API server stores defaults as if the user had set them.
    usual = Master()
    unlike = (spec.master.cpu, spec.master.memory) != (usual.cpu, usual.memory)
    if unlike or spec.master.placement == "Worker":
        loc: Loc = ("spec", "master")
        yield Finding(loc, cel.REF_MASTER.message, reads=((*loc, "cpu"), (*loc, "memory"), (*loc, "placement")))
    if spec.suspend:
        yield Finding(("spec", "suspend"), cel.REF_SUSPEND.message)
    if spec.fault_tolerance.spares.nodes:
        yield Finding(("spec", "faultTolerance", "spares", "nodes"), cel.REF_SPARES.message)


def _written(spec: DLJobSpec, path: str) -> bool:
    """Return whether a field is in the file, as CEL's `has` does: an empty one counts."""
    at: object = spec
    for name in map(to_snake, path.split(".")):
        model = cast("BaseModel | None", at)
        # `model_fields_set`: a field that was written with its default value counts too.
        if model is None or name not in model.model_fields_set:
            return False
        at = getattr(model, name)
    return at is not None


REFERENCE_RULES: tuple[Check, ...] = (_beside,)
