"""What follows a failure.

In reading order: `attribution` (which failure caused the others), `policy` (which rule decides), `repeats`, `budget`
(whether the restart may still be paid for), `failover` (the level of the restart), `restart`, `hanging`, `memory`,
`moving`, `ending` (the job's end).
"""
