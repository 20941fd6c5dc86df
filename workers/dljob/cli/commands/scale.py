"""`dljob scale`: change the size of a role with bounds."""

from __future__ import annotations

from collections import Counter

from dljob.cli import output
from dljob.cli.target import HERE, JobTarget
from dljob.errors import UsageError
from dljob.telemetry.wording import counted


def scale(job: str, size: str, /, *more: str, where: JobTarget = HERE) -> None:
    """Change the number of ranks of a running job's role, within minReplicas and maxReplicas.

    A role gets the ranks for which there is capacity, and the rest when more capacity appears. An Elastic role
    restarts for that, after its checkpoints are on disk; of an Actor role the highest numbers come and go.

    Args:
        job: name or uid.
        size: the role and its ranks, such as trainer=4.
        more: further roles, one after another: the first one that is refused ends the command.
        where: this machine, or a cluster.
    """
    from dljob.api.values import role_size

    # First, so that no job is looked for in vain.
    sizes = [role_size(one) for one in (size, *more)]
    for role, count in Counter(role for role, _ in sizes).items():
        if count > 1:
            raise UsageError(f"role {role} has {counted(count, 'size')}", hint=f"write one {role}=N")
    with where.job("scale", job) as found:
        for role, ranks in sizes:
            found.scale(role, ranks)
            words = f"{role} of job {found.place} is to have {counted(ranks, 'rank')}"
            output.say(f"{words}; see dljob events {found.name} --follow{found.flags}")
