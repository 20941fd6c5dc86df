"""The builder's setters of the spec, without roles and machines: one per field, named after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from dljob.api.unsupported import UnsupportedCalls
from dljob.api.values import Number, check_count, cpus
from dljob.api.workload import pruned
from dljob.errors import UsageError


class SpecSetters(UnsupportedCalls):
    """Setters of the job's name, code, images, fault tolerance and end."""

    def __init__(self) -> None:
        self._spec: dict[str, Any] = {}
        self._metadata: dict[str, Any] = {}

    def name(self, name: str) -> Self:
        """Set the name of the job; `submit(name)` may override it."""
        self._metadata["name"] = name
        return self

    def namespace(self, namespace: str) -> Self:
        """Set the Kubernetes namespace."""
        self._metadata["namespace"] = namespace
        return self

    def label(self, key: str, value: str) -> Self:
        """Set a label of the job."""
        self._metadata.setdefault("labels", {})[key] = value
        return self

    def annotation(self, key: str, value: str) -> Self:
        """Set an annotation of the job."""
        self._metadata.setdefault("annotations", {})[key] = value
        return self

    def image(self, image: str) -> Self:
        """Set the runtime image."""
        return self._put("image", image)

    def image_pull(self, policy: str | None = None, *, secrets: Sequence[str] = ()) -> Self:
        """Set when Kubernetes pulls images (Always, IfNotPresent, Never), and its pull Secrets."""
        if policy is not None:
            self._put("imagePullPolicy", policy)
        return self._put("imagePullSecrets", [{"name": name} for name in secrets]) if secrets else self

    def env_from(self, *, config_map: str = "", secret: str = "", prefix: str = "", optional: bool = False) -> Self:
        """Add the variables of a ConfigMap or a Secret to the environment of every role. May be called repeatedly.

        Args:
            config_map: name of a ConfigMap in the job's namespace.
            secret: name of a Secret there, when no ConfigMap is named.
            prefix: put before each variable's name.
            optional: start the pods even if the object does not exist.

        Raises:
            UsageError: neither is named.
        """
        if not (config_map or secret):
            raise UsageError(
                "env_from() names neither a ConfigMap nor a Secret", hint='env_from(config_map="settings")'
            )
        source = {"name": config_map or secret, "optional": optional or None}
        entry = {"prefix": prefix or None, "configMapRef" if config_map else "secretRef": pruned(source)}
        # Appended, unlike most setters: Kubernetes reads the sources in order, and later ones win.
        self._spec.setdefault("envFrom", []).append(pruned(entry))
        return self

    def runtime_env(self, environment: Mapping[str, object]) -> Self:
        """Set Ray's runtime environment of the job on Kubernetes."""
        return self._put("runtimeEnv", dict(environment))

    def checkpoint(
        self,
        path: str | None = None,
        *,
        claim: str | None = None,
        save_on_exit: bool | None = None,
        peer_copy: bool | None = None,
        grace_seconds: int | None = None,
        every_steps: int | None = None,
        cut_deadline_seconds: int | None = None,
    ) -> Self:
        """Set where user code saves checkpoints, and how copies in memory reach the disk.

        Args:
            path: folder of the checkpoints; left out: the job's folder.
            claim: PersistentVolumeClaim mounted there.
            save_on_exit: write copies that exist in memory alone to disk when their rank ends.
            peer_copy: copy checkpoints that are not yet on disk into the memory of another node.
            grace_seconds: time for writing copies to disk when a rank, a node or the job ends.
            every_steps: steps of the first driver role between two consistent cuts of the job.
            cut_deadline_seconds: time after which a cut that is not complete is given up.
        """
        more = {"saveOnExit": save_on_exit, "peerCopy": peer_copy, "gracePeriodSeconds": grace_seconds}
        more |= {"everySteps": every_steps, "cutDeadlineSeconds": cut_deadline_seconds}
        return self._put("checkpoint", pruned({"path": path, "claimName": claim, **more}))

    def scheduling(
        self, *, queue: str | None = None, priority_class: str | None = None, labels: Mapping[str, str] | None = None
    ) -> Self:
        """Set the RayCluster's queue and priority, and further labels for its scheduler."""
        return self._merge(
            "scheduling", queueName=queue, priorityClassName=priority_class, labels=labels and dict(labels)
        )

    def network_policy(self, enabled: bool = True) -> Self:  # noqa: FBT001, FBT002 - a switch, as the field is
        """Isolate the job's pods on Kubernetes: others reach only Ray's Job API, the gateway and the metrics."""
        return self._merge("networkPolicy", enabled=enabled)

    def suspend(self, on: bool = True) -> Self:  # noqa: FBT001, FBT002 - a switch, as the field is
        """Suspend the job on Kubernetes: it starts, or continues, when it is resumed."""
        return self._put("suspend", on)

    def managed_by(self, controller: str) -> Self:
        """Set the controller of the job on Kubernetes: dljob.io/operator or kueue.x-k8s.io/multikueue."""
        return self._put("managedBy", controller)

    def ray_version(self, version: str) -> Self:
        """Set the version of Ray in the image."""
        return self._put("rayVersion", version)

    def working_dir(self, folder: str) -> Self:
        """Set the folder that workers import from, relative to the script."""
        return self._merge("code", workingDir=folder)

    def code_config_map(self, name: str) -> Self:
        """Take the user code on Kubernetes from this ConfigMap instead of uploading the folder."""
        return self._merge("code", configMap=name)

    def backend(self, name: str, **options: object) -> Self:
        """Set the distributed backend and its options."""
        return self._put("backend", {"name": name, "options": dict(options)})

    def collective_backend(self, name: str, path: str) -> Self:
        """Register a backend of collectives by the dotted path of its class. May be called repeatedly."""
        return self._collective("backends", {"name": name, "class": path})

    def collective_group(
        self,
        name: str,
        *roles: str,
        backend: str | None = None,
        timeout_seconds: int | None = None,
        on_restart: str | None = None,
    ) -> Self:
        """Declare a collective group across roles; on_restart: Recreate or Fail. May be called repeatedly."""
        more = {"backend": backend, "timeoutSeconds": timeout_seconds, "onRestart": on_restart}
        return self._collective("groups", pruned({"name": name, "roles": list(roles), **more}))

    def _collective(self, kind: str, item: dict[str, object]) -> Self:
        before = self._spec.get("collectives", {})
        return self._put("collectives", {**before, kind: [*before.get(kind, []), item]})

    def head(
        self,
        *,
        cpu: Number | None = None,
        memory: str | None = None,
        template: Mapping[str, object] | None = None,
    ) -> Self:
        """Set the size of the RayCluster's head, and a template merged into its pod."""
        size = None if cpu is None else cpus(cpu, ".head()")
        return self._merge("head", cpu=size, memory=memory, template=None if template is None else dict(template))

    def ray_cluster(self, name: str) -> Self:
        """Run on an existing RayCluster of the job's namespace on Kubernetes."""
        return self._put("rayClusterRef", {"name": name})

    def ray_cluster_template(self, template: Mapping[str, object]) -> Self:
        """Merge metadata and spec, in KubeRay's spelling, into the RayCluster on Kubernetes."""
        return self._put("rayClusterTemplate", dict(template))

    def master(
        self,
        *,
        cpu: Number | None = None,
        memory: str | None = None,
        max_restarts: int | None = None,
        create_timeout_seconds: int | None = None,
        journal_path: str | None = None,
        journal_claim: str | None = None,
        placement: str | None = None,
        standby: str | None = None,
    ) -> Self:
        """Set PrimeMaster's resources, restart budget, timeout of its creation, placement, standby and journal.

        Args:
            cpu: its CPUs.
            memory: its memory, with unit.
            max_restarts: restarts allowed.
            create_timeout_seconds: time for its creation.
            journal_path: folder of the journal.
            journal_claim: PersistentVolumeClaim of the journal.
            placement: Auto, Head or Worker.
            standby: Never, Auto or Always.
        """
        journal = {k: v for k, v in {"path": journal_path, "claimName": journal_claim}.items() if v is not None}
        return self._merge(
            "master",
            cpu=None if cpu is None else cpus(cpu, ".master()"),
            memory=memory,
            maxRestarts=max_restarts,
            createTimeoutSeconds=create_timeout_seconds,
            journal=journal or None,
            placement=placement,
            standby=standby,
        )

    def gcs_fault_tolerance(
        self,
        *,
        claim: str | None = None,
        redis: str | None = None,
        redis_password: tuple[str, str] | None = None,
    ) -> Self:
        """Keep the tables of Ray's head over its death: in RocksDB on a claim, or in Redis.

        Args:
            claim: PersistentVolumeClaim for RocksDB.
            redis: host:port of Redis, instead of RocksDB.
            redis_password: name of the Secret and key in it.
        """
        # `strict`: a pair without its key would otherwise lose the password unnoticed.
        secret = None if redis_password is None else dict(zip(("name", "key"), redis_password, strict=True))
        # The two backends exclude each other; the argument that was given names it.
        backend_fields = {"redisAddress": redis, "redisPasswordSecret": secret, "claimName": claim}
        return self._put("gcsFaultTolerance", pruned({"backend": "Redis" if redis else "RocksDB", **backend_fields}))

    def fault_tolerance(
        self,
        *,
        max_restarts: int | None = None,
        max_cluster_restarts: int | None = None,
        window_seconds: int | None = None,
        lease_seconds: int | None = None,
    ) -> Self:
        """Set restart budgets and the lease.

        Args:
            max_restarts: restarts of the whole job within a window.
            max_cluster_restarts: replacements of the RayCluster allowed.
            window_seconds: length of the window.
            lease_seconds: time for which a process runs on without contact to PrimeMaster.
        """
        return self._merge(
            "faultTolerance",
            maxRestarts=max_restarts,
            maxClusterRestarts=max_cluster_restarts,
            windowSeconds=window_seconds,
            leaseSeconds=lease_seconds,
        )

    def backoff(
        self, *, initial_seconds: int | None = None, multiplier: int | None = None, max_seconds: int | None = None
    ) -> Self:
        """Set the backoff between restarts; it begins with the second failure in a row."""
        wait = {"initialSeconds": initial_seconds, "multiplier": multiplier, "maxSeconds": max_seconds}
        return self._merge("faultTolerance", backoff={k: v for k, v in wait.items() if v is not None})

    def spares(self, *, processes_per_node: int | None = None, nodes: int | None = None) -> Self:
        """Keep spare processes per node and role, and spare machines per node group."""
        counts = {"processesPerNode": processes_per_node, "nodes": nodes}
        return self._merge("faultTolerance", spares={k: v for k, v in counts.items() if v is not None})

    def lost_nodes(
        self,
        *,
        action: str | None = None,
        freeze_seconds: int | None = None,
        unreachable_seconds: int | None = None,
        exclude_seconds: int | None = None,
        pending_timeout_seconds: int | None = None,
        max_failures: int | None = None,
        failure_domain_label: str | None = None,
        domain_failures: int | None = None,
        domain_window_seconds: int | None = None,
        relauncher: str | None = None,
    ) -> Self:
        """Set what happens to nodes that stop answering.

        Args:
            action: Replace or Ignore.
            freeze_seconds: silence after which a node counts as frozen.
            unreachable_seconds: the same where most nodes are silent at once; also how long a head may be.
            exclude_seconds: time for which a replaced node gets no ranks.
            pending_timeout_seconds: time for which ranks of a replaced node wait for another one.
            max_failures: failure of a node within the window that excludes it.
            failure_domain_label: label of machines that fail together.
            domain_failures: failed nodes of one domain after which all its nodes are replaced.
            domain_window_seconds: time within which they must fail.
            relauncher: entry point in `dljob.noderelaunchers` that replaces nodes.
        """
        policy = {
            "action": action,
            "freezeSeconds": freeze_seconds,
            "unreachableSeconds": unreachable_seconds,
            "excludeSeconds": exclude_seconds,
            "pendingTimeoutSeconds": pending_timeout_seconds,
            "maxFailures": max_failures,
            "failureDomainLabel": failure_domain_label,
            "domainFailures": domain_failures,
            "domainWindowSeconds": domain_window_seconds,
            "relauncher": relauncher,
        }
        return self._merge("faultTolerance", node=pruned(policy))

    def resizing(self, *, shrink_after_seconds: int | None = None, grow_after_seconds: int | None = None) -> Self:
        """Set how long elastic roles wait before they shrink, and before they grow back."""
        policy = {"shrinkAfterSeconds": shrink_after_seconds, "growAfterSeconds": grow_after_seconds}
        return self._merge("faultTolerance", elastic=pruned(policy))

    def hung_ranks(
        self, *, action: str | None = None, idle_seconds: int | None = None, busy_seconds: int | None = None
    ) -> Self:
        """Set what happens to hung ranks.

        Args:
            action: Restart, Report or Ignore.
            idle_seconds: least silence of an idle rank that others wait for.
            busy_seconds: least silence of a rank that works, or that no other waits for.
        """
        policy = {"action": action, "idleSeconds": idle_seconds, "busySeconds": busy_seconds}
        return self._merge("faultTolerance", hang=pruned(policy))

    def witness(
        self,
        name: str,
        *,
        preset: str | None = None,
        port: int | None = None,
        url_path: str | None = None,
        metric: str | None = None,
        means: str | None = None,
        when: str | None = None,
        value: str | int | None = None,
        for_seconds: int | None = None,
        act: bool | None = None,
        dump: Mapping[str, object] | None = None,
    ) -> Self:
        """Add a metric of another program on the machines as evidence about ranks.

        Args:
            name: name of the witness.
            preset: xpu-timer, dcgm or npu-exporter, for values of all that is left out.
            port: port on the loopback address of each machine.
            url_path: path of the metrics.
            metric: name of the metric.
            means: Hang, Slow or SilentCorruption.
            when: Above or Below.
            value: the bound, such as 0 or "0.5".
            for_seconds: seconds for which it must hold.
            act: whether the rank is treated as failed.
            dump: request at a hang, such as `{"port": 18888, "urlPath": "/dump"}`.
        """
        witness = {
            "name": name,
            "preset": preset,
            "port": port,
            "urlPath": url_path,
            "metric": metric,
            "means": means,
            "when": when,
            "value": value,
            "forSeconds": for_seconds,
            "act": act,
            "dump": None if dump is None else dict(dump),
        }
        self._spec.setdefault("faultTolerance", {}).setdefault("witnesses", []).append(pruned(witness))
        return self

    def rule(
        self,
        name: str,
        *,
        action: str,
        roles: tuple[str, ...] = (),
        on_reasons: tuple[str, ...] = (),
        on_exit_codes: tuple[int, ...] = (),
        max_attempts: int | None = None,
        escalate_to: str | None = None,
        counts_towards_limit: bool | None = None,
    ) -> Self:
        """Add a rule for failures; rules are tried in the order of their declaration."""
        rule = {
            "name": name,
            # As `.role()` lower-cases its name.
            "roles": [r.lower() for r in roles],
            "onReasons": list(on_reasons),
            "onExitCodes": list(on_exit_codes),
            "action": action,
            "maxAttempts": max_attempts,
            "escalateTo": escalate_to,
            "countsTowardsLimit": counts_towards_limit,
        }
        self._spec.setdefault("faultTolerance", {}).setdefault("rules", []).append(pruned(rule))
        return self

    def known_cause(self, name: str, *, on_log: str, reason: str) -> Self:
        """Assign a reason to a text in errors or logs; it takes precedence over the causes built into dljob."""
        cause = {"name": name, "onLog": on_log, "reason": reason}
        self._spec.setdefault("faultTolerance", {}).setdefault("causes", []).append(cause)
        return self

    def cleanup_policy(self, policy: str) -> Self:
        """Set whether the RayCluster is removed at the end: DeleteCluster or Retain."""
        return self._put("cleanupPolicy", policy)

    def ttl_after_finished(self, seconds: int) -> Self:
        """Delete the DLJob from Kubernetes this many seconds after its end."""
        return self._put("ttlSecondsAfterFinished", check_count(seconds, ".ttl_after_finished()", least=0))

    def progress_metrics(self, *names: str) -> Self:
        """Send these metrics of `progress(step, NAME=...)` to Prometheus, TensorBoard files and metric sinks."""
        return self._put("progressMetrics", list(names))

    def active_deadline(self, seconds: int) -> Self:
        """Fail the job when it has run this many seconds."""
        return self._put("activeDeadlineSeconds", check_count(seconds, ".active_deadline()"))

    def pre_running_deadline(self, seconds: int) -> Self:
        """Fail the job when it is not running after this many seconds."""
        return self._put("preRunningDeadlineSeconds", check_count(seconds, ".pre_running_deadline()"))

    def _put(self, key: str, value: object) -> Self:
        self._spec[key] = value
        return self

    def _merge(self, key: str, **values: object) -> Self:
        # Only what was given: a second call of a setter changes its own arguments and keeps the rest.
        self._spec.setdefault(key, {}).update({k: v for k, v in values.items() if v is not None})
        return self
