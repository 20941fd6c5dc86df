"""A stand-in for Ray's dashboard agent in an embedded Ray: it offers nothing, and ends with its raylet.

Ray's own agent costs 2 CPU seconds and 130 MB per raylet, and nothing uses it here. But a raylet insists on an agent
and reads its ports from files. -1 is what Ray's agent writes if Ray is installed without `default`
(ray/dashboard/agent.py, 2.60). Run as `python -I -S light_agent.py PORT_FILE...`.
"""

from __future__ import annotations

import os
import select
import sys
from pathlib import Path


def main(files: list[str]) -> None:
    """Write the port files, each at once as a whole, then wait for the raylet's end."""
    raylet = os.pidfd_open(os.getppid())
    for name in files:
        # The raylet reads a file as soon as it exists, and must not find a part of it.
        part = Path(f"{name}.part")
        part.write_text("-1")
        part.replace(name)
    # An agent that ended sooner would take its raylet with it.
    select.select([raylet], [], [])


if __name__ == "__main__":
    main(sys.argv[1:])
