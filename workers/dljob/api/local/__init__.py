"""Jobs of a Python program on this machine: `host` runs a Ray in a separate process, `session` starts and ends it."""
