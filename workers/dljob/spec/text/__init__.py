"""Specs as text.

`syntax` says what is no YAML, `tree` reads YAML and remembers places, `emit` writes YAML, `kubectl` knows YAML 1.1,
`words` has the error messages.
"""
