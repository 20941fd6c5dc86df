"""Role calls: one call from a role becomes calls of its ranks, and their answers become one.

Caller, in reading order: `rpc`, `sending`, `pending_call`, `client`, `direct`, `invocation`, `futures`, `arrivals`,
`streams`. Callee: `server`, `stream_producer`. Both: `large_args`. `storage_actor` and `storage_actors` are the actors
that keep data which ranks share.
"""
