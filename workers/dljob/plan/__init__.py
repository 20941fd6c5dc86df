"""PURE. The plan of a job: roles, groups, ranks, units, machines.

In reading order: `plan`, `model`, `role`, `role_options`, `roles`, `units`, `nodes`, `derive`, `capacity`, `packing`,
`conflict`, `domains`, `elastic`, `one_machine`, `quota`, `collectives`. Tables and words: `devices`, `labels`,
`amounts`, `words`, `env`. Faults files: `targets`, `incidents`.
"""
