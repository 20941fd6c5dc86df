"""A stand-in for Kueue: the changes of its webhook and controller to a RayCluster, under its own field manager.

Modelled on Kueue 0.19, pkg/controller/jobs/raycluster: the webhook's `Default` suspends at creation;
`RunWithPodSetsInfo` and `RestorePodSetsInfo` apply and remove a flavor's settings in one patch with `suspend`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cluster.handle import Cluster, KubectlError

from dljob.kube.api import RAYCLUSTERS, Kube, Resource

QUEUE = "kueue.x-k8s.io/queue-name"
MANAGER = "kueue"
FLAVOR = {"example.test/flavor": "spot"}
TOLERATION = {"key": "example.test/spot", "operator": "Exists", "effect": "NoSchedule"}
ADMITTED = {"kueue.x-k8s.io/podset": "admitted"}
POLICY = "stand-in-for-kueue"

Json = dict[str, Any]


def webhook(cluster: Cluster) -> None:
    """Install an admission policy that suspends every RayCluster with a queue label at creation."""
    rule = {"apiGroups": ["ray.io"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["rayclusters"]}
    labelled = f"has(object.metadata.labels) && '{QUEUE}' in object.metadata.labels"
    suspended = {"expression": "[JSONPatch{op: 'add', path: '/spec/suspend', value: true}]"}
    policy: Json = {
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "queued", "expression": labelled}],
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": suspended}],
    }
    meta: Json = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": POLICY}}
    cluster.apply(
        {**meta, "kind": "MutatingAdmissionPolicy", "spec": policy},
        {**meta, "kind": "MutatingAdmissionPolicyBinding", "spec": {"policyName": POLICY}},
    )


def no_webhook(cluster: Cluster) -> None:
    """Remove the admission policy."""
    for kind in ("mutatingadmissionpolicybinding", "mutatingadmissionpolicy"):
        cluster.kubectl("delete", kind, POLICY, "--ignore-not-found")


@dataclass
class Kueue:
    """Kueue's controller: admits and preempts, and records which values it wrote at which version."""

    cluster: Cluster
    namespace: str
    wrote: list[tuple[str, int, Json]] = field(default_factory=list[tuple[str, int, Json]])
    """(uid of the RayCluster, resourceVersion, Kueue's own values from that version on)."""

    def admit(self, name: str) -> None:
        """Admit a RayCluster: apply a flavor's nodeSelector, tolerations and labels, and unsuspend."""
        self._write(name, _with_flavor, suspend=False)

    def preempt(self, name: str) -> None:
        """Preempt a RayCluster: suspend it and remove the flavor's settings."""
        self._write(name, _without_flavor, suspend=True)

    def _write(self, name: str, change: Callable[[Json], None], *, suspend: bool) -> None:
        """Change each group's pod template; retried, as a controller does, when the object has changed meanwhile."""
        body = self.cluster.get("raycluster", name, "-n", self.namespace)
        while True:
            version = body["metadata"]["resourceVersion"]
            for group in (body["spec"]["headGroupSpec"], *body["spec"]["workerGroupSpecs"]):
                change(group["template"])
            try:
                made = self._patched(name, version, body["spec"], suspend=suspend)
            except KubectlError:  # A failed `test` of a JSON Patch is reported as "invalid", not as a conflict.
                body = self.cluster.get("raycluster", name, "-n", self.namespace)
                if body["metadata"]["resourceVersion"] == version:
                    raise
                continue
            self.wrote.append((made["metadata"]["uid"], int(made["metadata"]["resourceVersion"]), owned(made)))
            return

    def _patched(self, name: str, version: str, spec: Json, *, suspend: bool) -> Json:
        patch = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": version},
            {"op": "add", "path": "/spec/suspend", "value": suspend},
            {"op": "replace", "path": "/spec/headGroupSpec/template", "value": spec["headGroupSpec"]["template"]},
            {"op": "replace", "path": "/spec/workerGroupSpecs", "value": spec["workerGroupSpecs"]},
        ]
        where = (name, "-n", self.namespace, f"--field-manager={MANAGER}", "--type=json", "-o", "json")
        return json.loads(self.cluster.kubectl("patch", "raycluster", *where, "-p", json.dumps(patch)))

    def undone(self, seen: list[Json]) -> list[str]:
        """Return others' changes to its fields in the versions of a watch, up to its own next write; must be empty."""
        wrong: list[str] = []
        for body in seen:
            meta = body["metadata"]
            version = int(meta["resourceVersion"])
            before = [values for uid, at, values in self.wrote if uid == meta["uid"] and at <= version]
            if before and owned(body) != before[-1]:
                wrong.append(f"{meta['name']} at {version}: {owned(body)}, not {before[-1]}")
        return wrong


def _with_flavor(template: Json) -> None:
    labels = template.setdefault("metadata", {}).setdefault("labels", {})
    template["metadata"]["labels"] = {**labels, **ADMITTED}
    pod = template["spec"]
    pod["nodeSelector"] = {**pod.get("nodeSelector", {}), **FLAVOR}
    pod["tolerations"] = [*pod.get("tolerations", []), TOLERATION]


def _without_flavor(template: Json) -> None:
    for key in ADMITTED:
        template["metadata"]["labels"].pop(key, None)
    pod = template["spec"]
    pod["nodeSelector"] = {k: v for k, v in pod.get("nodeSelector", {}).items() if k not in FLAVOR}
    pod["tolerations"] = [one for one in pod.get("tolerations", []) if one != TOLERATION]


def owned(body: Json) -> Json:
    """Return Kueue's values in a RayCluster."""
    spec = body["spec"]
    groups: Json = {}
    for name, group in (("head", spec["headGroupSpec"]), *((g["groupName"], g) for g in spec["workerGroupSpecs"])):
        pod, meta = group["template"]["spec"], group["template"].get("metadata", {})
        groups[name] = {
            "nodeSelector": {k: v for k, v in pod.get("nodeSelector", {}).items() if k in FLAVOR},
            "tolerations": [one for one in pod.get("tolerations", []) if one == TOLERATION],
            "labels": {k: v for k, v in meta.get("labels", {}).items() if k in ADMITTED},
            "replicas": group.get("replicas"),
        }
    return {"suspend": spec.get("suspend"), "queue": meta_label(body), "groups": groups}


def meta_label(body: Json) -> str:
    """Return the queue label."""
    return body["metadata"].get("labels", {}).get(QUEUE, "")


class Seen:
    """A record of every version of every object of a kind in a namespace, by a watch in its own thread."""

    def __init__(self, cluster: Cluster, namespace: str, resource: Resource = RAYCLUSTERS) -> None:
        self.versions: list[Json] = []
        self._cluster, self._namespace, self._resource = cluster, namespace, resource
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._task = self._loop.create_task(self._follow())
        self._loop.call_soon(self._ready.set)
        self._loop.run_until_complete(asyncio.gather(self._task, return_exceptions=True))
        self._loop.run_until_complete(asyncio.sleep(0.2))  # TLS connections close a moment later.

    async def _follow(self) -> None:
        async with (
            await Kube.connect(kubeconfig=str(self._cluster.kubeconfig)) as kube,
            contextlib.aclosing(kube.watch(self._resource, self._namespace)) as heard,
        ):
            async for kind, body in heard:
                if kind != "DELETED":
                    self.versions.append(body)

    def by(self, manager: str, uid: str) -> int:
        """Return how many versions of an object a manager wrote, by changes of the server's managedFields."""
        times = {
            entry.get("time")
            for body in self.versions
            if body["metadata"]["uid"] == uid
            for entry in body["metadata"].get("managedFields", [])
            if entry["manager"] == manager
        }
        return len(times)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(10)
        self._loop.close()
