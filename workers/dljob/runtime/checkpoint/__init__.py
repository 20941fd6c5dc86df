"""`checkpoint.save(step, state)` and `checkpoint.load()`: a rank that dies loses the work since its last save, no more.

`save` copies the state into shared memory and returns; the saver, one process per node, writes the copy to disk. The
copy of a rank that is killed outlives it: the saver persists it all the same, and hands it to the rank's next process.
A copy that is not yet on disk is also sent to a peer node, if one has room (ADR 31).

A rank, in reading order: `checkpoints` (what user code calls), `client`, `pack`, `shards`, `slot`, `wire`. The saver of
a node: `saver_agent`, `process`, `saver`, `holding`, `restoring`, `saver_peers`, `peers`, `carrying`, `final_save`,
`saving`. On disk: `files`, `disk`, `sealed`, `choice`, `book`, `model`. Outside a job: `listing`, `export`, `listed`.
"""
