"""Files of Python's debuggers: a thread in one of them waits for a person."""

from __future__ import annotations

_PARTS = ("/bdb.py", "/pdb.py", "/pydevd", "/debugpy/", "/remote_pdb.py", "/ray/util/rpdb.py", "/ipdb/")
"""Parts of their paths. All that are built on `pdb` pass through `bdb.py`; VS Code and PyCharm bring pydevd."""


def is_debuggers(filename: str) -> bool:
    """Return whether a frame of this file is a debugger's."""
    return any(part in filename for part in _PARTS)
