"""Services of roles with `service: true`: EndpointSlices follow the ready ranks that PrimeMaster reports.

The Service has no selector: only PrimeMaster knows which rank of a pod is ready, and on which port. `status.services`
counts the slices of each role before they are created, so that a later operator finds all of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from dljob.plan.serving import offered
from dljob.reconcile.children.children import labels
from dljob.reconcile.state import names
from dljob.reconcile.state.accept import Refused
from dljob.reconcile.state.context import ReconcileContext
from dljob.reconcile.state.fields import items, number, text
from dljob.reconcile.state.model import Object, Pod, Serve
from dljob.reconcile.state.steps import PolicyDecision

IN_SLICE = 100
"""Endpoints of one slice, as many as Kubernetes' own controller puts there; its limit is 1000."""
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
MANAGER = "dljob.io"
"""Not that of Kubernetes' own controller, which would take a slice of another for its own."""
OF_SERVICE = "kubernetes.io/service-name"
TRIES = 3
"""Failures in a row after which the rest of the job goes first."""


def follow(case: ReconcileContext) -> PolicyDecision | None:
    """Write what differs from what is ready now, unless the API server keeps refusing it."""
    return None if _refused(case) else retry(case)


def retry(case: ReconcileContext) -> PolicyDecision | None:
    """Write what differs from what is ready now."""
    if not _has_endpoints(case) or isinstance(case.terms, Refused):
        return None
    desired = {f"{service.kind}/{service.name}": service for service in _desired_services(case)}
    obsolete = {key: service for key, service in _recorded(case).items() if key not in desired}
    known = case.observed.services
    # A slice before its Service would do nothing, so the Services come first: they do in `_wanted`.
    changed = [service for key, service in {**desired, **obsolete}.items() if known.get(key) != service.digest]
    if not changed:
        return None
    return PolicyDecision("the Services of the roles follow their ready ranks", tuple(changed), written_first=True)


def _refused(case: ReconcileContext) -> bool:
    trouble = case.trouble("Serve")
    return trouble is not None and trouble.count >= TRIES


def remove(case: ReconcileContext) -> PolicyDecision | None:
    """Delete the Services of a job that has ended or is suspended, with their slices."""
    if _refused(case):
        return None  # they go with the DLJob in any case
    deletions = tuple(deletion for key, deletion in _recorded(case).items() if case.observed.services.get(key) != "")
    return PolicyDecision("the job does not run: its Services are deleted", deletions) if deletions else None


def written(case: ReconcileContext) -> dict[str, Any]:
    """Return the field of the status: each role with a Service, its name and the number of its slices."""
    known = {text(row, "role"): row for row in items(case.old, "services")}
    # A row stays until its objects are gone.
    rows = {
        role: row for role, row in known.items() if any(case.observed.services.get(key) != "" for key in _keys(row))
    }
    if case.finished or case.halt:
        return {"services": list(rows.values())}
    for role, slices in _sliced(case).items():
        count = max(len(slices), number(known.get(role, {}), "slices"))
        rows[role] = {"role": role, "name": names.service(case.name, role), "slices": count}
    return {"services": list(rows.values())}


def _has_endpoints(case: ReconcileContext) -> bool:
    """Whether it is known who is ready: PrimeMaster said so, or it cannot have begun."""
    if not case.has_reported:
        return True
    master = case.observed.master
    return bool(case.snapshot) and master is not None and master.endpoints is not None


def _roles(case: ReconcileContext) -> dict[str, tuple[tuple[str, int], ...]]:
    return {} if isinstance(case.terms, Refused) else dict(case.terms.services)


def _sliced(case: ReconcileContext) -> dict[str, list[list[Object]]]:
    """Return role -> its ready ranks by slice, for each role with a Service, where they are known."""
    if not _has_endpoints(case):
        return {}
    master = case.observed.master
    endpoints = (master.endpoints if master is not None and case.snapshot else None) or {}
    # A head may name any address: a Service leads to the job's own pods alone.
    pods = {pod.ip: pod for pod in case.observed.pods if pod.ip and not pod.leaving}
    return {
        role: _slices([{**row, "pod": pods[row["ip"]]} for row in endpoints.get(role, ()) if row["ip"] in pods])
        for role in _roles(case)
    }


def _slices(rows: Sequence[Object]) -> list[list[Object]]:
    """Return the ranks by slice: those of one slice have one number for each port."""
    by_ports: dict[tuple[Any, ...], list[Object]] = {}
    for row in rows:
        family = "IPv6" if ":" in row["ip"] else "IPv4"
        by_ports.setdefault((family, *sorted(row["ports"].items())), []).append(row)
    return [
        same[first : first + IN_SLICE]
        for _, same in sorted(by_ports.items())
        for first in range(0, len(same), IN_SLICE)
    ]


def _desired_services(case: ReconcileContext) -> Iterator[Serve]:
    counts = {text(row, "role"): number(row, "slices") for row in items(case.old, "services")}
    for role, ports in _roles(case).items():
        yield _write("Service", _service(case, role, ports))
    for role, slices in _sliced(case).items():
        # A slice once written stays to the end, if only empty: so none is forgotten with endpoints in it.
        for at in range(max(len(slices), counts.get(role, 0))):
            yield _write("EndpointSlice", _slice(case, role, at, slices[at] if at < len(slices) else ()))


def _recorded(case: ReconcileContext) -> dict[str, Serve]:
    """Return the deletions of all objects that the status counts."""
    return {key: deletion for row in items(case.old, "services") for key, deletion in _keys(row).items()}


def _keys(row: Object) -> dict[str, Serve]:
    name = text(row, "name")
    slices = {
        f"EndpointSlice/{name}-{at}": Serve("EndpointSlice", f"{name}-{at}", None)
        for at in range(number(row, "slices"))
    }
    return {f"Service/{name}": Serve("Service", name, None), **slices}


def _write(kind: Literal["Service", "EndpointSlice"], body: Object) -> Serve:
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]
    return Serve(kind, body["metadata"]["name"], body, digest)


def _service(case: ReconcileContext, role: str, ports: Sequence[tuple[str, int]]) -> Object:
    numbers = [{"name": name, "port": at, "protocol": "TCP"} for name, at in offered(ports).items()]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(case, names.service(case.name, role)),
        "spec": {"type": "ClusterIP", "ports": numbers},
    }


def _slice(case: ReconcileContext, role: str, at: int, rows: Sequence[Object]) -> Object:
    name = names.service(case.name, role)
    meta = _metadata(case, f"{name}-{at}")
    meta["labels"] |= {MANAGED_BY: MANAGER, OF_SERVICE: name}
    # By name: kube-proxy finds the number of a Service's port by it.
    ports: Mapping[str, int] = rows[0]["ports"] if rows else {}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "addressType": "IPv6" if rows and ":" in rows[0]["ip"] else "IPv4",
        "metadata": meta,
        "ports": [{"name": port, "port": number, "protocol": "TCP"} for port, number in ports.items()],
        "endpoints": [_endpoint(row["ip"], row["pod"]) for row in rows],
    }


def _endpoint(ip: str, pod: Pod) -> Object:
    return {
        "addresses": [ip],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "targetRef": {"kind": "Pod", "name": pod.name, "uid": pod.uid},
        **({"nodeName": pod.node} if pod.node else {}),
    }


def _metadata(case: ReconcileContext, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": case.meta["namespace"],
        "labels": labels(case),
        "ownerReferences": [case.owner],
    }
