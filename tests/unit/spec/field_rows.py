"""Where the effect of each field of the spec is seen: a row for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CAUSES = "tests/unit/master/state/test_causes.py"
FAILOVER = "tests/unit/master/failure/test_failover.py"
CHOSEN = "tests/unit/spec/test_chosen_resources.py::test_"
MEMORY = "tests/unit/master/failure/test_memory.py"
DOMAINS = "tests/unit/master/placement/test_failure_domains.py"
WITNESSES = "tests/unit/plan/test_witnesses.py"
NODES = "tests/unit/master/placement/test_nodes.py"

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
    """`module` reads the attribute; `test` (file::name) shows what comes of it."""

    module: str
    attribute: str
    test: str = ""


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
    "apiVersion": Code(
        "dljob.spec.loading.load",
        "manifest.api_version",
        "tests/unit/spec/test_fields.py::test_a_dump_names_its_api_version_and_kind",
    ),
    "kind": Code(
        "dljob.spec.loading.load",
        "manifest.kind",
        "tests/unit/spec/test_fields.py::test_a_dump_names_its_api_version_and_kind",
    ),
    "metadata.name": Plan("metadata.name", "other"),
    "metadata.namespace": Plan("metadata.namespace", "research"),
    "metadata.labels": Plan("metadata.labels", {"kueue.x-k8s.io/queue-name": "research"}),
    "metadata.annotations": Code(
        "dljob.spec.loading.load",
        "manifest.model_dump",
        "tests/unit/spec/test_fields.py::test_a_dump_carries_annotations",
    ),
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
    "spec.runtimeEnv": Code(
        "dljob.reconcile.policies.submit",
        "runtimeEnv",
        "tests/unit/reconcile/policies/test_submit.py::test_the_runtime_environment_and_version_are_the_specs",
    ),
    "spec.config": Plan("spec.config", {"lr": 1}),
    "spec.code.configMap": Plan("spec.code", {"configMap": "code"}),
    "spec.code.workingDir": Code("dljob.api.job", "workingDir"),
    "spec.backend.name": Code(
        "dljob.runtime.job.launch",
        "backend",
        "tests/ray/controller/test_prime_jobs.py::test_an_unknown_backend_is_refused_and_never_replaced",
    ),
    "spec.backend.options": Code(
        "dljob.runtime.job.launch",
        "options",
        "tests/ray/controller/test_prime_jobs.py::test_the_journal_may_live_in_the_key_value_store",
    ),
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
        f"spec.roles[].resources.auto.{key}.{bound}": Code("dljob.spec.chosen_resources", f"auto.{key}", test)
        for key, test in {"cpu": f"{CHOSEN}cpus_are_chosen", "memory": f"{CHOSEN}memory_is_chosen"}.items()
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
    "spec.roles[].tf.task": Code(
        "dljob.plan.roles",
        "tf",
        "tests/unit/plan/test_tensorflow.py::test_each_task_has_its_port_its_environment_and_its_couplings",
    ),
    "spec.roles[].ports[].name": Plan("spec.roles.3.ports", [{"name": "http"}]),
    "spec.roles[].ports[].port": Plan("spec.roles.3.ports", [{"name": "http", "port": 80}]),
    "spec.roles[].service": Code(
        "dljob.reconcile.state.accept",
        "service",
        "tests/unit/reconcile/policies/test_services.py::test_a_service_leads_to_the_ranks_that_are_ready",
    ),
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
    "spec.roles[].restartPolicy.outOfMemory.memoryFactor": Code(
        "dljob.master.failure.memory",
        "policy.memory_factor",
        f"{MEMORY}::test_the_unit_of_a_rank_that_ran_out_of_memory_is_reserved_anew_with_more",
    ),
    "spec.roles[].restartPolicy.outOfMemory.maxMemory": Code(
        "dljob.master.failure.memory",
        "policy.max_memory",
        f"{MEMORY}::test_memory_grows_up_to_max_memory_and_stays_there",
    ),
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
    "spec.rayClusterRef.name": Code(
        "dljob.reconcile.state.context",
        "rayClusterRef",
        "tests/unit/reconcile/test_reference.py::test_a_job_runs_on_a_cluster_that_is_there_and_leaves_it_as_it_was",
    ),
    "spec.head.cpu": Plan("spec.head", {"cpu": "2"}),
    "spec.head.memory": Plan("spec.head", {"memory": "8Gi"}),
    "spec.head.template": Plan("spec.head", {"template": {"spec": {"nodeSelector": {"a": "b"}}}}),
    "spec.rayClusterTemplate": Plan("spec.rayClusterTemplate", {"metadata": {"labels": {"team": "rl"}}}),
    "spec.master.cpu": Plan("spec.master", {"cpu": "2"}),
    "spec.master.memory": Plan("spec.master", {"memory": "2Gi"}),
    "spec.master.maxRestarts": Code(
        "dljob.master.transition",
        "master.max_restarts",
        "tests/unit/master/placement/test_takeover.py::test_too_many_masters_within_the_window_end_the_job",
    ),
    "spec.master.createTimeoutSeconds": Code("dljob.runtime.job.outline", "createTimeoutSeconds"),
    "spec.master.journal.path": Code("dljob.runtime.controller.prime", "master.journal.path"),
    "spec.master.journal.claimName": Plan("spec.master", {"journal": {"path": "/journal", "claimName": "journal"}}),
    "spec.master.placement": Code(
        "dljob.runtime.job.outline",
        "placement",
        "tests/unit/runtime/journal/test_standing.py::test_the_master_is_placed_by_journal_and_kind_of_cluster",
    ),
    "spec.master.standby": Code(
        "dljob.plan.plan",
        "master.standby",
        "tests/unit/spec/test_standby.py::test_a_standby_is_made_by_mode_and_number_of_machines",
    ),
    "spec.faultTolerance.maxRestarts": Code(
        "dljob.master.failure.budget",
        "fault_tolerance.max_restarts",
        f"{FAILOVER}::test_an_exhausted_role_budget_restarts_the_job_and_an_exhausted_job_budget_ends_it",
    ),
    "spec.faultTolerance.maxClusterRestarts": Code(
        "dljob.reconcile.state.accept",
        "maxClusterRestarts",
        "tests/unit/reconcile/policies/test_attempts.py::test_lost_attempts_beyond_the_budget_fail_the_job",
    ),
    "spec.faultTolerance.windowSeconds": Code(
        "dljob.master.failure.budget",
        "fault_tolerance.window_seconds",
        f"{FAILOVER}::test_failures_outside_the_window_are_forgotten",
    ),
    "spec.faultTolerance.leaseSeconds": Code(
        "dljob.runtime.controller.prime",
        "lease_seconds",
        "tests/ray/worker/test_host_deaths.py::test_lease_that_runs_out_ends_the_process",
    ),
    "spec.faultTolerance.backoff.initialSeconds": Code(
        "dljob.master.failure.budget",
        "backoff.initial_seconds",
        f"{FAILOVER}::test_the_second_failure_in_the_window_waits_and_each_wait_is_longer_up_to_a_bound",
    ),
    "spec.faultTolerance.backoff.multiplier": Code(
        "dljob.master.failure.budget",
        "backoff.multiplier",
        f"{FAILOVER}::test_the_second_failure_in_the_window_waits_and_each_wait_is_longer_up_to_a_bound",
    ),
    "spec.faultTolerance.backoff.maxSeconds": Code(
        "dljob.master.failure.budget",
        "backoff.max_seconds",
        f"{FAILOVER}::test_the_second_failure_in_the_window_waits_and_each_wait_is_longer_up_to_a_bound",
    ),
    "spec.faultTolerance.spares.processesPerNode": Code(
        "dljob.master.start.spares",
        "spares.processes_per_node",
        "tests/unit/master/start/test_spares.py::test_each_node_gets_its_spares_once_the_role_is_ready_there",
    ),
    "spec.faultTolerance.spares.nodes": Plan("spec.faultTolerance", {"spares": {"nodes": 1}}, "declared"),
    "spec.faultTolerance.node.action": Code(
        "dljob.master.placement.nodes",
        "node.action",
        f"{NODES}::test_a_policy_that_ignores_frozen_nodes_leaves_everything_as_it_is",
    ),
    "spec.faultTolerance.node.freezeSeconds": Code(
        "dljob.master.state.silence",
        "policy.freeze_seconds",
        f"{NODES}::test_a_node_is_frozen_when_it_is_silent_for_too_long",
    ),
    "spec.faultTolerance.node.unreachableSeconds": Code(
        "dljob.master.state.silence",
        "policy.unreachable_seconds",
        f"{NODES}::test_most_nodes_silent_at_once_are_waited_for",
    ),
    "spec.faultTolerance.node.excludeSeconds": Code(
        "dljob.master.placement.exclusions",
        "node.exclude_seconds",
        f"{NODES}::test_a_thawed_node_is_excluded_for_its_time_and_then_holds_units_again",
    ),
    "spec.faultTolerance.node.pendingTimeoutSeconds": Code(
        "dljob.master.placement.admission",
        "node.pending_timeout_seconds",
        f"{NODES}::test_a_frozen_node_that_never_comes_back_fails_the_job_in_time",
    ),
    "spec.faultTolerance.node.maxFailures": Code(
        "dljob.master.placement.exclusions",
        "node.max_failures",
        f"{DOMAINS}::test_a_node_is_excluded_from_the_failure_that_the_spec_says",
    ),
    "spec.faultTolerance.node.failureDomainLabel": Code(
        "dljob.master.placement.failure_domains",
        "node.failure_domain_label",
        f"{DOMAINS}::test_the_second_lost_node_of_a_rack_takes_its_other_nodes_with_it",
    ),
    "spec.faultTolerance.node.domainFailures": Code(
        "dljob.master.placement.failure_domains",
        "node.domain_failures",
        f"{DOMAINS}::test_the_second_lost_node_of_a_rack_takes_its_other_nodes_with_it",
    ),
    "spec.faultTolerance.node.domainWindowSeconds": Code(
        "dljob.master.placement.failure_domains",
        "node.domain_window_seconds",
        f"{DOMAINS}::test_failures_further_apart_than_the_window_are_not_counted_together",
    ),
    "spec.faultTolerance.node.relauncher": Code(
        "dljob.master.start.relaunch",
        "node.relauncher",
        "tests/unit/master/start/test_relaunch.py::test_each_bad_node_is_told_of_once",
    ),
    "spec.faultTolerance.elastic.shrinkAfterSeconds": Code(
        "dljob.master.placement.elastic",
        "elastic.shrink_after_seconds",
        "tests/unit/master/placement/test_elastic.py::test_the_patience_before_shrinking_and_growing_comes_from_the_spec",
    ),
    "spec.faultTolerance.elastic.growAfterSeconds": Code(
        "dljob.master.placement.elastic",
        "elastic.grow_after_seconds",
        "tests/unit/master/placement/test_elastic.py::test_the_patience_before_shrinking_and_growing_comes_from_the_spec",
    ),
    "spec.faultTolerance.hang.action": Code(
        "dljob.master.failure.hanging",
        "hang.action",
        "tests/unit/master/state/test_hang.py::test_a_hang_is_only_told_where_the_policy_or_a_rule_says_so",
    ),
    "spec.faultTolerance.hang.idleSeconds": Code(
        "dljob.master.state.hang",
        "policy.idle_seconds",
        "tests/unit/master/state/test_hang.py::test_the_one_for_whom_the_others_wait_is_named_after_its_bound",
    ),
    "spec.faultTolerance.hang.busySeconds": Code(
        "dljob.master.state.hang",
        "policy.busy_seconds",
        "tests/unit/master/state/test_hang.py::test_the_one_for_whom_the_others_wait_is_named_after_its_bound",
    ),
    "spec.faultTolerance.witnesses[].name": Code(
        "dljob.plan.witnesses",
        "witness.name",
        f"{WITNESSES}::test_a_field_of_the_spec_wins_over_its_preset",
    ),
    "spec.faultTolerance.witnesses[].preset": Code(
        "dljob.plan.witnesses",
        "witness.preset",
        f"{WITNESSES}::test_a_field_of_the_spec_wins_over_its_preset",
    ),
    "spec.faultTolerance.witnesses[].port": Code(
        "dljob.plan.witnesses",
        "witness.port",
        f"{WITNESSES}::test_a_field_of_the_spec_wins_over_its_preset",
    ),
    "spec.faultTolerance.witnesses[].urlPath": Code(
        "dljob.plan.witnesses",
        "witness.url_path",
        f"{WITNESSES}::test_a_field_of_the_spec_wins_over_its_preset",
    ),
    "spec.faultTolerance.witnesses[].metric": Code(
        "dljob.plan.witnesses",
        "witness.metric",
        f"{WITNESSES}::test_a_field_of_the_spec_wins_over_its_preset",
    ),
    "spec.faultTolerance.witnesses[].means": Code(
        "dljob.plan.witnesses",
        "witness.means",
        f"{WITNESSES}::test_a_field_of_the_spec_wins_over_its_preset",
    ),
    "spec.faultTolerance.witnesses[].when": Code(
        "dljob.plan.witnesses",
        "witness.when",
        f"{WITNESSES}::test_a_field_of_the_spec_wins_over_its_preset",
    ),
    "spec.faultTolerance.witnesses[].value": Code(
        "dljob.plan.witnesses",
        "witness.value",
        f"{WITNESSES}::test_a_field_of_the_spec_wins_over_its_preset",
    ),
    "spec.faultTolerance.witnesses[].forSeconds": Code(
        "dljob.plan.witnesses",
        "witness.for_seconds",
        f"{WITNESSES}::test_a_field_of_the_spec_wins_over_its_preset",
    ),
    "spec.faultTolerance.witnesses[].act": Code(
        "dljob.plan.witnesses",
        "witness.act",
        f"{WITNESSES}::test_a_field_of_the_spec_wins_over_its_preset",
    ),
    "spec.faultTolerance.witnesses[].dump.port": Code(
        "dljob.plan.witnesses",
        "dump.port",
        f"{WITNESSES}::test_a_field_of_the_spec_wins_over_its_preset",
    ),
    "spec.faultTolerance.witnesses[].dump.urlPath": Code(
        "dljob.plan.witnesses",
        "dump.url_path",
        f"{WITNESSES}::test_a_field_of_the_spec_wins_over_its_preset",
    ),
    "spec.faultTolerance.witnesses[].dump.body": Code(
        "dljob.plan.witnesses",
        "dump.body",
        f"{WITNESSES}::test_a_field_of_the_spec_wins_over_its_preset",
    ),
    "spec.faultTolerance.rules[].name": Code(
        "dljob.master.failure.policy",
        "rule.name",
        f"{FAILOVER}::test_a_rule_without_attempts_left_escalates_to_what_it_says_or_one_level_up",
    ),
    "spec.faultTolerance.rules[].roles[]": Code(
        "dljob.master.failure.policy", "rule.roles", f"{FAILOVER}::test_the_first_rule_that_matches_decides"
    ),
    "spec.faultTolerance.rules[].onReasons[]": Code(
        "dljob.master.failure.policy", "rule.on_reasons", f"{FAILOVER}::test_a_node_loss_can_be_given_to_a_rule"
    ),
    "spec.faultTolerance.rules[].onExitCodes[]": Code(
        "dljob.master.failure.policy", "rule.on_exit_codes", f"{FAILOVER}::test_the_first_rule_that_matches_decides"
    ),
    "spec.faultTolerance.rules[].action": Code(
        "dljob.master.failure.policy", "rule.action", f"{FAILOVER}::test_the_first_rule_that_matches_decides"
    ),
    "spec.faultTolerance.rules[].maxAttempts": Code(
        "dljob.master.failure.policy",
        "rule.max_attempts",
        f"{FAILOVER}::test_a_rule_without_attempts_left_escalates_to_what_it_says_or_one_level_up",
    ),
    "spec.faultTolerance.rules[].escalateTo": Code(
        "dljob.master.failure.policy",
        "rule.escalate_to",
        f"{FAILOVER}::test_a_rule_without_attempts_left_escalates_to_what_it_says_or_one_level_up",
    ),
    "spec.faultTolerance.rules[].countsTowardsLimit": Code(
        "dljob.master.failure.policy",
        "rule.counts_towards_limit",
        f"{FAILOVER}::test_restarts_of_a_rule_that_does_not_count_leave_the_budget_alone",
    ),
    "spec.faultTolerance.causes[].name": Code(
        "dljob.master.state.causes", "user.name", f"{CAUSES}::test_users_define_causes_of_their_own"
    ),
    "spec.faultTolerance.causes[].onLog": Code(
        "dljob.master.state.causes", "user.on_log", f"{CAUSES}::test_users_define_causes_of_their_own"
    ),
    "spec.faultTolerance.causes[].reason": Code(
        "dljob.master.state.causes", "user.reason", f"{CAUSES}::test_users_define_causes_of_their_own"
    ),
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
    "spec.checkpoint.saveOnExit": Code(
        "dljob.runtime.controller.prime",
        "save_on_exit",
        "tests/unit/runtime/checkpoint/test_checkpoint_saver.py::test_without_save_on_exit_memory_alone_is_lost_with_its_rank",
    ),
    "spec.checkpoint.peerCopy": Code(
        "dljob.runtime.controller.prime",
        "peer_copy",
        "tests/unit/runtime/checkpoint/test_checkpoint_peers.py::test_a_job_that_wants_no_copies_gets_none",
    ),
    "spec.checkpoint.gracePeriodSeconds": Code(
        "dljob.runtime.controller.prime",
        "grace_period_seconds",
        "tests/unit/runtime/checkpoint/test_checkpoint_process.py::test_a_disk_that_is_too_slow_is_left_after_the_grace",
    ),
    "spec.checkpoint.everySteps": Code(
        "dljob.runtime.controller.services.cut_service",
        "every_steps",
        "tests/ray/data/test_cuts.py::test_a_cut_that_cannot_be_completed_harms_nobody",
    ),
    "spec.checkpoint.cutDeadlineSeconds": Code(
        "dljob.runtime.controller.services.cut_service",
        "cut_deadline_seconds",
        "tests/ray/data/test_cuts.py::test_a_cut_that_cannot_be_completed_harms_nobody",
    ),
    "spec.progressMetrics[]": Code(
        "dljob.runtime.controller.master_loop",
        "progress_metrics",
        "tests/unit/runtime/controller/test_metric_feed.py::"
        "test_a_jobs_metrics_reach_the_process_with_the_last_step_of_its_end",
    ),
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
    "spec.networkPolicy.enabled": Code(
        "dljob.reconcile.children.children",
        "network_policy.enabled",
        "tests/unit/reconcile/children/test_network_policy.py::test_the_policy_admits_exactly_the_allowed_sources_and_ports",
    ),
    "spec.suspend": Code(
        "dljob.reconcile.state.context",
        "suspend",
        "tests/unit/reconcile/policies/test_suspending.py::test_a_job_that_begins_suspended_makes_nothing",
    ),
    "spec.managedBy": Code(
        "dljob.reconcile.reconcile",
        "managedBy",
        "tests/unit/reconcile/state/test_accept.py::test_a_job_that_others_manage_is_left_alone",
    ),
    "spec.cleanupPolicy": Code(
        "dljob.reconcile.state.accept",
        "cleanupPolicy",
        "tests/unit/reconcile/policies/test_finish.py::test_retain_keeps_the_cluster_and_saves_the_logs",
    ),
    "spec.ttlSecondsAfterFinished": Code(
        "dljob.reconcile.state.accept",
        "ttlSecondsAfterFinished",
        "tests/unit/reconcile/state/test_accept.py::test_a_change_that_is_obeyed_at_once_is_not_said_to_wait",
    ),
    "spec.activeDeadlineSeconds": Code(
        "dljob.master.placement.timers",
        "spec.active_deadline_seconds",
        "tests/unit/master/failure/test_ending.py::test_the_active_deadline_counts_from_the_start_of_the_job",
    ),
    "spec.preRunningDeadlineSeconds": Code(
        "dljob.master.placement.timers",
        "spec.pre_running_deadline_seconds",
        "tests/unit/master/placement/test_admission.py::test_the_pre_running_deadline_names_what_is_missing",
    ),
}
