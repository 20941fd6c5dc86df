"""Kinds of objects that dljob uses, with their paths on the API server."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind as served by the API server; `group` is empty for the core kinds."""

    group: str
    version: str
    plural: str
    kind: str = ""
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The `apiVersion` of objects of this kind."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str = "", sub: str = "") -> str:
        """Return the path of one object, of a namespace's, or of all (None); `sub` is a subresource, such as status."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        namespace_part = f"/namespaces/{quote(namespace, safe='')}" if self.namespaced and namespace else ""
        return root + namespace_part + "".join(f"/{quote(part, safe='')}" for part in (self.plural, name, sub) if part)


DLJOBS = Resource("dljob.io", "v1alpha1", "dljobs", "DLJob")
RAYCLUSTERS = Resource("ray.io", "v1", "rayclusters", "RayCluster")
PODS = Resource("", "v1", "pods", "Pod")
SECRETS = Resource("", "v1", "secrets", "Secret")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
SERVICES = Resource("", "v1", "services", "Service")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
EVENTS = Resource("events.k8s.io", "v1", "events", "Event")
CORE_EVENTS = Resource("", "v1", "events", "Event")
"""The same Events in their old group, where a field selector can find them by the object they are about."""
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
CLUSTER_ROLE_BINDINGS = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False)
