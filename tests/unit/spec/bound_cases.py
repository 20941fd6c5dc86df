"""Jobs on both sides of every bound of the CRD, made from its schema: for the loader and for a real API server.

For each bound of each field a value just inside and one just outside is put into a job that has every field.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from cel_cases import ON_REF, Json, job

from dljob.spec import quantity, scalars
from dljob.spec.crd import crd

PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
WHOLE: Json = {
    "image": "example/image:1",
    "rayVersion": "2.60.0",
    "imagePullPolicy": "Always",
    "imagePullSecrets": [{"name": "pull"}],
    "env": [{"name": "A", "value": "1"}],
    "envFrom": [{"prefix": "P_", "secretRef": {"name": "s"}}, {"configMapRef": {"name": "c"}}],
    "runtimeEnv": {"pip": ["einops"]},
    "config": {"lr": 1},
    "code": {"configMap": "code", "workingDir": "src"},
    "backend": {"name": "ray", "options": {}},
    "roles": [
        {
            "name": "a",
            "type": "Elastic",
            "entrypoint": {"module": "a.py"},
            "python": "/opt/python",
            "args": ["x"],
            "env": [{"name": "B", "value": "1"}],
            "config": {},
            "accelerator": {
                "type": "GPU",
                "count": "1",
                "visibility": "Shared",
                "numaBinding": "Node",
                "memoryLimit": "Share",
            },
            "resources": {
                "cpu": "1",
                "memory": "1Gi",
                "custom": {"x": "1"},
                "auto": {"cpu": {"min": "1", "max": "2"}, "memory": {"min": "1Gi", "max": "1536Mi"}},
            },
            "nice": 5,
            "nodeGroup": "g",
            "dependsOn": [{"role": "c", "condition": "Ready"}],
            "comm": {"backend": "gloo", "timeoutSeconds": 60, "preCheck": False, "initProcessGroup": False},
            "restartPolicy": {
                "level": "Role",
                "maxRestarts": 1,
                "outOfMemory": {"memoryFactor": "1.5", "maxMemory": "2Gi"},
                "with": ["b"],
            },
            "annotations": {"scheduling.dljob.io/accelerator": "GPU"},
            "ports": [{"name": "http", "port": 0}],
            "service": True,
            "drain": {"signal": "SIGUSR1", "httpPost": {"path": "/", "port": 8000}, "timeoutSeconds": 9},
            "weights": {
                "channels": ["a"],
                "maxLag": 1,
                "minReady": 1,
                "load": {"httpPost": {"path": "/", "port": 8000}, "timeoutSeconds": 9},
                "verify": {"httpGet": {"path": "/", "port": 8000, "httpHeaders": [{"name": "A", "value": "b"}]}},
            },
            **{
                key: {"httpGet": {"path": "/", "port": 8000, "httpHeaders": [{"name": "A", "value": "b"}]}}
                for key in PROBES
            },
        },
        {
            "name": "b",
            "entrypoint": {"command": ["ls"]},
            "weights": {"channels": ["a"], **{key: {"exec": {"command": ["ls"]}} for key in ("load", "verify")}},
            **{key: {"tcpSocket": {"port": 8000}} for key in PROBES},
        },
        {
            "name": "c",
            "entrypoint": {"class": "app.A"},
            "weights": {"channels": ["a"], **{key: {"method": "load"} for key in ("load", "verify")}},
            **{key: {"exec": {"command": ["true"]}} for key in PROBES},
        },
        {
            "name": "s",
            "entrypoint": {"command": ["ls"]},
            "driver": False,
            "maxReplicas": 2,
            "autoscale": {"by": "queue", "name": "q", "target": 4, "cooldownSeconds": 30},
        },
        {
            "name": "e",
            "entrypoint": {"command": ["ls"]},
            **{key: {"grpc": {"port": 8000, "service": "s"}} for key in PROBES},
        },
        *(
            {"name": task, "entrypoint": {"command": ["ls"]}, "driver": task == "chief", "tf": {"task": task}}
            for task in ("chief", "ps", "worker")
        ),
    ],
    "collocations": [{"name": "d", "roles": ["b", "c"], "level": "Host"}],
    "nodeGroups": [
        {
            "name": "g",
            "cpu": "8",
            "memory": "8Gi",
            "sharedMemory": "1Gi",
            "image": "engine:1",
            "labels": {"rack": "a"},
            "template": {},
            "accelerator": {"type": "GPU", "count": 8, "resourceName": "nvidia.com/gpu", "rayResource": "GPU"},
        }
    ],
    "head": {"cpu": "1", "memory": "4Gi", "template": {}},
    "rayClusterTemplate": {},
    "master": {
        "cpu": "1",
        "memory": "1Gi",
        "maxRestarts": 1,
        "createTimeoutSeconds": 60,
        "journal": {"path": "/journal", "claimName": "journal"},
        "placement": "Head",
        "standby": "Auto",
    },
    "gcsFaultTolerance": {
        "backend": "Redis",
        "redisAddress": "redis:6379",
        "redisPasswordSecret": {"name": "s", "key": "password"},
    },
    "faultTolerance": {
        "backoff": {"initialSeconds": 0, "multiplier": 2, "maxSeconds": 86400},
        "spares": {"processesPerNode": 0, "nodes": 0},
        "node": {"freezeSeconds": 3, "failureDomainLabel": "rack", "domainFailures": 2},
        "elastic": {"shrinkAfterSeconds": 30},
        "hang": {"action": "Restart"},
        "witnesses": [
            {
                "name": "w",
                "preset": "dcgm",
                "port": 9400,
                "urlPath": "/metrics",
                "metric": "m",
                "means": "Hang",
                "when": "Above",
                "value": "1",
                "forSeconds": 9,
                "act": True,
                "dump": {"port": 18888, "urlPath": "/dump", "body": "{}"},
            }
        ],
        "rules": [
            {
                "name": "r",
                "roles": ["a"],
                "onReasons": ["Unknown"],
                "onExitCodes": [3],
                "action": "Ignore",
                "maxAttempts": 2,
                "escalateTo": "Fail",
            }
        ],
        "causes": [{"name": "c", "onLog": "a", "reason": "Unknown"}],
    },
    "checkpoint": {
        "path": "/ckpt",
        "claimName": "ckpt",
        "saveOnExit": False,
        "peerCopy": False,
        "gracePeriodSeconds": 9,
        "everySteps": 9,
        "cutDeadlineSeconds": 9,
    },
    "networkPolicy": {"enabled": True},
    "progressMetrics": ["loss"],
    "collectives": {
        "backends": [{"name": "MYCCL", "class": "acme.Group"}],
        "groups": [{"name": "w", "backend": "MYCCL", "roles": ["a"], "timeoutSeconds": 60, "onRestart": "Fail"}],
    },
    "scheduling": {"queueName": "q", "priorityClassName": "p", "labels": {"volcano.sh/queue-name": "q"}},
    "managedBy": "dljob.io/operator",
}
"""A job that has every field that may be there beside the others."""

TEXTS: dict[str, tuple[Callable[[int], str], str]] = {
    scalars.NAME_PATTERN: (lambda n: "a" * n, "A"),
    scalars.ENV_PATTERN: (lambda n: "A" * n, "1"),
    scalars.CLASS_PATTERN: (lambda n: "a." + "a" * (n - 2), "a"),
    scalars.LABEL_PATTERN: (lambda n: "a" * n, "-a"),
    scalars.QUALIFIED_PATTERN: (lambda n: "a" * (n - 2) + "/a", f"a/{'b' * 64}"),
    scalars.PYTHON_PATTERN: (lambda n: "/" + "a" * (n - 1), "my python"),
    scalars.RAY_PATTERN: (lambda n: "a" * n, "1"),
    scalars.VERSION_PATTERN: (lambda n: "2.60." + "0" * (n - 5), "2.60"),
    scalars.OBJECT_PATTERN: (lambda n: "a" * n, "a_b"),
    scalars.ABSOLUTE_PATTERN: (lambda n: "/" + "a" * (n - 1), "ckpt"),
    scalars.TEXT_PATTERN: (lambda n: "a" * n, "a\x00"),
    scalars.IMAGE_PATTERN: (lambda n: "a" * n, "a b"),
    scalars.KEY_PATTERN: (lambda n: "a" * n, "a/b"),
    scalars.METRIC_PATTERN: (lambda n: "a" * n, "9"),
    scalars.BACKEND_PATTERN: (lambda n: "A" * n, "a-b"),
    scalars.HOST_PORT_PATTERN: (lambda n: "a" * (n - 5) + ":6379", "redis"),
    scalars.URL_PATH_PATTERN: (lambda n: "/" + "a" * (n - 1), "a"),
    scalars.HEADER_PATTERN: (lambda n: "A" * n, "A:"),
    scalars.LINE_PATTERN: (lambda n: "a" * n, "a\r\nb"),
    scalars.SERIES_PATTERN: (lambda n: "a" * n, "1a"),
    quantity.FACTOR_PATTERN: (lambda n: "1." + "2" * (n - 2), "1.00"),
    "": (lambda n: "a" * n, ""),
}
"""Pattern -> a right text of so many characters, and a wrong one."""
QUANTITIES = {
    quantity.CPU_PATTERN: ("999999.999", "1.0001"),
    quantity.MEMORY_PATTERN: ("8191Pi", "1GB"),
    quantity.CUSTOM_PATTERN: ("999999999.9999", "1Gi"),
    quantity.DEVICES_PATTERN: ("0.0001", "1.5"),
    scalars.PORT_PATTERN: ("65535", "HTTP"),
    scalars.NUMBER_PATTERN: ("-0.5", "1e3"),
}
SPECIAL: dict[str, tuple[tuple[str, Any], ...]] = {
    ".roles[].name": ((".roles.0.name", "a"),),
    ".roles[].replicasPerGroup": ((".roles.0.replicas", 1024), (".nodeGroups.0.accelerator.count", 1024)),
    ".roles[].resources.cpu": ((".roles.0.resources.auto", {"memory": {"min": "1Gi", "max": "1536Mi"}}),),
    ".roles[].resources.memory": (
        (".roles.0.restartPolicy.outOfMemory.maxMemory", "9223372036854775000"),
        (".roles.0.resources.auto", {"cpu": {"min": "1", "max": "2"}}),
    ),
    ".roles[].resources.auto.cpu.min": (
        (".roles.0.resources.auto.cpu.max", "999999.999"),
        (".roles.0.resources.cpu", "999999.999"),
    ),
    ".roles[].resources.auto.memory.min": (
        (".roles.0.restartPolicy.outOfMemory.maxMemory", "9223372036854775000"),
        (".roles.0.resources.auto.memory.max", "8191Pi"),
        (".roles.0.resources.memory", "8191Pi"),
    ),
    ".roles[].resources.auto.memory.max": (
        (".roles.0.restartPolicy.outOfMemory.maxMemory", "9223372036854775000"),
        (".roles.0.resources.auto.memory.min", "0"),
        (".roles.0.resources.memory", "0"),
    ),
    ".roles[].restartPolicy.outOfMemory.maxMemory": (
        (".roles.0.resources.memory", "0"),
        (".roles.0.resources.auto", {"cpu": {"min": "1", "max": "2"}}),
    ),
    ".roles[].minReplicas": ((".roles.0.replicas", 100000),),
    ".roles[].replicas": ((".roles.0.replicasPerGroup", 1),),
    ".gcsFaultTolerance.claimName": ((".gcsFaultTolerance", {"backend": "RocksDB", "claimName": "gcs"}),),
    ".faultTolerance.elastic.shrinkAfterSeconds": ((".faultTolerance.node.pendingTimeoutSeconds", 86400),),
    ".roles[].comm.subMaster": ((".roles[].comm.backend", "Auto"),),
    ".faultTolerance.node.action": ((".faultTolerance.witnesses", []),),
    ".faultTolerance.node.pendingTimeoutSeconds": ((".faultTolerance.elastic", {}),),
    ".nodeGroups[].labels": ((".faultTolerance.node", {}),),
    ".faultTolerance.backoff.maxSeconds": ((".faultTolerance.backoff.initialSeconds", 0),),
}
"""What must change with a field for its bound to be the only thing that is touched."""
CROSS = {
    ".roles[].name", ".roles[].nodeGroup", ".roles[].dependsOn[].role", ".roles[].dependsOn", ".collocations[].roles[]",
    ".collocations[].roles", ".roles", ".nodeGroups[].name", ".faultTolerance.rules[].roles[]",
    ".faultTolerance.rules[].roles", ".roles[].accelerator.type", ".nodeGroups[].accelerator.type",
    ".roles[].annotations", ".roles[].type", ".roles[].comm.backend", ".collocations", ".collocations[].level",
    ".nodeGroups", ".roles[].maxReplicas", ".nodeGroups[].minReplicas", ".nodeGroups[].maxReplicas",
    ".master.journal.path", ".master.placement", ".gcsFaultTolerance.backend",
    ".faultTolerance.rules[].onReasons", ".faultTolerance.rules[].action",
    ".faultTolerance.rules[].escalateTo", ".roles[].restartPolicy.level",
    ".roles[].restartPolicy.with", ".roles[].restartPolicy.with[]",
    *(f".roles[].{probe}.successThreshold" for probe in ("startupProbe", "livenessProbe")),
    ".faultTolerance.node.failureDomainLabel",
    ".collectives.groups[].roles", ".collectives.groups[].roles[]", ".roles[].reserve",
    ".roles[].tf.task",
}  # fmt: skip
"""Fields whose right values are bound by a rule: only the wrong side of their bounds is tried."""


@dataclass(frozen=True)
class Bound:
    """A value of a field inside (`ok`) or outside one of its bounds, in a job that has every field."""

    path: str
    what: str
    job: Json
    ok: bool

    def __str__(self) -> str:
        return f"{self.path} {self.what}"


def bounds() -> Iterator[Bound]:
    """Both sides of each bound of each field of the spec."""
    schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for path, node in nodes(schema, ""):
        for what, value, ok in _sides(path, node):
            if not (ok and path in CROSS):
                yield Bound(path, what, _with(path, value), ok)
        for name in node.get("required", ()):
            yield Bound(f"{path}.{name}", "missing", _with(f"{path}.{name}", None, drop=True), ok=False)
        if "properties" in node:
            yield Bound(f"{path}.odd", "unknown", _with(f"{path}.odd", 1), ok=False)


def nodes(node: Json, path: str) -> Iterator[tuple[str, Json]]:
    yield path, node
    for name, field in node.get("properties", {}).items():
        yield from nodes(field, f"{path}.{name}")
    if "items" in node:
        yield from nodes(node["items"], f"{path}[]")


def _sides(path: str, node: Json) -> Iterator[tuple[str, Any, bool]]:  # noqa: C901 - one branch for each kind
    if "enum" in node:
        for value in node["enum"]:
            yield f"is {value}", value, True
        yield "is no such word", True if node["type"] == "boolean" else "Nope", False
    elif node.get("x-kubernetes-int-or-string"):
        good, bad = QUANTITIES[node["pattern"]]
        whole = 2**20 if node["pattern"] == quantity.MEMORY_PATTERN else 1  # less is refused
        yield from (("is right", good, True), ("is whole", whole, True), ("is wrong", bad, False))
        yield "is too long", "1" * (node["maxLength"] + 1), False
    elif node["type"] == "integer":
        for name, outside in (("minimum", -1), ("maximum", 1)):
            yield name, node[name], True
            yield f"beyond {name}", node[name] + outside, False
        yield "is a text", "1", False
    elif node["type"] == "string":
        make, bad = TEXTS[node.get("pattern", "")]
        yield "is as long as may be", make(node["maxLength"]), True
        yield "is longer", make(node["maxLength"] + 1), False
        if bad or node.get("minLength"):
            yield "is wrong", bad, False
    elif node["type"] == "array":
        yield "has too many", _many(path, node, node["maxItems"] + 1), False
        yield "has as many as may be", _many(path, node, node["maxItems"]), True
        if node.get("minItems"):
            yield "has too few", _many(path, node, node["minItems"] - 1), False
    elif "additionalProperties" in node:
        for count, ok in ((node["maxProperties"], True), (node["maxProperties"] + 1, False)):
            yield f"has {count}", {f"k{i}": "1" for i in range(count)}, ok
    elif node["type"] == "object":
        yield "is a list", [], False


def _many(path: str, node: Json, count: int) -> list[Any]:
    """A list of so many items that differ in their key."""
    item, items = node["items"], list[Any]()
    for i in range(count):
        if "properties" not in item:
            choices = item.get("enum", [])
            items.append(choices[i % len(choices)] if choices else i + 1 if item["type"] == "integer" else f"x{i}")
            continue
        made = copy.deepcopy(_at(WHOLE, path)[0])
        if "name" in item["properties"]:
            made["name"] = f"x{i}"
        items.append(made)
    return items


def _at(whole: Json, path: str) -> Any:
    node: Any = whole
    for part in path.replace("[]", ".0").split(".")[1:]:
        node = node[int(part) if part.isdecimal() else part]
    return node


def _with(path: str, value: Any, *, drop: bool = False) -> Json:
    """The whole job with one field changed, or without it; an entrypoint is of the role that has that kind."""
    spec = copy.deepcopy(ON_REF if path.startswith(".rayClusterRef") else WHOLE)
    for other, fit in SPECIAL.get(path, ()):
        _set(spec, other, copy.deepcopy(fit))
    for kind, index in (("command", 1), ("class", 2)):
        path = path.replace(f".roles[].entrypoint.{kind}", f".roles.{index}.entrypoint.{kind}")
    for probe in PROBES:
        for kind, index in (("tcpSocket", 1), ("exec", 2), ("grpc", 4)):
            path = path.replace(f".roles[].{probe}.{kind}", f".roles.{index}.{probe}.{kind}")
    path = path.replace(".roles[].autoscale", ".roles.3.autoscale").replace(".roles[].tf", ".roles.5.tf")
    for hook in ("load", "verify"):
        for kind, index in (("exec", 1), ("method", 2)):
            path = path.replace(f".roles[].weights.{hook}.{kind}", f".roles.{index}.weights.{hook}.{kind}")
    path = path.replace(".envFrom[].configMapRef", ".envFrom.1.configMapRef")
    if value == "calls":
        del _at(spec, ".roles.3.autoscale")["name"]
    if drop:
        parent, _, name = path.rpartition(".")
        del _at(spec, parent)[name]
    elif not path:
        return job(value)
    else:
        _set(spec, path.replace("[]", ".0"), value)
    return job(spec)


def _set(spec: Json, path: str, value: Any) -> None:
    parent, _, name = path.rpartition(".")
    node = _at(spec, parent)
    node[int(name) if name.isdecimal() else name] = value
