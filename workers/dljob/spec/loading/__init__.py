"""From a file to a manifest: `load`, `validate`; `faults` loads faults files."""
