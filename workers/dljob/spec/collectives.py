"""The models of collectives: backends by import path, and groups of ranks across roles."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dljob.spec import scalars
from dljob.spec.scalars import MAP_BY_NAME, SET, Model, Name, RoleName

BackendName = Annotated[str, Field(max_length=63, pattern=scalars.BACKEND_PATTERN)]


class CollectiveBackend(Model):
    """A backend of `ray.util.collective` that is not there by itself."""

    name: BackendName
    """Name of the backend, as groups say it; capitals are small letters too, as in Ray."""
    class_: Annotated[str, Field(alias="class", max_length=512, pattern=scalars.CLASS_PATTERN)]
    """Dotted path to the class, which has all methods of Ray's `BaseGroup`. It is registered in each rank's process
    before user code runs."""


class CollectiveGroup(Model):
    """Ranks that run collectives together, whatever their roles."""

    name: Name
    """Name of the group: `CollectiveGroup("weights")` in user code."""
    backend: BackendName = "Auto"
    """gloo, nccl, hccl, a backend declared here or installed as an entry point of `dljob.collectives`, or Auto: nccl
    where each rank has a GPU of its own, hccl where each has an NPU of its own, else gloo."""
    roles: Annotated[tuple[RoleName, ...], Field(min_length=1, max_length=32, json_schema_extra=SET)]
    """Whose ranks are in it: numbered role by role in this order, in each by rank."""
    timeout_seconds: Annotated[int, Field(ge=1, le=86400)] = 1800
    """How many seconds an operation, or the start of the group, may wait for its members."""
    on_restart: Literal["Recreate", "Fail"] = "Recreate"
    """After a member was lost. Recreate: the members that live may make the group anew, under its next epoch.
    Fail: they may not, and end by the error they get; new processes of theirs make it."""


class Collectives(Model):
    """Backends and groups of collectives."""

    backends: Annotated[tuple[CollectiveBackend, ...], Field(max_length=16, json_schema_extra=MAP_BY_NAME)] = ()
    """Backends by import path."""
    groups: Annotated[tuple[CollectiveGroup, ...], Field(max_length=16, json_schema_extra=MAP_BY_NAME)] = ()
    """Groups across roles."""
