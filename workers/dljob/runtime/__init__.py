"""The Ray shell: PrimeMaster, worker hosts, role calls, backends, journals. The only room for ray and torch."""
