"""Advice from the records of past jobs: `dljob advise`.

`job_use` measures a job's record: memory, CPU, saves, failures; `values` reads what may be damaged. `shapes` says which
jobs are comparable. `proposals` has what advice consists of; `resources`, `callees`, `checkpoints` and `rules`
make it; `slowness` lists what PrimeMaster told of slow ranks and growing memory.
`earlier_jobs` hands records to the choice of `resources.auto` (`spec.chosen_resources`).
`past_jobs` reads folders and asks them all, and `file_changes` writes advice into a job's file. docs/adr/0119-advice.md
has the reasons.
"""
