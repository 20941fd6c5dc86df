"""Logs of ranks on disk, in reading order: `cut` keeps them from filling it, `marks` tell when what was written.

`watch` is the thread that does both. `archive` keeps whole logs beside the checkpoints. `master` is
PrimeMaster's own log.
"""
