"""The operator: kopf watches, a work queue, and calls to Kubernetes. It decides nothing: `dljob.reconcile` does.

Rooms from the lowest up: `watch` (caches of Kubernetes objects), `leader` (election), `controller` (observe, reconcile,
execute), `webhook` (admission). `process` is one operator process, `app` wires it, `main` and `command` start it.
`testing` simulates operators under virtual time.
"""
