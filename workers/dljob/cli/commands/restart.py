"""`dljob restart`: restart a job, a role or a rank."""

from __future__ import annotations

from collections.abc import Mapping

from dljob.cli import output
from dljob.cli.attach import attached, local
from dljob.cli.where import HERE, JobTarget


def restart(job: str, target: str = "job", /, *, where: JobTarget = HERE) -> None:
    """Restart a running job, one of its roles, or one rank.

    Args:
        job: name or uid.
        target: job, a role such as rollout, or a rank such as rollout/2.
        where: this machine, or a cluster.
    """
    if where.remote:
        from dljob.cli.kubernetes.orders import restart as remote

        remote(job, target, where)
        return
    record = local("restart", job)
    with attached(record) as handle:
        # Checked here for an answer at once: PrimeMaster would refuse an unknown target in a note.
        check_target(target, handle.status())
        handle.restart(target)
    output.say(f"restart of {target} ordered; see dljob events {record.name} --follow")


def check_target(target: str, status: Mapping[str, object]) -> None:
    """Check that the job has a target.

    Raises:
        NotFoundError: it has not.
    """
    from dljob.api.values import suggestion
    from dljob.errors import NotFoundError

    roles: dict[str, int] = {r["name"]: r["desired"] for r in status["roles"]}  # type: ignore[index,attr-defined]
    role, slash, rank = target.partition("/")
    if target == "job" or (role in roles and (not slash or (rank.isdigit() and int(rank) < roles[role]))):
        return
    hint = f"{role}/0 to {role}/{roles[role] - 1}" if role in roles else suggestion(role, [*roles, "job"])
    raise NotFoundError(f"the job has no {target!r}", hint=hint)
