"""`dljob scale`: change the size of a role with bounds."""

from __future__ import annotations

from collections import Counter

from dljob.cli import output
from dljob.cli.target import HERE, JobTarget
from dljob.errors import UsageError
from dljob.telemetry.wording import counted


def scale(job: str, size: str, /, *more: str, place: JobTarget = HERE) -> None:
    """Change the number of ranks of a running job's role, within minReplicas and maxReplicas.

    A role gets the ranks for which there is capacity, and the rest when more capacity appears. An Elastic role
    restarts for that, after its checkpoints are on disk; of an Actor role the highest numbers come and go.

    Args:
        job: name or uid.
        size: the role and its ranks, such as trainer=4.
        more: further roles, one after another: the first one that is refused ends the command.
        place: this machine, or a cluster.
    """
    from dljob.api.values import role_size

    # First, so that no job is looked for in vain.
    sizes = [role_size(text) for text in (size, *more)]
    for role, count in Counter(role for role, _ in sizes).items():
        if count > 1:
            raise UsageError(f"role {role} has {counted(count, 'size')}", hint=f"write one {role}=N")
    with place.job("scale", job) as handle:
        for role, ranks in sizes:
            handle.scale(role, ranks)
            words = f"{role} of job {handle.place} is to have {counted(ranks, 'rank')}"
            output.say(f"{words}; see dljob events {handle.name} --follow{handle.flags}")
