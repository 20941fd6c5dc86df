"""PURE. The operator's decisions: observed objects and `now` in, a `ReconcileResult` with its reason out.

Rooms from the lowest up; each imports only rooms named before it: `state`, `children`, `policies`, `status`. Beside
them `leadership` decides which operator acts. `reconcile` is one pass over one job; `admission` judges a DLJob as it is
applied. `dljob_operator` observes and executes.

"""
