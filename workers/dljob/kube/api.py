"""A thin asynchronous client of the API server: dicts in, dicts out.

The official client gives the credentials and the connection; its typed models are left alone, since they cost a second
and 25 MB (research: raw calls take 0.64 ms of CPU each).
"""

from __future__ import annotations

import asyncio
import builtins
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, Unpack
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes.aio.client.api_client import ApiClient

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
AnyJson: TypeAlias = Any
"""What JSON can be: an object, a list, a text, a number."""
Query: TypeAlias = Mapping[str, str | int]
Heard: TypeAlias = tuple[Literal["ADDED", "MODIFIED", "DELETED"], Json]

T = TypeVar("T")

TIMEOUT = 30.0
"""Seconds for one call, from the first byte sent to the last one read."""
CHUNK = 500
"""Objects a page of a list."""
_PATCHES = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}
_BUSY_TRIES = 4
"""How often a call is made while the server says 429, waiting as long as it asks."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as it came."""

    status: int
    body: bytes

    def json(self) -> AnyJson:
        """The body as JSON; None when it is empty."""
        return json.loads(self.body) if self.body else None

    def text(self) -> str:
        """The body as text."""
        return self.body.decode(errors="replace")


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
        self.server: str = way.configuration.host
        self.on_call: Callable[[str, int], None] = lambda _method, _status: None
        """Told of every call's method and HTTP status (0: no answer), for metrics."""
        self._refresh = way.refresh
        self._client: Any = ApiClient(way.configuration)
        self._client.user_agent = f"{manager} (kubernetes.aio)"

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
        await self._client.close()

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
        propagation: Literal["Background", "Foreground", "Orphan"] = "Background",
    ) -> None:
        """DELETE an object; with `uid`, only that one (409 when it is another). Raises NotThereError when gone."""
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        if uid:
            options["preconditions"] = {"uid": uid}
        await self.call("DELETE", self._path(resource, namespace, name), options)

    async def watch(
        self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> AsyncIterator[Heard]:
        """What is there (as ADDED), then every change, for ever; broken streams are taken up again by a new list.

        A deletion that happened while a stream was broken is told too. Raises ApiError when listing is refused.
        """
        path, query = resource.path(namespace), _some(labelSelector=labels, fieldSelector=fields)
        known: dict[str, Json] = {}
        while True:
            found, since = await self._snapshot(path, query)
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
        reply = await self.request(method, where, body, **options)
        if reply.status >= 400 and status_object(reply.body):
            raise from_answer(reply.status, reply.body, f"{method} {where}")
        return reply

    # -- calls

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
        reply = await self.request(method, path, body, query=query, content=content, timeout=timeout)
        if reply.status >= 400:
            raise from_answer(reply.status, reply.body, f"{method} {path}")
        return reply.json() or {}

    async def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
        content: str = "application/json",
        timeout: float = TIMEOUT,  # noqa: ASYNC109
    ) -> Reply:
        """Any call, whatever the answer. A busy server (429) is asked again; raises ApiError when nothing answers."""
        url = path + (f"?{urlencode(query)}" if query else "")
        sent = {"Content-Type": content, **(headers or {})}
        for tried in range(1, _BUSY_TRIES + 1):
            answer = await self._send(method, url, body, sent, aiohttp.ClientTimeout(total=timeout))
            read = await self._guard(method, answer.read())
            if answer.status == 429 and tried < _BUSY_TRIES:
                await asyncio.sleep(min(float(answer.headers.get("Retry-After") or 1), 10.0))
                continue
            if answer.status == 401 and self._refresh and tried == 1:
                await self._refresh()
                continue
            return Reply(answer.status, read)
        raise AssertionError("unreachable")

    async def _send(
        self, method: str, url: str, body: object, headers: Mapping[str, str], limit: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        # The body goes past param_serialize, which would copy it.
        prepared = await self._client.param_serialize(
            method, url, header_params=dict(headers), auth_settings=["BearerToken"]
        )
        call = self._client.call_api(prepared[0], prepared[1], prepared[2], body, _request_timeout=limit)
        answer: aiohttp.ClientResponse = (await self._guard(method, call)).response
        self.on_call(method, answer.status)
        return answer

    async def _guard(self, method: str, call: Awaitable[T]) -> T:
        try:
            return await call
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.on_call(method, 0)
            why = str(error) or type(error).__name__
            raise ApiError(0, "Unreachable", f"no answer from the Kubernetes API at {self.server}: {why}") from error

    def _path(self, resource: Resource, namespace: str | None, name: str = "", sub: str = "") -> str:
        return resource.path(namespace or self.namespace, name, sub)

    # -- streams

    async def _snapshot(self, path: str, query: Query) -> tuple[dict[str, Json], str]:
        found: dict[str, Json] = {}
        since = ""
        async for page in self._pages(path, query):
            since = page["metadata"]["resourceVersion"]
            found.update((item["metadata"]["uid"], item) for item in page["items"])
        return found, since

    async def _stream(self, path: str, query: Query, since: str) -> AsyncIterator[Heard]:
        """The changes of one stream after another, until one breaks or what it says is too old."""
        while True:
            flags = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": 270, "resourceVersion": since}
            url = f"{path}?{urlencode({**query, **flags})}"
            response = await self._send("GET", url, None, {}, aiohttp.ClientTimeout(sock_read=300))
            async with response:
                if response.status != 200:
                    return
                async for kind, item in _lines(response):
                    if kind == "ERROR":
                        return
                    since = item["metadata"]["resourceVersion"]
                    if kind != "BOOKMARK":
                        yield kind, item


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[Any, Json]]:
    try:
        async for line in response.content:
            event = json.loads(line)
            yield event["type"], event["object"]
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return  # a torn stream or a torn line: what was missed comes with the next list


def _stub(item: Json) -> Json:
    """As much of an object as its deletion must tell."""
    meta = item["metadata"]
    return {
        "metadata": {key: meta[key] for key in ("name", "namespace", "uid", "resourceVersion", "labels") if key in meta}
    }


def _version(item: Json | None) -> str:
    return item["metadata"]["resourceVersion"] if item else ""


def _some(**query: str | int) -> dict[str, str | int]:
    return {key: value for key, value in query.items() if value not in ("", None)}
