"""The title of this process in ps, htop and nvidia-smi: what they show in place of its command line."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

_ARGUMENTS = slice(45, 47)
"""Fields 48 and 49 of /proc/PID/stat, counted from field 3: where the command line begins and ends in memory."""


def set_title(title: str) -> None:
    """Show this process under a title, which is cut where the command line was shorter; nothing where that fails."""
    with suppress(OSError, ValueError):
        # Field 2, the command, may itself contain spaces and parentheses.
        fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
        begin, end = map(int, fields[_ARGUMENTS])
        if room := max(0, end - begin):
            # The kernel reads it from here. The last byte has to stay 0: else it would go on into the environment.
            text = title.encode(errors="replace")[: room - 1]
            ctypes.memmove(begin, text.ljust(room, b"\0"), room)
