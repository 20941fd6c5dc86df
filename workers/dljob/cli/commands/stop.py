"""`dljob stop`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from dljob.api import registry
from dljob.cli import output
from dljob.cli.attach import attached


def stop(job: str, /, *, wait: Annotated[bool, Parameter(negative="")] = False) -> None:
    """End a running job; its journal, logs and what it saved stay in its folder.

    Args:
        job: name or uid.
        wait: return when nothing of it is left.
    """
    record = registry.find(job)
    with attached(record) as handle:
        handle.stop()
        if wait:
            handle.wait()
    output.say(f"job {record.name} {'stopped' if wait else 'is being stopped'}; its folder: {record.dir}")
