"""A simulated job: the real core of PrimeMaster among modelled nodes and processes.

In reading order: `model`, `environment` (nodes and processes), `world`, `executor` (effects of actions), `events` (what
happens without a fault), `faults`, `fault_schedule`, `jobs`. Rules that must hold: `invariants`, `checks`, `elastic`,
`leaving`, `domain_invariants`, `spare_invariants`, `repeat_invariants`.
"""
