"""From a role that waits to ranks that run.

In reading order: `reservations`, `assign`, `local_ranks`, `visible_devices`, `checks` (nodes, before a start),
`starting`, `spares`, `standby`, `relaunch`, `rosters`, `driver_groups`, `shards`, `checkpoints`.
"""
