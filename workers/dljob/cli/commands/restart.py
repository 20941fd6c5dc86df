"""`dljob restart`: restart a job, a role or a rank."""

from __future__ import annotations

from dljob.cli import output
from dljob.cli.target import HERE, JobTarget


def restart(job: str, target: str = "job", /, *, place: JobTarget = HERE) -> None:
    """Restart a running job, one of its roles, or one rank.

    Args:
        job: name or uid.
        target: job, a role such as rollout, or a rank such as rollout/2.
        place: this machine, or a cluster.
    """
    with place.job("restart", job) as handle:
        handle.restart(target)
        target_text = "" if target == "job" else f" of {target}"
        output.say(
            f"restart{target_text} of job {handle.place} ordered; see dljob events {handle.name} --follow{handle.flags}"
        )
