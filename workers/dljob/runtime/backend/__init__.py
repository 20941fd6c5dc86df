"""The backend interface, and Ray behind it.

In reading order: `interface`, `ray_backend`, `ray_keys`, `ray_tables`, `ray_drivers`, `masters` (which PrimeMaster
commands), `connect` (join a running Ray);
`embedded` starts a Ray on this machine, with `machine` and `sweeper`.
"""
