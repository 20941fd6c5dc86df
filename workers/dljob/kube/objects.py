"""The objects of one kind: the calls of `Kube` with the kind left out, and waiting for a status."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from dljob.control.fields import part
from dljob.kube.api import Json, Kube
from dljob.kube.resources import Resource
from dljob.kube.transport import AnyJson


class Objects:
    """Those of one kind on one API server. Calls may raise ApiError, NotThereError when there is no such object."""

    def __init__(self, kube: Kube, resource: Resource) -> None:
        self.kube = kube
        self.resource = resource

    async def create(self, body: Mapping[str, Any], namespace: str | None = None) -> Json:
        """POST an object; its kind need not stand in it. Raises ApiError (AlreadyExists) when its name is taken."""
        named = {"apiVersion": self.resource.api_version, "kind": self.resource.kind}
        return await self.kube.create(self.resource, {**named, **body}, namespace)

    async def get(self, name: str, namespace: str | None = None) -> Json:
        """One object."""
        return await self.kube.get(self.resource, name, namespace)

    async def list(self, namespace: str | None = None, labels: str = "") -> builtins.list[Json]:
        """The objects of a namespace, or of all with None."""
        return await self.kube.list(self.resource, namespace, labels=labels)

    def pages(self, namespace: str | None = None, labels: str = "") -> AsyncIterator[Json]:
        """The pages of a list, as the server gives them."""
        return self.kube.pages(self.resource, namespace, labels=labels)

    async def patch(self, name: str, patch: AnyJson, namespace: str | None = None) -> Json:
        """Change an object by a merge patch."""
        return await self.kube.patch(self.resource, name, namespace, patch)

    async def delete(
        self, name: str, namespace: str | None = None, *, uid: str = "", version: str = "", grace: int | None = None
    ) -> Json:
        """DELETE an object; with `uid` and `version`, only that one as it was. Returns as `Kube.delete` does."""
        return await self.kube.delete(self.resource, name, namespace, uid=uid, version=version, grace=grace)

    async def status_when(
        self,
        so: Callable[[Json], bool],
        name: str,
        namespace: str | None = None,
        timeout: float = 60.0,  # noqa: ASYNC109 - nothing is cut off: the last look is not later
        pause: float = 5.0,
    ) -> Json | None:
        """The status as soon as it is so, looked at every `pause` s; None when it is not within `timeout` s."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        while True:
            status = dict(part(await self.get(name, namespace), "status"))
            if so(status):
                return status
            if loop.time() + pause > end:
                return None
            await asyncio.sleep(pause)
