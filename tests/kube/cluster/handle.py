"""What a test holds of a cluster: its kubeconfig, and kubectl."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import cache


class KubectlError(Exception):
    """kubectl said no; the message is its own."""


@dataclass(frozen=True)
class Cluster:
    """A Kubernetes that answers.

    Args:
        kubeconfig: a file whose current context is an administrator.
        run: the folder of its state; None for a cluster that is not ours.
    """

    kubeconfig: Path
    run: Path | None = None

    def kubectl(self, *args: str, stdin: str = "", seconds: float = 120) -> str:
        """What kubectl prints.

        Raises:
            KubectlError: it exited with an error.
        """
        done = subprocess.run(
            [str(kubectl()), *args],
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
        if done.returncode:
            raise KubectlError(f"kubectl {' '.join(args)}: {done.stderr.strip()}")
        return done.stdout

    def get(self, *args: str) -> dict[str, Any]:
        """An object, or a list of them, as kubectl reads it."""
        return json.loads(self.kubectl("get", *args, "-o", "json"))

    def apply(self, *documents: dict[str, Any] | Path) -> None:
        """Apply documents or files on the server's side: some CRDs are too large for the other way."""
        for document in documents:
            what = ("-f", str(document)) if isinstance(document, Path) else ("-f", "-")
            text = "" if isinstance(document, Path) else json.dumps(document)
            self.kubectl("apply", "--server-side", "--force-conflicts", *what, stdin=text)

    def crds(self, *names: str) -> None:
        """Wait until custom resources are served.

        One that has just been made has no conditions yet, which `kubectl wait` takes for an error.
        """
        for name in names:
            accepted = f"--for=jsonpath={{.status.acceptedNames.plural}}={name.partition('.')[0]}"
            self.kubectl("wait", f"crd/{name}", accepted, "--timeout=60s")
        self.kubectl("wait", "--for=condition=Established", "--timeout=60s", *(f"crd/{n}" for n in names))

    def settle(self) -> None:
        """Wait until pods can be made: the controllers give the default namespace its service account."""
        self.kubectl("wait", "serviceaccount/default", "-n", "default", "--for=create", "--timeout=60s")

    def declare(self, node: str, resource: str, count: int) -> None:
        """Give a node devices, as a device plugin would: pods that ask for them are then scheduled there."""
        at = f"/status/capacity/{resource.replace('/', '~1')}"
        patch = json.dumps([{"op": "add", "path": at, "value": str(count)}])
        self.kubectl("patch", "node", node, "--subresource=status", "--type=json", "-p", patch)


def kubectl() -> Path:
    """The kubectl of the build, or the machine's own.

    Raises:
        MissingError: neither is there.
    """
    made = cache.kube() / "bin" / "kubectl"
    if made.exists():
        return made
    if found := shutil.which("kubectl"):
        return Path(found)
    raise cache.MissingError("there is no kubectl: `make kube-build`, or install one")
