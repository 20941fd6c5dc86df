"""`dljob ledger`: where the time of a job's ranks went."""

from __future__ import annotations

import shutil
from typing import Annotated

from cyclopts import Parameter

from dljob.api import kept
from dljob.cli import output, spending
from dljob.cli.target import HERE, JobTarget


def ledger(
    job: str,
    /,
    *,
    place: JobTarget = HERE,
    form: Annotated[output.TableFormat, Parameter(name=("--output", "-o"))] = "table",
) -> None:
    """Show where a job's time went: its accounts by role, device-hours, goodput, and what its failures cost.

    Args:
        job: name, uid, the first digits of a uid, or the path of a job's folder, also of a copy; or of a file with
            the ConfigMap of its logs.
        place: this machine, or a cluster.
        form: table, json or yaml.
    """
    if path := place.path(job):
        accounts = kept.accounts(path)
    else:
        with place.job("ledger", job) as handle:
            accounts = handle.accounts()
    if form != "table":
        output.structured(spending.data(accounts), form)
        return
    for line in spending.lines(accounts, shutil.get_terminal_size().columns):
        output.data(line)
