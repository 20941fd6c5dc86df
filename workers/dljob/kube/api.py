"""Thin asynchronous client of the API server: dicts in, dicts out.

Credentials and connection come from the official client. Its typed models are not used: their import costs a second and
25 MB (research: raw calls take 0.64 ms of CPU each).
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

from dljob.kube import answers
from dljob.kube.connection import ApiConnection, find, unusable
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
from dljob.kube.transport import APPLY, TIMEOUT, AnyJson, Query, Response, Transport

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
    "Resource",
    "Response",
]

Json: TypeAlias = dict[str, Any]
Heard: TypeAlias = tuple[Literal["ADDED", "MODIFIED", "DELETED"], Json]

AGAIN = 1.0
"""Pause in seconds, with a jitter of a half, between the end of a watch and the next list."""
CHUNK = 500
"""Objects per page of a list."""
PAGE = answers.Bounds(8 * 2**20, 400_000)
"""Largest page that is parsed at once, some 50 MiB of Python objects; a larger one is asked for in parts."""
SMALL_PAGE = 2**20
"""Bytes of a page that is not examined: whatever is in it, it becomes 25 MiB at most."""
LINE = 32 * 2**20
"""Longest line of a watch in bytes. An API server stores objects of 1.5 MiB, and more only if its etcd is told to."""
_PATCHES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": APPLY,
}


class Proxied(TypedDict, total=False):
    """Options of a call to a pod's port."""

    query: Query
    headers: Mapping[str, str]
    timeout: float
    """Seconds."""


class Kube:
    """One connection to one API server; `namespace` is the current one. Close it when done."""

    def __init__(self, way: ApiConnection, *, manager: str = "dljob") -> None:
        self.namespace = way.namespace
        self.manager = manager
        self.transport = Transport(way, f"{manager} (kubernetes.aio)")

    @classmethod
    async def connect(
        cls, *, context: str | None = None, kubeconfig: str | None = None, manager: str = "dljob"
    ) -> Kube:
        """Find the cluster (`dljob.kube.connection.find`), without asking it anything.

        Raises:
            ApiError: the kubeconfig, the context in it, or its certificates cannot be used (status 0).
        """
        way = await find(context, kubeconfig)
        try:
            return cls(way, manager=manager)
        # The client reads the certificates here; an SSLError, which is an OSError, does not name their file.
        except (OSError, ValueError) as error:
            raise unusable(f"the certificates of {way.origin}", error) from error

    async def close(self) -> None:
        """Close the connections."""
        await self.transport.close()

    async def __aenter__(self) -> Kube:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- objects

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Json:
        """Return one object. Raises NotThereError when there is none."""
        return await self.call("GET", self._path(resource, namespace, name))

    async def list(
        self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> builtins.list[Json]:
        """Return the objects of a namespace, or with None of all; `labels` and `fields` are selectors."""
        pages = self.pages(resource, namespace, labels=labels, fields=fields)
        return [item async for page in pages for item in page["items"]]

    def pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        limit: int = CHUNK,
    ) -> AsyncIterator[Json]:
        """Yield the pages of a list as the server sends them, of at most `limit` objects each."""
        return self._pages(resource.path(namespace), _some(labelSelector=labels, fieldSelector=fields), limit)

    async def _pages(self, path: str, query: Query, limit: int = CHUNK) -> AsyncIterator[Json]:
        # In pages, so that no answer with thousands of pods is parsed at once on the event loop.
        asked: dict[str, str | int] = {**query, "limit": limit}
        while True:
            size = int(asked["limit"])
            page = await self._page(path, asked, is_single=size == 1)
            if page is None:
                asked["limit"] = max(1, size // 10)
                continue
            yield page
            more = page["metadata"].get("continue")
            if not more:
                return
            asked |= {"continue": more, "limit": min(limit, 2 * size)}

    async def _page(self, path: str, query: Query, *, is_single: bool) -> Json | None:
        """Return a page of a list; None where it is too large for memory, unless `whole`: it has one object."""
        reply = await self._good("GET", path, query=query)
        if not is_single and len(reply.body) > SMALL_PAGE and answers.excess(reply.body, PAGE):
            return None
        return reply.json()

    async def create(self, resource: Resource, body: Mapping[str, Any], namespace: str | None = None) -> Json:
        """Create an object (POST). Raises ApiError with reason AlreadyExists when its name is taken."""
        query = _some(fieldManager=self.manager)
        return await self.call("POST", self._path(resource, namespace), body, query=query)

    async def replace(self, resource: Resource, body: Mapping[str, Any], namespace: str | None = None) -> Json:
        """Replace an object (PUT). Raises ApiError (409) when its resourceVersion is no longer that of the body."""
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
        """Create or change the fields in `body` by server-side apply; `force` takes fields over from other managers."""
        path = self._path(resource, namespace, str(body["metadata"]["name"]), sub)
        # `force` is a text in the query: urlencode would write True.
        flags = _some(fieldManager=self.manager, force=str(force).lower(), dryRun="All" if dry_run else "")
        return await self.call("PATCH", path, body, query=flags, content=_PATCHES["apply"])

    async def patch(
        self,
        resource: Resource,
        name: str,
        namespace: str | None,
        patch: AnyJson,
        *,
        kind: Literal["merge", "json", "strategic"] = "merge",
        sub: str = "",
    ) -> Json:
        """Patch an object with a merge patch (a dict) or a JSON patch (a list of operations)."""
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
        """Delete an object. Raises NotThereError when there is none.

        Args:
            resource: its kind.
            name: its name.
            namespace: its namespace; None: the current one.
            uid: delete only the object with this uid (else 409).
            version: delete only at this resourceVersion (else 409).
            grace: seconds for a pod to end; 0 does not wait for its kubelet.
            propagation: what happens to the objects that it owns.

        Returns:
            The object, with a deletionTimestamp, when finalizers or a grace period hold it; else a Status.
        """
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if uid or version:
            # The server compares, so nothing can be made or changed between a look and the deletion.
            options["preconditions"] = _some(uid=uid, resourceVersion=version)
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        return await self.call("DELETE", self._path(resource, namespace, name), options)

    async def evict(self, pod: str, namespace: str | None, grace: int | None = None) -> None:
        """Evict a pod as `kubectl drain` does. Raises ApiError (429) while a PodDisruptionBudget forbids it."""
        body: Json = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace or self.namespace},
            **({"deleteOptions": {"gracePeriodSeconds": grace}} if grace is not None else {}),
        }
        await self.call("POST", self._path(PODS, namespace, pod, "eviction"), body)

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        known_before: Iterable[Json] = (),
    ) -> AsyncGenerator[Heard, None]:
        """Yield present objects (as ADDED), then every change, for ever; a broken stream is resumed by a new list.

        Deletions during a gap are reported too, and first those of objects in `seen` that are gone already. Raises
        ApiError when the list is refused.
        """
        path, query = resource.path(namespace), _some(labelSelector=labels, fieldSelector=fields)
        # uid -> a stub: what is in `known` and missing in a new list was deleted while no stream ran.
        known = {item["metadata"]["uid"]: _unversioned(item) for item in known_before}
        present, since = await self._snapshot(path, query)
        while True:
            # First the deletions: an object made anew under the same name comes after its predecessor's end.
            for uid in [uid for uid in known if uid not in present]:
                yield "DELETED", known.pop(uid)
            for uid, item in present.items():
                if _version(known.get(uid)) != _version(item):
                    yield "ADDED", item
                # Without the rest: a watch of 10,000 objects keeps some hundred bytes of each.
                known[uid] = _stub(item)
            async for kind, item in self._stream(path, query, since):
                if kind == "DELETED":
                    # Absent where `known` never had it: the deletion is reported all the same.
                    known.pop(item["metadata"]["uid"], None)
                else:
                    known[item["metadata"]["uid"]] = _stub(item)
                yield kind, item
            # A new list instead of the last seen version: it also shows what was deleted before the stream broke.
            present, since = await self._snapshot_again(path, query)

    async def changes(
        self, resource: Resource, namespace: str | None = None, since: str = "", *, labels: str = "", fields: str = ""
    ) -> AsyncGenerator[Heard, None]:
        """Yield the changes after a resourceVersion; without one each present object first. Ends with the stream.

        A stream that brings nothing began at a version that the server has forgotten, or nothing happened for long.
        """
        query = _some(labelSelector=labels, fieldSelector=fields)
        async for change in self._stream(resource.path(namespace), query, since):
            yield change

    # -- a pod's port, through the API server

    async def proxy_get(
        self, pod: str, port: int, path: str, namespace: str | None = None, **options: Unpack[Proxied]
    ) -> Response:
        """GET a path of a pod's port. Any answer of the pod is returned; only refusals of the API server raise."""
        return await self._proxy("GET", self._pod(pod, port, path, namespace), None, options)

    async def proxy_post(
        self, pod: str, port: int, path: str, namespace: str | None, body: object, **options: Unpack[Proxied]
    ) -> Response:
        """POST JSON to a path of a pod's port."""
        return await self._proxy("POST", self._pod(pod, port, path, namespace), body, options)

    def _pod(self, pod: str, port: int, path: str, namespace: str | None) -> str:
        return self._path(PODS, namespace) + f"/{quote(pod, safe='')}:{port}/proxy/{path.lstrip('/')}"

    async def _proxy(self, method: str, url: str, body: object, options: Proxied) -> Response:
        # The API server consumes the Authorization header, so tokens for pods go in another one.
        reply = await self.transport.request(method, url, body, **options)
        # Only the API server's refusals are Status objects; an error of the pod itself is its answer.
        if reply.status >= 400 and status_object(reply.body):
            raise from_answer(reply.status, reply.body, f"{method} {url}")
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
        """Make any call whose answer is JSON. Raises ApiError for 400 and above, and when there is no answer."""
        reply = await self._good(method, path, body, query=query, content=content, timeout=timeout)
        return reply.json() or {}

    async def _good(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Query | None = None,
        content: str = "application/json",
        timeout: float = TIMEOUT,  # noqa: ASYNC109
    ) -> Response:
        reply = await self.transport.request(method, path, body, query=query, content=content, timeout=timeout)
        if reply.status >= 400:
            raise from_answer(reply.status, reply.body, f"{method} {path}")
        return reply

    def _path(self, resource: Resource, namespace: str | None, name: str = "", sub: str = "") -> str:
        return resource.path(namespace or self.namespace, name, sub)

    async def _snapshot(self, path: str, query: Query) -> tuple[dict[str, Json], str]:
        objects: dict[str, Json] = {}
        since = ""
        async for page in self._pages(path, query):
            since = page["metadata"]["resourceVersion"]
            # All pages have one resourceVersion, that of the first: the watch goes on from there.
            objects.update((item["metadata"]["uid"], item) for item in page["items"])
        return objects, since

    async def _snapshot_again(self, path: str, query: Query) -> tuple[dict[str, Json], str]:
        """List again after the end of a stream; wait for a server that is away."""
        while True:
            await asyncio.sleep(AGAIN * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
            try:
                return await self._snapshot(path, query)
            except ApiError as error:
                if 0 < error.status < 500:  # a refusal, which waiting does not change
                    raise

    async def _stream(self, path: str, query: Query, since: str) -> AsyncGenerator[Heard, None]:
        """Yield the changes since a list, until the stream ends, breaks, or reports that its version is too old."""
        # Bookmarks come each minute, so that a silent stream is known to be broken (`_SILENCE` in transport).
        flags = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": 3000}
        flags |= _some(resourceVersion=since)
        try:
            # The server answers at once, also where nothing has changed yet: the silence within a stream is longer.
            async with asyncio.timeout(TIMEOUT):
                response = await self.transport.stream(path, {**query, **flags})
        except (ApiError, TimeoutError):
            return  # the list that follows raises an error that lasts
        async with response:
            async for kind, item in _lines(response):
                # 410 Gone: the version is too old for the server's history, and only a new list helps.
                if kind == "ERROR":
                    return
                if kind != "BOOKMARK":
                    yield kind, item


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[Any, Json]]:
    try:
        async for line in _split(response.content):
            event = json.loads(line)
            if "object" not in event:
                return  # a bare Status: the server refused the stream
            yield event["type"], event["object"]
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, RecursionError):
        return  # a torn stream or line: the next list shows the missed changes


async def _split(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield the lines of a stream. aiohttp's own iteration ends at a line of 128 KiB, and an object may be longer."""
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
        if len(rest) > LINE:
            raise ValueError(f"a line of more than {LINE} bytes")
    if rest:
        yield rest


def _stub(item: Json) -> Json:
    """Return the parts of an object that the report of its deletion needs."""
    meta = item["metadata"]
    return {
        "metadata": {key: meta[key] for key in ("name", "namespace", "uid", "resourceVersion", "labels") if key in meta}
    }


def _unversioned(item: Json) -> Json:
    """Return the stub without its version, so that the object is reported again if it still exists."""
    return {"metadata": {**_stub(item)["metadata"], "resourceVersion": ""}}


def _version(item: Json | None) -> str:
    return item["metadata"]["resourceVersion"] if item else ""


def _some(**query: str | int) -> dict[str, str | int]:
    return {key: value for key, value in query.items() if value not in ("", None)}
