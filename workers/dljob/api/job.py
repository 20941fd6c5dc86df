"""An editable draft of a job: what `build()` gives, `manifest()` freezes and `submit()` runs."""

from __future__ import annotations

import copy
import io
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
"""The name of a job that was given none."""


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
    """Isolated or Shared; None: as the role's type has it."""
    numa_binding: str | None = None
    """Node, Socket, Exclusive or CoreComplex; None: a rank runs on any core."""
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
    """level, maxRestarts."""
    reserve: Literal["Placement", "Quota"] = "Placement"
    annotations: dict[str, str] = field(default_factory=dict[str, str])

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse attributes that a role does not have, so that a misspelt patch cannot be lost."""
        known = [f.name for f in fields(self)]
        if name == "backend":
            raise UsageError(f"backend of role {self.name!r} is read-only: it says the role's type", hint="set .type")
        if name not in (*known, "comm_pre_check", "rank_based_gpu_selection"):
            raise UsageError(f"a workload has no attribute {name!r}", hint=suggestion(name, known))
        object.__setattr__(self, name, value)

    @property
    def backend(self) -> str:
        """The role's type in DLRover's spelling: "elastic" or "actor"."""
        return self.type.lower()

    @property
    def rank_based_gpu_selection(self) -> bool:
        """Whether ranks see the devices of all ranks of the role on their host, their own at LOCAL_RANK."""
        return self.visibility == "Shared"

    @rank_based_gpu_selection.setter
    def rank_based_gpu_selection(self, value: object) -> None:
        if not isinstance(value, bool):
            raise UsageError(f"rank_based_gpu_selection={value!r} on role {self.name!r}", hint="True or False")
        self.visibility = "Shared" if value else "Isolated"

    @property
    def comm_pre_check(self) -> bool | None:
        """Whether nodes are checked before the role starts; None: where its ranks talk by nccl or hccl."""
        return self.comm.get("preCheck")

    @comm_pre_check.setter
    def comm_pre_check(self, value: object) -> None:
        if value is not None and not isinstance(value, bool):
            raise UsageError(f"comm_pre_check={value!r} on role {self.name!r}", hint="True, False, or None")
        self.comm = {**self.comm, "preCheck": value}

    def to_dict(self) -> dict[str, Any]:
        """The role as the manifest writes it; what was not set is left out."""
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
        return {k: v for k, v in pruned(made).items() if v != _DEFAULTS.get(k, object())}


_DEFAULTS: dict[str, object] = {
    "type": "Actor",
    "replicas": 1,
    "replicasPerGroup": 1,
    "driver": True,
    "reserve": "Placement",
}


_FREE = ("config", "options", "template", "rayClusterTemplate", "runtimeEnv")


def pruned(value: dict[str, Any], *, keep: tuple[str, ...] = _FREE) -> dict[str, Any]:
    """The same without None and empty parts; free objects in `keep` stay as they are, unless empty."""
    made: dict[str, Any] = {}
    for key, part in value.items():
        clean = part
        if key not in keep and isinstance(part, dict):
            clean = pruned(cast("dict[str, Any]", part), keep=keep)
        if clean is not None and clean not in ({}, [], ()):
            made[key] = copy.deepcopy(clean)
    return made


class DLJob:
    """A draft: patch `workloads`, look at `to_yaml()`, then `submit()`.

    Attributes:
        workloads: role name -> Workload, in the order they were declared.
        spec: everything of the spec but the roles, in the manifest's spelling.
        metadata: name, namespace, labels, annotations.
    """

    def __init__(self, *, workloads: dict[str, Workload], spec: dict[str, Any], metadata: dict[str, Any]) -> None:
        self.workloads = workloads
        self.spec = spec
        self.metadata = metadata

    def model_dump(self, *, name: str | None = None) -> dict[str, Any]:
        """The document as it stands, not validated."""
        roles = [w.to_dict() for w in self.workloads.values()]
        metadata = pruned({**self.metadata, "name": name or self.metadata.get("name") or DEFAULT_NAME})
        spec = {**pruned(self.spec), "roles": roles}
        return {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": metadata, "spec": spec}

    def model_dump_json(self, *, indent: int | None = None) -> str:
        """The document as JSON, not validated: the dry run of DLRover's examples."""
        return json.dumps(self.model_dump(), indent=indent, ensure_ascii=False)

    def to_yaml(self) -> str:
        """The document as YAML, not validated; `dljob run` takes it."""
        from ruamel.yaml import YAML

        yaml = YAML()
        yaml.default_flow_style = False
        out = io.StringIO()
        yaml.dump(self.model_dump(), out)  # pyright: ignore[reportUnknownMemberType] - ruamel is not annotated
        return out.getvalue()

    def manifest(self, name: str | None = None) -> DLJobManifest:
        """Freeze and check the draft.

        Raises:
            SpecError: with every problem of the draft.
        """
        from dljob.spec.load import parse

        return parse(self.model_dump(name=name))

    @overload
    def submit(
        self, name: str | None = None, *, blocking: Literal[True] = True, address: str | None = None, to: Place = "ray"
    ) -> int: ...
    @overload
    def submit(
        self,
        name: str | None = None,
        *,
        blocking: Literal[False],
        address: str | None = None,
        to: Literal["ray"] = "ray",
    ) -> JobHandle: ...
    @overload
    def submit(
        self, name: str | None = None, *, blocking: Literal[False], address: None = None, to: Literal["kubernetes"]
    ) -> KubernetesJob: ...
    @overload
    def submit(
        self, name: str | None = None, *, blocking: bool = True, address: str | None = None, to: Place = "ray"
    ) -> int | JobHandle | KubernetesJob: ...
    def submit(
        self, name: str | None = None, *, blocking: bool = True, address: str | None = None, to: Place = "ray"
    ) -> int | JobHandle | KubernetesJob:
        """Run the job on a Ray: that of `address`, of RAY_ADDRESS, or the one this process is connected to.

        With to="kubernetes" a DLJob is made in the cluster of the kubeconfig's current context, or the one that this
        process runs in, in the draft's `metadata["namespace"]`, else the current one; the code goes along.

        Args:
            name: name of the job; left out: the one given to the builder, else "dljob".
            blocking: wait for the end and return the exit code (0 success, 1 failure); else return a handle at once.
            address: host:port of Ray's GCS.
            to: ray or kubernetes.

        Raises:
            SpecError: the draft is wrong; all problems at once.
            UsageError: an address and to="kubernetes"; a job of that name is there.
            UnreachableError: there is no Ray (`dljob run` brings its own), or the cluster is not reached, or refuses.
        """
        if to not in ("ray", "kubernetes"):
            raise UsageError(f"submit(to={to!r}): there is no such place", hint='to="ray" or to="kubernetes"')
        if to == "kubernetes":
            if address is not None:
                raise UsageError("submit(address=...) is for to='ray'", hint="the kubeconfig says where the cluster is")
            from dljob.api.kubernetes.handle import submit_job

            handle = submit_job(self.manifest(name), folder=self._code_dir())
        else:
            from dljob.api.handle import submit

            handle = submit(self.manifest(name), address=address, code_dir=self._code_dir())
        return handle.wait_code() if blocking else handle

    def _code_dir(self) -> Path:
        """The folder workers import from: `code.workingDir`, else that of the script, else the current one."""
        script = getattr(sys.modules.get("__main__"), "__file__", None)
        base = Path(script).resolve().parent if script else Path.cwd()
        return base / os.fspath(self.spec.get("code", {}).get("workingDir") or "")
