"""The job's state, and the values that change it.

In reading order: `views` (reports), `events`, `actions`, `job`, `state`, `transaction` (changes of one event),
`evolve`, `limits`, `sizing`, `checkpoint_ids`, `shard_table`, `pairing`, `ledger`, `causes`, `faults`,
`memory_overrides`, `silence`, `hang`, `weight_versions`, `staleness` (of weights).
"""
