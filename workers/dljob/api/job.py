"""Editable draft of a job: `build()` returns it, `manifest()` freezes it and `submit()` runs it."""

from __future__ import annotations

import copy
import json
import os
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from dljob.api.values import suggestion
from dljob.errors import UsageError

if TYPE_CHECKING:
    from dljob.api.handle import JobHandle
    from dljob.api.kubernetes.handle import KubernetesJob
    from dljob.spec.model import DLJobManifest

Place = Literal["ray", "kubernetes"]

DEFAULT_NAME = "dljob"
"""Name of a job without a given name."""


@dataclass(slots=True)
class Workload:
    """One role of a draft. Every attribute may be changed until the job is submitted."""

    name: str
    entrypoint: dict[str, Any] = field(default_factory=dict[str, Any])
    """{"class": ...} | {"module": ...} | {"command": [...]}; empty until it is set."""
    type: Literal["Actor", "Elastic"] = "Actor"
    args: list[str] = field(default_factory=list[str])
    env: dict[str, str] = field(default_factory=dict[str, str])
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    replicas: int = 1
    replicas_per_group: int = 1
    min_replicas: int | None = None
    max_replicas: int | None = None
    accelerator: str | None = None
    """Devices of one rank as the spec writes them ("0.4", "2"); None: no device."""
    accelerator_type: str | None = None
    visibility: str | None = None
    """Isolated or Shared; None: the default of the role's type."""
    numa_binding: str | None = None
    """Node, Socket, Exclusive or CoreComplex; None: ranks are not bound to cores."""
    cpu: str | None = None
    memory: str | None = None
    custom: dict[str, str] = field(default_factory=dict[str, str])
    node_group: str | None = None
    driver: bool = True
    depends_on: dict[str, str] = field(default_factory=dict[str, str])
    """Role -> Ready or Complete."""
    comm: dict[str, Any] = field(default_factory=dict[str, Any])
    """backend, timeoutSeconds, preCheck, initProcessGroup, subMaster, virtualLocalRank."""
    restart_policy: dict[str, Any] = field(default_factory=dict[str, Any])
    """level, maxRestarts, outOfMemory."""
    reserve: Literal["Placement", "Quota"] = "Placement"
    annotations: dict[str, str] = field(default_factory=dict[str, str])

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse attributes that a role does not have, so that a misspelt patch fails instead of being ignored."""
        known = [f.name for f in fields(self)]
        if name == "backend":
            raise UsageError(
                f"backend of role {self.name!r} is read-only: it follows from the role's type", hint="set .type"
            )
        # These two are properties, which `fields` does not list; DLRover's scripts set them.
        if name not in (*known, "comm_pre_check", "rank_based_gpu_selection"):
            raise UsageError(f"a workload has no attribute {name!r}", hint=suggestion(name, known))
        object.__setattr__(self, name, value)

    @property
    def backend(self) -> str:
        """The role's type in DLRover's spelling: "elastic" or "actor"."""
        return self.type.lower()

    @property
    def rank_based_gpu_selection(self) -> bool:
        """Whether ranks see the devices of all ranks of the role on their host, and use the one at LOCAL_RANK."""
        return self.visibility == "Shared"

    @rank_based_gpu_selection.setter
    def rank_based_gpu_selection(self, value: object) -> None:
        if not isinstance(value, bool):
            raise UsageError(f"rank_based_gpu_selection={value!r} on role {self.name!r}", hint="True or False")
        self.visibility = "Shared" if value else "Isolated"

    @property
    def comm_pre_check(self) -> bool | None:
        """Whether nodes are checked before the role starts; None: only for nccl and hccl."""
        return self.comm.get("preCheck")

    @comm_pre_check.setter
    def comm_pre_check(self, value: object) -> None:
        if value is not None and not isinstance(value, bool):
            raise UsageError(f"comm_pre_check={value!r} on role {self.name!r}", hint="True, False, or None")
        self.comm = {**self.comm, "preCheck": value}

    def to_dict(self) -> dict[str, Any]:
        """Return the role in the manifest's spelling, without what was not set."""
        # A type without a count, as .resource(gpu=0) leaves it, asks for no device.
        accelerator = {"type": self.accelerator_type, "count": self.accelerator, "visibility": self.visibility}
        accelerator["numaBinding"] = self.numa_binding
        made: dict[str, Any] = {
            "name": self.name,
            "type": self.type,
            "entrypoint": self.entrypoint,
            "args": self.args,
            "env": [{"name": k, "value": v} for k, v in self.env.items()],
            "config": self.config,
            "replicas": self.replicas,
            "replicasPerGroup": self.replicas_per_group,
            "minReplicas": self.min_replicas,
            "maxReplicas": self.max_replicas,
            "accelerator": accelerator if self.accelerator else None,
            "resources": {"cpu": self.cpu, "memory": self.memory, "custom": self.custom},
            "nodeGroup": self.node_group,
            "driver": self.driver,
            "dependsOn": [{"role": k, "condition": v} for k, v in self.depends_on.items()],
            "comm": self.comm,
            "restartPolicy": self.restart_policy,
            "reserve": self.reserve,
            "annotations": self.annotations,
        }
        # A value that equals the spec's default is left out as well: `to_yaml()` is meant to be read.
        # `object()` equals nothing, so fields without an entry always stay.
        return {k: v for k, v in pruned(made).items() if v != _DEFAULTS.get(k, object())}


_DEFAULTS: dict[str, object] = {
    "type": "Actor",
    "replicas": 1,
    "replicasPerGroup": 1,
    "driver": True,
    "reserve": "Placement",
}


# Free-form objects, where None and {} are the user's own and may mean something.
_FREE = ("config", "options", "template", "rayClusterTemplate", "runtimeEnv")


def pruned(value: dict[str, Any], *, keep: tuple[str, ...] = _FREE) -> dict[str, Any]:
    """Return a copy without None and empty parts; objects under the keys `keep` are copied whole, unless empty."""
    made: dict[str, Any] = {}
    for key, part in value.items():
        clean = part
        if key not in keep and isinstance(part, dict):
            clean = pruned(cast("dict[str, Any]", part), keep=keep)
        # Not by truth: False and 0 are values.
        if clean is not None and clean not in ({}, [], ()):
            made[key] = copy.deepcopy(clean)  # patching the draft later must not change a document made before
    return made


class DLJob:
    """An editable draft of a job: patch `workloads`, read `to_yaml()`, then `submit()`.

    Attributes:
        workloads: role name -> Workload, in the order of their declaration.
        spec: the spec without its roles, in the manifest's spelling.
        metadata: name, namespace, labels, annotations.
    """

    def __init__(self, *, workloads: dict[str, Workload], spec: dict[str, Any], metadata: dict[str, Any]) -> None:
        self.workloads = workloads
        self.spec = spec
        self.metadata = metadata

    def model_dump(self, *, name: str | None = None) -> dict[str, Any]:
        """Return the document in its present state, without validation."""
        roles = [w.to_dict() for w in self.workloads.values()]
        metadata = pruned({**self.metadata, "name": name or self.metadata.get("name") or DEFAULT_NAME})
        spec = {**pruned(self.spec), "roles": roles}
        return {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": metadata, "spec": spec}

    def model_dump_json(self, *, indent: int | None = None) -> str:
        """Return the document as JSON, without validation: the dry run of DLRover's examples."""
        return json.dumps(self.model_dump(), indent=indent, ensure_ascii=False)

    def to_yaml(self) -> str:
        """Return the document as YAML, without validation, for `dljob run` and `dljob submit`."""
        from dljob.spec.text.emit import to_yaml

        return to_yaml(json.loads(self.model_dump_json()))  # tuples as lists, keys as text

    def manifest(self, name: str | None = None) -> DLJobManifest:
        """Freeze and validate the draft.

        Raises:
            SpecError: the draft is wrong; the error names every problem.
        """
        from dljob.spec.loading.load import parse

        return parse(self.model_dump(name=name))

    @overload
    def submit(
        self,
        name: str | None = None,
        *,
        blocking: Literal[True] = True,
        address: str | None = None,
        to: Place = "ray",
        detach: bool = False,
        replace: bool = False,
        namespace: str | None = None,
        context: str | None = None,
    ) -> int: ...
    @overload
    def submit(
        self,
        name: str | None = None,
        *,
        blocking: Literal[False],
        address: str | None = None,
        to: Literal["ray"] = "ray",
        detach: bool = False,
        replace: bool = False,
    ) -> JobHandle: ...
    @overload
    def submit(
        self,
        name: str | None = None,
        *,
        blocking: Literal[False],
        to: Literal["kubernetes"],
        replace: bool = False,
        namespace: str | None = None,
        context: str | None = None,
    ) -> KubernetesJob: ...
    @overload
    def submit(
        self,
        name: str | None = None,
        *,
        blocking: bool = True,
        address: str | None = None,
        to: Place = "ray",
        detach: bool = False,
        replace: bool = False,
        namespace: str | None = None,
        context: str | None = None,
    ) -> int | JobHandle | KubernetesJob: ...
    def submit(
        self,
        name: str | None = None,
        *,
        blocking: bool = True,
        address: str | None = None,
        to: Place = "ray",
        detach: bool = False,
        replace: bool = False,
        namespace: str | None = None,
        context: str | None = None,
    ) -> int | JobHandle | KubernetesJob:
        """Run the job on a Ray: of `address`, of RAY_ADDRESS, or that this process has joined; else on this machine.

        Where there is no Ray, one is started for the job in a separate process, as `dljob run` does. It lives until
        the job ends. When this process ends first, that process says so, saves and stops the job. To share a Ray
        between several jobs, submit them in `with dljob.local():`.

        With to="kubernetes" a DLJob is created with the current context of the kubeconfig, or in the cluster that this
        process runs in; its namespace is `metadata["namespace"]` of the draft, else the current one. The code folder
        is uploaded with it.

        Args:
            name: name of the job; by default the one given to the builder, else "dljob".
            blocking: wait for the end and return the exit code (0 success, 1 failure); else return a handle at once.
            address: host:port of Ray's GCS.
            to: "ray" or "kubernetes".
            detach: let the job outlive this process on this machine, as it does on a cluster.
            replace: stop a running job of the same name first.
            namespace: Kubernetes namespace, over the draft's.
            context: context of the kubeconfig.

        Raises:
            SpecError: the draft is wrong; the error names every problem.
            UsageError: an address together with to="kubernetes", or a namespace or context without it; a job of that
                name runs; Ray is not installed.
            PlacementError: this machine lacks devices that the job wants.
            UnreachableError: the Ray or the cluster does not answer, or refuses.
        """
        if to not in ("ray", "kubernetes"):
            raise UsageError(f"submit(to={to!r}): unknown target", hint='to="ray" or to="kubernetes"')
        if to == "kubernetes":
            if address is not None:
                raise UsageError("submit(address=...) is for to='ray'", hint="the kubeconfig says where the cluster is")
            from dljob.api.kubernetes.handle import submit_job
            from dljob.api.kubernetes.submit import GivenJob

            given = GivenJob(self.manifest(name), self._code_dir(), replace=replace)
            made = submit_job(given, namespace=namespace, context=context)
            return made.wait_code() if blocking else made
        if namespace is not None or context is not None:
            raise UsageError("submit(namespace=..., context=...) is for Kubernetes", hint='add to="kubernetes"')
        from dljob.api.place import submit_here

        manifest, folder = self.manifest(name), self._code_dir()
        return submit_here(
            manifest, address=address, code_dir=folder, blocking=blocking, detach=detach, replace=replace
        )

    def _code_dir(self) -> Path:
        """Return the folder that workers import from: `code.workingDir`, within the script's or the current folder."""
        # A REPL or a notebook has no __file__.
        script = getattr(sys.modules.get("__main__"), "__file__", None)
        # Beside the script, not in the current folder: its imports work there from wherever it is started.
        base = Path(script).resolve().parent if script else Path.cwd()
        return base / os.fspath(self.spec.get("code", {}).get("workingDir") or "")
