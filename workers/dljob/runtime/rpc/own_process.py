"""The process that may use Ray: its forked children have neither Ray's threads nor those of its calls."""

from __future__ import annotations

import os

from dljob.errors import UsageError


def check_process(pid: int, subject: str) -> None:
    """Refuse `subject` in a forked child of process `pid`: it would wait for ever, or write into its parent's sockets.

    Raises:
        UsageError: This is not the process `pid`.
    """
    if os.getpid() != pid:
        raise UsageError(
            f"{subject} was used in process {os.getpid()}, a forked child, such as a DataLoader worker, "
            f"of process {pid}, a rank of a class or function: Ray does not work in a forked child",
            hint="use it in the rank itself and hand the child what it needs, or make the role a script (module, "
            "command): each forked child of a script has a connection of its own",
        )
