"""Logs of ranks on disk, in reading order: `cut` limits their size, `marks` record when each part was written.

The thread in `watch` does both. `archive` keeps whole logs beside the checkpoints. `master` is PrimeMaster's own log.
"""
