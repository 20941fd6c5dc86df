"""`dljob scale`: change the size of a role with bounds."""

from __future__ import annotations

from dljob.cli import output
from dljob.cli.target import HERE, JobTarget
from dljob.telemetry.wording import counted


def scale(job: str, size: str, /, *, where: JobTarget = HERE) -> None:
    """Change the number of ranks of a running job's role, within minReplicas and maxReplicas.

    The role gets the ranks for which there is capacity, and the rest when more capacity appears. An Elastic role
    restarts for that, after its checkpoints are on disk; of an Actor role the highest numbers come and go.

    Args:
        job: name or uid.
        size: the role and its ranks, such as trainer=4.
        where: this machine, or a cluster.
    """
    from dljob.api.values import role_size

    # First, so that no job is looked for in vain.
    role, ranks = role_size(size)
    with where.job("scale", job) as found:
        found.scale(role, ranks)
        words = f"{role} of job {found.place} is to have {counted(ranks, 'rank')}"
        output.say(f"{words}; see dljob events {found.name} --follow{found.flags}")
