"""KubeRay's Python client, limited to its public names, since the package index has none (docs/adr/0010).

Names, arguments and return conventions are those of `clients/python-client` in the KubeRay repository: a failed call
logs the reason and returns None or False. They are built on `dljob.kube.objects`, like `RayClusters`, which operator
and command use: asynchronous (there is no `async_req` here), and with typed errors.
"""

from dljob.kube.kuberay_client.api import (
    CLUSTER_KIND,
    CLUSTER_PLURAL,
    CLUSTER_VERSION,
    GROUP,
    JOB_KIND,
    JOB_PLURAL,
    JOB_VERSION,
    DLJobApi,
    RayClusterApi,
    RayjobApi,
)
from dljob.kube.kuberay_client.builder import ClusterBuilder, Director
from dljob.kube.kuberay_client.clusters import RayClusters, token_secret
from dljob.kube.kuberay_client.utils import ClusterUtils

__all__ = [
    "CLUSTER_KIND",
    "CLUSTER_PLURAL",
    "CLUSTER_VERSION",
    "GROUP",
    "JOB_KIND",
    "JOB_PLURAL",
    "JOB_VERSION",
    "ClusterBuilder",
    "ClusterUtils",
    "DLJobApi",
    "Director",
    "RayClusterApi",
    "RayClusters",
    "RayjobApi",
    "token_secret",
]
