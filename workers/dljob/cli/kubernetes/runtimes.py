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


async def read(kube: Kube, wanted: Sequence[RuntimeRef], namespace: str | None) -> list[dict[str, Any]]:
    """Return the runtimes that the cluster has; the conversion names those that it has not."""
    found: list[dict[str, Any]] = []
    for ref in wanted:
        own = ref.kind == OF_NAMESPACE.kind
        where = (ref.namespace or namespace or kube.namespace) if own else None
        try:
            found.append(await kube.get(OF_NAMESPACE if own else OF_CLUSTER, ref.name, where))
        except NotThereError:
            continue  # not an error yet: the report refuses the TrainJob, and says what to do
    return found
