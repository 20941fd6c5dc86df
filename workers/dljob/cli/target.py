"""Target of a command: this machine, or a cluster selected by a flag, and the job there. Nothing is guessed."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from dljob.cli import output
from dljob.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from dljob.api.handle import JobHandle
    from dljob.api.shown_job import JobListing, ShownJob

_KUBERNETES = (
    "act on Kubernetes, in the kubeconfig's current context; implied by the two flags below, and by `kubectl dljob`."
)


# The place is given, never found out (ADR 13): most developers have a kubeconfig lying about, names are not unique
# across the two places, and a `stop` at the wrong one cannot be undone.
@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class JobTarget:
    """Flags shared by all commands about jobs."""

    kubernetes: Annotated[bool, Parameter(name=("--kubernetes", "-k"), negative="", help=_KUBERNETES)] = False
    context: Annotated[str | None, Parameter(help="context of the kubeconfig.")] = None
    namespace: Annotated[
        str | None, Parameter(name=("--namespace", "-n"), help="default: that of the context, else default.")
    ] = None

    @property
    def remote(self) -> bool:
        """Whether the command acts on a cluster."""
        return self.kubernetes or self.context is not None or self.namespace is not None

    def job(self, verb: str, which: str) -> ShownJob:
        """Return the job that a command is about; on a cluster the handle's first call finds it.

        Raises:
            NotFoundError: there is none on this machine; the hint says where else it may be.
        """
        if not self.remote:
            return local(verb, which)
        # The Kubernetes client takes over a second to import, so only its users pay for it.
        from dljob.api.kubernetes.handle import KubernetesJob

        handle = KubernetesJob.named(which, self.namespace, self.context)
        # A handle's remarks go to the logger of the API, unless somebody shows them.
        handle.say = output.say
        return handle

    def path(self, which: str) -> Path | None:
        """Return the path that JOB is, of a job's folder or of a file about it; None: JOB is a name or a uid.

        A path has a `/`. Without one, what is in this directory is meant where no job has that name.

        Raises:
            UsageError: a cluster is selected too.
        """
        if os.sep in which:
            if self.remote:
                raise UsageError(
                    f"{which} is a path on this machine", hint="leave out --kubernetes, --namespace, --context"
                )
            return Path(which)
        path_here = Path(which)
        if self.remote or not path_here.exists():
            return None
        from dljob.api import registry

        try:
            registry.find(which)
        except NotFoundError:
            return path_here
        return None

    def folder(self, verb: str, which: str) -> Path | None:
        """Return the path that JOB is, of a job's folder; None: JOB is a name or a uid.

        Raises:
            NotFoundError: it is a file, or its name is that of a file here and of no job.
            UsageError: a cluster is selected too.
        """
        path = self.path(which)
        if path is not None and path.is_file():
            raise path_refusal(verb, which, "a job's name or folder")
        return path

    def jobs(self, *, everywhere: bool) -> JobListing:
        """Return the list of all jobs; `everywhere`: of all namespaces of the cluster."""
        # Only a cluster has namespaces, so `everywhere` selects one too.
        if not self.remote and not everywhere:
            from dljob.api.local.views import LocalListing

            return LocalListing()
        from dljob.api.kubernetes.views import ClusterListing

        return ClusterListing(self.namespace, self.context, everywhere=everywhere)


HERE = JobTarget()


def local(verb: str, which: str) -> JobHandle:
    """Return a job of this machine for a command.

    Raises:
        NotFoundError: there is none; the hint says where else it may be.
    """
    from dljob.api import registry
    from dljob.api.handle import handle_of

    try:
        handle = handle_of(registry.find(which))
    except NotFoundError as error:
        if Path(which).is_file() or os.sep in which:
            raise path_refusal(verb, which, "a job's name") from None
        # Only a hint: a command never looks on a cluster by itself (ADR 13).
        hint = elsewhere(verb, which)
        if not hint:
            raise
        raise NotFoundError(f"{error.message} on this machine", hint=f"{error.hint}\n  {hint}") from None
    handle.say = output.say
    return handle


def path_refusal(verb: str, which: str, accepted: str) -> NotFoundError:
    """Return the error about a file or folder in the place of a job; `accepted`: what the command takes there."""
    from dljob.api import registry

    path, hint = Path(which), "dljob status lists jobs"
    kind = "a file" if path.is_file() else "a folder" if path.is_dir() else "a path"
    if path.is_file():
        hint = f"dljob why {shlex.quote(which)} explains the DLJob of a file"
    for record in registry.records():
        if record.folder == path.resolve():
            hint = f"the job of this folder: dljob {verb} {record.uid[:8]}"
    return NotFoundError(f"{which} is {kind}: dljob {verb} takes {accepted}", hint=hint)


def elsewhere(*command: str) -> str:
    """Return a hint to a cluster for a job not found on this machine; empty when no cluster is configured."""
    return f"on Kubernetes: dljob {shlex.join(command)} --kubernetes, or -n NAMESPACE" if has_kubeconfig() else ""


def has_kubeconfig() -> bool:
    """Whether a file that KUBECONFIG names is there, or else the usual one."""
    files = os.environ.get("KUBECONFIG") or "~/.kube/config"
    # Of the two functions that find a home folder only this one raises nothing for a user without any.
    return any(Path(os.path.expanduser(file)).is_file() for file in files.split(os.pathsep) if file)  # noqa: PTH111
