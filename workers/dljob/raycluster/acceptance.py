"""Acceptance of a planned job: what is refused on Kubernetes beyond the spec's own rules and the plan.

The operator, its admission webhook and `dljob validate` ask here, so that they refuse the same.
"""

from __future__ import annotations

import json

from dljob.plan.model import JobPlan
from dljob.raycluster.pod_security import PodPolicy, breaches
from dljob.raycluster.render import DEFAULT_IMAGE, DEFAULT_RAY_VERSION, effective
from dljob.spec.model import DLJobManifest
from dljob.spec.rules.findings import Finding

MAX_SPEC = 1_000_000
"""Bytes of the spec as the head mounts it: a ConfigMap holds 1 MiB, with what the last attempt hands on."""


def refusals(manifest: DLJobManifest, plan: JobPlan, policy: PodPolicy) -> tuple[Finding, ...]:
    """Everything that an operator of this policy refuses about a job that is read and planned."""
    there = manifest.spec.ray_cluster_ref is not None
    whole = manifest if there else effective(manifest, DEFAULT_IMAGE, DEFAULT_RAY_VERSION)
    return (*too_large(len(spec_text(whole))), *breaches(manifest, plan, policy))


def spec_text(manifest: DLJobManifest) -> str:
    """The effective spec as JSON, as the launcher takes it."""
    data = manifest.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    whole = {"apiVersion": manifest.api_version, "kind": manifest.kind, **data}
    return json.dumps(whole, separators=(",", ":"))


def too_large(size: int) -> tuple[Finding, ...]:
    """Refuses a spec of so many bytes that no ConfigMap holds it."""
    if size <= MAX_SPEC:
        return ()
    message = f"the spec has {size} bytes as JSON, and a ConfigMap of it holds {MAX_SPEC}"
    return (Finding(("spec",), message, "put large data into a file or a volume, and name that"),)
