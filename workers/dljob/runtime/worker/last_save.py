"""What a rank saved before its user code ended. Light: a script that saves nothing imports nothing for it."""

from __future__ import annotations

import sys


def close(*, ok: bool) -> None:
    """Give what was saved to the saver of the node.

    A rank that ended well waits until it is on disk. One that failed does not: its peers wait to hear of it, and the
    saver holds the memory.
    """
    used = sys.modules.get("dljob.runtime.checkpoint")
    if used is not None:
        used.checkpoint.close(wait=ok)
