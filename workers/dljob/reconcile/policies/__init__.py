"""Policies of a pass, each for one subject.

`submit` (the launcher), `attempts`, `stopping`, `suspending`, `finish`, `leaving`, `commands`, `elastic`, `evidence`,
`machines`.
"""
