"""`dljob doctor`."""

from __future__ import annotations

import asyncio
from typing import Annotated

from cyclopts import Parameter

from dljob.cli import output
from dljob.cli.where import HERE, Where
from dljob.errors import ExitCode


def doctor(
    *, where: Where = HERE, form: Annotated[output.TableFormat, Parameter(name=("--output", "-o"))] = "table"
) -> ExitCode:
    """Check what jobs need, here and on the cluster of the kubeconfig: one line each, with the fix.

    Nothing is changed anywhere. Exits with 1 when something is missing.

    Args:
        where: which cluster.
        form: table, json or yaml.
    """
    from dljob.cli.kubernetes import doctor as look

    findings = look.here()
    if where.remote or look.has_cluster():
        findings += asyncio.run(look.examine(where))
    else:
        findings.append(look.Finding("cluster", "skip", "no kubeconfig, so no cluster was looked at"))
    if form == "table":
        output.data("\n".join(look.lines(findings)))
    else:
        output.structured(look.data(findings), form)
    return ExitCode.OK if look.healthy(findings) else ExitCode.JOB_FAILED
