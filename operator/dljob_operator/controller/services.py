"""Services and EndpointSlices of a job: created, changed and deleted without a right to read them.

Each change is a JSON patch whose first operation tests the label with the job's uid, so an object of another owner that
has the name is never touched: the API server refuses the patch as a whole.
"""

from __future__ import annotations

from typing import Any

from dljob.kube.api import ApiError, Kube, NotThereError
from dljob.kube.resources import ENDPOINT_SLICES, SERVICES, Resource
from dljob.reconcile.state import names
from dljob.reconcile.state.model import Object, Serve
from dljob_operator.controller.observe import OperatorMemory
from dljob_operator.watch.workqueue import Key

_RESOURCES = {"Service": SERVICES, "EndpointSlice": ENDPOINT_SLICES}
_CHANGES = {"Service": ("/spec/ports",), "EndpointSlice": ("/endpoints", "/ports")}
"""Fields that change during a job, as JSON pointers."""
_LABEL = f"/metadata/labels/{names.LABEL_UID.replace('/', '~1')}"


class ServiceWriter:
    """Performs `Serve`."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    async def perform(self, key: Key, memory: OperatorMemory, action: Serve) -> None:
        """Bring an object to what the action says.

        Raises:
            ApiError: The API server refused, or the name belongs to another (409).
        """
        object_name = f"{action.kind}/{action.name}"
        if action.body is None:
            await self._delete(key, memory.uid, action)
        elif not memory.services.get(object_name):
            await self._create(key, memory.uid, action, action.body)
        else:
            try:
                await self._change(key, memory.uid, action, action.body)
            except NotThereError:  # somebody deleted it
                await self._create(key, memory.uid, action, action.body)
        memory.services[object_name] = action.digest

    async def _create(self, key: Key, uid: str, action: Serve, body: Object) -> None:
        try:
            await self._kube.create(_RESOURCES[action.kind], body, key.namespace)
        except ApiError as error:
            # An earlier operator, or an earlier pass whose answer was lost, may have made it.
            if error.reason != "AlreadyExists":
                raise
            await self._change(key, uid, action, body)

    async def _change(self, key: Key, uid: str, action: Serve, body: Object) -> None:
        # `add` replaces a value that is there, and an empty list may not be.
        changes = [{"op": "add", "path": path, "value": _at(body, path)} for path in _CHANGES[action.kind]]
        await self._guarded(key, uid, action, changes)

    async def _delete(self, key: Key, uid: str, action: Serve) -> None:
        resource: Resource = _RESOURCES[action.kind]
        try:
            existing = await self._guarded(key, uid, action, [])
            await self._kube.delete(resource, action.name, key.namespace, uid=existing["metadata"]["uid"])
        except NotThereError:
            return  # never made, or gone already
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise  # else it was never ours

    async def _guarded(self, key: Key, uid: str, action: Serve, changes: list[Any]) -> Object:
        patch = [{"op": "test", "path": _LABEL, "value": uid}, *changes]
        try:
            return await self._kube.patch(_RESOURCES[action.kind], action.name, key.namespace, patch, kind="json")
        except ApiError as error:
            if error.status != 422:
                raise
            words = f"{action.kind} {action.name} exists already and does not belong to the job: {error.message}"
            raise ApiError(409, "AlreadyExists", words) from None


def _at(body: Object, path: str) -> Any:  # noqa: ANN401 - JSON
    value: Any = body
    for name in path.split("/")[1:]:
        value = value[name]
    return value
