"""`import dljob.compat.dlrover`: DLRover's import paths are dljob's in this process, and in those that inherit from it.

Before anything imports dlrover; `python -m dljob.compat --dlrover train.py` does it for a script that says nothing.
"""

from __future__ import annotations

import os

from dljob.compat.dlrover_api.process import install_everywhere

install_everywhere(os.environ)
