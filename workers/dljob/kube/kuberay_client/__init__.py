"""KubeRay's client, since the package index has none (docs/adr/0010): the one door to RayClusters."""

from dljob.kube.kuberay_client.clusters import RayClusters, token_secret

__all__ = ["RayClusters", "token_secret"]
