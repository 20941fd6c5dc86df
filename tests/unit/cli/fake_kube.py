"""An in-memory cluster with the methods of `dljob.kube.api.Kube` that the command uses, and a stub head."""

from __future__ import annotations

import asyncio
import base64
import copy
import itertools
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Any

from dljob.kube.api import CONFIG_MAPS, DLJOBS, EVENTS, SECRETS, ApiError, NotThereError, Resource, Response

Json = dict[str, Any]
TOKEN = "a-token"
HEAD = "hello-1a2b3-head-x"
CLUSTER = "hello-1a2b3"


def merged(into: Json, patch: Json) -> Json:
    """Return an object after a JSON merge patch."""
    made = dict(into)
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        elif isinstance(value, dict):
            made[key] = merged(made.get(key) or {}, value)
        else:
            made[key] = value
    return made


def patched(body: Json, operations: list[Json]) -> Json:
    """Return an object after a JSON Patch; only the operations `test` and `add` are supported."""
    made = copy.deepcopy(body)
    for operation in operations:
        *way, last = operation["path"].split("/")[1:]
        at: Any = made
        for step in way:
            at = at[int(step) if isinstance(at, list) else step]
        if operation["op"] == "test":
            assert at[last] == operation["value"]
        else:
            assert operation["op"] == "add"
            at[last] = operation["value"]
    return made


class FakeTransport:
    """A transport that answers POSTs of DLJobs with the object or the error in `refuse`, and GETs with `openapi`."""

    server = "https://cluster.test:6443"

    openapi = b'{"authOptions": {"secretName": {}}, "upgradeStrategy": {}}'

    def __init__(self, kube: FakeKube) -> None:
        self._kube = kube

    async def request(self, method: str, path: str, body: Any = None, *, query: Any = None) -> Response:
        if (method, path) == ("GET", "/openapi/v3/apis/ray.io/v1"):
            return Response(200, self.openapi)
        assert (method, path.rsplit("/", 1)[-1]) == ("POST", "dljobs")
        assert query["fieldValidation"] == "Strict", "what the server does not know must not be dropped"
        if self._kube.refuse:
            status, answer = self._kube.refuse
            if not answer:
                return Response(status, b"404 page not found\n")
            return Response(status, json.dumps({"kind": "Status", "apiVersion": "v1", **answer}).encode())
        made = await self._kube.create(DLJOBS, body, path.split("/")[5])
        return Response(201, json.dumps(made).encode())


class FakeKube:
    """Objects by kind, namespace and name."""

    def __init__(self) -> None:
        self.namespace = "team"
        self.manager = "dljob"
        self.transport = FakeTransport(self)
        self.objects: dict[tuple[str, str, str], Json] = {}
        self.refuse: tuple[int, Json] | None = None
        self.forbidden: set[str] = set()
        self.calls: dict[str, Any] = {}
        """Path -> answer of `call`; an exception instance is raised."""
        self.head: dict[str, Callable[[dict[str, Any]], Any]] = {}
        """Last part of the path -> function that returns the gateway's answer: bytes, JSON, or an exception."""
        self.on_patch: Callable[[Json], None] = lambda _job: None
        self.changed = asyncio.Event()
        self.closed = 0
        self._number = itertools.count(1)

    async def close(self) -> None:
        self.closed += 1

    def put(self, resource: Resource, body: Json, namespace: str = "team") -> Json:
        """Store an object and notify the watches."""
        meta = {"namespace": namespace, "creationTimestamp": "2026-01-01T00:00:00Z", **body["metadata"]}
        number = next(self._number)
        meta = {"uid": f"{number:08x}-0000-0000-0000-000000000000", **meta, "resourceVersion": str(number)}
        made = {"apiVersion": resource.api_version, "kind": resource.kind, **copy.deepcopy(body), "metadata": meta}
        self.objects[resource.plural, namespace, meta["name"]] = made
        self.changed.set()
        return copy.deepcopy(made)

    def one(self, resource: Resource, name: str, namespace: str = "team") -> Json:
        return self.objects[resource.plural, namespace, name]

    def update(self, name: str, namespace: str = "team", **status: Any) -> Json:
        """Write a DLJob's status, as the operator does."""
        body = self.one(DLJOBS, name, namespace)
        return self.put(DLJOBS, {**body, "status": {**(body.get("status") or {}), **status}}, namespace)

    def _right(self, verb: str, resource: Resource) -> None:
        if f"{verb} {resource.plural}" in self.forbidden:
            raise ApiError(403, "Forbidden", f'{resource.plural} is forbidden: User "u" cannot {verb} it')

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Json:
        self._right("get", resource)
        key = (resource.plural, namespace or ("" if not resource.namespaced else self.namespace), name)
        if key not in self.objects:
            raise NotThereError(404, "NotFound", f'{resource.plural} "{name}" not found')
        return copy.deepcopy(self.objects[key])

    async def list(
        self, resource: Resource, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> list[Json]:
        self._right("list", resource)
        found = [o for (plural, place, _), o in self.objects.items() if plural == resource.plural
                 and (not resource.namespaced or namespace in (None, place))]  # fmt: skip
        if fields.startswith("regarding.uid="):
            found = [o for o in found if o["regarding"]["uid"] == fields.partition("=")[2]]
        if fields.startswith("metadata.name="):
            found = [o for o in found if o["metadata"]["name"] == fields.partition("=")[2]]
        for term in filter(None, labels.split(",")):
            key, _, value = term.partition("=")
            found = [o for o in found if o["metadata"].get("labels", {}).get(key) == value]
        return copy.deepcopy(found)

    async def create(self, resource: Resource, body: Json, namespace: str | None = None) -> Json:
        self._right("create", resource)
        if (resource.plural, namespace, body["metadata"]["name"]) in self.objects:
            raise ApiError(409, "AlreadyExists", f'{resource.plural} "{body["metadata"]["name"]}" already exists')
        return self.put(resource, body, namespace or self.namespace)

    async def patch(self, resource: Resource, name: str, namespace: str | None, patch: Any, **_: Any) -> Json:
        self._right("patch", resource)
        there = await self.get(resource, name, namespace)
        if isinstance(patch, list):
            return self.put(resource, patched(there, patch), namespace or self.namespace)
        if patch["metadata"].get("uid", there["metadata"]["uid"]) != there["metadata"]["uid"]:
            raise ApiError(409, "Conflict", "the UID in the precondition is another")
        made = self.put(resource, merged(there, patch), (namespace or self.namespace) if resource.namespaced else "")
        if resource is DLJOBS:
            self.on_patch(made)
        return made

    async def delete(self, resource: Resource, name: str, namespace: str | None = None, *, uid: str = "") -> None:
        there = await self.get(resource, name, namespace)
        assert uid == there["metadata"]["uid"]
        del self.objects[resource.plural, namespace or self.namespace, name]
        self.changed.set()

    async def watch(
        self, resource: Resource, namespace: str | None = None, *, fields: str = "", known_before: Iterable[Json] = ()
    ) -> AsyncGenerator[tuple[str, Json], None]:
        name = fields.removeprefix("metadata.name=")
        known = {o["metadata"]["uid"]: {"metadata": {**o["metadata"], "resourceVersion": ""}} for o in known_before}
        while True:
            self.changed.clear()
            now = {o["metadata"]["uid"]: o for o in await self.list(resource, namespace)
                   if not name or o["metadata"]["name"] == name}  # fmt: skip
            for uid in [uid for uid in known if uid not in now]:
                yield "DELETED", known.pop(uid)
            for uid, one in now.items():
                if uid not in known or known[uid]["metadata"]["resourceVersion"] != one["metadata"]["resourceVersion"]:
                    kind = "MODIFIED" if uid in known else "ADDED"
                    known[uid] = one
                    yield kind, one
            await self.changed.wait()

    async def call(self, method: str, path: str, body: Any = None) -> Json:
        answer = self.calls.get(
            path, NotThereError(404, "NotFound", "the server could not find the requested resource")
        )
        answer = answer(body) if callable(answer) else answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def proxy_get(self, pod: str, port: int, path: str, namespace: str | None, **options: Any) -> Response:
        if path == "metrics":
            return Response(200, (await self.call("GET", f"{namespace}/{pod}:{port}/metrics")).encode())
        assert (pod, options["headers"]) == (HEAD, {"x-ray-authorization": f"Bearer {TOKEN}"})
        assert port in (8265, 8266)
        answer = self.head.get(path.rsplit("/", 1)[-1])
        if answer is None:
            raise ApiError(503, "ServiceUnavailable", "error trying to reach service: connection refused")
        said = answer(options["query"])
        if isinstance(said, Response):
            return said
        return Response(200, said.encode() if isinstance(said, str) else json.dumps(said).encode())


ROLES = [{"name": "worker", "replicas": 2, "entrypoint": {"class": "hello.main"}}]


def add_job(kube: FakeKube, name: str = "hello", namespace: str = "team", **status: Any) -> Json:
    """Store a DLJob; status fields make it look as if an operator had processed it."""
    body: Json = {"metadata": {"name": name}, "spec": {"roles": ROLES}}
    return kube.put(DLJOBS, {**body, "status": status} if status else body, namespace)


def add_head(kube: FakeKube, name: str = "hello") -> None:
    """Give a job a head that answers."""
    kube.update(name, rayCluster={"name": CLUSTER, "headPod": HEAD})
    kube.put(
        SECRETS,
        {"metadata": {"name": f"{CLUSTER}-token"}, "data": {"auth_token": base64.b64encode(TOKEN.encode()).decode()}},
    )


def add_event(kube: FakeKube, job: Json, reason: str, note: str, at: str, **more: Any) -> None:
    kube.put(EVENTS, {
        "metadata": {"name": f"{job['metadata']['name']}.{reason.lower()}"},
        "regarding": {"uid": job["metadata"]["uid"]},
        "type": "Normal", "reason": reason, "note": note, "eventTime": at, **more,
    })  # fmt: skip


def logs_of(
    texts: dict[tuple[str, int], str], since: Callable[[float], int | None] = lambda _: None
) -> Callable[[dict[str, Any]], Any]:
    """Return a gateway's log answers for these texts; `since` maps a moment to a byte offset."""

    def answer(query: dict[str, Any]) -> Any:
        key = ("", int(query.get("older", 0))) if "master" in query else (query["role"], int(query["rank"]))
        if key not in texts:
            return Response(404, b'{"error": "no output yet"}')
        data = texts[key].encode()
        if not query.get("follow"):
            return data[-int(query["bytes"]) :].decode()
        last = max(0, len(data) - int(query.get("bytes", 65536)))
        place = since(int(query["since"]) / 1000) if "since" in query else int(query.get("from", last))
        start = min(place or 0, len(data))
        piece = data[start : start + int(query.get("bytes", 65536))]
        return {"text": piece.decode(), "offset": start + len(piece), "end": False, "timed": place is not None}

    return answer


def at_turns(answer: Callable[[Json], Any], events: Mapping[int, Any]) -> Callable[[Json], Any]:
    """Return `answer` with events at its nth question: what is called before it, raised, or answered in its place."""
    turns = itertools.count(1)

    def head(query: Json) -> Any:
        event = events.get(next(turns))
        event = event() if callable(event) else event
        if isinstance(event, Exception):
            raise event
        return event if isinstance(event, Response) else answer(query)

    return head


def add_saved_logs(kube: FakeKube, job: Json, **texts: str) -> None:
    owner = {"kind": "DLJob", "uid": job["metadata"]["uid"]}
    meta = {"name": f"{job['metadata']['name']}-logs", "ownerReferences": [owner]}
    data = {f"{key.replace('_', '-')}.log": text for key, text in texts.items()}
    kube.put(CONFIG_MAPS, {"metadata": meta, "data": data})
