"""Role calls: one call from a role becomes calls of its ranks, and their answers become one.

Caller, in reading order: `rpc`, `sending`, `client`, `own_process`, `direct`, `large_args`, `object_store`, `futures`,
`arrivals`, `waits`, `resuming`, `streams`. Callee: `server`, `resumed`, `stream_producer`. `storage_actor` and
`storage_actors` are the actors that keep data which ranks share.
"""
