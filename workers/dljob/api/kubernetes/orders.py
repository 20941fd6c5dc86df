"""Orders to a running job: written as annotations, taken by the operator, which says so in `status.lastCommands`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from dljob.api.kubernetes.jobs import changes, ended, items, phase_of, place_of, role_sizes, status_of
from dljob.api.values import suggestion
from dljob.control import names
from dljob.errors import DeadlineError, NotFoundError, UsageError

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]
Kind = Literal["restart", "stop"]

TAKEN_S = 60.0
"""How long the operator may take to see an order."""
_ANNOTATION = {"restart": names.RESTART, "stop": names.STOP}


def check_target(job: Mapping[str, Any], target: str) -> None:
    """Whether the job has such a target: job, a role, or a rank.

    Raises:
        NotFoundError: it has not.
    """
    sizes = role_sizes(job)
    role, slash, rank = target.partition("/")
    if target == "job" or (role in sizes and (not slash or (rank.isdecimal() and int(rank) < sizes[role]))):
        return
    hint = f"{role}/0 to {role}/{sizes[role] - 1}" if role in sizes else suggestion(role, [*sizes, "job"])
    raise NotFoundError(f"job {job['metadata']['name']} has no {target!r}", hint=hint)


def moment() -> str:
    """Now as RFC 3339 with microseconds, which tells two orders apart."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def annotations_for(kind: Kind, target: str, at: str) -> dict[str, str]:
    """What an order is on the DLJob."""
    extra = {names.RESTART_TARGET: target} if kind == "restart" else {}
    return {_ANNOTATION[kind]: at, **extra}


def answer(status: Mapping[str, Any], kind: Kind, at: str) -> Json | None:
    """What became of the order of that moment: `state` Sent, Refused or Ignored, and a message; None: nothing yet."""
    return next((c for c in items(status, "lastCommands") if c.get("at") == at and c.get("kind", kind) == kind), None)


async def order(kube: Kube, job: Json, kind: Kind, target: str = "job", within: float = TAKEN_S) -> None:
    """Give an order and wait until the operator has taken it.

    Args:
        kube: the cluster.
        job: the DLJob, as it was found.
        kind: restart or stop.
        target: job, a role, or a rank such as rollout/2.
        within: seconds.

    Raises:
        NotFoundError: the job has ended, or has no such target.
        UsageError: the operator or PrimeMaster refused it, in their words.
        DeadlineError: the operator did not take it in time; the order stands.
    """
    from dljob.kube.api import DLJOBS

    if ended(job):
        raise NotFoundError(f"job {place_of(job)} has ended: {phase_of(job)}")
    check_target(job, target)
    meta, at = job["metadata"], moment()
    patch = {"metadata": {"uid": meta["uid"], "annotations": annotations_for(kind, target, at)}}
    marked = await kube.patch(DLJOBS, meta["name"], meta["namespace"], patch)
    try:
        said = await asyncio.wait_for(_answered(kube, marked, kind, at), within)
    except TimeoutError:
        raise DeadlineError(
            f"the operator has not taken the {kind} of job {place_of(job)} within {within:g} s; the order stands",
            hint="is the operator up? see dljob doctor",
        ) from None
    if said.get("state", "Sent") != "Sent":
        what = kind if kind == "stop" else f"{kind} of {target}"
        raise UsageError(f"{what} {str(said['state']).lower()}: {said.get('message')}")


async def _answered(kube: Kube, job: Json, kind: Kind, at: str) -> Json:
    """The answer; the end of the job is one to a stop."""
    last = job
    async with aclosing(changes(kube, job)) as found:
        async for last in found:
            said = answer(status_of(last), kind, at)
            if said is not None:
                return said
    if kind == "stop":
        return {}
    raise NotFoundError(f"job {place_of(job)} ended before: {phase_of(last)}")
