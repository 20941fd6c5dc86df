"""Ranks that are Ray drivers: what they find in their environment, what they made in Ray, and how it is removed.

A process that calls `ray.init()` becomes a Ray job. A Ray job carries metadata, which Ray reads from the variable that
its own `ray job submit` sets; we say there whose it is. Ids of placement groups end in their job's id and actors name
theirs, so whatever such a job made is found, detached or not, whoever asks and however long ago it was made.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group

from dljob.master.state.views import AskedGroup
from dljob.plan.devices import DEVICES
from dljob.plan.model import GRAIN, Resources
from dljob.runtime import ray_private
from dljob.runtime.backend.ray_tables import HIDDEN
from dljob.runtime.process.messages import JobInfo

OWNER = "dljob.io/owner"
"""The metadata of a Ray job that says whose it is: `<uid>/<role>/<rank>/<attempt>.<incarnation>`."""
JOB_ID_DIGITS = 8
"""Hexadecimal digits of a Ray job's id, which the ids of its actors and placement groups end in."""
PLACED = {"CPU": 1.0}
"""What an actor that names no resources takes while it is placed, and no longer."""
CLEAN_S = 30.0
LOOK_S = 0.02


def owner(job: JobInfo, role: str, rank: int, incarnation: int = 0) -> str:
    """Whose Ray jobs: those of a process of a rank; without an incarnation what all of the rank's begin with."""
    return f"{job.uid}/{role}/{rank}/" + (f"{job.attempt}.{incarnation}" if incarnation else "")


def environment(job: JobInfo, address: str, mine: str) -> dict[str, str]:
    """What makes `ray.init()` and `ray.init("auto")` join the job's Ray as this rank's driver.

    The token needs nothing: the process inherits it. A runtime environment that the script gives goes before this one.
    Ray itself reads RAY_NAMESPACE for its clients only: a driver that names no namespace gets one that nobody else has.
    """
    return {
        "RAY_ADDRESS": address,
        "RAY_NAMESPACE": f"{job.name}-{job.uid[:8]}",
        "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"metadata": {OWNER: mine}}),
        "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1",
    }


def hidden(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Variables by which Ray shows no device to an actor that asked for none: a driver sees what its machine has."""
    names = {device.visible_env for device in DEVICES.values() if device.visible_env}
    return tuple(sorted(name for name in names if environ.get(name) == ""))


@dataclass(frozen=True, slots=True)
class Left:
    """What Ray jobs made that is still there."""

    actors: tuple[tuple[str, str], ...] = ()
    """(id, name)."""
    groups: tuple[tuple[str, str], ...] = ()
    """(id, name)."""
    drivers: tuple[str, ...] = ()
    """Ids of jobs whose driver has not left Ray yet: it could make more."""

    def __bool__(self) -> bool:
        """Whether there is anything."""
        return bool(self.actors or self.groups or self.drivers)

    def words(self) -> str:
        """What it is, by name where it has one."""
        parts = [f"actor {name or id_}" for id_, name in self.actors]
        parts += [f"placement group {name or id_}" for id_, name in self.groups]
        return ", ".join([*parts, *(f"the driver of Ray job {id_}" for id_ in self.drivers)])


def left_by(prefix: str) -> Left:
    """What the Ray jobs have whose owner begins so. Blocks for some milliseconds."""
    jobs = _jobs(prefix)
    if not jobs:
        return Left()
    actors = [
        (row.actor_id.hex(), row.name)
        for row in ray_private.actor_rows()
        if row.state != ray_private.ACTOR_DEAD and row.job_id.hex() in jobs
    ]
    groups = [
        (id_, str(row["name"]))
        for id_, row in ray_private.group_rows().items()
        if row["state"] != "REMOVED" and id_[-JOB_ID_DIGITS:] in jobs
    ]
    return Left(tuple(actors), tuple(groups), tuple(sorted(id_ for id_, runs in jobs.items() if runs)))


def asked(prefix: str) -> tuple[AskedGroup, ...]:
    """The placement groups and actors that wait, of the Ray jobs that run and whose owner begins so. Takes some ms."""
    rows = ray_private.group_rows()
    waiting = {id_: row for id_, row in rows.items() if row["state"] in ("PENDING", "RESCHEDULING")}
    actors = _unplaced()
    if not waiting and not actors:
        return ()
    jobs = _job_rows(prefix)
    owners = {job.job_id.hex(): _owner_of(job) for job in jobs if not job.is_dead}
    groups = tuple(
        AskedGroup(id_, str(row["name"]), _rank_of(owners[job]), row["strategy"], _bundles(row["bundles"]))
        for id_, row in sorted(waiting.items())
        if (job := id_[-JOB_ID_DIGITS:]) in owners
    )
    own = [row for row in actors if row.job_id.hex() in owners]
    return groups + alike(
        [(_rank_of(owners[row.job_id.hex()]), row) for row in own], _demands() if own else frozenset()
    )


def _unplaced() -> list[Any]:
    """The actors outside of a placement group that do not run, whatever they wait for."""
    rows = [row for state in ("PENDING_CREATION", "RESTARTING") for row in ray_private.actor_rows(state)]
    return [row for row in rows if not row.placement_group_id.strip(b"\xff")]


def _demands() -> frozenset[Resources]:
    """What raylets have no room for: one that only waits for its process has been given its room."""
    return frozenset(map(_amounts, ray_private.pending_demands()))


def alike(actors: Iterable[tuple[str, Any]], demands: frozenset[Resources]) -> tuple[AskedGroup, ...]:
    """The actors, as (owner, row of the GCS), that raylets have no room for; those that take the same are one."""
    found: dict[tuple[str, Resources], list[str]] = {}
    for owner_, row in actors:
        wants = _amounts(row.required_resources) or _amounts(PLACED)
        if wants in demands:
            found.setdefault((owner_, wants), []).append(row.name or row.class_name)
    return tuple(
        AskedGroup(f"{owner_} {wants}", _first(sorted(names)), owner_, "PACK", (wants,) * len(names), "actor")
        for (owner_, wants), names in sorted(found.items())
    )


def _first(names: list[str]) -> str:
    """One name for all of them."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _rank_of(owner: str) -> str:
    """`<role>/<rank>` of an owner."""
    return "/".join(owner.split("/")[1:3])


def _bundles(bundles: Mapping[int, Mapping[str, float]]) -> tuple[Resources, ...]:
    """In our amounts, without what nodes do not count."""
    return tuple(_amounts(bundle) for _, bundle in sorted(bundles.items()))


def _amounts(wanted: Mapping[str, float]) -> Resources:
    return tuple(sorted((name, round(much * GRAIN)) for name, much in wanted.items() if not name.startswith(HIDDEN)))


def _jobs(prefix: str) -> dict[str, bool]:
    """The Ray jobs whose owner begins so, running and ended: id -> whether it runs."""
    return {job.job_id.hex(): not job.is_dead for job in _job_rows(prefix)}


def _job_rows(prefix: str) -> list[Any]:
    return [job for job in ray_private.job_rows() if _owner_of(job).startswith(prefix)]


def _owner_of(job: Any) -> str:
    """Whose a Ray job is; empty: nobody's of ours."""
    return str(job.config.metadata.get(OWNER, ""))


def clear(prefix: str, within_s: float = CLEAN_S) -> tuple[str, str]:
    """End the actors and remove the groups of Ray jobs whose owner begins so, and wait until Ray has.

    Returns:
        What there was, and what would not go within the time, in words; empty: nothing.
    """
    end = time.monotonic() + within_s
    found = left = left_by(prefix)
    while left and time.monotonic() < end:
        if left.actors:
            ray_private.end_actors(id_ for id_, _ in left.actors)
        for id_, _ in left.groups:
            remove_placement_group(PlacementGroup(ray.PlacementGroupID.from_hex(id_)))
        time.sleep(LOOK_S)
        left = left_by(prefix)
    return found.words(), left.words()
