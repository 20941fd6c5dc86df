"""Simulators of PrimeMaster, under virtual time and seeded faults.

The decisions are the product's own code. Nothing here reads a clock, and all randomness comes from a seed: the same
case gives the same trace, byte for byte. `world` models the environment of a PrimeMaster, `simulate` drives a world
through a case, `explore` tries every order of events in small worlds. The operator's simulator is
`dljob_operator.testing`.
"""
