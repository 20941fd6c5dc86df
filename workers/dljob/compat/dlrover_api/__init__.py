"""DLRover's API on dljob's: the modules behind the paths that `dljob.compat.dlrover` redirects.

In reading order: `names` (the table of all paths), `finder` and `process` (imports), `notes` (told once), `config`,
`logs`, `models` and `builder` (the job), `payload` and `draft` (its translation), `submit`, `rank` (the worker),
`worker`, `calls`, `queues`, `master`, `loader`, `sampler`, `trainer`, `flash` (what its code calls).
"""
