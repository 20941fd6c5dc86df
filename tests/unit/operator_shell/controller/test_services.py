"""Services and EndpointSlices at the API server: made, changed, deleted, and left alone where they are another's."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from dljob.kube.errors import ApiError, NotThereError
from dljob.kube.resources import Resource
from dljob.reconcile.state.model import Serve
from dljob_operator.controller.observe import OperatorMemory
from dljob_operator.controller.services import ServiceWriter
from dljob_operator.watch.workqueue import Key

KEY = Key("team", "hello")
UID = "uid-1"
LABEL = "/metadata/labels/dljob.io~1uid"


class ObjectServer:
    """The API server, as far as `create`, `patch` by JSON patch, and `delete` go; `calls` names each."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.calls: list[str] = []
        self.fails: ApiError | None = None

    async def create(self, resource: Resource, body: dict[str, Any], namespace: str) -> dict[str, Any]:
        self._called("POST", resource)
        where = resource.kind, body["metadata"]["name"]
        if where in self.objects:
            raise ApiError(409, "AlreadyExists", "exists")
        self.objects[where] = {**body, "metadata": {**body["metadata"], "uid": "uid-of-object"}}
        return self.objects[where]

    async def patch(self, resource: Resource, name: str, namespace: str, patch: Any, *, kind: str) -> dict[str, Any]:
        self._called("PATCH", resource)
        assert kind == "json"
        found = self._of(resource, name)
        test, *changes = patch
        assert (test["op"], test["path"]) == ("test", LABEL)
        if found["metadata"].get("labels", {}).get("dljob.io/uid") != test["value"]:
            raise ApiError(422, "Invalid", "the test failed")
        for change in changes:
            *parents, last = change["path"].split("/")[1:]
            target = found
            for parent in parents:
                target = target[parent]
            target[last] = change["value"]
        return found

    async def delete(self, resource: Resource, name: str, namespace: str, *, uid: str) -> None:
        self._called("DELETE", resource)
        assert self._of(resource, name)["metadata"]["uid"] == uid
        del self.objects[resource.kind, name]

    def _of(self, resource: Resource, name: str) -> dict[str, Any]:
        if (resource.kind, name) not in self.objects:
            raise NotThereError(404, "NotFound", "none")
        return self.objects[resource.kind, name]

    def _called(self, method: str, resource: Resource) -> None:
        self.calls.append(f"{method} {resource.plural}")
        if self.fails is not None:
            raise self.fails


def slice_(port: int = 80, uid: str = UID) -> dict[str, Any]:
    return {
        "metadata": {"name": "s-0", "labels": {"dljob.io/uid": uid}},
        "ports": [{"port": port}],
        "endpoints": [{"addresses": ["10.0.0.1"]}],
    }


def serve(body: Any, digest: str = "d1", kind: Literal["Service", "EndpointSlice"] = "EndpointSlice") -> Serve:
    return Serve(kind, "s-0", body, digest)


@pytest.fixture
def server() -> ObjectServer:
    return ObjectServer()


@pytest.fixture
def memory() -> OperatorMemory:
    return OperatorMemory(UID)


async def do(server: ObjectServer, memory: OperatorMemory, action: Serve) -> None:
    await ServiceWriter(server).perform(KEY, memory, action)  # type: ignore[arg-type] - what it uses of a client


async def test_a_slice_is_made_changed_and_deleted(server: ObjectServer, memory: OperatorMemory) -> None:
    await do(server, memory, serve(slice_()))
    await do(server, memory, serve(slice_(81), "d2"))
    assert server.objects["EndpointSlice", "s-0"]["ports"] == [{"port": 81}]
    assert memory.services == {"EndpointSlice/s-0": "d2"}
    await do(server, memory, serve(None, ""))
    assert (server.objects, memory.services) == ({}, {"EndpointSlice/s-0": ""})
    verbs = [call.split()[0] for call in server.calls]
    assert verbs == ["POST", "PATCH", "PATCH", "DELETE"]


async def test_a_later_operator_changes_what_an_earlier_one_made(server: ObjectServer, memory: OperatorMemory) -> None:
    await do(server, memory, serve(slice_()))
    await do(server, OperatorMemory(UID), serve(slice_(81)))
    assert server.objects["EndpointSlice", "s-0"]["ports"] == [{"port": 81}]


async def test_only_the_ports_of_a_service_change(server: ObjectServer, memory: OperatorMemory) -> None:
    meta = {"name": "s-0", "labels": {"dljob.io/uid": UID}}
    for port in (80, 81):
        body = {"metadata": meta, "spec": {"type": "ClusterIP", "ports": [{"port": port}]}}
        await do(server, memory, serve(body, str(port), "Service"))
    # What the API server filled in stays.
    assert server.objects["Service", "s-0"]["spec"] == {"type": "ClusterIP", "ports": [{"port": 81}]}


async def test_what_somebody_deleted_is_made_again(server: ObjectServer, memory: OperatorMemory) -> None:
    await do(server, memory, serve(slice_()))
    server.objects.clear()
    await do(server, memory, serve(slice_(81), "d2"))
    assert server.objects["EndpointSlice", "s-0"]["ports"] == [{"port": 81}]


async def test_an_object_of_another_is_neither_changed_nor_deleted(
    server: ObjectServer, memory: OperatorMemory
) -> None:
    other = slice_(uid="uid-of-another-job")
    await do(server, OperatorMemory("uid-of-another-job"), serve(other))
    before = server.objects["EndpointSlice", "s-0"]
    with pytest.raises(ApiError, match="EndpointSlice s-0 exists already and does not belong to the job") as error:
        await do(server, memory, serve(slice_(81)))
    assert (error.value.status, memory.services) == (409, {})
    await do(server, memory, serve(None, ""))
    assert server.objects["EndpointSlice", "s-0"] == before


async def test_deleting_what_was_never_made_is_no_error(server: ObjectServer, memory: OperatorMemory) -> None:
    await do(server, memory, serve(None, ""))
    assert memory.services == {"EndpointSlice/s-0": ""}


@pytest.mark.parametrize("body", [slice_(), None])
async def test_a_refusal_is_told_and_nothing_counts_as_written(
    server: ObjectServer, memory: OperatorMemory, body: Any
) -> None:
    server.fails = ApiError(403, "Forbidden", "no right")
    with pytest.raises(ApiError, match="no right"):
        await do(server, memory, serve(body))
    assert memory.services == {}
