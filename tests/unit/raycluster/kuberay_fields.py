"""Fields of KubeRay 1.6.2's RayCluster schema, as far as a DLJob's RayCluster uses them.

Source: ray-operator v1.6.2, config/crd/bases/ray.io_rayclusters.yaml, version v1. The API server silently drops fields
that are not in the schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

FREE = frozenset({"*"})
"""A mapping with free keys."""

FIELDS: dict[str, frozenset[str]] = {
    path: frozenset(names.split())
    for path, names in {
        "": "apiVersion kind metadata spec",
        "metadata": "name namespace labels annotations ownerReferences",
        "metadata.labels": "*",
        "metadata.annotations": "*",
        "metadata.ownerReferences[]": "apiVersion kind name uid controller blockOwnerDeletion",
        "spec": "authOptions enableInTreeAutoscaling gcsFaultToleranceOptions headGroupSpec headServiceAnnotations"
        " managedBy rayVersion suspend upgradeStrategy workerGroupSpecs",
        "spec.authOptions": "enableK8sTokenAuth mode secretName",
        "spec.upgradeStrategy": "type",
        "spec.headServiceAnnotations": "*",
        "spec.gcsFaultToleranceOptions": "externalStorageNamespace redisAddress redisPassword redisUsername",
        "spec.gcsFaultToleranceOptions.redisPassword": "value valueFrom",
        "spec.gcsFaultToleranceOptions.redisPassword.valueFrom": "secretKeyRef",
        "spec.gcsFaultToleranceOptions.redisPassword.valueFrom.secretKeyRef": "name key",
        "GROUP": "enableIngress groupName headService idleTimeoutSeconds labels maxReplicas minReplicas numOfHosts"
        " rayStartParams replicas resources scaleStrategy serviceType suspend template",
        "GROUP.labels": "*",
        "GROUP.rayStartParams": "*",
        "GROUP.resources": "*",
        "POD": "metadata spec",
        "POD.metadata": "annotations labels",
        "POD.metadata.labels": "*",
        "POD.metadata.annotations": "*",
        "POD.spec": "affinity automountServiceAccountToken containers hostNetwork hostUsers imagePullSecrets"
        " initContainers nodeSelector priorityClassName restartPolicy runtimeClassName schedulerName securityContext"
        " serviceAccountName terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes",
        "POD.spec.nodeSelector": "*",
        "POD.spec.imagePullSecrets[]": "name",
        "POD.spec.securityContext": "fsGroup runAsGroup runAsNonRoot runAsUser seccompProfile supplementalGroups",
        "POD.spec.securityContext.seccompProfile": "type localhostProfile",
        "POD.spec.tolerations[]": "effect key operator tolerationSeconds value",
        "POD.spec.volumes[]": "name emptyDir configMap persistentVolumeClaim",
        "POD.spec.volumes[].emptyDir": "medium sizeLimit",
        "POD.spec.volumes[].configMap": "defaultMode items name optional",
        "POD.spec.volumes[].persistentVolumeClaim": "claimName readOnly",
        "C": "args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe"
        " resources securityContext startupProbe volumeMounts workingDir",
        "C.env[]": "name value valueFrom",
        "C.env[].valueFrom": "configMapKeyRef fieldRef resourceFieldRef secretKeyRef",
        "C.env[].valueFrom.fieldRef": "apiVersion fieldPath",
        "C.envFrom[]": "configMapRef prefix secretRef",
        "C.envFrom[].configMapRef": "name optional",
        "C.envFrom[].secretRef": "name optional",
        "C.ports[]": "containerPort name protocol",
        "C.resources": "limits requests",
        "C.resources.limits": "*",
        "C.resources.requests": "*",
        "C.lifecycle": "preStop",
        "C.lifecycle.preStop": "exec",
        "C.lifecycle.preStop.exec": "command",
        "C.readinessProbe": "exec failureThreshold httpGet initialDelaySeconds periodSeconds successThreshold"
        " timeoutSeconds",
        "C.readinessProbe.exec": "command",
        "C.readinessProbe.httpGet": "path port",
        "C.securityContext": "allowPrivilegeEscalation capabilities privileged readOnlyRootFilesystem runAsNonRoot"
        " runAsUser seccompProfile",
        "C.securityContext.capabilities": "add drop",
        "C.volumeMounts[]": "mountPath name readOnly subPath",
    }.items()
}

SHORT = (
    ("spec.headGroupSpec", "GROUP"),
    ("spec.workerGroupSpecs[]", "GROUP"),
    ("GROUP.template", "POD"),
    ("POD.spec.containers[]", "C"),
    ("POD.spec.initContainers[]", "C"),
    ("C.livenessProbe", "C.readinessProbe"),
    ("C.startupProbe", "C.readinessProbe"),
)


def unknown(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of an object that KubeRay 1.6.2's schema does not have."""
    for long, short in SHORT:
        path = path.replace(long, short)
    if isinstance(value, list):
        for item in value:
            yield from unknown(item, f"{path}[]")
    if not isinstance(value, dict):
        return
    known = FIELDS.get(path, frozenset())
    for name, item in value.items():
        here = f"{path}.{name}".removeprefix(".")
        if known == FREE:
            if not isinstance(item, str):
                yield f"{here}: {item!r} is no text"
        elif name not in known:
            yield here
        else:
            yield from unknown(item, here)
