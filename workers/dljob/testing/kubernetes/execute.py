"""The actions of an outcome as calls: what the operator's hands do, in this world."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING

from dljob.reconcile.children import patches
from dljob.reconcile.state import names
from dljob.reconcile.state.fields import items, part, text
from dljob.reconcile.state.model import (
    Action,
    Annotate,
    Command,
    Create,
    CreateToken,
    Delete,
    Finalize,
    Object,
    PatchCluster,
    SaveLogs,
    Submit,
)
from dljob.testing.kubernetes.api_server import Body, RefusedError
from dljob.testing.kubernetes.heads import HeadProcess

if TYPE_CHECKING:
    from dljob.testing.kubernetes.operator_process import Memory, Operator


def perform(op: Operator, memory: Memory, action: Action) -> Generator[float, None, None]:
    """Make one action come true. Raises RefusedError."""
    match action:
        case Create():
            yield from _create(op, memory.uid, action.kind, dict(action.body))
        case CreateToken():
            spec = op.world.server.find("ConfigMap", action.owner)
            owner = {"kind": "ConfigMap", "name": action.owner, "uid": text(spec, "metadata", "uid")}
            yield from _create(op, memory.uid, "Secret", _child(action, owner))
        case Delete():
            yield from _delete(op, action)
        case PatchCluster():
            yield from _patch_cluster(op, action)
        case Annotate():
            yield from _annotate(op, action)
        case Finalize():
            yield from _finalize(op, on=action.on)
        case Submit():
            yield from _submit(op, action)
        case Command():
            yield from _command(op, memory, action)
        case SaveLogs():
            yield from _save_logs(op, memory, action)


def _command(op: Operator, memory: Memory, action: Command) -> Generator[float, None, None]:
    head = yield from _reach(op, action.address)
    head.order(head.master(), action.id, action.kind)
    if action.kind != "cause":
        op.world.happened()
    yield op.world.travel()
    memory.commands = (*memory.commands, action.id)


def _save_logs(op: Operator, memory: Memory, action: SaveLogs) -> Generator[float, None, None]:
    head = yield from _reach(op, action.address)
    head.master()
    there = op.world.server.find("ConfigMap", action.name)
    if there is None:
        yield from _create(op, memory.uid, "ConfigMap", _child(action, action.owner))
    else:
        op.world.server.put("ConfigMap", {**there, "metadata": {**there["metadata"], "labels": dict(action.labels)}})
    memory.logs_saved = True


def _child(action: CreateToken | SaveLogs, owner: Object) -> Body:
    meta = {"name": action.name, "labels": dict(action.labels), "ownerReferences": [dict(owner)]}
    return {"metadata": meta}


def _create(op: Operator, uid: str, kind: str, body: Body) -> Generator[float, None, None]:
    server = op.world.server
    if kind == "RayCluster":
        yield from _still_begins(op, body["metadata"]["name"])
    try:
        made = yield from op.call(lambda: server.create(kind, body), writes=True)
    except RefusedError as error:
        if error.reason != "AlreadyExists":
            raise
        if kind == "Secret":
            return
        made = yield from op.call(lambda: server.get(kind, body["metadata"]["name"]))
        owners = items(made, "metadata", "ownerReferences")
        if not any(owner.get("uid") == uid and owner.get("controller") for owner in owners):
            raise RefusedError(409, f"{kind} is somebody else's") from None
    if kind == "RayCluster":
        op.keep(kind, made)


def _still_begins(op: Operator, cluster: str) -> Generator[float, None, None]:
    job = yield from op.call(lambda: op.world.server.get("DLJob", op.world.name))
    op.keep("DLJob", job)
    status = part(job, "status")
    own = names.cluster_name(op.world.name, job["metadata"]["uid"], status.get("attempt") or 1)
    if own != cluster or status.get("completionTime") or job["metadata"].get("deletionTimestamp"):
        raise RefusedError(409, f"{cluster} is not wanted any more")


def _delete(op: Operator, action: Delete) -> Generator[float, None, None]:
    try:
        left = yield from op.call(lambda: _gone(op, action), writes=True)
    except RefusedError as error:
        if error.status == 409 and action.version:
            op.keep(action.kind, (yield from op.call(lambda: op.world.server.get(action.kind, action.name))))
        if error.status != 404:
            raise
        left = None
    if left is not None:
        op.keep(action.kind, left)
    else:
        op.forget(action.kind, action.name, action.uid)


def _patch_cluster(op: Operator, action: PatchCluster) -> Generator[float, None, None]:
    """Read live what is patched."""
    server = op.world.server
    found = yield from op.call(lambda: server.get("RayCluster", action.name))
    wanted = patches.operations(found, action)
    if wanted:
        found = yield from op.call(lambda: server.json_patch("RayCluster", action.name, wanted), writes=True)
    op.keep("RayCluster", found)


def _gone(op: Operator, action: Delete) -> Body | None:
    if action.kind == "Pod":
        return op.world.nature.delete_pod(action.name, action.uid, action.grace)
    server = op.world.server
    if action.version:
        server.unchanged(server.get(action.kind, action.name), action.version)
    return server.delete(action.kind, action.name, action.uid)


def _annotate(op: Operator, action: Annotate) -> Generator[float, None, None]:
    server = op.world.server
    if action.kind == "Pod":
        yield from op.call(lambda: _annotate_pod(op, action), writes=True)
        return
    made = yield from op.call(lambda: server.annotate(action.kind, action.name, action.annotations), writes=True)
    op.keep(action.kind, made)


def _annotate_pod(op: Operator, action: Annotate) -> None:
    """A pod that is gone needs none."""
    body = op.world.server.find("Pod", action.name)
    if body is not None:
        had = {**body["pod"].annotations, **action.annotations}
        kept = {key: value for key, value in had.items() if value is not None}
        before = op.world.unprovoked
        op.keep("Pod", op.world.server.put("Pod", {**body, "pod": replace(body["pod"], annotations=kept)}))
        op.world.unprovoked = before  # nothing happened but what the operator did itself
    elif (known := op.cache.get(("Pod", action.name))) is not None:
        op.forget("Pod", action.name, known["metadata"]["uid"])


def _finalize(op: Operator, *, on: bool) -> Generator[float, None, None]:
    server, name = op.world.server, op.world.name
    meta = part(op.cache.get(("DLJob", name)), "metadata")
    if not meta:
        return
    kept = [each for each in meta.get("finalizers") or () if each != names.FINALIZER]
    wanted = [*kept, names.FINALIZER] if on else kept
    try:
        made = yield from op.call(lambda: server.finalize(name, wanted, meta["resourceVersion"]), writes=True)
    except RefusedError as error:
        if error.status != 404:
            raise
        op.forget("DLJob", name, meta["uid"])
        return
    if made["metadata"].get("deletionTimestamp") and not wanted:
        op.forget("DLJob", name, meta["uid"])
    else:
        op.keep("DLJob", made)


def _reach(op: Operator, address: str) -> Generator[float, None, HeadProcess]:
    """The head that answers at an address, after the way there. Raises RefusedError."""
    yield op.world.travel()
    head = op.world.reach(address)
    if head is None:
        yield op.world.travel()
        raise RefusedError(0, f"cannot connect to {address}")
    return head


def _submit(op: Operator, action: Submit) -> Generator[float, None, None]:
    """POST the launcher, after a live look at whether the head is still the one that it was ordered for."""
    world = op.world
    pod, container = action.head
    job = yield from op.call(lambda: world.server.get("DLJob", world.name))
    op.keep("DLJob", job)
    if part(job, "status").get("submissionId") != action.id:
        raise RefusedError(0, f"{action.id} is not ordered any more")
    if container:
        found = yield from op.call(lambda: world.server.find("Pod", pod))
        if found is None or found["pod"].container != container:
            raise RefusedError(0, f"head pod {pod} is another one, or restarted since")
    head = yield from _reach(op, action.address)
    if action.session not in ("", head.session):
        raise RefusedError(0, f"the head has lost its memory: Ray's session is {head.session}")
    trouble = world.trouble()
    if trouble is None or trouble.done:
        world.submitted(op, head, action)
    if trouble is not None:
        yield trouble.seconds
        raise RefusedError(trouble.status, "no answer from Ray")
    yield world.travel()


def carried(text: Object) -> int:
    """What the last attempt counted, as a launcher reads it."""
    return int(part(text, "state").get("count", 0))
