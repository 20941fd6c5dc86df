"""Where the effect of each field of the spec is seen: a row for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DERIVED: dict[str, Any] = {
    "apiVersion": "dljob.io/v1alpha1",
    "kind": "DLJob",
    "metadata": {"name": "j"},
    "spec": {
        "env": [{"name": "A", "value": "1"}],
        "envFrom": [{"configMapRef": {"name": "c"}}, {"secretRef": {"name": "s"}}],
        "roles": [
            {
                "name": "elastic",
                "type": "Elastic",
                "entrypoint": {"class": "app.A"},
                "args": ["--fast"],
                "env": [{"name": "B", "value": "1"}],
                "replicas": 4,
                "replicasPerGroup": 2,
                "comm": {"backend": "gloo"},
                "dependsOn": [{"role": "last"}],
            },
            {"name": "script", "entrypoint": {"module": "train.py"}, "accelerator": {"count": "0.4"}},
            {"name": "program", "entrypoint": {"command": ["ls", "-l"]}, "accelerator": {"count": "0.4"}},
            {"name": "last", "entrypoint": {"class": "app.B"}, "driver": False},
        ],
        "collocations": [{"name": "both", "roles": ["script", "program"], "level": "Host"}],
    },
}
SCALES: dict[str, Any] = {**DERIVED["spec"]["roles"][3], "maxReplicas": 2}
GROUPED: dict[str, Any] = {
    **DERIVED,
    "spec": {**DERIVED["spec"], "collectives": {"groups": [{"name": "w", "roles": ["last"]}]}},
}
DECLARED: dict[str, Any] = {
    **DERIVED,
    "spec": {
        "roles": [
            {"name": "a", "entrypoint": {"class": "app.A"}, "accelerator": {"type": "Custom"}},
            {"name": "e", "type": "Elastic", "entrypoint": {"class": "app.A"}, "replicas": 2, "minReplicas": 1},
            {"name": "s", "entrypoint": {"module": "s.py"}},
        ],
        "nodeGroups": [
            {
                "name": "one",
                "replicas": 2,
                "cpu": "8",
                "memory": "16Gi",
                "sharedMemory": "1Gi",
                "accelerator": {"type": "Custom", "count": 2, "resourceName": "example.com/f", "rayResource": "F"},
                "labels": {"rack": "a"},
            },
            {"name": "two", "cpu": "8", "accelerator": {"type": "GPU"}},
        ],
    },
}


@dataclass(frozen=True)
class Plan:
    """The value `value` at `path` (dots; indices as numbers) makes another plan of `base`."""

    path: str
    value: Any
    base: str = "derived"


@dataclass(frozen=True)
class Code:
    """`module` reads the attribute."""

    module: str
    attribute: str


def scaled(**how: Any) -> dict[str, Any]:
    """Return the last role, following its load."""
    return {**SCALES, "autoscale": {"by": "calls", "target": 2, **how}}


def probe_rows(key: str) -> dict[str, Plan | Code]:
    """Rows of one probe of a role; each value differs from having no probe, and from another value."""
    return {
        f"spec.roles[].{key}.{field}": Plan(f"spec.roles.3.{key}", probe)
        for field, probe in {
            "httpGet.path": {"httpGet": {"port": 80, "path": "/health"}},
            "httpGet.port": {"httpGet": {"port": 81}},
            "httpGet.scheme": {"httpGet": {"port": 80, "scheme": "HTTPS"}},
            "httpGet.httpHeaders[].name": {"httpGet": {"port": 80, "httpHeaders": [{"name": "A", "value": "b"}]}},
            "httpGet.httpHeaders[].value": {"httpGet": {"port": 80, "httpHeaders": [{"name": "A", "value": "c"}]}},
            "tcpSocket.port": {"tcpSocket": {"port": 80}},
            "grpc.port": {"grpc": {"port": 80}},
            "grpc.service": {"grpc": {"port": 80, "service": "s"}},
            "exec.command[]": {"exec": {"command": ["true"]}},
            "initialDelaySeconds": {"tcpSocket": {"port": 80}, "initialDelaySeconds": 1},
            "periodSeconds": {"tcpSocket": {"port": 80}, "periodSeconds": 1},
            "timeoutSeconds": {"tcpSocket": {"port": 80}, "timeoutSeconds": 2},
            "successThreshold": {"tcpSocket": {"port": 80}, "successThreshold": 1 + (key == "readinessProbe")},
            "failureThreshold": {"tcpSocket": {"port": 80}, "failureThreshold": 2},
        }.items()
    }


def weight_rows() -> dict[str, Plan | Code]:
    """Rows of a role's weights; each value differs from having none, and from another value."""
    plain = {"channels": ["a"], "load": {"exec": {"command": ["a"]}}}
    get = {"port": 80, "path": "/b"}
    return {
        f"spec.roles[].weights.{field}": Plan("spec.roles.3.weights", {**plain, **weights})
        for field, weights in {
            "channels[]": {"channels": ["b"]},
            "maxLag": {"maxLag": 2},
            "load.httpPost.path": {"load": {"httpPost": {"port": 80, "path": "/a"}}},
            "load.httpPost.port": {"load": {"httpPost": {"port": 81}}},
            "load.exec.command[]": {"load": {"exec": {"command": ["b"]}}},
            "load.method": {"load": {"method": "load"}},
            "load.timeoutSeconds": {"load": {**plain["load"], "timeoutSeconds": 2}},
            "verify.httpGet.path": {"verify": {"httpGet": get}},
            "verify.httpGet.port": {"verify": {"httpGet": {"port": 81}}},
            "verify.httpGet.scheme": {"verify": {"httpGet": {**get, "scheme": "HTTPS"}}},
            "verify.httpGet.httpHeaders[].name": {
                "verify": {"httpGet": {**get, "httpHeaders": [{"name": "A", "value": "b"}]}}
            },
            "verify.httpGet.httpHeaders[].value": {
                "verify": {"httpGet": {**get, "httpHeaders": [{"name": "A", "value": "c"}]}}
            },
            "verify.exec.command[]": {"verify": {"exec": {"command": ["b"]}}},
            "verify.method": {"verify": {"method": "verify"}},
            "minReady": {"minReady": 2},
        }.items()
    }


ROWS: dict[str, Plan | Code] = {
    "apiVersion": Code("dljob.spec.loading.load", "manifest.api_version"),
    "kind": Code("dljob.spec.loading.load", "manifest.kind"),
    "metadata.name": Plan("metadata.name", "other"),
    "metadata.namespace": Plan("metadata.namespace", "research"),
    "metadata.labels": Plan("metadata.labels", {"kueue.x-k8s.io/queue-name": "research"}),
    "metadata.annotations": Code("dljob.spec.loading.load", "manifest.model_dump"),
    "spec.image": Plan("spec.image", "example/x:1"),
    "spec.rayVersion": Plan("spec.rayVersion", "2.60.1"),
    "spec.imagePullPolicy": Plan("spec.imagePullPolicy", "Always"),
    "spec.imagePullSecrets[].name": Plan("spec.imagePullSecrets", [{"name": "pull"}]),
    "spec.env[].name": Plan("spec.env.0.name", "OTHER"),
    "spec.env[].value": Plan("spec.env.0.value", "2"),
    "spec.envFrom[].prefix": Plan("spec.envFrom.0.prefix", "MY_"),
    "spec.envFrom[].configMapRef.name": Plan("spec.envFrom.0.configMapRef.name", "other"),
    "spec.envFrom[].configMapRef.optional": Plan("spec.envFrom.0.configMapRef.optional", True),
    "spec.envFrom[].secretRef.name": Plan("spec.envFrom.1.secretRef.name", "other"),
    "spec.envFrom[].secretRef.optional": Plan("spec.envFrom.1.secretRef.optional", True),
    "spec.runtimeEnv": Code("dljob.reconcile.policies.submit", "runtimeEnv"),
    "spec.config": Plan("spec.config", {"lr": 1}),
    "spec.code.configMap": Plan("spec.code", {"configMap": "code"}),
    "spec.code.workingDir": Code("dljob.api.job", "workingDir"),
    "spec.backend.name": Code("dljob.runtime.job.launch", "backend"),
    "spec.backend.options": Code("dljob.runtime.job.launch", "options"),
    "spec.roles[].name": Plan("spec.roles.0.name", "other"),
    "spec.roles[].type": Plan("spec.roles.3.type", "Elastic"),
    "spec.roles[].entrypoint.class": Plan("spec.roles.3.entrypoint.class", "app.C"),
    "spec.roles[].entrypoint.module": Plan("spec.roles.1.entrypoint.module", "other.py"),
    "spec.roles[].entrypoint.command[]": Plan("spec.roles.2.entrypoint.command.1", "-a"),
    "spec.roles[].python": Plan("spec.roles.1.python", "python3.12"),
    "spec.roles[].args[]": Plan("spec.roles.0.args.0", "--slow"),
    "spec.roles[].env[].name": Plan("spec.roles.0.env.0.name", "OTHER"),
    "spec.roles[].env[].value": Plan("spec.roles.0.env.0.value", "2"),
    "spec.roles[].config": Plan("spec.roles.0.config", {"lr": 1}),
    "spec.roles[].replicas": Plan("spec.roles.3.replicas", 2),
    "spec.roles[].replicasPerGroup": Plan("spec.roles.0.replicasPerGroup", 4),
    "spec.roles[].minReplicas": Plan("spec.roles.0.minReplicas", 2),
    "spec.roles[].maxReplicas": Plan("spec.roles.0.maxReplicas", 8),
    **{
        f"spec.roles[].autoscale.{name}": Plan("spec.roles.3", scaled(**more))
        for name, more in {
            "by": {},
            "name": {"by": "queue", "name": "q"},
            "target": {"target": 3},
            "cooldownSeconds": {"cooldownSeconds": 5},
        }.items()
    },
    "spec.roles[].accelerator.type": Plan("spec.roles.1.accelerator.type", "NPU"),
    "spec.roles[].accelerator.count": Plan("spec.roles.1.accelerator.count", "0.5"),
    "spec.roles[].accelerator.visibility": Plan("spec.roles.1.accelerator.visibility", "Shared"),
    "spec.roles[].accelerator.numaBinding": Plan("spec.roles.1.accelerator.numaBinding", "Exclusive"),
    "spec.roles[].accelerator.memoryLimit": Plan("spec.roles.1.accelerator.memoryLimit", "None"),
    "spec.roles[].resources.cpu": Plan("spec.roles.0.resources", {"cpu": "500m"}),
    "spec.roles[].resources.memory": Plan("spec.roles.0.resources", {"memory": "1Gi"}),
    "spec.roles[].resources.custom": Plan("spec.roles.0.resources", {"custom": {"licence": "1"}}),
    **{
        f"spec.roles[].resources.auto.{key}.{bound}": Code("dljob.spec.chosen_resources", f"auto.{key}")
        for key in ("cpu", "memory")
        for bound in ("min", "max")
    },
    "spec.roles[].nice": Plan("spec.roles.1.nice", 5),
    "spec.roles[].nodeGroup": Plan("spec.roles.0.nodeGroup", "one", "declared"),
    "spec.roles[].driver": Plan("spec.roles.3.driver", True),
    "spec.roles[].dependsOn[].role": Plan("spec.roles.0.dependsOn.0.role", "script"),
    "spec.roles[].dependsOn[].condition": Plan("spec.roles.0.dependsOn.0.condition", "Complete"),
    "spec.roles[].comm.backend": Plan("spec.roles.0.comm.backend", "None"),
    "spec.roles[].comm.timeoutSeconds": Plan("spec.roles.0.comm.timeoutSeconds", 60),
    "spec.roles[].comm.preCheck": Plan("spec.roles.0.comm.preCheck", True),
    "spec.roles[].comm.initProcessGroup": Plan("spec.roles.0.comm.initProcessGroup", False),
    "spec.roles[].comm.virtualLocalRank": Plan("spec.roles.0.comm.virtualLocalRank", True),
    "spec.roles[].comm.subMaster": Plan("spec.roles.0.comm", {"subMaster": "ring"}),
    "spec.roles[].tf.task": Code("dljob.plan.roles", "tf"),
    "spec.roles[].ports[].name": Plan("spec.roles.3.ports", [{"name": "http"}]),
    "spec.roles[].ports[].port": Plan("spec.roles.3.ports", [{"name": "http", "port": 80}]),
    "spec.roles[].service": Code("dljob.reconcile.state.accept", "service"),
    **probe_rows("startupProbe"),
    **probe_rows("livenessProbe"),
    **probe_rows("readinessProbe"),
    "spec.roles[].drain.signal": Plan("spec.roles.1.drain", {"signal": "SIGUSR1"}),
    "spec.roles[].drain.httpPost.path": Plan("spec.roles.1.drain", {"httpPost": {"port": 80, "path": "/drain"}}),
    "spec.roles[].drain.httpPost.port": Plan("spec.roles.1.drain", {"httpPost": {"port": 81}}),
    "spec.roles[].drain.timeoutSeconds": Plan("spec.roles.1.drain", {"timeoutSeconds": 5}),
    **weight_rows(),
    "spec.roles[].restartPolicy.level": Plan("spec.roles.0.restartPolicy", {"level": "Job"}),
    "spec.roles[].restartPolicy.maxRestarts": Plan("spec.roles.0.restartPolicy", {"maxRestarts": 3}),
    "spec.roles[].restartPolicy.outOfMemory.memoryFactor": Code("dljob.master.failure.memory", "policy.memory_factor"),
    "spec.roles[].restartPolicy.outOfMemory.maxMemory": Code("dljob.master.failure.memory", "policy.max_memory"),
    "spec.roles[].restartPolicy.with[]": Plan("spec.roles.0.restartPolicy", {"with": ["script"]}),
    "spec.roles[].reserve": Plan("spec.roles.2.reserve", "Quota", "declared"),
    "spec.roles[].annotations": Plan("spec.roles.3.annotations", {"scheduling.dljob.io/accelerator": "NPU"}),
    "spec.collocations[].name": Plan("spec.collocations.0.name", "pair"),
    "spec.collocations[].roles[]": Plan("spec.collocations.0.roles.1", "last"),
    "spec.collocations[].level": Plan("spec.collocations.0.level", "Device"),
    "spec.nodeGroups[].name": Plan("spec.nodeGroups.1.name", "three", "declared"),
    "spec.nodeGroups[].replicas": Plan("spec.nodeGroups.0.replicas", 3, "declared"),
    "spec.nodeGroups[].minReplicas": Plan("spec.nodeGroups.0.minReplicas", 1, "declared"),
    "spec.nodeGroups[].maxReplicas": Plan("spec.nodeGroups.0.maxReplicas", 3, "declared"),
    "spec.nodeGroups[].cpu": Plan("spec.nodeGroups.0.cpu", "9", "declared"),
    "spec.nodeGroups[].memory": Plan("spec.nodeGroups.0.memory", "17Gi", "declared"),
    "spec.nodeGroups[].sharedMemory": Plan("spec.nodeGroups.0.sharedMemory", "2Gi", "declared"),
    "spec.nodeGroups[].accelerator.type": Plan("spec.nodeGroups.1.accelerator.type", "NPU", "declared"),
    "spec.nodeGroups[].accelerator.count": Plan("spec.nodeGroups.0.accelerator.count", 3, "declared"),
    "spec.nodeGroups[].accelerator.resourceName": Plan(
        "spec.nodeGroups.0.accelerator.resourceName", "example.com/g", "declared"
    ),
    "spec.nodeGroups[].accelerator.rayResource": Plan("spec.nodeGroups.0.accelerator.rayResource", "G", "declared"),
    "spec.nodeGroups[].image": Plan("spec.nodeGroups.0.image", "engine:1", "declared"),
    "spec.nodeGroups[].labels": Plan("spec.nodeGroups.0.labels.rack", "b", "declared"),
    "spec.nodeGroups[].template": Plan(
        "spec.nodeGroups.0.template", {"spec": {"nodeSelector": {"a": "b"}}}, "declared"
    ),
    "spec.rayClusterRef.name": Code("dljob.reconcile.state.context", "rayClusterRef"),
    "spec.head.cpu": Plan("spec.head", {"cpu": "2"}),
    "spec.head.memory": Plan("spec.head", {"memory": "8Gi"}),
    "spec.head.template": Plan("spec.head", {"template": {"spec": {"nodeSelector": {"a": "b"}}}}),
    "spec.rayClusterTemplate": Plan("spec.rayClusterTemplate", {"metadata": {"labels": {"team": "rl"}}}),
    "spec.master.cpu": Plan("spec.master", {"cpu": "2"}),
    "spec.master.memory": Plan("spec.master", {"memory": "2Gi"}),
    "spec.master.maxRestarts": Code("dljob.master.transition", "master.max_restarts"),
    "spec.master.createTimeoutSeconds": Code("dljob.runtime.job.outline", "createTimeoutSeconds"),
    "spec.master.journal.path": Code("dljob.runtime.controller.prime", "master.journal.path"),
    "spec.master.journal.claimName": Plan("spec.master", {"journal": {"path": "/journal", "claimName": "journal"}}),
    "spec.master.placement": Code("dljob.runtime.job.outline", "placement"),
    "spec.master.standby": Code("dljob.plan.plan", "master.standby"),
    "spec.faultTolerance.maxRestarts": Code("dljob.master.failure.budget", "fault_tolerance.max_restarts"),
    "spec.faultTolerance.maxClusterRestarts": Code("dljob.reconcile.state.accept", "maxClusterRestarts"),
    "spec.faultTolerance.windowSeconds": Code("dljob.master.failure.budget", "fault_tolerance.window_seconds"),
    "spec.faultTolerance.leaseSeconds": Code("dljob.runtime.controller.prime", "lease_seconds"),
    "spec.faultTolerance.backoff.initialSeconds": Code("dljob.master.failure.budget", "backoff.initial_seconds"),
    "spec.faultTolerance.backoff.multiplier": Code("dljob.master.failure.budget", "backoff.multiplier"),
    "spec.faultTolerance.backoff.maxSeconds": Code("dljob.master.failure.budget", "backoff.max_seconds"),
    "spec.faultTolerance.spares.processesPerNode": Code("dljob.master.start.spares", "spares.processes_per_node"),
    "spec.faultTolerance.spares.nodes": Plan("spec.faultTolerance", {"spares": {"nodes": 1}}, "declared"),
    "spec.faultTolerance.node.action": Code("dljob.master.placement.nodes", "node.action"),
    "spec.faultTolerance.node.freezeSeconds": Code("dljob.master.state.silence", "policy.freeze_seconds"),
    "spec.faultTolerance.node.unreachableSeconds": Code("dljob.master.state.silence", "policy.unreachable_seconds"),
    "spec.faultTolerance.node.excludeSeconds": Code("dljob.master.placement.exclusions", "node.exclude_seconds"),
    "spec.faultTolerance.node.pendingTimeoutSeconds": Code(
        "dljob.master.placement.admission", "node.pending_timeout_seconds"
    ),
    "spec.faultTolerance.node.maxFailures": Code("dljob.master.placement.exclusions", "node.max_failures"),
    "spec.faultTolerance.node.failureDomainLabel": Code(
        "dljob.master.placement.failure_domains", "node.failure_domain_label"
    ),
    "spec.faultTolerance.node.domainFailures": Code("dljob.master.placement.failure_domains", "node.domain_failures"),
    "spec.faultTolerance.node.domainWindowSeconds": Code(
        "dljob.master.placement.failure_domains", "node.domain_window_seconds"
    ),
    "spec.faultTolerance.node.relauncher": Code("dljob.master.start.relaunch", "node.relauncher"),
    "spec.faultTolerance.elastic.shrinkAfterSeconds": Code(
        "dljob.master.placement.elastic", "elastic.shrink_after_seconds"
    ),
    "spec.faultTolerance.elastic.growAfterSeconds": Code(
        "dljob.master.placement.elastic", "elastic.grow_after_seconds"
    ),
    "spec.faultTolerance.hang.action": Code("dljob.master.failure.hanging", "hang.action"),
    "spec.faultTolerance.hang.idleSeconds": Code("dljob.master.state.hang", "policy.idle_seconds"),
    "spec.faultTolerance.hang.busySeconds": Code("dljob.master.state.hang", "policy.busy_seconds"),
    "spec.faultTolerance.witnesses[].name": Code("dljob.plan.witnesses", "witness.name"),
    "spec.faultTolerance.witnesses[].preset": Code("dljob.plan.witnesses", "witness.preset"),
    "spec.faultTolerance.witnesses[].port": Code("dljob.plan.witnesses", "witness.port"),
    "spec.faultTolerance.witnesses[].urlPath": Code("dljob.plan.witnesses", "witness.url_path"),
    "spec.faultTolerance.witnesses[].metric": Code("dljob.plan.witnesses", "witness.metric"),
    "spec.faultTolerance.witnesses[].means": Code("dljob.plan.witnesses", "witness.means"),
    "spec.faultTolerance.witnesses[].when": Code("dljob.plan.witnesses", "witness.when"),
    "spec.faultTolerance.witnesses[].value": Code("dljob.plan.witnesses", "witness.value"),
    "spec.faultTolerance.witnesses[].forSeconds": Code("dljob.plan.witnesses", "witness.for_seconds"),
    "spec.faultTolerance.witnesses[].act": Code("dljob.plan.witnesses", "witness.act"),
    "spec.faultTolerance.witnesses[].dump.port": Code("dljob.plan.witnesses", "dump.port"),
    "spec.faultTolerance.witnesses[].dump.urlPath": Code("dljob.plan.witnesses", "dump.url_path"),
    "spec.faultTolerance.witnesses[].dump.body": Code("dljob.plan.witnesses", "dump.body"),
    "spec.faultTolerance.rules[].name": Code("dljob.master.failure.policy", "rule.name"),
    "spec.faultTolerance.rules[].roles[]": Code("dljob.master.failure.policy", "rule.roles"),
    "spec.faultTolerance.rules[].onReasons[]": Code("dljob.master.failure.policy", "rule.on_reasons"),
    "spec.faultTolerance.rules[].onExitCodes[]": Code("dljob.master.failure.policy", "rule.on_exit_codes"),
    "spec.faultTolerance.rules[].action": Code("dljob.master.failure.policy", "rule.action"),
    "spec.faultTolerance.rules[].maxAttempts": Code("dljob.master.failure.policy", "rule.max_attempts"),
    "spec.faultTolerance.rules[].escalateTo": Code("dljob.master.failure.policy", "rule.escalate_to"),
    "spec.faultTolerance.rules[].countsTowardsLimit": Code("dljob.master.failure.policy", "rule.counts_towards_limit"),
    "spec.faultTolerance.causes[].name": Code("dljob.master.state.causes", "user_rule.name"),
    "spec.faultTolerance.causes[].onLog": Code("dljob.master.state.causes", "user_rule.on_log"),
    "spec.faultTolerance.causes[].reason": Code("dljob.master.state.causes", "user_rule.reason"),
    "spec.gcsFaultTolerance.backend": Plan(
        "spec.gcsFaultTolerance", {"backend": "Redis", "redisAddress": "redis:6379"}
    ),
    "spec.gcsFaultTolerance.redisAddress": Plan(
        "spec.gcsFaultTolerance", {"backend": "Redis", "redisAddress": "other:6379"}
    ),
    "spec.gcsFaultTolerance.redisPasswordSecret.name": Plan(
        "spec.gcsFaultTolerance",
        {"backend": "Redis", "redisAddress": "r:6379", "redisPasswordSecret": {"name": "s", "key": "k"}},
    ),
    "spec.gcsFaultTolerance.redisPasswordSecret.key": Plan(
        "spec.gcsFaultTolerance",
        {"backend": "Redis", "redisAddress": "r:6379", "redisPasswordSecret": {"name": "s", "key": "other"}},
    ),
    "spec.gcsFaultTolerance.claimName": Plan("spec.gcsFaultTolerance", {"backend": "RocksDB", "claimName": "gcs"}),
    "spec.checkpoint.path": Plan("spec.checkpoint", {"path": "/ckpt"}),
    "spec.checkpoint.claimName": Plan("spec.checkpoint", {"path": "/ckpt", "claimName": "ckpt"}),
    "spec.checkpoint.saveOnExit": Code("dljob.runtime.controller.prime", "save_on_exit"),
    "spec.checkpoint.peerCopy": Code("dljob.runtime.controller.prime", "peer_copy"),
    "spec.checkpoint.gracePeriodSeconds": Code("dljob.runtime.controller.prime", "grace_period_seconds"),
    "spec.checkpoint.everySteps": Code("dljob.runtime.controller.services.cut_service", "every_steps"),
    "spec.checkpoint.cutDeadlineSeconds": Code("dljob.runtime.controller.services.cut_service", "cut_deadline_seconds"),
    "spec.progressMetrics[]": Code("dljob.runtime.controller.master_loop", "progress_metrics"),
    "spec.collectives.backends[].name": Plan("spec.collectives", {"backends": [{"name": "X", "class": "a.B"}]}),
    "spec.collectives.backends[].class": Plan("spec.collectives", {"backends": [{"name": "X", "class": "a.C"}]}),
    "spec.collectives.groups[].name": Plan("spec.collectives.groups.0.name", "other", "grouped"),
    "spec.collectives.groups[].backend": Plan("spec.collectives.groups.0.backend", "NCCL", "grouped"),
    "spec.collectives.groups[].roles[]": Plan("spec.collectives.groups.0.roles", ["script"], "grouped"),
    "spec.collectives.groups[].timeoutSeconds": Plan("spec.collectives.groups.0.timeoutSeconds", 9, "grouped"),
    "spec.collectives.groups[].onRestart": Plan("spec.collectives.groups.0.onRestart", "Fail", "grouped"),
    "spec.scheduling.queueName": Plan("spec.scheduling", {"queueName": "research"}),
    "spec.scheduling.priorityClassName": Plan("spec.scheduling", {"priorityClassName": "high"}),
    "spec.scheduling.labels": Plan("spec.scheduling", {"labels": {"volcano.sh/queue-name": "q"}}),
    "spec.networkPolicy.enabled": Code("dljob.reconcile.children.children", "network_policy.enabled"),
    "spec.suspend": Code("dljob.reconcile.state.context", "suspend"),
    "spec.managedBy": Code("dljob.reconcile.reconcile", "managedBy"),
    "spec.cleanupPolicy": Code("dljob.reconcile.state.accept", "cleanupPolicy"),
    "spec.ttlSecondsAfterFinished": Code("dljob.reconcile.state.accept", "ttlSecondsAfterFinished"),
    "spec.activeDeadlineSeconds": Code("dljob.master.placement.timers", "spec.active_deadline_seconds"),
    "spec.preRunningDeadlineSeconds": Code("dljob.master.placement.timers", "spec.pre_running_deadline_seconds"),
}
