"""The spec: one pydantic tree that YAML, builder, CRD, CLI and docs are made from. No I/O here but reading a file."""
