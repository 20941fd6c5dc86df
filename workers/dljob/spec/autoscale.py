"""The model of a role that scales itself."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from dljob.spec import cel
from dljob.spec.scalars import Model


class Autoscale(Model):
    """Scaling of a role by its load, between minReplicas and maxReplicas: as many ranks as the load over the target."""

    model_config = ConfigDict(json_schema_extra=cel.schema(cel.AUTOSCALE_NAME))

    by: Literal["queue", "calls", "metric"]
    """The load. queue: items in a DataQueue. calls: calls of `@rpc` methods under way or waiting at the role's ranks.
    metric: a metric of `progress(step, NAME=...)` of the first driver role."""
    name: Annotated[str | None, Field(min_length=1, max_length=128)] = None
    """Name of the DataQueue, or of the metric; left out for calls."""
    target: Annotated[int, Field(ge=1, le=1000000000)]
    """The load of one rank."""
    cooldown_seconds: Annotated[int, Field(ge=1, le=86400)] = 60
    """Seconds between two changes. For a smaller role the load must have been low for as long."""
