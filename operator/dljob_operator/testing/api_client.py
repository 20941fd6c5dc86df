"""The operator's client of the API server, cut off below `Kube.call`: paths, bodies and selectors are the real ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

from dljob.kube.api import CONFIG_MAPS, DLJOBS, EVENTS, NODES, PODS, RAYCLUSTERS, SECRETS, Json, Kube
from dljob.kube.errors import ApiError
from dljob.kube.resources import ENDPOINT_SLICES, NETWORK_POLICIES, SERVICES
from dljob.kube.transport import TIMEOUT, Query
from dljob.reconcile.state import names
from dljob.reconcile.state.fields import part, text
from dljob_operator.testing.api_server import NAMESPACE
from dljob_operator.testing.simulated_process import SimulatedProcess
from dljob_operator.testing.slow_calls import arrival
from dljob_operator.testing.world import StoryState

KINDS = {
    resource.plural: resource.kind
    for resource in (DLJOBS, RAYCLUSTERS, PODS, CONFIG_MAPS, SECRETS, NETWORK_POLICIES, SERVICES, ENDPOINT_SLICES)
}


class SimulatedKube(Kube):
    """A client whose calls take time, may be refused, and may lose their answer when they are done."""

    def __init__(self, operator: SimulatedProcess, world: StoryState) -> None:
        self.namespace = NAMESPACE
        self.manager = names.CONTROLLER
        self._operator = operator
        self._world = world

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Query | None = None,
        content: str = "application/json",
        timeout: float = TIMEOUT,  # noqa: ASYNC109 - as in the class that this one stands for
    ) -> Json:
        """Make a call. Raises ApiError: it is refused, or nobody answers."""
        # The request travels; a crash of the operator here comes before the effect.
        await self._operator.travel()
        slow = self._world.slow.take("api", reads=method == "GET")
        if slow is not None:
            sent: Any = json.loads(json.dumps(body)) if body else {}
            do = partial(self._answer, method, path, sent, query or {}, content)
            arrives = arrival(self._operator, self._world.slow, slow, do)
            try:
                return await self._world.slow.wait(self._operator, timeout, arrives, f"{method} {path}")
            except TimeoutError:
                raise ApiError(0, "Unreachable", "no answer in time") from None
        trouble = self._world.trouble()
        # Refused, without effect.
        if trouble is not None and not trouble.done:
            await self._operator.sleep(trouble.seconds)
            raise ApiError(trouble.status, "", "no such luck")
        # What is sent is JSON: a tuple arrives as a list, and what is no JSON does not arrive.
        answer = self._answer(method, path, json.loads(json.dumps(body)) if body else {}, query or {}, content)
        # It took effect and only the answer is lost: the shell must find its work done.
        if trouble is not None:
            await self._operator.sleep(trouble.seconds)
            raise ApiError(trouble.status, "", "the answer is lost")
        # The answer travels; a crash here comes after the effect.
        await self._operator.travel()
        return answer

    async def _page(self, path: str, query: Query, *, is_single: bool) -> Json:
        del is_single  # no list of a story is large
        return await self.call("GET", path, query=query)

    def _answer(self, method: str, path: str, body: Any, query: Query, content: str) -> Json:  # noqa: ANN401 - JSON
        plural, name, sub = _parsed(path)
        if plural == EVENTS.plural:  # nobody reads the operator's own, and nobody else writes any
            return body or {"metadata": {}, "items": []}
        if plural == NODES.plural:
            return self._world.nature.node(name)
        kind = KINDS[plural]
        if method == "GET" and name:
            return self._world.server.get(kind, name)
        if method == "GET":
            return {"metadata": {}, "items": self._list(kind, query)}
        before = self._world.unprovoked
        # Too many writes in a row without an event from outside are a storm.
        self._world.wrote(self._operator)
        answer = self._write(method, (kind, name, sub), body, content)
        if kind == "Pod" and method == "PATCH":
            self._world.unprovoked = before  # its own annotation of a pod gives an operator nothing new to do
        return answer

    def _write(self, method: str, target: tuple[str, str, str], body: Any, content: str) -> Json:  # noqa: ANN401
        server, (kind, name, sub) = self._world.server, target
        if method == "POST":
            return server.create(kind, body)
        if method == "DELETE":
            only = part(body, "preconditions")
            if kind == "Pod":
                deleted = self._world.nature.delete_pod(name, text(only, "uid"), body.get("gracePeriodSeconds"))
            else:
                deleted = server.delete(kind, name, uid=text(only, "uid"), version=text(only, "resourceVersion"))
            return {**deleted, "kind": kind} if deleted is not None else {"kind": "Status"}
        if "json-patch" in content:
            return server.json_patch(kind, name, body)
        # Server-side apply creates an object that is missing.
        if "apply-patch" in content and server.find(kind, name) is None:
            return server.create(kind, body)
        return server.merge(kind, name, body, sub)

    def _list(self, kind: str, query: Query) -> list[Json]:
        # The first list of an operator may be old (`rewound`).
        past = self._operator.past(kind)
        bodies = self._world.server.objects_of(kind) if past is None else past
        labels, fields = str(query.get("labelSelector", "")), str(query.get("fieldSelector", ""))
        named = [body for body in bodies if selects(fields, {"metadata.name": body["metadata"]["name"]})]
        return [body for body in named if selects(labels, part(body, "metadata", "labels"))]


def selects(selector: str, values: Mapping[str, str]) -> bool:
    """Whether a selector of equalities and names takes what has these values."""
    for term in selector.split(",") if selector else ():
        name, equals, value = term.partition("=")
        if values.get(name) != value if equals else name not in values:
            return False
    return True


@lru_cache(maxsize=4096)
def _parsed(path: str) -> tuple[str, str, str]:
    """Return plural, name and subresource of a path; empty where there is none."""
    # Paths of the core group, `/api/VERSION/...`, have one step less than `/apis/GROUP/VERSION/...`.
    parts = path.split("/")[3 if path.startswith("/api/") else 4 :]
    plural, name, sub = (*(parts[2:] if parts[0] == "namespaces" else parts), "", "")[:3]
    return plural, name, sub
