"""Jobs on both sides of every CEL rule of the CRD: data, for the loader and for a real API server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dljob.spec import cel

Json = dict[str, Any]


def job(spec: Json, name: str = "j") -> Json:
    return {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": name}, "spec": spec}


def role(name: str = "a", **more: Any) -> Json:
    return {"name": name, "entrypoint": {"class": "app.A"}, **more}


def task(name: str, **more: Any) -> Json:
    """Return the role of a task of TensorFlow."""
    found = {"name": name, "entrypoint": {"module": "a.py"}, "driver": name == "chief", "tf": {"task": name}}
    return {**found, **more}


def loads(more: Json) -> Json:
    return {"weights": {"channels": ["a"], "load": {"exec": {"command": ["ls"]}}, **more}}


def share(name: str, count: str) -> Json:
    return role(name, accelerator={"count": count})


def device(*roles: Json) -> Json:
    names = [one["name"] for one in roles]
    return {"roles": list(roles), "collocations": [{"name": "c", "roles": names, "level": "Device"}]}


@dataclass(frozen=True)
class Case:
    """Two jobs that differ in what a rule is about; `before`: what both were before, for rules about changes."""

    rule: str
    accepted: Json
    refused: Json
    before: Json | None = None
    status: Json | None = None
    """What the operator had said before."""


def case(
    rule: cel.CelRule, accepted: Json, refused: Json, before: Json | None = None, status: Json | None = None
) -> Case:
    return Case(rule.message, job(accepted), job(refused), before and job(before), status)


WITNESS: Json = {"name": "own", "port": 9400, "metric": "m", "means": "Hang", "when": "Above", "value": 0}
PAIR = {"roles": [role("a"), role("b"), role("c")]}
ELASTIC = role(type="Elastic", replicas=2, minReplicas=1, maxReplicas=4)
ON_REF: Json = {"roles": [role()], "rayClusterRef": {"name": "shared"}}
CLAIM: Json = {"checkpoint": {"path": "/c", "claimName": "ckpt"}}
CHIP = {"type": "Custom", "resourceName": "example.com/chip", "rayResource": "chip"}

RUNS: Json = {"phase": "Running", "submissionId": "j-1"}


def groups(**more: Any) -> Json:
    return {"roles": [role()], "nodeGroups": [{"name": "g", **more}]}


def imaged(image: str, **more: Any) -> Json:
    return {"roles": [role()], "image": image, **more}


def runs(rule: cel.CelRule, *cases: tuple[Json, Json, Json]) -> list[Case]:
    """What may and may not change while a job runs: (accepted, refused, before)."""
    return [case(rule, accepted, refused, before, RUNS) for accepted, refused, before in cases]


OVER: Json = {**RUNS, "completionTime": "2027-01-15T08:00:00Z"}
FREE: tuple[tuple[Json, Json | None], ...] = (
    ({"suspend": True}, RUNS),
    ({}, None),
    ({}, {"phase": "Queued"}),
    ({}, OVER),
)
"""(more of the spec, status): jobs that do not run, of which everything may change that may ever."""
RULES: tuple[Case, ...] = (
    Case(cel.NAME.message, job({"roles": [role()]}, "a" * 47), job({"roles": [role()]}, "a" * 48)),
    Case(cel.NAME.message, job({"roles": [role()]}, "a-1"), job({"roles": [role()]}, "1-a")),
    case(cel.DRIVER, {"roles": [role(), role("b", driver=False)]}, {"roles": [role(driver=False)]}),
    case(
        cel.COLLOCATED_ROLES,
        {**PAIR, "collocations": [{"name": "c", "roles": ["a", "b"], "level": "Host"}]},
        {**PAIR, "collocations": [{"name": "c", "roles": ["a", "x"], "level": "Host"}]},
    ),
    case(
        cel.ONE_COLLOCATION,
        {**PAIR, "collocations": [{"name": "c", "roles": ["a", "b"], "level": "Host"}]},
        {
            **PAIR,
            "collocations": [
                {"name": "c", "roles": ["a", "b"], "level": "Host"},
                {"name": "d", "roles": ["b", "c"], "level": "Separate"},
            ],
        },
    ),
    case(cel.SHARES, device(share("a", "0.5"), share("b", "0.5")), device(share("a", "0.5"), share("b", "0.5001"))),
    case(cel.SHARES, device(*(share(n, "0.3333") for n in "abc")), device(*(share(n, "0.334") for n in "abc"))),
    case(cel.SHARERS, device(share("a", "0.5"), share("b", "0.5")), device(share("a", "0.5"), role("b"))),
    case(
        cel.DEPENDS_ON,
        {"roles": [role(), role("b", dependsOn=[{"role": "a"}])]},
        {"roles": [role(), role("b", dependsOn=[{"role": "c"}])]},
    ),
    case(cel.DEPENDS_ON, {"roles": [role()]}, {"roles": [role(dependsOn=[{"role": "a"}])]}),
    case(
        cel.GROUP_ROLES,
        {"roles": [role(), role("b")], "collectives": {"groups": [{"name": "w", "roles": ["a", "b"]}]}},
        {"roles": [role(), role("b")], "collectives": {"groups": [{"name": "w", "roles": ["a", "c"]}]}},
    ),
    case(
        cel.NODE_GROUP,
        {"roles": [role(nodeGroup="g")], "nodeGroups": [{"name": "g"}]},
        {"roles": [role(nodeGroup="h")], "nodeGroups": [{"name": "g"}]},
    ),
    case(cel.NODE_GROUP, {"roles": [role()]}, {"roles": [role(nodeGroup="g")]}),
    case(
        cel.TYPE_IMMUTABLE,
        {"roles": [role(replicas=2)]},
        {"roles": [role(type="Elastic", replicas=2)]},
        {"roles": [role()]},
    ),
    *runs(
        cel.ROLES_FIXED,
        ({"roles": [role(args=["x"], resources={"cpu": "2"})]}, {"roles": [role(replicas=2)]}, {"roles": [role()]}),
        ({"roles": [role(env=[])]}, {"roles": [role(), role("b")]}, {"roles": [role()]}),
        ({"roles": [role("b"), role()]}, {"roles": [role(), role("c")]}, {"roles": [role(), role("b")]}),
        ({"roles": [role()]}, {"roles": [role(entrypoint={"class": "app.B"})]}, {"roles": [role()]}),
        (
            {"roles": [role("b"), role(driver=False, replicas=2, maxReplicas=3)]},
            {"roles": [role("b"), role(driver=False, replicas=2)]},
            {"roles": [role("b"), role(driver=False, maxReplicas=3)]},
        ),
        ({"roles": [share("a", "1")]}, {"roles": [share("a", "2")]}, {"roles": [share("a", "1")]}),
        ({"roles": [share("a", "1")]}, {"roles": [role()]}, {"roles": [share("a", "1")]}),
        (
            {"roles": [role(type="Elastic", replicas=4)]},
            {"roles": [role(type="Elastic", replicas=4, entrypoint={"module": "b.py"})]},
            {"roles": [role(type="Elastic", replicas=2)]},
        ),
    ),
    *runs(
        cel.GROUPS_FIXED,
        *(
            (groups(replicas=3), groups(**change), groups())
            for change in ({"name": "h"}, {"cpu": "4"}, {"memory": "2Gi"}, {"sharedMemory": "2Gi"}, {"image": "i:2"})
        ),
        (groups(memory="1Gi", replicas=2), groups(), groups(memory="1Gi")),
        (
            groups(labels={"a": "b"}, replicas=2),
            groups(labels={"a": "c"}),
            groups(labels={"a": "b"}),
        ),
        (
            groups(accelerator={"type": "GPU", "count": 8}, replicas=2),
            groups(accelerator={"type": "GPU", "count": 4}),
            groups(accelerator={"type": "GPU", "count": 8}),
        ),
        (groups(replicas=2), {"roles": [role()]}, groups()),
        ({"roles": [role(args=["x"])]}, groups(), {"roles": [role()]}),
    ),
    *runs(
        cel.IMAGE_FIXED,
        (imaged("example/x:1", config={"a": 1}), imaged("example/x:2"), imaged("example/x:1")),
        (imaged("example/x:1", config={"a": 1}), {"roles": [role()]}, imaged("example/x:1")),
    ),
    *(
        case(
            cel.BOUNDS_ELASTIC,
            {"roles": [role(type="Elastic", replicas=2, **{name: 2})]},
            {"roles": [role(replicas=2, **{name: 2})]},
        )
        for name in ("minReplicas", "maxReplicas")
    ),
    *(
        case(
            cel.BOUNDS_ELASTIC,
            {"roles": [role(driver=False, maxReplicas=2), role("b")]},
            {"roles": [{**role(maxReplicas=2, **wrong), "entrypoint": {"module": "a.py"}}, role("b")]},
        )
        for wrong in ({"driver": True}, {"driver": False, "reserve": "Quota"})
    ),
    *(
        case(
            cel.BOUNDS,
            {"roles": [role(type="Elastic", replicas=4, replicasPerGroup=2, **{name: right})]},
            {"roles": [role(type="Elastic", replicas=4, replicasPerGroup=2, **{name: wrong})]},
        )
        for name, right, wrong in (
            *(("minReplicas", 2, 6), ("minReplicas", 4, 3)),
            *(("maxReplicas", 6, 2), ("maxReplicas", 4, 5)),
        )
    ),
    *(
        case(
            cel.MACHINE_BOUNDS,
            {"roles": [ELASTIC], "nodeGroups": [{"name": "g", "replicas": 4, name: right}]},
            {"roles": [ELASTIC], "nodeGroups": [{"name": "g", "replicas": 4, name: wrong}]},
        )
        for name, right, wrong in (("minReplicas", 2, 5), ("maxReplicas", 5, 3))
    ),
    case(
        cel.MANAGED_BY,
        {"roles": [role(replicas=2)], "managedBy": "dljob.io/operator"},
        {"roles": [role()], "managedBy": "kueue.x-k8s.io/multikueue"},
        {"roles": [role()], "managedBy": "dljob.io/operator"},
    ),
    case(
        cel.MANAGED_BY,
        {"roles": [role(replicas=2)]},
        {"roles": [role()], "managedBy": "kueue.x-k8s.io/multikueue"},
        {"roles": [role()]},
    ),
    case(cel.REF_IMMUTABLE, {**ON_REF, "roles": [role(replicas=2)]}, {"roles": [role()]}, ON_REF),
    case(cel.REF_IMMUTABLE, {"roles": [role(replicas=2)]}, ON_REF, {"roles": [role()]}),
    case(cel.REF_IMMUTABLE, {**ON_REF, "config": {"a": 1}}, {**ON_REF, "rayClusterRef": {"name": "other"}}, ON_REF),
    *(
        case(cel.BESIDE_REF[path], {"roles": [role()], name: value}, {**ON_REF, name: value})
        for path, name, value in (
            ("nodeGroups", "nodeGroups", [{"name": "g"}]),
            ("nodeGroups", "nodeGroups", []),
            ("rayClusterTemplate", "rayClusterTemplate", {"metadata": {"labels": {"a": "b"}}}),
            ("head", "head", {}),
            ("image", "image", "example/x:1"),
            ("imagePullPolicy", "imagePullPolicy", "Always"),
            ("imagePullSecrets", "imagePullSecrets", [{"name": "pull"}]),
            ("envFrom", "envFrom", [{"secretRef": {"name": "s"}}]),
            ("scheduling", "scheduling", {"queueName": "q"}),
            ("networkPolicy", "networkPolicy", {"enabled": True}),
            ("gcsFaultTolerance", "gcsFaultTolerance", {"backend": "RocksDB", "claimName": "gcs"}),
            ("code.configMap", "code", {"configMap": "code"}),
            ("checkpoint.claimName", "checkpoint", {"path": "/ckpt", "claimName": "ckpt"}),
            (
                "master.journal.claimName",
                "master",
                {"journal": {"path": "/journal", "claimName": "journal"}},
            ),
        )
    ),
    case(cel.BESIDE_REF["checkpoint.claimName"], {**ON_REF, "checkpoint": {"path": "/c"}}, {**ON_REF, **CLAIM}),
    case(cel.REF_SUSPEND, {**ON_REF, "suspend": False}, {**ON_REF, "suspend": True}),
    case(cel.REF_MASTER, {**ON_REF, "master": {"maxRestarts": 2}}, {**ON_REF, "master": {"cpu": "2"}}),
    case(cel.REF_MASTER, {**ON_REF, "master": {"placement": "Head"}}, {**ON_REF, "master": {"placement": "Worker"}}),
    case(cel.REF_MASTER, {**ON_REF, "master": {"memory": "1Gi"}}, {**ON_REF, "master": {"memory": "2Gi"}}),
    case(
        cel.REF_SPARES,
        {**ON_REF, "faultTolerance": {"spares": {"processesPerNode": 1}}},
        {**ON_REF, "faultTolerance": {"spares": {"nodes": 1}}},
    ),
    *(case(cel.RESERVED_ROLE, {"roles": [role(f"{n}-1")]}, {"roles": [role(n)]}) for n in ("job", "master", "node")),
    case(
        cel.GROUP_SIZE,
        {"roles": [role(replicas=4, replicasPerGroup=2)]},
        {"roles": [role(replicas=5, replicasPerGroup=2)]},
    ),
    case(
        cel.COMM_ELASTIC,
        {"roles": [role(type="Elastic", comm={"timeoutSeconds": 9})]},
        {"roles": [role(comm={"timeoutSeconds": 9})]},
    ),
    case(cel.ENTRYPOINT, {"roles": [role()]}, {"roles": [{"name": "a", "entrypoint": {}}]}),
    case(
        cel.ENTRYPOINT,
        {"roles": [{"name": "a", "entrypoint": {"command": ["ls"]}}]},
        {"roles": [{"name": "a", "entrypoint": {"class": "app.A", "module": "a.py"}}]},
    ),
    *(case(cel.COUNT, {"roles": [share("a", "0.0001")]}, {"roles": [share("a", none)]}) for none in ("0", "0.0000")),
    *(
        case(
            cel.RESERVED_GROUP,
            {"roles": [role()], "nodeGroups": [{"name": f"{name}-1"}]},
            {"roles": [role()], "nodeGroups": [{"name": name}]},
        )
        for name in ("head", "headgroup")
    ),
    case(
        cel.CUSTOM,
        {"roles": [role()], "nodeGroups": [{"name": "g", "accelerator": CHIP}]},
        {"roles": [role()], "nodeGroups": [{"name": "g", "accelerator": {**CHIP, "rayResource": None}}]},
    ),
    case(
        cel.IN_PROCESS,
        {"roles": [role(type="Elastic", restartPolicy={"level": "InProcess"})]},
        {"roles": [role(restartPolicy={"level": "InProcess"})]},
    ),
    *(
        case(
            cel.RESTART_WITH,
            {"roles": [role(restartPolicy={"with": ["b"]}), role("b", restartPolicy={"with": ["a"]})]},
            {"roles": [role(restartPolicy={"with": wrong}), role("b")]},
        )
        for wrong in (["a"], ["b", "c"])
    ),
    case(
        cel.OUT_OF_MEMORY,
        {"roles": [role(resources={"memory": "4Gi"}, restartPolicy={"outOfMemory": {"maxMemory": "8Gi"}})]},
        {"roles": [role(restartPolicy={"outOfMemory": {"maxMemory": "8Gi"}})]},
    ),
    *(
        case(
            cel.WITNESS,
            {"roles": [role()], "faultTolerance": {"witnesses": [{"name": "w", "preset": "dcgm"}, WITNESS]}},
            {"roles": [role()], "faultTolerance": {"witnesses": [{k: v for k, v in WITNESS.items() if k != key}]}},
        )
        for key in ("port", "metric", "means", "when", "value")
    ),
    *(
        case(
            cel.WITNESS,
            {"roles": [role()], "faultTolerance": {"witnesses": [{"name": "w", "dump": {"port": 9701}}]}},
            {"roles": [role()], "faultTolerance": {"witnesses": [{"name": "w", "dump": {"port": 9701}, **more}]}},
        )
        for more in ({"act": True}, {"value": 0})
    ),
    *(
        case(
            cel.FAILURE_DOMAIN,
            {
                "roles": [role()],
                "nodeGroups": [{"name": "g", "labels": {"rack": "a"}}],
                "faultTolerance": {"node": {"failureDomainLabel": "rack", "domainFailures": 2}},
            },
            {"roles": [role()], "faultTolerance": {"node": wrong}},
        )
        for wrong in ({"failureDomainLabel": "rack"}, {"domainFailures": 2})
    ),
    *(
        case(cel.QUOTA, {"roles": [{**role(), "entrypoint": script, "reserve": "Quota"}]}, {"roles": [wrong]})
        for script, wrong in (
            ({"module": "train.py"}, role(reserve="Quota")),
            ({"command": ["ls"]}, {**role(type="Elastic", reserve="Quota"), "entrypoint": {"module": "train.py"}}),
        )
    ),
    *(
        case(cel.PROBE, {"roles": [role(**{probe: one})]}, {"roles": [role(**{probe: wrong})]})
        for probe in ("startupProbe", "livenessProbe", "readinessProbe")
        for one, wrong in (
            ({"tcpSocket": {"port": 80}}, {"periodSeconds": 1}),
            ({"httpGet": {"port": "80"}}, {"httpGet": {"port": 80}, "tcpSocket": {"port": 80}}),
        )
    ),
    *(
        case(rule, {"roles": [role(**loads(right))]}, {"roles": [role(**loads(wrong))]})
        for rule, right, wrong in (
            (cel.WEIGHTS_LOAD, {}, {"load": {}}),
            (cel.WEIGHTS_LOAD, {"load": {"method": "m"}}, {"load": {"method": "m", "exec": {"command": ["ls"]}}}),
            (cel.WEIGHTS_VERIFY, {"verify": {"method": "m"}}, {"verify": {}}),
        )
    ),
    case(
        cel.AUTOSCALE,
        {"roles": [role(driver=False, maxReplicas=2, autoscale={"by": "calls", "target": 1}), role("b")]},
        {"roles": [role(driver=False, autoscale={"by": "calls", "target": 1}), role("b")]},
    ),
    *(
        case(
            cel.AUTOSCALE_NAME,
            {"roles": [role(driver=False, maxReplicas=2, autoscale={"target": 1, **right}), role("b")]},
            {"roles": [role(driver=False, maxReplicas=2, autoscale={"target": 1, **wrong}), role("b")]},
        )
        for right, wrong in (
            ({"by": "calls"}, {"by": "queue"}),
            ({"by": "metric", "name": "x"}, {"by": "calls", "name": "x"}),
        )
    ),
    case(
        cel.DRAIN,
        {"roles": [{"name": "a", "entrypoint": {"module": "a.py"}, "drain": {}}]},
        {"roles": [role(drain={})]},
    ),
    *(
        case(
            cel.TENSORFLOW,
            {"roles": [task("chief"), task("ps"), task("worker")]},
            {"roles": [task("chief"), task("ps"), task("worker", **wrong)]},
        )
        for wrong in ({"entrypoint": {"class": "app.A"}}, {"type": "Elastic"}, {"minReplicas": 1}, {"maxReplicas": 1})
    ),
    case(
        cel.TENSORFLOW,
        {"roles": [task("chief"), task("ps"), task("worker")]},
        {"roles": [task("chief", reserve="Quota"), task("ps"), task("worker")]},
    ),
    *(
        case(
            cel.TENSORFLOW_TASK,
            {"roles": [task("chief"), task("ps", replicas=2), task("worker")]},
            {"roles": [task("chief", **chief), task("ps", **ps), task("worker")]},
        )
        for chief, ps in (({"replicas": 2}, {}), ({}, {"driver": True}))
    ),
    case(
        cel.SERVICE,
        {"roles": [role(ports=[{"name": "http"}], service=True)]},
        {"roles": [role(service=True)]},
    ),
    case(
        cel.ESCALATION,
        {
            "roles": [role()],
            "faultTolerance": {
                "rules": [{"name": "r", "action": "RestartRole", "escalateTo": "Fail", "maxAttempts": 1}]
            },
        },
        {
            "roles": [role()],
            "faultTolerance": {"rules": [{"name": "r", "action": "RestartRole", "escalateTo": "Fail"}]},
        },
    ),
    case(
        cel.ENV_FROM,
        {"roles": [role()], "envFrom": [{"secretRef": {"name": "s"}}, {"configMapRef": {"name": "c"}}]},
        {"roles": [role()], "envFrom": [{"secretRef": {"name": "s"}, "configMapRef": {"name": "c"}}]},
    ),
    case(cel.ENV_FROM, {"roles": [role()]}, {"roles": [role()], "envFrom": [{"prefix": "P_"}]}),
    *(
        case(
            cel.GCS_BACKEND, {"roles": [role()], "gcsFaultTolerance": ok}, {"roles": [role()], "gcsFaultTolerance": bad}
        )
        for ok, bad in (
            ({"backend": "Redis", "redisAddress": "r:6379"}, {"backend": "Redis"}),
            (
                {"backend": "Redis", "redisAddress": "r:6379", "redisPasswordSecret": {"name": "s", "key": "k"}},
                {"backend": "Redis", "redisAddress": "r:6379", "claimName": "c"},
            ),
            ({"backend": "RocksDB", "claimName": "c"}, {"backend": "RocksDB"}),
            (
                {"backend": "RocksDB", "claimName": "c"},
                {"backend": "RocksDB", "claimName": "c", "redisAddress": "r:6379"},
            ),
            (
                {"backend": "RocksDB", "claimName": "c"},
                {"backend": "RocksDB", "claimName": "c", "redisPasswordSecret": {"name": "s", "key": "k"}},
            ),
        )
    ),
    case(
        cel.MASTER_JOURNAL,
        {"roles": [role()], "master": {"placement": "Worker"}},
        {"roles": [role()], "master": {"placement": "Worker", "journal": {"path": "/journal"}}},
    ),
    case(
        cel.CLAIM_PATH,
        {"roles": [role()], "master": {"journal": {"claimName": "c", "path": "/journal"}}},
        {"roles": [role()], "master": {"journal": {"claimName": "c"}}},
    ),
    case(
        cel.CLAIM_PATH,
        {"roles": [role()], "checkpoint": {"everySteps": 5}},
        {"roles": [role()], "checkpoint": {"claimName": "c"}},
    ),
)
