"""`dljob logs`: output of the ranks, or PrimeMaster's log."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Annotated, TextIO, cast

from cyclopts import Parameter

from dljob.cli import output
from dljob.cli.target import HERE, JobTarget
from dljob.errors import UsageError

_SPAN = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.ASCII)
_UNITS = (86_400, 3600, 60, 1)
_TIME = "%Y-%m-%dT%H:%M:%S"
_SINCE = "write a span (90s, 10m, 1h30m, 2d) or a past time (2026-08-01T14:30, 2026-08-01T12:30:00Z)"


def logs(
    job: str,
    target: str | None = None,
    /,
    *,
    place: JobTarget = HERE,
    role: str | None = None,
    rank: int | None = None,
    tail: int | None = None,
    since: Annotated[str | None, Parameter(name="--since", allow_leading_hyphen=True)] = None,
    follow: Annotated[bool, Parameter(name=("--follow", "-f"), negative="")] = False,
    master: Annotated[bool, Parameter(negative="")] = False,
) -> None:
    """Show the output of a job's ranks, each line with the prefix [role/rank].

    Args:
        job: name or uid.
        target: a role such as rollout, or a rank such as rollout/2; short for --role and --rank.
        place: this machine, or a cluster.
        role: only this role.
        rank: only this rank.
        tail: only the last TAIL lines of each rank; on Kubernetes 8 MiB of each at most.
        since: only output since then: 90s, 10m, 1h30m, 2d, or a time such as 2026-08-01T14:30.
        follow: continue until the job is over.
        master: show PrimeMaster's decisions and reasons instead of the ranks' output.
    """
    if tail is not None and tail < 0:
        raise UsageError(f"--tail is a number of lines, not {tail}")
    if target is not None:
        role, rank = _target(target, role, rank)
    if master and (role, rank) != (None, None):
        raise UsageError("--master excludes a role or rank", hint="PrimeMaster belongs to the whole job: leave one out")
    # Before the job is looked for: a moment that cannot be read is refused at once.
    begin = None if since is None else moment(since, time.time())
    with place.job("logs", job) as handle:
        out = cast("TextIO", output.Stdout())
        handle.logs(role=role, rank=rank, tail=tail, since=begin, follow=follow, master=master, out=out)


def moment(text: str, now: float) -> float:
    """Parse the moment of `--since` to unix time; a time without a zone is in this machine's.

    Raises:
        UsageError: it is no moment, or in the future.
    """
    span = span_seconds(text)
    try:
        at = datetime.fromisoformat(text).timestamp() if span is None else now - span
    except (ValueError, OverflowError, OSError):
        raise UsageError(f"--since {text!r} is neither a span nor a time", hint=_SINCE) from None
    if at > now:
        raise UsageError(
            f"--since {text} is in the future: it is {time.strftime(_TIME, time.localtime(now))} now", hint=_SINCE
        )
    return max(0.0, at)


def span_seconds(text: str) -> float | None:
    """Return the seconds of a span such as 1h30m; None for another text."""
    parts = _SPAN.fullmatch(text)
    # The pattern also matches the empty text.
    if not parts or not text:
        return None
    return sum(float(count) * unit for count, unit in zip(parts.groups(default="0"), _UNITS, strict=True))


def _target(target: str, role: str | None, rank: int | None) -> tuple[str, int | None]:
    """Parse a target into role and rank.

    Raises:
        UsageError: it is malformed, or flags name role and rank too.
    """
    name, slash, number = target.partition("/")
    if role is not None or rank is not None:
        raise UsageError(f"{target} and --role or --rank", hint="say it once")
    if not name or (slash and not number.isdecimal()):
        raise UsageError(f"{target!r} is no target", hint="write a role such as rollout, or a rank such as rollout/2")
    return name, int(number) if slash else None
