"""PURE. From a spec to roles, groups, ranks, units, bundles, demand and the RayCluster manifest: no clock, no I/O."""
