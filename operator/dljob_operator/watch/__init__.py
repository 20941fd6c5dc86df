"""Watches of Kubernetes: `handlers`, `cache`, `relist`, `workqueue`; `pods` and `crd` read objects."""
