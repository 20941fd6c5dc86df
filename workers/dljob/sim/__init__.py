"""The simulator: PrimeMaster's own core among modelled nodes and processes, under virtual time and seeded faults.

Nothing here reads a clock or draws at random but from a seed: the same case gives the same trace, byte for byte.
"""
