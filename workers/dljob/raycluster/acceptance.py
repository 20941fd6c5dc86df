"""Acceptance of a job on Kubernetes: refusals beyond the spec's own rules, its plan included.

The operator, its admission webhook and `dljob validate` all call this module, so that they refuse the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from dljob.errors import PlacementError
from dljob.plan.model import MachineGroup
from dljob.plan.nodes import declared_machines
from dljob.plan.plan import plan
from dljob.raycluster.pod_security import PodPolicy, breaches
from dljob.raycluster.render import DEFAULT_IMAGE, DEFAULT_RAY_VERSION, effective
from dljob.spec.model import DLJobManifest
from dljob.spec.rules.annotations import spoken, written_at
from dljob.spec.rules.findings import Finding

MAX_SPEC = 1_000_000
"""Most bytes of the spec. The head mounts it from a ConfigMap of 1 MiB, beside the state of the previous attempt."""


def refusals(manifest: DLJobManifest, policy: PodPolicy) -> tuple[Finding, ...]:
    """Return all that an operator of this policy refuses about a job whose spec keeps the rules."""
    # On an existing RayCluster there is no image of ours, so none is filled in.
    on_existing_cluster = manifest.spec.ray_cluster_ref is not None
    effective_manifest = manifest if on_existing_cluster else effective(manifest, DEFAULT_IMAGE, DEFAULT_RAY_VERSION)
    groups: Mapping[str, MachineGroup]
    try:
        misfit, groups = (), plan(manifest).node_groups
    except PlacementError as error:
        # Its pods are judged all the same, so that a user sees all problems at once.
        misfit, groups = (_misfit(manifest, error),), declared_machines(manifest.spec)
    return (*misfit, *too_large(len(spec_text(effective_manifest))), *breaches(manifest, groups, policy))


def misfits(manifest: DLJobManifest) -> tuple[Finding, ...]:
    """Return why a job whose spec keeps the rules has no plan; none where it has one."""
    try:
        plan(manifest)
    except PlacementError as error:
        return (_misfit(manifest, error),)
    return ()


def _misfit(manifest: DLJobManifest, error: PlacementError) -> Finding:
    return Finding(written_at(manifest.spec, spoken(manifest.spec), error.loc), error.message, error.hint)


def spec_text(manifest: DLJobManifest) -> str:
    """Return the effective spec as JSON, in the form that the launcher reads."""
    data = manifest.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    document = {"apiVersion": manifest.api_version, "kind": manifest.kind, **data}
    # Without spaces, since its bytes are counted.
    return json.dumps(document, separators=(",", ":"))


def too_large(size: int) -> tuple[Finding, ...]:
    """Return a finding for a spec of more bytes than its ConfigMap can hold."""
    if size <= MAX_SPEC:
        return ()
    message = f"the spec has {size} bytes as JSON, and a ConfigMap of it holds {MAX_SPEC}"
    return (Finding(("spec",), message, "put large data into a file or a volume, and name that"),)
