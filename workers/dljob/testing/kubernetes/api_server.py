"""An API server in memory on virtual time: versions, conflicts, owners, and whom it tells of changes.

Objects are values: whoever changes one puts another in its place. A pod is kept as its digest under `pod`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from random import Random
from typing import Any, TypeAlias

from dljob.reconcile.state.context import stamp
from dljob.reconcile.state.fields import items, part, text
from dljob.reconcile.state.model import Object

Body: TypeAlias = dict[str, Any]
Told: TypeAlias = Callable[[str, str, Body, bool], None]
"""(kind, name, object, gone)."""

COLLECT_S = (0.05, 2.0)
"""The garbage collector takes so long, from and to."""


class Agenda:
    """What happens when, in the order of virtual time."""

    def __init__(self, now: float, rng: Random) -> None:
        self.now = now
        self.rng = rng
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._order = 0

    def after(self, delay: float, do: Callable[[], object]) -> None:
        """Do something in so many seconds."""
        self.at(self.now + delay, do)

    def at(self, when: float, do: Callable[[], object]) -> None:
        """Do something then."""
        self._order += 1
        heappush(self._due, (when, self._order, do))

    def soon(self, span: tuple[float, float], do: Callable[[], object]) -> None:
        """Do something within a span of seconds, more often early than late."""
        low, high = span
        self.after(low + (high - low) * self.rng.random() ** 2, do)

    def run(self, until: float, enough: Callable[[], bool]) -> None:
        """Let time pass, to a moment or until it is enough."""
        while self._due and self._due[0][0] <= until and not enough():
            when, _, do = heappop(self._due)
            self.now = max(self.now, when)
            do()
        if not enough():
            self.now = max(self.now, until)


class RefusedError(Exception):
    """What an API server, a head or the way to them answers instead."""

    def __init__(self, status: int, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason


class ApiServer:
    """The objects of one namespace."""

    def __init__(self, agenda: Agenda) -> None:
        self.agenda = agenda
        self.objects: dict[tuple[str, str], Body] = {}
        self.version = 0
        self.made = 0
        self.told: list[Told] = []
        """Told of each change, at once."""

    def find(self, kind: str, name: str) -> Body | None:
        """An object, or None."""
        return self.objects.get((kind, name))

    def get(self, kind: str, name: str) -> Body:
        """An object. Raises RefusedError 404."""
        found = self.find(kind, name)
        if found is None:
            raise RefusedError(404, f"{kind} {name} not found", "NotFound")
        return found

    def each(self, kind: str, cluster: str = "") -> Iterator[Body]:
        """The objects of a kind; pods of one RayCluster."""
        for (one, _), body in list(self.objects.items()):
            if one == kind and (not cluster or body["cluster"] == cluster):
                yield body

    def create(self, kind: str, body: Object) -> Body:
        """Make an object. Raises RefusedError 409 when its name is taken."""
        name: str = body["metadata"]["name"]
        if (kind, name) in self.objects:
            raise RefusedError(409, f"{kind} {name} already exists", "AlreadyExists")
        self.made += 1
        born = {"uid": f"uid-{self.made}", "generation": 1, "creationTimestamp": stamp(self.agenda.now)}
        return self.put(kind, {**body, "metadata": {**born, **body["metadata"]}})

    def put(self, kind: str, body: Body) -> Body:
        """Put an object in its place; nobody is told of one that is the same."""
        meta = body["metadata"]
        old = self.find(kind, meta["name"])
        if old is not None and {**old, "metadata": _versionless(old)} == {**body, "metadata": _versionless(body)}:
            return old
        self.version += 1
        made = {**body, "metadata": {**meta, "resourceVersion": str(self.version)}}
        self.objects[kind, meta["name"]] = made
        self._tell(kind, made, gone=False)
        return made

    def edit(self, kind: str, name: str, *, spec: Object | None = None, **meta: object) -> Body:
        """Change fields of a spec, or of the metadata; None removes one. Raises RefusedError 404."""
        old = self.get(kind, name)
        had = old["metadata"]
        more = {"generation": had["generation"] + 1} if spec else {}
        kept = {key: value for key, value in {**had, **meta, **more}.items() if value is not None}
        body = {**old, "metadata": kept}
        if spec:
            body["spec"] = {key: value for key, value in {**part(old, "spec"), **spec}.items() if value is not None}
        return self.put(kind, body)

    def json_patch(self, kind: str, name: str, operations: Sequence[Object]) -> Body:
        """Change an object by a JSON Patch. Raises RefusedError 404, and 422 when a test in it fails."""
        old = self.get(kind, name)
        made: Body = copy.deepcopy(old)
        for operation in operations:
            _operate(made, operation)
        changed = made["spec"] != old["spec"]
        made["metadata"]["generation"] = old["metadata"]["generation"] + changed
        return self.put(kind, made)

    def annotate(self, kind: str, name: str, annotations: Mapping[str, str | None]) -> Body:
        """Merge annotations. Raises RefusedError 404."""
        had = part(self.get(kind, name), "metadata", "annotations")
        kept = {key: value for key, value in {**had, **annotations}.items() if value is not None}
        return self.edit(kind, name, annotations=kept)

    def write_status(self, kind: str, name: str, status: Object, version: str) -> Body:
        """Replace a status. Raises RefusedError 409 when the object is not of that version, 404 when it is gone."""
        old = self.get(kind, name)
        self.unchanged(old, version)
        return self.put(kind, {**old, "status": status})

    def unchanged(self, body: Body, version: str) -> None:
        """Refuse what was decided from an older version."""
        if body["metadata"]["resourceVersion"] != version:
            raise RefusedError(409, "the object has been modified", "Conflict")

    def finalize(self, name: str, finalizers: list[str], version: str) -> Body:
        """Set a DLJob's finalizers; without any, one that is being deleted goes."""
        self.unchanged(self.get("DLJob", name), version)
        made = self.edit("DLJob", name, finalizers=finalizers)
        if text(made, "metadata", "deletionTimestamp") and not finalizers:
            self.drop("DLJob", name)
        return made

    def delete(self, kind: str, name: str, uid: str = "", *, foreground: bool = False) -> Body | None:
        """Delete an object; returns it while something holds it back. Raises RefusedError 404, and 409 for another."""
        old = self.get(kind, name)
        if uid and old["metadata"]["uid"] != uid:
            raise RefusedError(409, f"the uid of {kind} {name} is {old['metadata']['uid']}", "Conflict")
        if foreground or old["metadata"].get("finalizers"):
            at = old["metadata"].get("deletionTimestamp") or stamp(self.agenda.now)
            return self.edit(kind, name, deletionTimestamp=at)
        self.drop(kind, name)
        return None

    def drop(self, kind: str, name: str) -> None:
        """An object is gone; what it owned follows."""
        gone = self.objects.pop((kind, name), None)
        if gone is None:
            return
        if kind == "ConfigMap":  # the Secret that it owns goes at once: nobody watches that, or waits for it
            self.objects = {
                key: body for key, body in self.objects.items() if not _owned(body, gone["metadata"]["uid"])
            }
        self.version += 1
        self._tell(kind, {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self.version)}}, gone=True)
        if kind in ("DLJob", "RayCluster"):
            self.agenda.soon(COLLECT_S, lambda: self._collect(gone["metadata"]["uid"]))

    def _collect(self, uid: str) -> None:
        for (kind, name), body in list(self.objects.items()):
            if kind != "Pod" and _owned(body, uid):
                self.drop(kind, name)

    def _tell(self, kind: str, body: Body, *, gone: bool) -> None:
        for told in list(self.told):
            told(kind, body["metadata"]["name"], body, gone)


def _owned(body: Body, uid: str) -> bool:
    return any(owner["uid"] == uid for owner in items(body, "metadata", "ownerReferences"))


def _operate(body: Body, operation: Object) -> None:
    """One operation of a JSON Patch (RFC 6902): test, add or remove."""
    *way, last = [step.replace("~1", "/").replace("~0", "~") for step in operation["path"].split("/")[1:]]
    at: Any = body
    for step in way:
        at = at[int(step) if step.isdecimal() else step]
    if operation["op"] == "test" and at.get(last) != operation["value"]:
        raise RefusedError(422, f"the test of {operation['path']} failed", "Invalid")
    if operation["op"] == "add":
        at[last] = operation["value"]
    elif operation["op"] == "remove":
        del at[last]


def _versionless(body: Body) -> Body:
    return {key: value for key, value in body["metadata"].items() if key != "resourceVersion"}
