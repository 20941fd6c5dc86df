"""WeightChannel publishes versions of a state to other roles.

In reading order: `channel`, `model`, `keeper` (the storage actor), `buckets` (a state as flat buffers), `transport`
(the interfaces, of which `WeightTransport` is public), the store's `ray_transport`, and the transports beside it:
`group_transport`, `rdt_transport`, `yr_transport` (with `datasystem`, its client). Between nodes `ray_transport` has a
chain: `chain` (its decisions), `chain_line` (a connection), `chain_transfer` (a node's memory), `relay` (the actor of
a node), `chain_desk` (the keeper's part), `chain_reader`.
"""
