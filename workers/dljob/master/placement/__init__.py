"""Placement: units on nodes that join, fail and leave, and roles that change their size.

In reading order: `nodes` (lost, frozen and excluded ones), `admission` (reserving units), `departures` (announced ends
of nodes), `checked` (results of node checks), `elastic` (when a role shrinks or grows), `resizing` (how it does),
`giving` (room of fleets for others), `commands` (of users), `timers`, `previous_attempt`, `takeover` (which of two
PrimeMasters commands), `reissue` (orders repeated by a new epoch).
"""
