"""`dljob why`: the first cause of a job's failure."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from dljob.api import kept
from dljob.cli import diagnosis, output
from dljob.cli.target import HERE, JobTarget


def why(
    job: str,
    /,
    *,
    place: JobTarget = HERE,
    form: Annotated[output.TableFormat, Parameter(name=("--output", "-o"))] = "table",
) -> int:
    """Explain a job's last failure: first cause, evidence, what followed, what was done, what to do next.

    Exit codes: 0 nothing failed, 10 user code, 11 memory, 12 device, 13 node or network, 14 stopped or preempted,
    15 spec or placement, 19 unknown.

    Args:
        job: name, uid, the first digits of a uid, or the path of a job's folder, also of a copy; or of a file with its
            DLJob, or with the ConfigMap of its logs.
        place: this machine, or a cluster.
        form: table (at most 20 lines), json or yaml.
    """
    if path := place.path(job):
        overview = kept.accounts(path).overview
        explained = diagnosis.diagnose(overview, *kept.command_target(path, overview))
    else:
        with place.job("why", job) as handle:
            overview = handle.evidence()
            explained = diagnosis.diagnose(overview, job, handle.flags)
    if form != "table":
        output.structured(diagnosis.data(overview, explained), form)
    else:
        for line in explained.lines:
            output.data(line)
    return int(explained.kind)
