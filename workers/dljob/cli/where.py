"""Where a command looks: on this machine, or on a cluster when one of these flags says so. Nothing is guessed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

_KUBERNETES = (
    "on Kubernetes, in the kubeconfig's current context; implied by the two flags below, and by `kubectl dljob`."
)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Where:
    """The flags that all commands about jobs share."""

    kubernetes: Annotated[bool, Parameter(name=("--kubernetes", "-k"), negative="", help=_KUBERNETES)] = False
    context: Annotated[str | None, Parameter(help="a context of the kubeconfig.")] = None
    namespace: Annotated[
        str | None, Parameter(name=("--namespace", "-n"), help="left out: that of the context, else default.")
    ] = None

    @property
    def remote(self) -> bool:
        """Whether the command is about a cluster."""
        return self.kubernetes or self.context is not None or self.namespace is not None

    def flags(self, namespace: str) -> str:
        """What to add to a command so that it finds a job of that namespace again."""
        context = f" --context {self.context}" if self.context else ""
        return f"-n {namespace}{context}"


HERE = Where()


def elsewhere(*command: str) -> str:
    """A hint for what is not on this machine: where else it may be; empty when there is no cluster to ask."""
    import os

    files = os.environ.get("KUBECONFIG") or "~/.kube/config"
    if any(Path(part).expanduser().is_file() for part in files.split(os.pathsep) if part):
        return f"on Kubernetes: dljob {' '.join(command)} --kubernetes, or -n NAMESPACE"
    return ""
