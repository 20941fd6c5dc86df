"""Public API for launching scripts: the builders, `submit`, and the handle of a job.

Scripts import the public names from `dljob`. In reading order: `builder`, `role`, `role_options`, `setters`, `rl`,
`machines`, `collocate`, `values`, `unsupported` (building a job), `workload` and `job` (its draft), `place` and `find`
(where it runs), `any_job`, `handle`, `shown_job`, `views`, `logs`, `master_log` (a job that runs), `registry` and
`reach` (jobs of this machine), `torchrun`, `torchrun_line`, `torchrun_console`.
"""
