"""`dljob delete` and `dljob prune`: delete ended jobs."""

from __future__ import annotations

import time
from typing import Annotated

from cyclopts import Parameter

from dljob.api import registry
from dljob.cli import output
from dljob.cli.target import local
from dljob.errors import ExitCode, UsageError
from dljob.telemetry.wording import counted


def delete(job: str, /, *more: str) -> None:
    """Delete the folders of ended jobs: journal, logs and files of their ranks.

    If one of the jobs is running, none is deleted. A job on a Ray that was there before counts as ended, too, when
    nothing listens at that Ray's address any more, as seen from this machine. Checkpoints on a volume stay.

    Args:
        job: name, uid, or first digits of a uid; of several with one name, the running one, else the latest.
        more: further jobs.
    """
    from dljob.api.handle import may_run

    chosen = [local("delete", name).record for name in (job, *more)]
    # All are checked before the first is deleted: a refusal must not leave half of the work done.
    for record in chosen:
        # A job whose Ray is gone has no final status, and never gets one.
        if not record.over and may_run(record):
            registry.refuse_living(record)
    # By uid: one job may have been named twice.
    for record in {record.uid: record for record in chosen}.values():
        registry.delete(record)
        output.say(f"job {record.name} ({record.uid[:8]}) deleted")


def prune(*, older_than_days: float = 7.0, dry_run: Annotated[bool, Parameter(negative="")] = False) -> int:
    """Delete the folders of all jobs that ended some time ago.

    A job on a Ray that does not answer stays, since the network may be the reason; `dljob delete JOB` deletes it.
    Exits with 1 when a folder cannot be deleted; the others are deleted all the same.

    Args:
        older_than_days: only jobs that started at least so many days ago; 0: all that have ended.
        dry_run: list them, and delete none.
    """
    # Not `< 0`, which would let nan pass.
    if not older_than_days >= 0:
        raise UsageError(f"--older-than-days {older_than_days}", hint="write 0 days or more")
    before = time.time() - older_than_days * 86400
    # By the start: a job that lost its runner has no time of its end.
    old = [record for record in registry.records() if record.started <= before]
    for record in old:
        if host := record.elsewhere:
            output.say(f"job {record.name} ({record.uid[:8]}) stays: it runs on {host}, or was killed there")
    ended = [record for record in old if record.over or record.stale]
    done = [record for record in ended if _pruned(record, dry_run=dry_run)]
    output.say(f"{counted(len(done), 'job')} {'would be deleted' if dry_run else 'deleted'}")
    return ExitCode.OK if len(done) == len(ended) else ExitCode.JOB_FAILED


def _pruned(record: registry.RegistryEntry, *, dry_run: bool) -> bool:
    """Delete a folder, or find it one of dljob's; otherwise say why it stays."""
    try:
        if dry_run:
            registry.refuse_link(record)
        else:
            registry.delete(record)
    # Such as files of another user, of a job in a container. The folders after this one are no less in the way.
    except UsageError as error:
        output.say(f"job {record.name} ({record.uid[:8]}) stays: {error.message}")
        return False
    output.data(f"{record.name} {record.uid[:8]} {record.dir}")
    return True
