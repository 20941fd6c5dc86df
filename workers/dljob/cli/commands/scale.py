"""`dljob scale`."""

from __future__ import annotations

from dljob.cli import output
from dljob.cli.attach import attached, local
from dljob.cli.where import HERE, Where


def scale(job: str, size: str, /, *, where: Where = HERE) -> None:
    """Give an Elastic role of a running job another number of ranks, within minReplicas and maxReplicas.

    It gets what there is room for, once what its ranks copied is on disk, and more when there is room.

    Args:
        job: name or uid.
        size: the role and its ranks, such as trainer=4.
        where: on which side.
    """
    from dljob.api.values import role_size

    role, ranks = role_size(size)
    if where.remote:
        from dljob.cli.kubernetes.orders import scale as remote

        remote(job, role, ranks, where)
        return
    record = local("scale", job)
    with attached(record) as handle:
        handle.scale(role, ranks)
    output.say(f"{role} is to have {ranks} ranks; see dljob events {record.name} --follow")
