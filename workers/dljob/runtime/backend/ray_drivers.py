"""Ranks that are Ray drivers: their environment, what they created in Ray, and its removal.

A process that calls `ray.init()` becomes a Ray job with metadata, which Ray reads from the variable that its own `ray
job submit` sets; dljob puts the owner there. The id of a placement group ends in its job's id, and an actor's row names
its job. So whatever such a job created is found, detached or not, from any process and at any later time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group

from dljob import ray_private
from dljob.master.state.views import AskedGroup
from dljob.plan.devices import DEVICES
from dljob.plan.model import GRAIN, Resources
from dljob.runtime.backend.ray_tables import HIDDEN
from dljob.runtime.process.messages import JobInfo

OWNER = "dljob.io/owner"
"""The key in a Ray job's metadata that names its owner: `<uid>/<role>/<rank>/<attempt>.<incarnation>`."""
LOOPBACK = "127."
JOB_ID_DIGITS = 8
"""The length in hexadecimal digits of a Ray job's id, in which the ids of its actors and placement groups end."""
PLACED = {"CPU": 1.0}
"""The resources of an actor that names none, while it is being placed; it holds nothing afterwards."""
CLEAN_S = 30.0
"""Seconds for Ray to end and remove a rank's leftover actors and groups."""
LOOK_S = 0.02
"""Seconds between checks of that."""
INTENDED = "INTENDED_"
"""Ray's types of exits that the actor's own code asked for begin so."""
DETAIL = "Worker exit detail: "
GROUPED = "_group_"
"""Part of the names of resources within placement groups."""
CLOSED = "Worker unexpectedly exits with a connection error code 2. End of file."
"""Part of Ray's message about a worker whose end nobody announced."""
GUESSES = " Some common causes include"
"""Where Ray's message about a dead worker begins to list what may have happened to any worker."""


def owner(job: JobInfo, role: str, rank: int, incarnation: int = 0) -> str:
    """Return the owner of a rank's Ray jobs; without an incarnation the common prefix of all of them."""
    return f"{job.uid}/{role}/{rank}/" + (f"{job.attempt}.{incarnation}" if incarnation else "")


def environment(job: JobInfo, address: str, owner_name: str) -> dict[str, str]:
    """Return the variables by which `ray.init()` and `ray.init("auto")` join the job's Ray as this rank's driver.

    The token is inherited. A runtime environment given in the script wins over this one. A driver that names no
    namespace gets a unique one: Ray reads RAY_NAMESPACE only for its clients.
    """
    # A Ray of loopback alone, as `dljob run` starts it: Ray would look for it at this machine's address in the network,
    # unless it is told that there are no other machines.
    single_machine = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"} if address.startswith(LOOPBACK) else {}
    return {
        **single_machine,
        "RAY_ADDRESS": address,
        "RAY_NAMESPACE": f"{job.name}-{job.uid[:8]}",
        "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"metadata": {OWNER: owner_name}}),
        # Without it Ray refuses a script's own runtime environment that differs from this one.
        "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1",
    }


def hidden(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables that hide devices from an actor without any; a driver must see those of its machine."""
    names = {device.visible_env for device in DEVICES.values() if device.visible_env}
    return tuple(sorted(name for name in names if environ.get(name) == ""))


@dataclass(frozen=True, slots=True)
class LeftObjects:
    """Objects in Ray, created by Ray jobs of a rank."""

    actors: tuple[tuple[str, str], ...] = ()
    """(id, name)."""
    groups: tuple[tuple[str, str], ...] = ()
    """(id, name)."""
    drivers: tuple[str, ...] = ()
    """The ids of jobs whose driver is still connected, and could create more."""

    def __bool__(self) -> bool:
        """Whether anything is left."""
        return bool(self.actors or self.groups or self.drivers)

    def words(self) -> str:
        """Describe it, by name where there is one."""
        parts = [f"actor {name or id_}" for id_, name in self.actors]
        parts += [f"placement group {name or id_}" for id_, name in self.groups]
        return ", ".join([*parts, *(f"the driver of Ray job {id_}" for id_ in self.drivers)])


def left_objects(prefix: str) -> LeftObjects:
    """Return the actors and groups that Ray jobs with this owner prefix created. Blocks for some milliseconds."""
    jobs = _jobs(prefix)
    # The usual case: without a Ray job of that owner the larger tables need not be read.
    if not jobs:
        return LeftObjects()
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
    return LeftObjects(tuple(actors), tuple(groups), tuple(sorted(id_ for id_, runs in jobs.items() if runs)))


def pending_groups(prefix: str) -> tuple[AskedGroup, ...]:
    """Return pending placement groups and actors of running Ray jobs with this owner prefix. Blocks for some ms."""
    rows = ray_private.group_rows()
    # Groups and actors first: mostly none of them waits, and then the Ray jobs need not be read.
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
    owned_actors = [row for row in actors if row.job_id.hex() in owners]
    return groups + alike(
        [(_rank_of(owners[row.job_id.hex()]), row) for row in owned_actors], _demands() if owned_actors else frozenset()
    )


def _unplaced() -> list[Any]:
    """Return the actors outside of placement groups that do not run yet, whatever they wait for."""
    rows = [row for state in ("PENDING_CREATION", "RESTARTING") for row in ray_private.actor_rows(state)]
    return [row for row in rows if not row.placement_group_id.strip(b"\xff")]


def _demands() -> frozenset[Resources]:
    """Return the demands for which raylets have no room; an actor that waits only for its process is not among them."""
    return frozenset(_amounts(wants) for wants, _ in ray_private.pending_demands())


def pending_tasks(known_groups: Iterable[AskedGroup]) -> tuple[AskedGroup, ...]:
    """Return the tasks and actors of users for which this Ray has no room, and that are not in `told`. Blocks for a ms.

    Ray says how many there are, and not whose they are. A number that changes is a request of another id: while tasks
    are placed one after another, none of them waits in vain.
    """
    known = {bundle for group in known_groups for bundle in group.bundles}
    counts: dict[Resources, int] = {}
    for wants, count in ray_private.pending_demands():
        # What is placed within a group waits for that group, which has a report of its own.
        amounts = () if any(GROUPED in name for name in wants) else _amounts(wants)
        if amounts and amounts not in known:
            counts[amounts] = counts.get(amounts, 0) + count
    return tuple(
        AskedGroup(f"tasks {wants} {count}", _tasks(count), "job", "PACK", (wants,), "task")
        for wants, count in sorted(counts.items())
    )


def _tasks(count: int) -> str:
    return "a Ray task or actor" if count == 1 else f"each of {count} Ray tasks or actors"


def alike(actors: Iterable[tuple[str, Any]], demands: frozenset[Resources]) -> tuple[AskedGroup, ...]:
    """Return the actors, given as (owner, row of the GCS), without room; those of equal resources become one entry."""
    names_by_demand: dict[tuple[str, Resources], list[str]] = {}
    for owner_, row in actors:
        # An actor that names no resources still needs room for what it takes while it is placed.
        wants = _amounts(row.required_resources) or _amounts(PLACED)
        # Only those without room: an actor may also wait for its process to start, which passes by itself.
        if wants in demands:
            names_by_demand.setdefault((owner_, wants), []).append(row.name or row.class_name)
    return tuple(
        AskedGroup(f"{owner_} {wants}", _first(sorted(names)), owner_, "PACK", (wants,) * len(names), "actor")
        for (owner_, wants), names in sorted(names_by_demand.items())
    )


def _first(names: list[str]) -> str:
    """Return the first of the names, to stand for all."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _rank_of(owner: str) -> str:
    """Return `<role>/<rank>` of an owner."""
    return "/".join(owner.split("/")[1:3])


def _bundles(bundles: Mapping[int, Mapping[str, float]]) -> tuple[Resources, ...]:
    """Convert bundles to the plan's amounts, without the resources that nodes do not count."""
    return tuple(_amounts(bundle) for _, bundle in sorted(bundles.items()))


def _amounts(resources: Mapping[str, float]) -> Resources:
    return tuple(sorted((name, round(much * GRAIN)) for name, much in resources.items() if not name.startswith(HIDDEN)))


def _jobs(prefix: str) -> dict[str, bool]:
    """Return the Ray jobs with this owner prefix, running and ended: id -> whether it runs."""
    return {job.job_id.hex(): not job.is_dead for job in _job_rows(prefix)}


def _job_rows(prefix: str) -> list[Any]:
    return [job for job in ray_private.job_rows() if _owner_of(job).startswith(prefix)]


def _owner_of(job: Any) -> str:
    """Return the owner of a Ray job; empty for one that is no rank's."""
    return str(job.config.metadata.get(OWNER, ""))


def first_lost(prefix: str) -> str:
    """Describe the actor of Ray jobs with this owner prefix that died first, and not by order. Blocks for some ms."""
    jobs = _jobs(prefix)
    return lost_first(row for row in ray_private.actor_rows("DEAD") if row.job_id.hex() in jobs) if jobs else ""


def lost_first(dead: Iterable[Any]) -> str:
    """Describe the dead actor, given as rows of the GCS, that died first, and not by order.

    Empty: none did, or one whose constructor raised was before it, which the driver's own error tells.
    """
    # A framework's driver ends with the ActorDiedError of whichever actor it asked next.
    lost = [(row.end_time, row, death_text) for row in dead if (death_text := _died_of(row.death_cause)) is not None]
    if not lost:
        return ""
    _, row, death_text = min(lost, key=lambda dead_actor: dead_actor[0])
    return death_text and f"its actor {row.name or row.class_name} (pid {row.pid}) was lost first: {death_text}"


def _died_of(cause: Any) -> str | None:
    """Return Ray's words for the loss of an actor; empty if it failed, None if it was ended."""
    kind = cause.WhichOneof("context")
    if kind != "actor_died_error_context":
        return cause.oom_context.error_message if kind == "oom_context" else "" if kind else None
    died = cause.actor_died_error_context
    if died.reason not in ray_private.DIED_OF_ITSELF or INTENDED in died.error_message:
        return None
    return died.error_message.rpartition(DETAIL)[2].partition(GUESSES)[0].strip()


def clear(prefix: str, within_s: float = CLEAN_S) -> tuple[str, str]:
    """End the actors and remove the groups of Ray jobs with this owner prefix, and wait until Ray has done so.

    Returns:
        What there was, and what was still there after `within_s`, in words; empty: nothing.
    """
    end = time.monotonic() + within_s
    first_objects = remaining_objects = left_objects(prefix)
    # Repeated: a driver that still runs may create more, and the GCS removes asynchronously.
    while remaining_objects and time.monotonic() < end:
        if remaining_objects.actors:
            # By the GCS itself: anonymous actors have no handle that could be asked for.
            ray_private.end_actors(id_ for id_, _ in remaining_objects.actors)
        for id_, _ in remaining_objects.groups:
            remove_placement_group(PlacementGroup(ray.PlacementGroupID.from_hex(id_)))
        time.sleep(LOOK_S)
        remaining_objects = left_objects(prefix)
    return first_objects.words(), remaining_objects.words()
