"""Training runtimes of Kubeflow, which TrainJobs refer to, from the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dljob.kube.errors import NotThereError
from dljob.kube.resources import Resource

if TYPE_CHECKING:
    from dljob.convert.manifest import RuntimeRef
    from dljob.kube.api import Kube

GROUP, VERSION = "trainer.kubeflow.org", "v1alpha1"
OF_NAMESPACE = Resource(GROUP, VERSION, "trainingruntimes", "TrainingRuntime")
OF_CLUSTER = Resource(GROUP, VERSION, "clustertrainingruntimes", "ClusterTrainingRuntime", namespaced=False)


async def read(kube: Kube, refs: Sequence[RuntimeRef], namespace: str | None) -> list[dict[str, Any]]:
    """Return the runtimes that the cluster has; the conversion names those that it has not."""
    runtimes: list[dict[str, Any]] = []
    for ref in refs:
        is_namespaced = ref.kind == OF_NAMESPACE.kind
        ref_namespace = (ref.namespace or namespace or kube.namespace) if is_namespaced else None
        try:
            runtimes.append(await kube.get(OF_NAMESPACE if is_namespaced else OF_CLUSTER, ref.name, ref_namespace))
        except NotThereError:
            continue  # not an error yet: the report refuses the TrainJob, and says what to do
    return runtimes
