"""The handling of failures, from the cause to the restart or the job's end.

In reading order: `attribution` (which failure caused the others), `policy` (which rule decides), `repeats` (failures
that no restart would mend), `budget` (restarts left, backoff), `failover` (the level of a restart), `coupling` (roles
that restart with others), `restart` (carrying it out), `hanging`, `memory` (more of it after an OOM kill), `moving`
(units to other nodes), `ending` (the job's end).
"""
