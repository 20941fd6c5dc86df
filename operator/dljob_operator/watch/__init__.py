"""Watches of Kubernetes: `handlers`, `feed`, `cache`, `relist`, `namespaces`, `workqueue`, `clock`, `pods`, `crd`."""
