"""A simulated job: the real core of PrimeMaster among modelled nodes and processes.

In reading order: `model`, `tables`, `environment` (nodes and processes), `state`, `executor` (effects of actions),
`prime_master` (the core), `servers` (what hosts of servers report), `events` (what happens without a fault), `faults`,
`world` (what a driver sees), `fault_schedule`, `jobs`.
Rules that must hold: `invariants`, `checks`, `elastic`, `leaving`, `domain_invariants`, `spare_invariants`,
`repeat_invariants`, `coupling_invariants`, `server_invariants`,
`weight_invariants`, `blame_invariants`.
"""
