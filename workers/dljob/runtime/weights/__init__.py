"""WeightChannel publishes versions of a state to other roles.

In reading order: `channel`, `model`, `keeper` (the actor), `buckets` (a state as flat buffers), `transport` (what
transports share), and the transports `ray_transport`, `group_transport`, `rdt_transport`, `yr_transport`.
"""
