"""PURE. The RayCluster (ray.io/v1) of a planned job, and what Kubernetes may refuse about it.

In reading order: `render`, `podspec`, `pods` (names inside the pods), `images` (of node groups), `overlay` (templates),
`domain_pods`, `taints`, `survival` (head loss), `pod_security`, `acceptance`.
"""
