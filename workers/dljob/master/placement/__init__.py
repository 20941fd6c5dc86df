"""Nodes come and go, and roles change size.

In reading order: `nodes`, `admission`, `departures`, `checked`, `elastic`, `resizing`, `commands` (users' orders),
`timers`, `previous_attempt`, `reissue` (actions ordered again by a new PrimeMaster).
"""
