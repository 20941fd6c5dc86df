"""Kubernetes for the operator and the command: a thin asynchronous client, dicts in and out, and `kuberay_client`.

Everything that decides lives in `dljob.control` and `dljob.plan`.
"""
