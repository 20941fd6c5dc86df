"""The Ray shell: PrimeMaster, worker hosts, calls between roles, backends, journals. The only room for ray and torch."""
