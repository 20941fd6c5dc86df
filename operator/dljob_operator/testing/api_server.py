"""An API server in memory, on virtual time: versions, conflicts, owner references, finalizers, and its watchers.

Objects are values: a change replaces the whole object, so that caches and traces can keep what they were given.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from dljob.kube.errors import ApiError, NotThereError
from dljob.reconcile.state.context import stamp
from dljob.reconcile.state.fields import items, part, text
from dljob.reconcile.state.model import Object
from dljob_operator.testing.virtual_time import Agenda

Body: TypeAlias = dict[str, Any]
Told: TypeAlias = Callable[[str, str, Body, bool], None]
"""Called with (kind, name, object, whether it is gone)."""

NAMESPACE = "team"
CLUSTER = "ray.io/cluster"
"""Label of a pod with its RayCluster."""
COLLECT_S = (0.05, 2.0)
"""Seconds, from and to, until the garbage collector deletes what a deleted object owned."""


class ApiServer:
    """The objects of one namespace."""

    def __init__(self, agenda: Agenda) -> None:
        self.agenda = agenda
        self.objects: dict[tuple[str, str], Body] = {}
        self.version = 0
        self.made = 0
        self.listeners: list[Told] = []
        """Called with each change, at once; watches bring it to operators later."""

    def find(self, kind: str, name: str) -> Body | None:
        """Return an object, or None."""
        return self.objects.get((kind, name))

    def get(self, kind: str, name: str) -> Body:
        """Return an object. Raises NotThereError."""
        body = self.find(kind, name)
        if body is None:
            raise NotThereError(404, "NotFound", f"{kind} {name} not found")
        return body

    def objects_of(self, kind: str, cluster: str = "") -> Iterator[Body]:
        """Yield the objects of a kind, or the pods of one RayCluster."""
        for (object_kind, _), body in list(self.objects.items()):
            if object_kind == kind and (not cluster or text(body, "metadata", "labels", CLUSTER) == cluster):
                yield body

    def create(self, kind: str, body: Object) -> Body:
        """Create an object. Raises ApiError 409 when its name is taken."""
        name: str = body["metadata"]["name"]
        if (kind, name) in self.objects:
            raise ApiError(409, "AlreadyExists", f"{kind} {name} already exists")
        self.made += 1
        born = {"namespace": NAMESPACE, "uid": f"uid-{self.made}", "generation": 1}
        born["creationTimestamp"] = stamp(self.agenda.now)
        # A uid in the body wins: pods of the model bring theirs.
        return self.put(kind, {**body, "metadata": {**born, **body["metadata"]}})

    def put(self, kind: str, body: Body) -> Body:
        """Store an object under a new resourceVersion; an unchanged one keeps its own, without an event."""
        meta = body["metadata"]
        old = self.find(kind, meta["name"])
        if old is not None and {**old, "metadata": _versionless(old)} == {**body, "metadata": _versionless(body)}:
            return old
        self.version += 1
        stored = {**body, "metadata": {**meta, "resourceVersion": str(self.version)}}
        self.objects[kind, meta["name"]] = stored
        self._tell(kind, stored, is_deleted=False)
        return stored

    def merge(self, kind: str, name: str, patch: Object, sub: str = "") -> Body:
        """Change an object by a merge patch (RFC 7396), or its subresource alone.

        An object that is being deleted goes once its last finalizer is taken off. Raises NotThereError, and ApiError
        409 when the patch names another resourceVersion than the present one.
        """
        old = self.get(kind, name)
        self.unchanged(old, text(patch, "metadata", "resourceVersion"))
        # The status is a subresource: a patch of the object leaves it alone, and the other way round.
        merged_body = merged(
            old, {key: value for key, value in patch.items() if (key == sub if sub else key != "status")}
        )
        # Only a changed spec raises the generation.
        if merged_body.get("spec") != old.get("spec"):
            merged_body["metadata"] = {**merged_body["metadata"], "generation": old["metadata"]["generation"] + 1}
        done = self.put(kind, merged_body)
        # Pods go at the end of their grace period instead (`Nature._remove_pod`).
        if kind != "Pod" and done["metadata"].get("deletionTimestamp") and not done["metadata"].get("finalizers"):
            self.drop(kind, name)
        return done

    def edit(self, kind: str, name: str, **spec: object) -> Body:
        """Change fields of a spec; None removes one. Raises NotThereError."""
        return self.merge(kind, name, {"spec": spec})

    def annotate(self, kind: str, name: str, annotations: Mapping[str, str | None]) -> Body:
        """Change annotations; None removes one. Raises NotThereError."""
        return self.merge(kind, name, {"metadata": {"annotations": annotations}})

    def json_patch(self, kind: str, name: str, operations: Sequence[Object]) -> Body:
        """Change an object by a JSON Patch. Raises NotThereError, and 422 when a test in it fails."""
        old = self.get(kind, name)
        patched: Body = copy.deepcopy(old)
        for operation in operations:
            _operate(patched, operation)
        changed = patched["spec"] != old["spec"]
        patched["metadata"]["generation"] = old["metadata"]["generation"] + changed
        return self.put(kind, patched)

    def unchanged(self, body: Body, version: str) -> None:
        """Raise ApiError 409 unless the object has this resourceVersion; an empty one matches any."""
        if version and body["metadata"]["resourceVersion"] != version:
            raise ApiError(409, "Conflict", "the object has been modified")

    def delete(
        self, kind: str, name: str, uid: str = "", version: str = "", *, foreground: bool = False
    ) -> Body | None:
        """Delete an object; return it while a finalizer holds it. Raises NotThereError, and ApiError 409."""
        old = self.get(kind, name)
        if uid and old["metadata"]["uid"] != uid:
            raise ApiError(409, "Conflict", f"the uid of {kind} {name} is {old['metadata']['uid']}")
        self.unchanged(old, version)
        holds = [*(old["metadata"].get("finalizers") or ()), *(["foregroundDeletion"] if foreground else ())]
        if holds:
            at = old["metadata"].get("deletionTimestamp") or stamp(self.agenda.now)
            meta = {**old["metadata"], "deletionTimestamp": at, "finalizers": list(dict.fromkeys(holds))}
            return self.put(kind, {**old, "metadata": meta})
        self.drop(kind, name)
        return None

    def drop(self, kind: str, name: str) -> None:
        """Remove an object; the garbage collector removes later what it owned."""
        dropped = self.objects.pop((kind, name), None)
        if dropped is None:
            return
        if kind == "ConfigMap":  # its Secret goes at once: no watch covers Secrets, and no pass waits for one
            self.objects = {
                key: body for key, body in self.objects.items() if not _owned(body, dropped["metadata"]["uid"])
            }
        self.version += 1
        # A deletion has a version of its own, as in watch events.
        self._tell(
            kind,
            {**dropped, "metadata": {**dropped["metadata"], "resourceVersion": str(self.version)}},
            is_deleted=True,
        )
        if kind in ("DLJob", "RayCluster"):
            self.agenda.soon(COLLECT_S, lambda: self._collect(dropped["metadata"]["uid"]))

    def _collect(self, uid: str) -> None:
        for (kind, name), body in list(self.objects.items()):
            # Pods go by the model of KubeRay, with their grace period.
            if kind != "Pod" and _owned(body, uid):
                self.drop(kind, name)

    def _tell(self, kind: str, body: Body, *, is_deleted: bool) -> None:
        for listener in list(self.listeners):
            listener(kind, body["metadata"]["name"], body, is_deleted)


def merged(old: Object, patch: Object) -> Body:
    """Apply a merge patch (RFC 7396) to an object."""
    result: Body = {**old}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(part(old, key), part(patch, key)) if isinstance(value, Mapping) else value
    return result


def _owned(body: Body, uid: str) -> bool:
    return any(owner["uid"] == uid for owner in items(body, "metadata", "ownerReferences"))


def _operate(body: Body, operation: Object) -> None:
    """One operation of a JSON Patch (RFC 6902): test, add or remove."""
    # RFC 6901: `~1` before `~0`, or `~01` would become a slash.
    *way, last = [step.replace("~1", "/").replace("~0", "~") for step in operation["path"].split("/")[1:]]
    at: Any = body
    for step in way:
        at = at[int(step) if step.isdecimal() else step]
    if operation["op"] == "test" and at.get(last) != operation["value"]:
        raise ApiError(422, "Invalid", f"the test of {operation['path']} failed")
    if operation["op"] == "add":
        at[last] = operation["value"]
    elif operation["op"] == "remove":
        del at[last]


def _versionless(body: Body) -> Body:
    return {key: value for key, value in body["metadata"].items() if key != "resourceVersion"}
