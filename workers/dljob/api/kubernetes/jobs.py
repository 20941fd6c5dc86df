"""DLJobs in a namespace: found by name or uid, followed from change to change, and whether they have ended."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, cast

from dljob.api.registry import FINAL
from dljob.api.values import suggestion
from dljob.errors import DeadlineError, NotFoundError, UnreachableError

if TYPE_CHECKING:
    from dljob.kube.api import Kube

Json = dict[str, Any]

_UID8 = 8
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_STEPS = frozenset({"Accepted", "QuotaReserved", "ClusterReady", "MasterReady", "PlacementReady", "RolesReady"})
"""Conditions that come true one after the other."""
POLL_S = 1.0
PATIENCE_S = 120.0
"""For how long an API server that went away while a job is followed is asked again."""


def part(value: Mapping[str, Any], key: str) -> Json:
    """An object within an object; empty when it is not there."""
    return cast("Json", value.get(key) or {})


def items(value: Mapping[str, Any], key: str) -> list[Json]:
    """A list of objects within an object; empty when it is not there."""
    return cast("list[Json]", value.get(key) or [])


def status_of(job: Mapping[str, Any]) -> Json:
    """The status; empty before the operator has seen the job."""
    return part(job, "status")


def phase_of(job: Mapping[str, Any]) -> str:
    """The phase; Pending before the operator has seen the job."""
    return str(status_of(job).get("phase") or "Pending")


def ended(job: Mapping[str, Any]) -> bool:
    """Whether it succeeded or failed: nothing of it changes any more."""
    return phase_of(job) in FINAL


def begun(job: Mapping[str, Any]) -> int:
    """The attempt whose notes and logs are to be had; 0 while there is none.

    The next attempt is counted while the last one's head still answers, and is its own once it is submitted.
    """
    status = status_of(job)
    return int(status.get("attempt") or 1) if status.get("submissionId") else 0


def place_of(job: Mapping[str, Any]) -> str:
    """For messages: `hello in namespace team`."""
    return f"{job['metadata']['name']} in namespace {job['metadata']['namespace']}"


def why(job: Mapping[str, Any]) -> tuple[str, str]:
    """(reason, message) of where the job is: its own, else those of the first condition that it waits for."""
    status = status_of(job)
    if status.get("message") or ended(job):
        return str(status.get("reason") or ""), str(status.get("message") or "")
    waits = (c for c in items(status, "conditions") if c.get("type") in _STEPS and c.get("status") != "True")
    nothing: Json = {}
    first = next((c for c in waits if c.get("message")), nothing)
    return str(first.get("reason") or status.get("reason") or ""), str(first.get("message") or "")


def role_sizes(job: Mapping[str, Any]) -> dict[str, int]:
    """Role -> how many ranks: as the operator last saw it, else as the spec says."""
    sizes = {role["name"]: int(role.get("replicas", 1)) for role in job["spec"]["roles"]}
    seen = {role["name"]: int(role["desired"]) for role in status_of(job).get("roles") or () if "desired" in role}
    return {**sizes, **{name: size for name, size in seen.items() if name in sizes}}


async def find(kube: Kube, job: str, namespace: str) -> Json:
    """A job by name, uid, or the first 8 digits of the uid.

    Raises:
        NotFoundError: there is none; says which there are.
        UnreachableError: the cluster does not serve DLJobs.
    """
    from dljob.kube.api import DLJOBS, NotThereError

    if _NAME.fullmatch(job):  # other words would be another path on the server
        with suppress(NotThereError):
            return await kube.get(DLJOBS, job, namespace)
    everything = await list_all(kube, namespace)
    for one in everything:
        uid = str(one["metadata"]["uid"])
        if job in (uid, uid.replace("-", ""), uid[:_UID8]):
            return one
    known = [one["metadata"]["name"] for one in everything]
    hint = suggestion(job, known) if known else "there is no job in this namespace; another one with -n, all with -A"
    raise NotFoundError(f"no job {job!r} in namespace {namespace}", hint=hint)


async def list_all(kube: Kube, namespace: str | None) -> list[Json]:
    """The jobs of a namespace, or of all with None, oldest first.

    Raises:
        UnreachableError: the cluster does not serve DLJobs.
    """
    from dljob.api.kubernetes.refusals import INSTALL
    from dljob.kube.api import DLJOBS, NotThereError

    try:
        found = await kube.list(DLJOBS, namespace)
    except NotThereError as error:
        raise UnreachableError("this cluster does not serve DLJobs", hint=INSTALL) from error
    return sorted(found, key=lambda one: (one["metadata"]["creationTimestamp"], one["metadata"]["name"]))


def passing(status: int) -> bool:
    """Whether an API server that answers so, or not at all (0), may answer better a little later."""
    return status in (0, 429) or status >= 500


async def changes(kube: Kube, job: Json) -> AsyncGenerator[Json]:
    """The job as it is, and after every change, until it has ended.

    Raises:
        NotFoundError: it was deleted.
        ApiError: the API server was away for longer than PATIENCE_S, or refuses.
    """
    from dljob.kube.api import DLJOBS, ApiError

    meta = job["metadata"]
    away = 0.0
    while True:
        try:
            # `seen`: else the deletion of a job that goes while nobody watches would be told by nobody.
            stream = kube.watch(DLJOBS, meta["namespace"], fields=f"metadata.name={meta['name']}", seen=(job,))
            async with aclosing(stream) as heard:
                async for kind, found in heard:
                    away = 0.0
                    if kind == "DELETED" or found["metadata"]["uid"] != meta["uid"]:
                        raise NotFoundError(f"job {place_of(job)} was deleted")
                    yield found
                    if ended(found):
                        return
        except ApiError as error:
            away += POLL_S
            if not passing(error.status) or away > PATIENCE_S:
                raise
            await asyncio.sleep(POLL_S)


async def each_second(kube: Kube, job: Json) -> AsyncGenerator[Json]:
    """The job as it is, again and again, the last time when it has ended.

    Raises:
        NotFoundError: it was deleted.
        ApiError: the API server was away for longer than PATIENCE_S, or refuses.
    """
    from dljob.kube.api import DLJOBS, ApiError, NotThereError

    meta, away = job["metadata"], 0.0
    while True:
        yield job
        if ended(job):
            return
        await asyncio.sleep(POLL_S)
        try:
            job, away = await kube.get(DLJOBS, meta["name"], meta["namespace"]), 0.0
        except NotThereError:
            raise NotFoundError(f"job {place_of(job)} was deleted") from None
        except ApiError as error:
            away += POLL_S
            if not passing(error.status) or away > PATIENCE_S:
                raise
        if job["metadata"]["uid"] != meta["uid"]:
            raise NotFoundError(f"job {place_of(job)} was deleted, and another made")


async def wait(kube: Kube, job: Json, timeout: float | None = None) -> Json:  # noqa: ASYNC109 - a user's parameter
    """The job as it ended.

    Raises:
        DeadlineError: it was not over in `timeout` seconds.
        NotFoundError: it was deleted, maybe before this was asked.
    """
    last = job

    async def end() -> None:
        nonlocal last
        async with aclosing(changes(kube, job)) as found:
            async for last in found:  # noqa: B007 - the last one counts
                pass

    try:
        await asyncio.wait_for(end(), timeout)
    except TimeoutError:
        raise DeadlineError(f"job {place_of(job)} was not over after {timeout:g} s: {phase_of(last)}") from None
    return last
