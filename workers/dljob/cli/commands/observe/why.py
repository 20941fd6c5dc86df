"""`dljob why`: the first cause of a job's failure."""

from __future__ import annotations

from dljob.api.local import views
from dljob.cli import diagnosis, output
from dljob.cli.target import HERE, JobTarget


def why(job: str, /, *, where: JobTarget = HERE) -> int:
    """Explain a job's last failure: first cause, evidence, what followed, what was done, what to do next.

    Exit codes: 0 nothing failed, 10 user code, 11 memory, 12 device, 13 node or network, 14 stopped or preempted,
    15 spec or placement, 19 unknown.

    Args:
        job: name, uid, the first digits of a uid, or the path of a job's folder, also of a copy.
        where: this machine, or a cluster.
    """
    if folder := where.folder(job):
        seen = views.in_folder(folder)
        explained = diagnosis.diagnose(seen, str(seen.status["name"]), "")
    else:
        with where.job("why", job) as found:
            explained = diagnosis.diagnose(found.overview(), job, found.flags)
    for line in explained.lines:
        output.data(line)
    return int(explained.kind)
