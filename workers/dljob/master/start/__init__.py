"""The start of ranks: from a waiting role to running processes, and what these ask of PrimeMaster.

In reading order: `reservations` (units on nodes), `assign` (which unit goes where), `local_ranks`, `visible_devices`,
`checks` (of nodes, before a start), `starting`, `spares` (processes), `standby` (spare nodes), `relaunch` (bad nodes),
`rosters` (collective groups), `driver_groups` (pending placement groups), `shards` (data), `checkpoints`,
`weights` (of servers).
"""
