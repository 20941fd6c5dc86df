"""The operator: kopf watches, a work queue, and calls to Kubernetes. It decides nothing: `dljob.reconcile` does.

Rooms from the lowest up: `watch` (caches of Kubernetes objects), `leader` (election), `controller` (observe, reconcile,
execute), `webhook` (admission). `app` has the parts, `process` runs them in one process, `main` and `command` start it.
`testing` simulates operators under virtual time.
"""
