"""`dljob delete`: delete ended jobs."""

from __future__ import annotations

from dljob.api import registry
from dljob.cli import output
from dljob.cli.where import local


def delete(job: str, /, *more: str) -> None:
    """Delete the folders of ended jobs: journal, logs and files of their ranks.

    If one of the jobs is running, none is deleted. Checkpoints on a volume stay.

    Args:
        job: name, uid, or first digits of a uid; of several with one name, the running one, else the latest.
        more: further jobs.
    """
    chosen = [local("delete", name).record for name in (job, *more)]
    # All are checked before the first is deleted: a refusal must not leave half of the work done.
    for record in chosen:
        registry.refuse_living(record)
    # By uid: one job may have been named twice.
    for record in {record.uid: record for record in chosen}.values():
        registry.delete(record)
        output.say(f"job {record.name} ({record.uid[:8]}) deleted")
