"""Setters of one role, which follow `.role(...)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

from dljob.api.unsupported import UnsupportedCalls
from dljob.api.values import (
    Number,
    check_count,
    config_of,
    cpus,
    entrypoint_of,
    env_of,
    exact,
    memory_of,
    one_of,
    refuse_unknown,
    share,
    span,
    suggestion,
)
from dljob.api.workload import Workload, attributes, choices, pruned
from dljob.errors import UsageError
from dljob.plan.devices import all_left_alone
from dljob.spec.devices import KUBERNETES

DEVICES = {kind.lower(): kind for kind in KUBERNETES}
"""Keywords of `.resource()` that name a device kind, with the accelerator type of the spec."""
_PROBES = ("startup", "liveness", "readiness")
_RESOURCES = ("accelerator", "acc", "cpu", "memory", "mem", "custom", *DEVICES)


class RoleSetters(UnsupportedCalls):
    """Setters of a role under construction; `RoleBuilder` adds the way back to the job."""

    def __init__(self, workload: Workload, device_said: Callable[[str], None]) -> None:
        self._workload = workload
        self._device_said = device_said
        """Hears the name of a role that gave its number of devices."""
        self._torch_shape: dict[str, int] = {}
        self._plain_shape: set[str] = set()
        self._fewest = 1  # torch nodes that are enough

    # --- what it runs

    def run(self, entrypoint: str) -> Self:
        """Run a class, a function or a script as independent ranks.

        Raises:
            UsageError: when the role already runs something.
        """
        return self._enter("run", entrypoint)

    def train(self, entrypoint: str) -> Self:
        """Run an entrypoint as torch ranks: one process group over all ranks of the role (`type: Elastic`).

        Raises:
            UsageError: when the role already runs something.
        """
        self._enter("train", entrypoint)
        self._workload.type = "Elastic"
        return self

    def module(self, name: str) -> Self:
        """Run a module like `python -m`, or a `.py` file, each rank in its own process."""
        return self._claim("module", {"module": name})

    def command(self, *argv: str) -> Self:
        """Run a command without a shell, one process per rank."""
        return self._claim("command", {"command": list(argv)})

    def args(self, *values: object) -> Self:
        """Append arguments: the entrypoint's sys.argv[1:]."""
        self._workload.args = [*self._workload.args, *(str(v) for v in values)]
        return self

    def quota(self) -> Self:
        """Reserve nothing: `resource` is a quota for the placement groups that the script itself makes in Ray."""
        self._workload.reserve = "Quota"
        return self

    # --- how often

    def total(self, count: int) -> Self:
        """Set the number of ranks."""
        self._workload.replicas = check_count(count, self._call("total"))
        return self._shaped("total")

    def per_group(self, count: int) -> Self:
        """Set the number of consecutive ranks in a role group, which share a host and restart together."""
        self._workload.replicas_per_group = check_count(count, self._call("per_group"))
        return self._shaped("per_group")

    def nnodes(self, count: int | str) -> Self:
        """Set the number of torch nodes: role groups of `nproc_per_node` ranks.

        Args:
            count: a number, or "2:8": 8 where there is capacity, at least 2.
        """
        if self._fewest < self._torch_shape.get("nnodes", 1):
            self._workload.min_replicas = self._workload.max_replicas = None  # they came from an earlier "2:8"
        self._fewest, most = span(count, self._call("nnodes"))
        return self._torch("nnodes", most)

    def nproc_per_node(self, count: int) -> Self:
        """Set the number of ranks on each torch node."""
        return self._torch("nproc_per_node", count)

    def elastic(self, fewest: int | None = None, most: int | None = None) -> Self:
        """Make the role elastic: `fewest` ranks are enough after a lost node; it may grow to `most` while it runs."""
        self._workload.type = "Elastic"
        if fewest is not None:
            self._workload.min_replicas = check_count(fewest, self._call("elastic"))
        if most is not None:
            self._workload.max_replicas = check_count(most, self._call("elastic"))
        return self

    def bounds(self, fewest: int | None = None, most: int | None = None) -> Self:
        """Let the number of ranks change while the job runs; of an Actor role, others than drivers."""
        if fewest is not None:
            self._workload.min_replicas = check_count(fewest, self._call("bounds"))
        if most is not None:
            self._workload.max_replicas = check_count(most, self._call("bounds"))
        return self

    # --- on what

    def resource(
        self,
        *,
        accelerator: Number | None = None,
        cpu: Number | None = None,
        memory: str | None = None,
        custom: Mapping[str, Number] | None = None,
        **more: Number,
    ) -> Self:
        """Set the resources of one rank; those not named stay as they were.

        Args:
            accelerator: devices: a whole number, or an exact share such as 0.4; also by kind: gpu=, npu=, tpu=.
            cpu: CPUs: 2, 0.5 or "500m".
            memory: a quantity with its unit: "64Gi".
            custom: further Ray resources by name.
            more: the aliases `acc`, `mem`, `gpu`, `npu`, `tpu`, `hpu`, `neuron`.

        Raises:
            UsageError: for an unknown keyword, or when one resource is given twice.
        """
        call, role = self._call("resource"), self._workload
        refuse_unknown(call, {k: v for k, v in more.items() if k not in _RESOURCES}, _RESOURCES)
        counts = {"accelerator": accelerator, **{k: v for k, v in more.items() if k != "mem"}}
        given_counts = {k: v for k, v in counts.items() if v is not None}
        if len(given_counts) > 1:
            raise UsageError(f"{call} names devices twice: {', '.join(given_counts)}", hint="keep one of them")
        for keyword, count in given_counts.items():
            role.accelerator = share(count, f"{call}: {keyword}")
            # `accelerator=` names no kind, and keeps that of an earlier call.
            role.accelerator_type = DEVICES.get(keyword, role.accelerator_type)
            # `with_collocation_all` leaves out roles that said 0: remember that the count was given, whatever it is.
            self._device_said(role.name)
        if cpu is not None:
            role.cpu = cpus(cpu, f"{call}: cpu")
        if (size := memory_of(memory, more.get("mem"), call)) is not None:
            role.memory = size
        if custom:
            custom_amounts = {k: exact(v, f"{call}: custom {k}") for k, v in custom.items()}
            role.custom = {**role.custom, **custom_amounts}
        return self

    def auto(self, *, cpu: tuple[Number, Number] | None = None, memory: tuple[str, str] | None = None) -> Self:
        """Choose CPUs or memory of one rank, between (least, most), from the records of earlier jobs of the name."""
        call, bounds = self._call("auto"), dict[str, object]()
        if cpu is not None:
            bounds["cpu"] = {"min": cpus(cpu[0], f"{call}: cpu"), "max": cpus(cpu[1], f"{call}: cpu")}
        if memory is not None:
            bounds["memory"] = {"min": memory_of(memory[0], None, call), "max": memory_of(memory[1], None, call)}
        self._workload.auto = bounds
        return self

    def rank_based_gpu_selection(self, enabled: bool = True) -> Self:  # noqa: FBT001, FBT002 - DLRover's
        """Let each rank see the devices of all ranks of the role on its host, and use the one at LOCAL_RANK."""
        self._workload.rank_based_gpu_selection = enabled
        return self

    def disable_ray_auto_visible_device(self) -> Self:
        """Let ranks see all devices of their machine: for code that assigns devices itself."""
        return self.env(all_left_alone())

    def annotation(self, key: str, value: str) -> Self:
        """Set an annotation of the role."""
        self._workload.annotations = {**self._workload.annotations, key: value}
        return self

    # --- how

    def env(self, values: Mapping[str, object] | None = None, **more: object) -> Self:
        """Add environment variables of each rank, over those of the job."""
        self._workload.env = {**self._workload.env, **env_of({**(values or {}), **more}, self._call("env"))}
        return self

    def config(self, value: object) -> Self:
        """Merge a config (dict, Namespace or OmegaConf) into the role's, over that of the job."""
        self._workload.config = {**self._workload.config, **config_of(value, self._call("config"))}
        return self

    def driver(self) -> Self:
        """Make the role a driver: the job ends when all drivers have ended. Roles are drivers by default."""
        return self._drives(value=True)

    def not_driver(self) -> Self:
        """Make the role a server: it runs until the drivers have ended."""
        return self._drives(value=False)

    def depends_on(self, role: str, condition: Literal["Ready", "Complete"] = "Ready") -> Self:
        """Start the role only when another role is ready or complete."""
        if condition not in (known := choices("Dependency", "condition")):
            raise UsageError(f"{self._call('depends_on')}: condition {condition!r}", hint=" or ".join(known))
        self._workload.depends_on = {**self._workload.depends_on, role.lower(): condition}
        return self

    def comm(
        self,
        *,
        backend: str | None = None,
        timeout_seconds: int | None = None,
        init_process_group: bool | None = None,
        pre_check: bool | None = None,
        sub_master: str | None = None,
        virtual_local_rank: bool | None = None,
    ) -> Self:
        """Set how torch ranks form their process group; settings left out stay as they were.

        Args:
            backend: Auto, nccl, hccl, gloo or None.
            timeout_seconds: timeout of a collective.
            init_process_group: whether a class finds the process group initialised.
            pre_check: whether nodes are checked first; by default only for nccl and hccl.
            sub_master: an entry point in `dljob.submasters` that serves the rendezvous in place of torch's store.
            virtual_local_rank: whether each rank sees only its own devices and has LOCAL_RANK 0.
        """
        if pre_check is not None:
            self._workload.comm_pre_check = pre_check
        settings = {"backend": backend, "timeoutSeconds": timeout_seconds, "initProcessGroup": init_process_group}
        settings |= {"subMaster": sub_master, "virtualLocalRank": virtual_local_rank}
        # Not by truth: False is a setting too.
        self._workload.comm = {**self._workload.comm, **{k: v for k, v in settings.items() if v is not None}}
        return self

    def port(self, name: str, number: int = 0) -> Self:
        """Add a port on which each rank listens; 0: a free one, in the rank's variable DLJOB_PORT_<NAME>."""
        check_count(number, self._call("port"), least=0)
        others = [port for port in self._workload.ports if port["name"] != name]
        self._workload.ports = [*others, pruned({"name": name, "port": number or None})]
        return self

    def tf(self, task: Literal["chief", "ps", "worker", "evaluator"]) -> Self:
        """Make the ranks a task of a cluster of TensorFlow's parameter servers: they get TF_CONFIG."""
        self._workload.tf = {"task": task}
        return self

    def probe(
        self,
        which: Literal["startup", "liveness", "readiness"],
        *,
        command: Sequence[str] | None = None,
        port: str | int | None = None,
        path: str | None = None,
        scheme: Literal["HTTP", "HTTPS"] | None = None,
        headers: Mapping[str, str] | None = None,
        grpc: str | None = None,
        initial_delay_seconds: int | None = None,
        period_seconds: int | None = None,
        timeout_seconds: int | None = None,
        success_threshold: int | None = None,
        failure_threshold: int | None = None,
    ) -> Self:
        """Set a probe of each rank.

        Args:
            which: startup holds the others back; liveness ends a rank; readiness says when it is ready.
            command: a command on the rank's machine, instead of a port.
            port: name or number of the port; without a path the probe only connects.
            path: path of a GET request.
            scheme: HTTP or HTTPS.
            headers: headers of the request.
            grpc: a gRPC health check of this service at the port; "" is the server as a whole.
            initial_delay_seconds: time to the first probe.
            period_seconds: time between two probes.
            timeout_seconds: time for an answer.
            success_threshold: successes in a row that count.
            failure_threshold: failures in a row that count.

        Raises:
            UsageError: for an unknown probe.
        """
        if which not in _PROBES:
            raise UsageError(f"{self._call('probe')}: {which!r}", hint=suggestion(which, _PROBES))
        sent = [{"name": name, "value": value} for name, value in (headers or {}).items()]
        http = {"path": path, "port": port, "scheme": scheme, "httpHeaders": sent}
        numbers = {
            "initialDelaySeconds": initial_delay_seconds,
            "periodSeconds": period_seconds,
            "timeoutSeconds": timeout_seconds,
            "successThreshold": success_threshold,
            "failureThreshold": failure_threshold,
        }
        kind: dict[str, Any] = {"tcpSocket": {"port": port}} if path is None else {"httpGet": http}
        if grpc is not None:
            kind = {"grpc": {"port": port, "service": grpc or None}}
        if command is not None:
            kind = {"exec": {"command": list(command)}}
        setattr(self._workload, f"{which}_probe", pruned({**kind, **numbers}))
        return self

    def autoscale(self, by: str, *, target: int, name: str | None = None, cooldown_seconds: int | None = None) -> Self:
        """Scale the role by its load, between its bounds.

        Args:
            by: queue, calls or metric.
            target: load of one rank.
            name: name of the DataQueue or of the metric; None for calls.
            cooldown_seconds: seconds between two changes.
        """
        settings = {"by": by, "target": target, "name": name, "cooldownSeconds": cooldown_seconds}
        self._workload.autoscale = pruned(settings)
        return self

    def drain(
        self,
        *,
        signal: str | None = None,
        path: str | None = None,
        port: str | int | None = None,
        timeout_seconds: int | None = None,
    ) -> Self:
        """Let each rank finish its requests before it is ended in order.

        Args:
            signal: SIGUSR1, SIGUSR2, SIGINT, SIGHUP or SIGQUIT: the rank ends once its requests are done.
            path: path of a POST request that the rank answers once its requests are done.
            port: name or number of that request's port.
            timeout_seconds: time until SIGTERM.
        """
        post = None if path is None else {"path": path, "port": port}
        self._workload.drain = pruned({"signal": signal, "httpPost": post, "timeoutSeconds": timeout_seconds})
        return self

    def weights(
        self,
        *channels: str,
        load_path: str | None = None,
        load_command: Sequence[str] | None = None,
        load_method: str | None = None,
        verify_path: str | None = None,
        verify_command: Sequence[str] | None = None,
        verify_method: str | None = None,
        port: str | int | None = None,
        max_lag: int | None = None,
        min_ready: int | None = None,
        timeout_seconds: int | None = None,
    ) -> Self:
        """Load published weights into each rank.

        Args:
            channels: names of weight channels; a version counts once all of them have it.
            load_path: path of the POST request that orders a load.
            load_command: a command that loads.
            load_method: a method of the role's class that loads.
            verify_path: path of the GET request that is answered with the checksum of what the rank holds.
            verify_command: a command that prints it.
            verify_method: a method of the role's class that returns it.
            port: name or number of the port of both requests.
            max_lag: versions that a rank may be behind the newest and still get requests.
            min_ready: ranks that loads leave ready.
            timeout_seconds: time for a load, and for the question after it.
        """
        load: dict[str, Any] = {"timeoutSeconds": timeout_seconds, "method": load_method}
        verify: dict[str, Any] = {"method": verify_method}
        for hook, key, path, command in (
            (load, "httpPost", load_path, load_command),
            (verify, "httpGet", verify_path, verify_command),
        ):
            hook[key] = None if path is None else {"path": path, "port": port}
            hook["exec"] = None if command is None else {"command": list(command)}
        settings = {"channels": list(channels), "load": pruned(load), "verify": pruned(verify) or None}
        self._workload.weights = pruned({**settings, "maxLag": max_lag, "minReady": min_ready})
        return self

    def restart(
        self,
        *,
        level: str | None = None,
        max_restarts: int | None = None,
        max_memory: str | None = None,
        memory_factor: str | None = None,
        along: Sequence[str] | None = None,
    ) -> Self:
        """Set what restarts when a rank fails; settings left out stay as they were.

        Args:
            level: InProcess, Process, RoleGroup, Role, Job or Never.
            max_restarts: restarts allowed in a window.
            max_memory: a rank that ran out of memory restarts with more, at most this much ("64Gi").
            memory_factor: factor of each such increase, "1.5".
            along: roles whose ranks all restart whenever ranks of this role do.
        """
        if level is not None and level not in (levels := choices("RestartPolicy", "level")):
            raise UsageError(f"{self._call('restart')}: level {level!r}", hint=suggestion(level, levels))
        if max_restarts is not None:
            check_count(max_restarts, self._call("restart"), least=0)
        more = {"maxMemory": max_memory, "memoryFactor": memory_factor}
        had = self._workload.restart_policy
        # Merged at both levels: a later call that gives only one of the two memory settings keeps the other.
        grown = {**had.get("outOfMemory", {}), **{k: v for k, v in more.items() if v is not None}}
        others = None if along is None else [name.lower() for name in along]
        settings = {"level": level, "maxRestarts": max_restarts, "outOfMemory": grown or None, "with": others}
        self._workload.restart_policy = {**had, **{k: v for k, v in settings.items() if v is not None}}
        return self

    # --- helpers

    def _set(self, option: str, value: object) -> Self:
        if known := attributes()[option].choices:
            one_of(str(value), known, self._call(option))
        setattr(self._workload, option, value)
        return self

    @property
    def has_entrypoint(self) -> bool:
        """Whether the role's entrypoint is set."""
        return bool(self._workload.entrypoint)

    def _call(self, method: str) -> str:
        return f".role({self._workload.name!r}).{method}()"

    def _enter(self, method: str, entrypoint: object) -> Self:
        parsed_entrypoint, args = entrypoint_of(entrypoint, self._call(method))
        self._claim(method, parsed_entrypoint)
        self._workload.args = [*args, *self._workload.args]  # .args() may have been called before
        return self

    def _claim(self, method: str, entrypoint: dict[str, object]) -> Self:
        # A second entrypoint is nearly always a forgotten .role(): the first would be lost without a word.
        if self._workload.entrypoint:
            runs = next(iter(self._workload.entrypoint.values()))
            raise UsageError(
                f".{method}() on role {self._workload.name!r}, which already runs {runs!r}",
                hint=f"begin the next role first: .role(name).{method}(...)",
            )
        self._workload.entrypoint = entrypoint
        return self

    def _drives(self, *, value: bool) -> Self:
        self._workload.driver = value
        return self

    def _torch(self, method: str, count: int) -> Self:
        self._torch_shape[method] = check_count(count, self._call(method))
        if self._plain_shape:
            self._mixed(method)
        per, most = self._torch_shape.get("nproc_per_node", 1), self._torch_shape.get("nnodes", 1)
        # Recomputed at each call, since `.nnodes()` and `.nproc_per_node()` come in any order.
        self._workload.replicas_per_group, self._workload.replicas = per, most * per
        if self._fewest < most:
            # Only a range makes the role elastic; a plain number leaves bounds that `.elastic()` set.
            self._workload.min_replicas, self._workload.max_replicas = self._fewest * per, most * per
        return self

    def _shaped(self, method: str) -> Self:
        self._plain_shape.add(method)
        if self._torch_shape:
            self._mixed(method)
        return self

    def _mixed(self, method: str) -> None:
        earlier_method = sorted(self._plain_shape - {method} or self._torch_shape)[0]
        raise UsageError(
            f"{self._call(method)} after .{earlier_method}(): two ways to count ranks",
            hint=".total(n).per_group(m) or .nnodes(n).nproc_per_node(m), not both",
        )
