"""The spec: one pydantic tree that YAML, builder, CRD, CLI and docs are made from. No I/O here but reading a file.

Models, in reading order: `model`, `rank`, `cluster`, `policy`, `serving`, `references`, `collectives`, `standing`,
`scalars`, `quantity`, `devices`, `capabilities`, `cel` (rules for the API server), the status in `status`, and in
`redaction` what of a spec people see. Rooms from the lowest up: `text` (YAML, and the words about it), `rules` (between
fields), `loading`. `generate` writes the CRD (`crd`), the pages (`reference`, `reference_faults`), and what builder and
plan have of a role's options (`option_code`).
"""
