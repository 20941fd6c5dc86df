"""An in-memory API server over HTTP: objects, resourceVersions, patches, /status, owners, watches, and faults.

Its behaviour was measured on a real API server: a merge patch to `/status` accepts any uid but refuses an old
resourceVersion, and the deletion of an owner deletes its dependents.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client.configuration import Configuration

from dljob.kube.api import Kube
from dljob.kube.connection import ApiConnection

_PATH = re.compile(
    r"^/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)(?:/namespaces/(?P<ns>[^/]+))?"
    r"/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>.+))?$"
)
SERVED: dict[tuple[str, str], dict[str, str]] = {
    ("", "v1"): {
        "pods": "Pod",
        "configmaps": "ConfigMap",
        "secrets": "Secret",
        "namespaces": "Namespace",
        "events": "Event",
    },
    ("coordination.k8s.io", "v1"): {"leases": "Lease"},
    ("rbac.authorization.k8s.io", "v1"): {"clusterrolebindings": "ClusterRoleBinding"},
    ("apiextensions.k8s.io", "v1"): {"customresourcedefinitions": "CustomResourceDefinition"},
    ("dljob.io", "v1alpha1"): {"dljobs": "DLJob"},
    ("ray.io", "v1"): {"rayclusters": "RayCluster"},
    ("events.k8s.io", "v1"): {"events": "Event"},
}
_SURROGATE = re.compile(r"(?<!\\)(\\\\)*\\ud[89a-f]")
_REASONS = {403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired", 422: "Invalid", 429: "TooManyRequests"}


@dataclass
class Fault:
    method: str
    path: str
    status: int
    times: int
    message: str
    after: bool = False
    """Do the call and lose its answer."""


@dataclass
class FakeCluster:
    """The state and the server; `calls` lists all calls, `writes` those that change something."""

    objects: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    log: list[tuple[int, str, str, dict[str, Any]]] = field(default_factory=list)
    proxies: dict[str, Callable[[web.Request], web.Response]] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    """Plurals of resources that are not served."""
    fields: tuple[str, ...] = ("authOptions", "secretName", "upgradeStrategy")
    """Fields that the OpenAPI document of RayCluster names."""
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)
    """OpenAPI documents by group."""
    pruned: tuple[str, ...] = ()
    """Status fields that the schema lacks; they are dropped silently."""
    compacted: int = 0
    page: int = 0
    """Objects per page of a list, whatever limit a client requests; 0: as many as it requests."""

    def __post_init__(self) -> None:
        self._versions = itertools.count(1)
        self._news: set[asyncio.Event] = set()
        self._streams: dict[asyncio.Task[Any], str] = {}
        self.version = 0

    # -- for tests

    @property
    def writes(self) -> list[tuple[str, str]]:
        return [call for call in self.calls if call[0] not in {"GET"}]

    def fail(
        self, method: str, path: str, status: int, *, times: int = 1, message: str = "no", after: bool = False
    ) -> None:
        self.faults.append(Fault(method, path, status, times, message, after))

    def put(self, plural: str, body: dict[str, Any], namespace: str = "default") -> dict[str, Any]:
        """Create or replace an object as another client."""
        key = (plural, namespace, body["metadata"]["name"])
        kind = "MODIFIED" if key in self.objects else "ADDED"
        return self._keep(key, copy.deepcopy(body), kind)

    def take(self, plural: str, name: str, namespace: str = "default") -> None:
        """Delete an object as another client."""
        self._drop((plural, namespace, name))

    def names(self, plural: str) -> list[str]:
        return sorted(name for kind, _, name in self.objects if kind == plural)

    def one(self, plural: str, name: str, namespace: str = "default") -> dict[str, Any]:
        return self.objects[plural, namespace, name]

    def compact(self) -> None:
        """Drop the history and close every stream, so that events in between reach no watch."""
        self.compacted = self.version
        self.cut()

    def cut(self, plural: str = "") -> None:
        """Close the streams of one kind, or all."""
        for task, kind in self._streams.items():
            if plural in {"", kind}:
                task.cancel()

    def quietly(self, act: Callable[[], Any]) -> None:
        """Do something that no watch reports: streams are closed before, and the history is dropped after it."""
        told = len(self.log)
        act()
        del self.log[told:]
        self.compact()

    # -- state

    def _keep(self, key: tuple[str, str, str], body: dict[str, Any], kind: str) -> dict[str, Any]:
        old = self.objects.get(key)
        meta = body["metadata"]
        meta.setdefault("namespace", key[1])
        meta.setdefault("uid", old["metadata"]["uid"] if old else str(uuid.uuid4()))
        if key[0] == "leases":
            made = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            meta["creationTimestamp"] = (
                old["metadata"]["creationTimestamp"] if old else meta.get("creationTimestamp", made)
            )
        changed = old is None or old.get("spec") != body.get("spec")
        meta["generation"] = (old["metadata"]["generation"] if old else 0) + changed
        if old and {**body, "metadata": {**meta, "resourceVersion": ""}} == {
            **old,
            "metadata": {**old["metadata"], "resourceVersion": ""},
        }:
            return old
        self.version = next(self._versions)
        meta["resourceVersion"] = str(self.version)
        self.objects[key] = body
        self._tell(kind, key[0], body)
        return body

    def _drop(self, key: tuple[str, str, str]) -> None:
        body = copy.deepcopy(self.objects.pop(key))
        self.version = next(self._versions)
        body["metadata"]["resourceVersion"] = str(self.version)
        self._tell("DELETED", key[0], body)
        owned = [k for k, v in self.objects.items() if body["metadata"]["uid"] in _owners(v)]
        for child in owned:
            self._drop(child)

    def _tell(self, kind: str, plural: str, body: dict[str, Any]) -> None:
        self.log.append((self.version, kind, plural, copy.deepcopy(body)))
        for news in self._news:
            news.set()

    # -- HTTP

    async def serve(self) -> TestServer:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._answer)
        server = TestServer(app)
        await server.start_server()
        return server

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        matched = _PATH.match(request.path)
        if request.query.get("watch") != "true":
            self.calls.append((request.method, request.path))
        fault = self._fault(request)
        if fault and not fault.after:
            return _refuse(fault.status, fault.message)
        if found := self._discovery(request.path):
            return found
        if not matched or matched["plural"] in self.missing:
            return _refuse(404, "the server could not find the requested resource")
        if (matched["sub"] and "/proxy" in matched["sub"]) or (matched["name"] or "").count(":"):
            return self._proxied(request, matched)
        if request.query.get("watch") == "true":
            return await self._watch(request, matched)
        text = await request.text() if request.can_read_body else "{}"
        if request.content_type == "application/apply-patch+yaml" and _SURROGATE.search(text):
            return _refuse(400, "error decoding YAML: yaml: found invalid Unicode character escape code", "BadRequest")
        body = json.loads(text)
        answer = getattr(self, f"_{request.method.lower()}")(request, matched, body)
        return _refuse(fault.status, fault.message) if fault else answer

    def _fault(self, request: web.Request) -> Fault | None:
        for fault in self.faults:
            if fault.times > 0 and fault.method in {"*", request.method} and re.search(fault.path, request.path):
                fault.times -= 1
                return fault
        return None

    def _discovery(self, path: str) -> web.Response | None:
        """Answer discovery requests: each group with one version."""
        if path in {"/api", "/apis"}:
            groups = [{"name": g, "preferredVersion": _gv(g, v), "versions": [_gv(g, v)]} for g, v in SERVED if g]
            return web.json_response({"versions": ["v1"]} if path == "/api" else {"groups": groups})
        if path.startswith("/openapi/v3/apis/"):
            group = path.removeprefix("/openapi/v3/apis/").partition("/")[0]
            return web.json_response(self.documents.get(group) or dict.fromkeys(self.fields, 1))
        served = {f"/apis/{g}/{v}" if g else f"/api/{v}": names for (g, v), names in SERVED.items()}.get(path)
        if served is None:
            return None
        there = {plural: kind for plural, kind in served.items() if plural not in self.missing}
        if not there:
            return _refuse(404, "the server could not find the requested resource")
        verbs = ["get", "list", "watch", "create", "patch", "delete"]
        rest = {"namespaced": True, "singularName": "", "verbs": verbs}
        return web.json_response({"resources": [{"name": p, "kind": k, **rest} for p, k in there.items()]})

    def _proxied(self, request: web.Request, matched: re.Match[str]) -> web.Response:
        handler = self.proxies.get(matched["name"])
        if handler is None:
            return _refuse(503, "error trying to reach service: dial tcp: connection refused")
        return handler(request)

    def _get(self, request: web.Request, matched: re.Match[str], body: Any) -> web.Response:
        if matched["name"]:
            found = self.objects.get((matched["plural"], matched["ns"] or "", matched["name"]))
            return web.json_response(found) if found else _not_found(matched)
        items = [v for k, v in sorted(self.objects.items()) if self._selected(request, matched, k[0], v)]
        start = int(request.query.get("continue") or 0)
        end = start + (self.page or int(request.query.get("limit") or len(items)))
        meta = {"resourceVersion": str(self.version), **({"continue": str(end)} if end < len(items) else {})}
        return web.json_response({"metadata": meta, "items": items[start:end]})

    def _selected(self, request: web.Request, matched: re.Match[str], plural: str, body: dict[str, Any]) -> bool:
        wanted = [part for part in request.query.get("labelSelector", "").split(",") if part]
        labels = body["metadata"].get("labels") or {}
        _, _, named = request.query.get("fieldSelector", "").partition("metadata.name=")
        if named and body["metadata"]["name"] != named:
            return False
        _, _, hidden = request.query.get("fieldSelector", "").partition("metadata.namespace!=")
        if hidden and body["metadata"]["namespace"] == hidden:
            return False
        _, _, about = request.query.get("fieldSelector", "").partition("involvedObject.uid=")
        if about and (body.get("involvedObject") or {}).get("uid") != about:
            return False
        return (
            plural == matched["plural"]
            and matched["ns"] in {None, body["metadata"]["namespace"]}
            and all(labels.get(w.split("=")[0]) == w.split("=")[1] if "=" in w else w in labels for w in wanted)
        )

    def _post(self, request: web.Request, matched: re.Match[str], body: Any) -> web.Response:
        key = (matched["plural"], matched["ns"] or "", body["metadata"]["name"])
        if key in self.objects:
            return _refuse(409, f'{key[0]} "{key[2]}" already exists', "AlreadyExists")
        return web.json_response(self._keep(key, body, "ADDED"), status=201)

    def _patch(self, request: web.Request, matched: re.Match[str], body: Any) -> web.Response:
        key = (matched["plural"], matched["ns"] or "", matched["name"])
        old = self.objects.get(key)
        applied = request.content_type == "application/apply-patch+yaml"
        if old is None:
            return web.json_response(self._keep(key, body, "ADDED"), status=201) if applied else _not_found(matched)
        new = copy.deepcopy(old)
        if request.content_type == "application/json-patch+json":
            if not _json_patch(new, body):
                return _refuse(422, "the server rejected our request due to an error in our request")
        else:
            claimed = body.get("metadata", {}).get("resourceVersion")
            if claimed and claimed != old["metadata"]["resourceVersion"]:
                return _refuse(
                    409, f'Operation cannot be fulfilled on {key[0]} "{key[2]}": the object has been modified'
                )
            body = {k: v for k, v in body.items() if (k == "status") == (matched["sub"] == "status") or k == "metadata"}
            _merge(new, body)
            for name in self.pruned:
                new.get("status", {}).pop(name, None)
            new["metadata"]["uid"] = old["metadata"]["uid"]
        return web.json_response(self._keep(key, new, "MODIFIED"))

    def _put(self, request: web.Request, matched: re.Match[str], body: Any) -> web.Response:
        key = (matched["plural"], matched["ns"] or "", matched["name"])
        old = self.objects.get(key)
        if old is None:
            return _not_found(matched)
        if body["metadata"].get("resourceVersion") != old["metadata"]["resourceVersion"]:
            return _refuse(409, f'Operation cannot be fulfilled on {key[0]} "{key[2]}": the object has been modified')
        return web.json_response(self._keep(key, body, "MODIFIED"))

    def _delete(self, request: web.Request, matched: re.Match[str], body: Any) -> web.Response:
        key = (matched["plural"], matched["ns"] or "", matched["name"])
        if key not in self.objects:
            return _not_found(matched)
        meta, wanted = self.objects[key]["metadata"], body.get("preconditions", {})
        if wanted.get("uid", meta["uid"]) != meta["uid"]:
            return _refuse(409, "the UID in the precondition does not match the UID in record")
        if wanted.get("resourceVersion", meta["resourceVersion"]) != meta["resourceVersion"]:
            return _refuse(409, "the ResourceVersion in the precondition does not match the ResourceVersion in record")
        self._drop(key)
        return web.json_response({"kind": "Status", "apiVersion": "v1", "status": "Success"})

    async def _watch(self, request: web.Request, matched: re.Match[str]) -> web.StreamResponse:
        anew = "resourceVersion" not in request.query
        since = self.version if anew else int(request.query["resourceVersion"] or 0)
        if since < self.compacted:
            return web.Response(text=json.dumps({"type": "ERROR", "object": _status(410, "too old resource version")}))
        response = web.StreamResponse()
        await response.prepare(request)
        news = asyncio.Event()
        self._news.add(news)
        task = asyncio.current_task()
        assert task is not None
        self._streams[task] = matched["plural"]
        try:
            told = 0
            for key, body in sorted(self.objects.items()) if anew else ():
                if self._selected(request, matched, key[0], body):
                    await response.write(json.dumps({"type": "ADDED", "object": body}).encode() + b"\n")
            while True:
                news.clear()
                while told < len(self.log):
                    version, kind, plural, body = self.log[told]
                    told += 1
                    if version > since and self._selected(request, matched, plural, body):
                        await response.write(json.dumps({"type": kind, "object": body}).encode() + b"\n")
                await news.wait()
        finally:
            self._news.discard(news)
            del self._streams[task]


def _gv(group: str, version: str) -> dict[str, str]:
    return {"groupVersion": f"{group}/{version}", "version": version}


def _owners(body: dict[str, Any]) -> set[str]:
    return {ref["uid"] for ref in body["metadata"].get("ownerReferences", [])}


def _merge(into: dict[str, Any], patch: dict[str, Any]) -> None:
    for key, value in patch.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _json_patch(body: dict[str, Any], operations: list[dict[str, Any]]) -> bool:
    for operation in operations:
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        at = body
        for part in way:
            at = at[int(part)] if isinstance(at, list) else at[part]
        if operation["op"] == "test" and at.get(last) != operation["value"]:
            return False
        if operation["op"] in {"add", "replace"}:
            at[last] = operation["value"]
        if operation["op"] == "remove":
            at.pop(last)
    return True


def _status(code: int, message: str, reason: str = "") -> dict[str, Any]:
    said = {"message": message, "reason": reason or _REASONS.get(code, ""), "code": code}
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", **said}


def _refuse(code: int, message: str, reason: str = "") -> web.Response:
    return web.json_response(_status(code, message, reason), status=code)


def _not_found(matched: re.Match[str]) -> web.Response:
    return _refuse(404, f'{matched["plural"]} "{matched["name"]}" not found')


def client_of(server: TestServer, *, manager: str = "tests", **settings: Any) -> Kube:
    """Return a client of a fake cluster."""
    configuration = Configuration()
    configuration.host = str(server.make_url("")).rstrip("/")
    for name, value in settings.items():
        setattr(configuration, name, value)
    return Kube(ApiConnection(configuration, "default"), manager=manager)
