"""Simulators of PrimeMaster and of the operator, under virtual time and seeded faults.

The decisions are the product's own. Nothing here reads a clock, or draws at random but from a seed: the same case gives
the same trace, byte for byte. `world` models the surroundings of a PrimeMaster, `simulate` drives a world through a
case, `explore` tries every order of events in small worlds, `kubernetes` models what the operator meets.
"""
