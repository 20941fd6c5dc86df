"""Editable draft of a job: `build()` returns it, `manifest()` freezes it and `submit()` runs it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from dljob.api.workload import Workload, pruned
from dljob.errors import UsageError

if TYPE_CHECKING:
    from dljob.api.handle import JobHandle
    from dljob.api.kubernetes.handle import KubernetesJob
    from dljob.spec.model import DLJobManifest

Place = Literal["ray", "kubernetes"]

DEFAULT_NAME = "dljob"
"""Name of a job without a given name."""


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
        resume: bool | str = False,
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
        resume: bool | str = False,
    ) -> JobHandle: ...
    @overload
    def submit(
        self,
        name: str | None = None,
        *,
        blocking: Literal[False],
        to: Literal["kubernetes"],
        replace: bool = False,
        resume: bool | str = False,
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
        resume: bool | str = False,
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
        resume: bool | str = False,
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
            resume: go on from the newest checkpoint of the job of this name that was stopped, that failed or that was
                killed last; a string: of the one with this uid, or the beginning of it.
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
        which = (resume if isinstance(resume, str) else "") if resume or resume == "" else None
        if to == "kubernetes":
            if address is not None:
                raise UsageError("submit(address=...) is for to='ray'", hint="the kubeconfig says where the cluster is")
            from dljob.api.kubernetes.handle import submit_job
            from dljob.api.kubernetes.submit import GivenJob

            given_job = GivenJob(self.manifest(name), self._code_dir(), replace=replace, resume=which)
            job = submit_job(given_job, namespace=namespace, context=context)
            return job.wait_code() if blocking else job
        if namespace is not None or context is not None:
            raise UsageError("submit(namespace=..., context=...) is for Kubernetes", hint='add to="kubernetes"')
        from dljob.api.place import submit_here

        manifest, folder = self.manifest(name), self._code_dir()
        return submit_here(
            manifest, address=address, code_dir=folder, blocking=blocking, detach=detach, replace=replace, resume=which
        )

    def _code_dir(self) -> Path:
        """Return the folder that workers import from: `code.workingDir`, within the script's or the current folder."""
        # A REPL or a notebook has no __file__.
        script = getattr(sys.modules.get("__main__"), "__file__", None)
        # Beside the script, not in the current folder: its imports work there from wherever it is started.
        base = Path(script).resolve().parent if script else Path.cwd()
        return base / os.fspath(self.spec.get("code", {}).get("workingDir") or "")
