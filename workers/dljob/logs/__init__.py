"""Log files of ranks and of PrimeMaster on disk.

Modules in reading order: `cut` limits the size of a log, `marks` record when each part was written, `watch` has the
thread that does both, `archive` copies whole logs to the volume of the checkpoints, `master` is PrimeMaster's own log.
"""
