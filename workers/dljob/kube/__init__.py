"""Kubernetes for the operator and the command: a thin asynchronous client, dicts in and out, and `kuberay_client`.

Decisions are made in `dljob.reconcile` and `dljob.plan`.
"""

import os

if not os.path.isabs(os.path.expanduser("~")):  # noqa: PTH111, PTH117 - Path.expanduser raises here
    # The client asks for a home folder while it is imported, and raises RuntimeError for a user without one. Container
    # engines give such a user this one.
    os.environ["HOME"] = "/"
