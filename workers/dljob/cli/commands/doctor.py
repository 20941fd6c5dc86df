"""`dljob doctor`: check this machine and the cluster."""

from __future__ import annotations

import asyncio
from typing import Annotated

from cyclopts import Parameter

from dljob.cli import output
from dljob.cli.target import HERE, JobTarget
from dljob.errors import ExitCode


def doctor(
    *, place: JobTarget = HERE, form: Annotated[output.TableFormat, Parameter(name=("--output", "-o"))] = "table"
) -> ExitCode:
    """Check the requirements of jobs, on this machine and on the kubeconfig's cluster, with a fix for each.

    On this machine: packages, names and addresses, ports, CPUs and memory within the control group, shared memory,
    disks, limits of files and processes, devices as seen by drivers, torch and Ray, and remains of earlier jobs.

    With a flag that selects a cluster, most checks of this machine are left out. Nothing is changed anywhere. Exits
    with 1 when a check fails; warnings do not count.

    Args:
        place: the cluster.
        form: table, json or yaml.
    """
    from dljob.cli.kubernetes import checks
    from dljob.cli.kubernetes import doctor as look
    from dljob.cli.machine.checks import check_machine

    findings = look.check_packages() + ([] if place.remote else check_machine())
    if place.remote or look.has_cluster():
        # The only command that looks at a cluster unasked: it changes nothing, and says where it looked (ADR 13).
        findings += asyncio.run(checks.examine(place))
    else:
        findings.append(look.CheckResult("cluster", "skip", "no kubeconfig, so no cluster was looked at"))
    if form == "table":
        output.data("\n".join(look.lines(findings)))
    else:
        output.structured(look.data(findings), form)
    return ExitCode.OK if look.healthy(findings) else ExitCode.JOB_FAILED
