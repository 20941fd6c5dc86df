"""`current_worker()` of DLRover, and the ranks of a role in its terms."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Protocol

from dljob.compat.dlrover_api import payload
from dljob.compat.dlrover_api.config import config_object
from dljob.compat.dlrover_api.models import ACCELERATOR_TYPE, ActorInfo, JobInfo
from dljob.errors import NotFoundError, UsageError
from dljob.runtime.process import context
from dljob.runtime.process.worker_context import WorkerContext

_ACTOR = re.compile(r"(?P<role>.+)_\d+-(?P<rank>\d+)_\d+-\d+")


class Worker(Protocol):
    """A worker, as its own code sees it."""

    @property
    def job_info(self) -> JobInfo:
        """The job."""
        ...

    @property
    def actor_info(self) -> ActorInfo:
        """The worker."""
        ...


class _Current:
    """This process's rank."""

    @property
    def job_info(self) -> JobInfo:
        me, known = context.current_worker(), payload.own_payload()
        kind = ACCELERATOR_TYPE(known.accelerator_type)
        return JobInfo(known.job_name or me.job_name, me.job_uid, _config(me), kind)

    @property
    def actor_info(self) -> ActorInfo:
        me = context.current_worker()
        return _info(me.role, me.rank, me.world_size, me.local_rank)

    def __repr__(self) -> str:
        return f"{self.job_info} {self.actor_info}"


@cache
def _config(me: WorkerContext) -> Any:
    """Return the config; one object for all calls, as in DLRover."""
    return config_object(dict(me.config))


def current_worker() -> Worker:
    """Return this rank.

    Raises:
        UsageError: this process is no rank of a job.
    """
    context.current_worker()
    return _Current()


def _info(role: str, rank: int, size: int, local: int | None = None) -> ActorInfo:
    known = payload.own_payload()
    spec, given_name = known.workload(role), known.given_name(role)
    per_group = spec.per_group
    local = rank % per_group if local is None else local
    name = f"{given_name}_{size}-{rank}_{per_group}-{rank % per_group}"
    return ActorInfo(name, given_name, spec, None, rank, rank // per_group, local)


def actors_of(role: str, *, optional: bool = False) -> list[ActorInfo]:
    """Return the ranks of a role, whose name may be written in any case.

    Raises:
        ValueError: the job has no such role, and it is not optional.
    """
    me = context.current_worker()
    name = payload.role_name(role)
    if name not in me.peers:
        if optional:
            return []
        raise ValueError(f"no role {role!r} in this job; it has {', '.join(me.peers)}")
    size = me.calls.sizes.get(name, me.peers[name])
    return [_info(name, rank, size) for rank in range(size)]


def info_of(actor: str) -> ActorInfo:
    """Return the rank of an actor's name, as `actor_info.name` has it, or of `role/rank`.

    Raises:
        NotFoundError: the job has no such rank.
    """
    match = _ACTOR.fullmatch(actor)
    role, rank = (match["role"], match["rank"]) if match else (actor.partition("/")[0], actor.partition("/")[2] or "0")
    infos = actors_of(role, optional=True)
    if not rank.isdecimal() or int(rank) >= len(infos):
        sizes = ", ".join(f"{name} ({size})" for name, size in context.current_worker().peers.items())
        raise NotFoundError(f"the job has no actor {actor!r}", hint=f"its roles: {sizes}")
    return infos[int(rank)]


def own_job() -> WorkerContext:
    """Return the context of this rank; DLRover's API is for ranks.

    Raises:
        UsageError: this process is no rank of a job.
    """
    try:
        return context.current_worker()
    except UsageError as error:
        raise UsageError("PrimeMasterApi is for code in the job", hint="outside it: dljob.job(NAME)") from error
