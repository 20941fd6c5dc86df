"""The end of checkpointing in a rank.

The module imports nothing of checkpoints: a script that never saves must not pay for that import at its end.
"""

from __future__ import annotations

import sys


def close(*, ok: bool) -> None:
    """Hand the rank's saved checkpoints over to the saver of the node.

    With `ok` the call waits until they are on disk. A rank that failed does not wait: its peers cannot restart before
    its end is reported, and the saver holds the shared memory anyway.
    """
    used = sys.modules.get("dljob.runtime.checkpoint.checkpoints")
    if used is not None:
        used.checkpoint.close(wait=ok)
