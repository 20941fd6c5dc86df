"""What runs where: roles, groups, ranks, units, machines, and the RayCluster that would carry them. Pure."""
