"""`dljob restart`: restart a job, a role or a rank."""

from __future__ import annotations

from dljob.cli import output
from dljob.cli.target import HERE, JobTarget


def restart(job: str, target: str = "job", /, *, where: JobTarget = HERE) -> None:
    """Restart a running job, one of its roles, or one rank.

    Args:
        job: name or uid.
        target: job, a role such as rollout, or a rank such as rollout/2.
        where: this machine, or a cluster.
    """
    with where.job("restart", job) as found:
        found.restart(target)
        what = "" if target == "job" else f" of {target}"
        output.say(f"restart{what} of job {found.place} ordered; see dljob events {found.name} --follow{found.flags}")
