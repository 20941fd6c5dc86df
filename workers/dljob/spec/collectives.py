"""The models of collectives: backends by import path, and groups of ranks across roles."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dljob.spec import scalars
from dljob.spec.scalars import MAP_BY_NAME, SET, Model, Name, RoleName

# Capitals are allowed: Ray compares names of backends without regard to case.
BackendName = Annotated[str, Field(max_length=63, pattern=scalars.BACKEND_PATTERN)]


class CollectiveBackend(Model):
    """A user's own backend of `ray.util.collective`, beside the built-in ones."""

    name: BackendName
    """Name of the backend, for the field backend of groups; case is ignored, as in Ray."""
    # `class` is a keyword of Python, so the field has another name there.
    class_: Annotated[str, Field(alias="class", max_length=512, pattern=scalars.CLASS_PATTERN)]
    """Dotted path to a class with all methods of Ray's `BaseGroup`. dljob registers it in each rank's process before
    user code runs."""


class GroupSpec(Model):
    """Ranks that run collectives together, whatever their roles."""

    name: Name
    """Name of the group: `CollectiveGroup("weights")` in user code."""
    backend: BackendName = "Auto"
    """gloo, nccl, hccl, a backend declared here or installed as an entry point of `dljob.collectives`, or Auto: nccl
    where each rank has a GPU of its own, hccl where each has an NPU of its own, else gloo."""
    roles: Annotated[tuple[RoleName, ...], Field(min_length=1, max_length=32, json_schema_extra=SET)]
    """Roles whose ranks are the members: numbered role by role in this order, within a role by rank."""
    timeout_seconds: Annotated[int, Field(ge=1, le=86400)] = 1800
    """Seconds that an operation, or the forming of the group, may wait for its members."""
    on_restart: Literal["Recreate", "Fail"] = "Recreate"
    """Behaviour after the loss of a member. Recreate: surviving members may form the group again, under its next epoch.
    Fail: they may not, and exit with the error they get; their new processes form the group."""


class Collectives(Model):
    """Backends and groups of collectives."""

    backends: Annotated[tuple[CollectiveBackend, ...], Field(max_length=16, json_schema_extra=MAP_BY_NAME)] = ()
    """Backends by import path."""
    groups: Annotated[tuple[GroupSpec, ...], Field(max_length=16, json_schema_extra=MAP_BY_NAME)] = ()
    """Groups across roles."""
