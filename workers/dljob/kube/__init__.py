"""Kubernetes for the operator and the command: a thin asynchronous client, dicts in and out, and `kuberay_client`.

Decisions are made in `dljob.reconcile` and `dljob.plan`.
"""
