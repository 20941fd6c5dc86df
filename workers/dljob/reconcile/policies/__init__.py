"""Policies of a pass, each for one subject.

`submit` (the launcher), `attempts` (lost attempts and the next one), `stopping` (stop orders and deadlines),
`suspending`, `finish` (the end and the cleanup), `images` (those of node groups), `leaving` (deletion of the DLJob),
`commands` (restarts by annotation), `elastic` (replicas), `evidence` (causes for PrimeMaster), `machines` (bad
Kubernetes nodes).
"""
