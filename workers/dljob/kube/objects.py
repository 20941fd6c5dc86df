"""Objects of one kind: the calls of `Kube` without the kind."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Mapping
from typing import Any

from dljob.kube.api import CHUNK, Json, Kube
from dljob.kube.resources import Resource
from dljob.kube.transport import AnyJson


class Objects:
    """Objects of one kind on one API server. Calls raise ApiError, or NotThereError when there is no such object."""

    def __init__(self, kube: Kube, resource: Resource) -> None:
        self.kube = kube
        self.resource = resource

    async def create(self, body: Mapping[str, Any], namespace: str | None = None) -> Json:
        """Create an object; its body may omit the kind. Raises ApiError (AlreadyExists) when its name is taken."""
        named = {"apiVersion": self.resource.api_version, "kind": self.resource.kind}
        return await self.kube.create(self.resource, {**named, **body}, namespace)

    async def get(self, name: str, namespace: str | None = None) -> Json:
        """Return one object."""
        return await self.kube.get(self.resource, name, namespace)

    async def list(self, namespace: str | None = None, labels: str = "") -> builtins.list[Json]:
        """Return the objects of a namespace, or with None of all."""
        return await self.kube.list(self.resource, namespace, labels=labels)

    def pages(self, namespace: str | None = None, labels: str = "", limit: int = CHUNK) -> AsyncIterator[Json]:
        """Yield the pages of a list as the server sends them, of at most `limit` objects each."""
        return self.kube.pages(self.resource, namespace, labels=labels, limit=limit)

    async def patch(self, name: str, patch: AnyJson, namespace: str | None = None) -> Json:
        """Change an object by a merge patch (a dict) or a JSON patch (a list of operations)."""
        kind = "json" if isinstance(patch, builtins.list) else "merge"
        return await self.kube.patch(self.resource, name, namespace, patch, kind=kind)

    async def delete(
        self, name: str, namespace: str | None = None, *, uid: str = "", version: str = "", grace: int | None = None
    ) -> Json:
        """Delete an object; with `uid` and `version`, only in that state. Returns as `Kube.delete` does."""
        return await self.kube.delete(self.resource, name, namespace, uid=uid, version=version, grace=grace)
