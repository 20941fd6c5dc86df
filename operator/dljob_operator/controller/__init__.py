"""Control loop: observe, reconcile, execute.

In reading order: `controller`, `observe`, `execute`, `poller` and `heads` (answers of PrimeMaster), `references`
(existing RayClusters), `machines`, `services`, `hangs`, `events`, `metrics`, `startup`, `turns`, `leader_tasks`.
"""
