"""The rules about failure domains: a label and a number of failures, and machines that have the label."""

from __future__ import annotations

from collections.abc import Iterator

from dljob.spec import cel
from dljob.spec.model import DLJobSpec
from dljob.spec.rules.findings import Check, Finding
from dljob.spec.text.tree import Loc
from dljob.spec.text.words import one_of

_NODE: Loc = ("spec", "faultTolerance", "node")
_KEY, _COUNT = (*_NODE, "failureDomainLabel"), (*_NODE, "domainFailures")


def _both(spec: DLJobSpec) -> Iterator[Finding]:
    node = spec.fault_tolerance.node
    if (node.failure_domain_label is None) == (node.domain_failures is None):
        return
    missing_loc, hint = (
        (_COUNT, "add failureDomainLabel, such as rack")
        if node.failure_domain_label is None
        else (_KEY, "add domainFailures, such as 2")
    )
    yield Finding(missing_loc, cel.FAILURE_DOMAIN.message, hint, (_KEY, _COUNT), at_key=True)


def _labels(spec: DLJobSpec) -> Iterator[Finding]:
    """Refuse a label that no machine of the job's own will have; those of an existing RayCluster are not known here."""
    key = spec.fault_tolerance.node.failure_domain_label
    names = sorted({name for group in spec.node_groups for name in group.labels})
    if key is None or key in names or spec.ray_cluster_ref or not spec.node_groups:
        return
    reads = (_KEY, ("spec", "nodeGroups"))
    hint = one_of(key, names) if names else "add it to labels of the nodeGroups"
    yield Finding(_KEY, f"no node group has the label {key}", hint, reads)


FAILURE_DOMAIN_RULES: tuple[Check, ...] = (_both, _labels)
