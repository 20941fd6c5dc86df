"""WeightChannel publishes versions of a state to other roles.

In reading order: `channel`, `model`, `keeper` (the storage actor), `buckets` (a state as flat buffers), `transport`
(the interfaces), and the transports `ray_transport`, `group_transport`, `rdt_transport`, `yr_transport`.
"""
