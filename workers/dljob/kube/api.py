"""A thin asynchronous client of the API server: dicts in, dicts out.

The official client gives the credentials and the connection; its typed models are left alone, since they cost a second
and 25 MB (research: raw calls take 0.64 ms of CPU each).
"""

from __future__ import annotations

import asyncio
import builtins
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from typing import Any, Literal, TypeAlias, TypedDict, Unpack
from urllib.parse import quote

import aiohttp

from dljob.kube.connection import Way, find
from dljob.kube.errors import ApiError, NotThereError, from_answer, status_object
from dljob.kube.resources import (
    CONFIG_MAPS,
    CRDS,
    DEPLOYMENTS,
    DLJOBS,
    EVENTS,
    LEASES,
    NODES,
    PODS,
    RAYCLUSTERS,
    SECRETS,
    SERVICES,
    Resource,
)
from dljob.kube.transport import TIMEOUT, AnyJson, Query, Reply, Transport

__all__ = [
    "CONFIG_MAPS",
    "CRDS",
    "DEPLOYMENTS",
    "DLJOBS",
    "EVENTS",
    "LEASES",
    "NODES",
    "PODS",
    "RAYCLUSTERS",
    "SECRETS",
    "SERVICES",
    "ApiError",
    "Json",
    "Kube",
    "NotThereError",
    "Reply",
    "Resource",
]

Json: TypeAlias = dict[str, Any]
Heard: TypeAlias = tuple[Literal["ADDED", "MODIFIED", "DELETED"], Json]

AGAIN = 1.0
"""Seconds, give or take a half, between the end of a watch and the next list."""
CHUNK = 500
"""Objects a page of a list."""
_PATCHES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}


class Proxied(TypedDict, total=False):
    """Options of a call to a pod's port."""

    query: Query
    headers: Mapping[str, str]
    timeout: float
    """Seconds."""


class Kube:
    """One connection to one API server; `namespace` is the current one. Close it when done."""

    def __init__(self, way: Way, *, manager: str = "dljob") -> None:
        self.namespace = way.namespace
        self.manager = manager
        self.transport = Transport(way, f"{manager} (kubernetes.aio)")

    @classmethod
    async def connect(
        cls, *, context: str | None = None, kubeconfig: str | None = None, manager: str = "dljob"
    ) -> Kube:
        """Find the cluster (`dljob.kube.connection.find`); nothing is asked of it yet.

        Raises:
            ApiError: The kubeconfig, or the context in it, cannot be used (status 0).
        """
        return cls(await find(context, kubeconfig), manager=manager)

    async def close(self) -> None:
        """Drop the connections."""
        await self.transport.close()

    async def __aenter__(self) -> Kube:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- objects

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Json:
        """One object. Raises NotThereError when there is none."""
        return await self.call("GET", self._path(resource, namespace, name))

    async def list(
        self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> builtins.list[Json]:
        """The objects of a namespace, or of all with None; `labels` and `fields` are selectors."""
        pages = self.pages(resource, namespace, labels=labels, fields=fields)
        return [item async for page in pages for item in page["items"]]

    def pages(
        self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> AsyncIterator[Json]:
        """The pages of a list, of at most 500 objects each, as the server gives them."""
        return self._pages(resource.path(namespace), _some(labelSelector=labels, fieldSelector=fields))

    async def _pages(self, path: str, query: Query) -> AsyncIterator[Json]:
        asked: dict[str, str | int] = {**query, "limit": CHUNK}
        while True:
            page = await self.call("GET", path, query=asked)
            yield page
            more = page["metadata"].get("continue")
            if not more:
                return
            asked["continue"] = more

    async def create(self, resource: Resource, body: Mapping[str, Any], namespace: str | None = None) -> Json:
        """POST an object. Raises ApiError with reason AlreadyExists when its name is taken."""
        query = _some(fieldManager=self.manager)
        return await self.call("POST", self._path(resource, namespace), body, query=query)

    async def replace(self, resource: Resource, body: Mapping[str, Any], namespace: str | None = None) -> Json:
        """PUT an object. Raises ApiError (409) when it is not any more at the resourceVersion that the body carries."""
        path = self._path(resource, namespace, str(body["metadata"]["name"]))
        return await self.call("PUT", path, body, query=_some(fieldManager=self.manager))

    async def apply(
        self,
        resource: Resource,
        body: Mapping[str, Any],
        namespace: str | None = None,
        *,
        force: bool = True,
        sub: str = "",
        dry_run: bool = False,
    ) -> Json:
        """Server-side apply: create the object or change what of it is ours; `force` takes fields from others."""
        path = self._path(resource, namespace, str(body["metadata"]["name"]), sub)
        flags = _some(fieldManager=self.manager, force=str(force).lower(), dryRun="All" if dry_run else "")
        return await self.call("PATCH", path, body, query=flags, content=_PATCHES["apply"])

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        patch: AnyJson,
        *,
        kind: Literal["merge", "json"] = "merge",
        sub: str = "",
    ) -> Json:
        """A merge patch (a dict), or a JSON patch (a list of operations)."""
        path = self._path(resource, namespace, name, sub)
        query = _some(fieldManager=self.manager)
        return await self.call("PATCH", path, patch, query=query, content=_PATCHES[kind])

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str = "",
        version: str = "",
        grace: int | None = None,
        propagation: Literal["Background", "Foreground", "Orphan"] = "Background",
    ) -> Json:
        """DELETE an object; with `uid`, only that one (409 when it is another). Raises NotThereError when gone.

        `version`: only while that is its resourceVersion (409 else).
        `grace`: seconds that a pod may take; 0 waits for no kubelet.

        Returns the object when something holds it back, which has a deletionTimestamp then; else a Status.
        """
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if uid or version:
            options["preconditions"] = _some(uid=uid, resourceVersion=version)
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        return await self.call("DELETE", self._path(resource, namespace, name), options)

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        seen: Iterable[Json] = (),
    ) -> AsyncGenerator[Heard, None]:
        """What is there (as ADDED), then every change, for ever; broken streams are taken up again by a new list.

        A deletion that happened while a stream was broken is told too, and first that of any object of `seen` which is
        gone already. Raises ApiError when listing is refused.
        """
        path, query = resource.path(namespace), _some(labelSelector=labels, fieldSelector=fields)
        known = {item["metadata"]["uid"]: _unversioned(item) for item in seen}
        found, since = await self._snapshot(path, query)
        while True:
            for uid in [uid for uid in known if uid not in found]:
                yield "DELETED", known.pop(uid)
            for uid, item in found.items():
                if _version(known.get(uid)) != _version(item):
                    yield "ADDED", item
                known[uid] = _stub(item)
            async for kind, item in self._stream(path, query, since):
                if kind == "DELETED":
                    known.pop(item["metadata"]["uid"], None)
                else:
                    known[item["metadata"]["uid"]] = _stub(item)
                yield kind, item
            found, since = await self._snapshot_again(path, query)

    # -- a pod's port, through the API server

    async def proxy_get(
        self, pod: str, port: int, path: str, namespace: str | None = None, **options: Unpack[Proxied]
    ) -> Reply:
        """GET a path of a pod's port; whatever the pod answers comes back, only the API server's refusals raise."""
        return await self._proxy("GET", self._pod(pod, port, path, namespace), None, options)

    async def proxy_post(
        self, pod: str, port: int, path: str, namespace: str | None, body: object, **options: Unpack[Proxied]
    ) -> Reply:
        """POST JSON to a path of a pod's port."""
        return await self._proxy("POST", self._pod(pod, port, path, namespace), body, options)

    def _pod(self, pod: str, port: int, path: str, namespace: str | None) -> str:
        return self._path(PODS, namespace) + f"/{quote(pod, safe='')}:{port}/proxy/{path.lstrip('/')}"

    async def _proxy(self, method: str, where: str, body: object, options: Proxied) -> Reply:
        # The header Authorization is for the API server alone, which takes it off: tokens of pods go in another one.
        reply = await self.transport.request(method, where, body, **options)
        if reply.status >= 400 and status_object(reply.body):
            raise from_answer(reply.status, reply.body, f"{method} {where}")
        return reply

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Query | None = None,
        content: str = "application/json",
        timeout: float = TIMEOUT,  # noqa: ASYNC109 - of the HTTP call, given to the client
    ) -> Json:
        """Any call whose answer is JSON. Raises ApiError for 400 and more, and when nothing answers."""
        reply = await self.transport.request(method, path, body, query=query, content=content, timeout=timeout)
        if reply.status >= 400:
            raise from_answer(reply.status, reply.body, f"{method} {path}")
        return reply.json() or {}

    def _path(self, resource: Resource, namespace: str | None, name: str = "", sub: str = "") -> str:
        return resource.path(namespace or self.namespace, name, sub)

    async def _snapshot(self, path: str, query: Query) -> tuple[dict[str, Json], str]:
        found: dict[str, Json] = {}
        since = ""
        async for page in self._pages(path, query):
            since = page["metadata"]["resourceVersion"]
            found.update((item["metadata"]["uid"], item) for item in page["items"])
        return found, since

    async def _snapshot_again(self, path: str, query: Query) -> tuple[dict[str, Json], str]:
        """The same after a stream ended: a server that is away is waited for."""
        while True:
            await asyncio.sleep(AGAIN * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
            try:
                return await self._snapshot(path, query)
            except ApiError as error:
                if 0 < error.status < 500:
                    raise

    async def _stream(self, path: str, query: Query, since: str) -> AsyncGenerator[Heard, None]:
        """The changes since a list, until the stream ends, breaks, or says that it is too old."""
        flags = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": 3000, "resourceVersion": since}
        try:
            response = await self.transport.stream(path, {**query, **flags})
        except ApiError:
            return
        async with response:
            async for kind, item in _lines(response):
                if kind == "ERROR":
                    return
                if kind != "BOOKMARK":
                    yield kind, item


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[Any, Json]]:
    try:
        async for line in response.content:
            event = json.loads(line)
            if "object" not in event:
                return  # a Status: the stream was refused
            yield event["type"], event["object"]
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return  # a torn stream or a torn line: what was missed comes with the next list


def _stub(item: Json) -> Json:
    """As much of an object as its deletion must tell."""
    meta = item["metadata"]
    return {
        "metadata": {key: meta[key] for key in ("name", "namespace", "uid", "resourceVersion", "labels") if key in meta}
    }


def _unversioned(item: Json) -> Json:
    """The same of one that is to be told of again if it is still there, changed or not."""
    return {"metadata": {**_stub(item)["metadata"], "resourceVersion": ""}}


def _version(item: Json | None) -> str:
    return item["metadata"]["resourceVersion"] if item else ""


def _some(**query: str | int) -> dict[str, str | int]:
    return {key: value for key, value in query.items() if value not in ("", None)}
