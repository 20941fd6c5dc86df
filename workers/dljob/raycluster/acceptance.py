"""Acceptance of a planned job on Kubernetes: refusals beyond the spec's own rules and the plan.

The operator, its admission webhook and `dljob validate` all call this module, so that they refuse the same.
"""

from __future__ import annotations

import json

from dljob.plan.model import JobPlan
from dljob.raycluster.pod_security import PodPolicy, breaches
from dljob.raycluster.render import DEFAULT_IMAGE, DEFAULT_RAY_VERSION, effective
from dljob.spec.model import DLJobManifest
from dljob.spec.rules.findings import Finding

MAX_SPEC = 1_000_000
"""Most bytes of the spec. The head mounts it from a ConfigMap of 1 MiB, beside the state of the previous attempt."""


def refusals(manifest: DLJobManifest, plan: JobPlan, policy: PodPolicy) -> tuple[Finding, ...]:
    """Return all that an operator of this policy refuses about a planned job."""
    # On an existing RayCluster there is no image of ours, so none is filled in.
    there = manifest.spec.ray_cluster_ref is not None
    whole = manifest if there else effective(manifest, DEFAULT_IMAGE, DEFAULT_RAY_VERSION)
    return (*too_large(len(spec_text(whole))), *breaches(manifest, plan, policy))


def spec_text(manifest: DLJobManifest) -> str:
    """Return the effective spec as JSON, in the form that the launcher reads."""
    data = manifest.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    whole = {"apiVersion": manifest.api_version, "kind": manifest.kind, **data}
    # Without spaces, since its bytes are counted.
    return json.dumps(whole, separators=(",", ":"))


def too_large(size: int) -> tuple[Finding, ...]:
    """Return a finding for a spec of more bytes than its ConfigMap can hold."""
    if size <= MAX_SPEC:
        return ()
    message = f"the spec has {size} bytes as JSON, and a ConfigMap of it holds {MAX_SPEC}"
    return (Finding(("spec",), message, "put large data into a file or a volume, and name that"),)
