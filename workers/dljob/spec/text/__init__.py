"""Specs as text.

`tree` reads YAML and remembers places, `emit` writes YAML, `kubectl` knows YAML 1.1, `words` has the error messages.
"""
