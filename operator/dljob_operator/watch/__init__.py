"""Watches of Kubernetes: `handlers`, `feed`, `cache`, `relist`, `workqueue`, `clock`; `pods` and `crd` read objects."""
