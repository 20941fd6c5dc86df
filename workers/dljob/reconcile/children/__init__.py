"""A job's objects in Kubernetes, in reading order: `children`, `annotate`, `memory_growth`, `patches`, `drift`."""
