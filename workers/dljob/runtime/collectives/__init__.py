"""Collectives across roles: the backends, the rendezvous of a group's members, and the effect of a lost member.

`group` is for users; `rendezvous` asks PrimeMaster, `runner` runs operations; `table` knows backends and groups.
"""
