"""Objects that a job owns, in reading order: `children`, `annotate`, `memory_growth`, `patches`, `drift`."""
