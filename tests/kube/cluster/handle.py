"""A test's handle of a cluster: its kubeconfig and kubectl."""

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
    """kubectl failed; the message is its stderr."""


@dataclass(frozen=True)
class Cluster:
    """A running Kubernetes cluster.

    Args:
        kubeconfig: a file whose current context is an administrator.
        run: the folder of its state; None for a cluster that is not ours.
    """

    kubeconfig: Path
    run: Path | None = None

    def kubectl(self, *args: str, stdin: str = "", seconds: float = 120) -> str:
        """Run kubectl; returns its output.

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
        """Return an object, or a list of objects, from `kubectl get`."""
        return json.loads(self.kubectl("get", *args, "-o", "json"))

    def apply(self, *documents: dict[str, Any] | Path) -> None:
        """Apply documents or files server-side: some CRDs are too large for the annotation of client-side apply."""
        for document in documents:
            what = ("-f", str(document)) if isinstance(document, Path) else ("-f", "-")
            text = "" if isinstance(document, Path) else json.dumps(document)
            self.kubectl("apply", "--server-side", "--force-conflicts", *what, stdin=text)

    def crds(self, *names: str) -> None:
        """Wait until custom resources are served.

        A CRD that was just created has no conditions yet, which `kubectl wait` treats as an error.
        """
        for name in names:
            accepted = f"--for=jsonpath={{.status.acceptedNames.plural}}={name.partition('.')[0]}"
            self.kubectl("wait", f"crd/{name}", accepted, "--timeout=60s")
        self.kubectl("wait", "--for=condition=Established", "--timeout=60s", *(f"crd/{n}" for n in names))

    def settle(self) -> None:
        """Wait until pods can be created, which needs the default namespace's service account."""
        self.kubectl("wait", "serviceaccount/default", "-n", "default", "--for=create", "--timeout=60s")

    def declare(self, node: str, resource: str, count: int) -> None:
        """Add devices to a node's status, as a device plugin does, so that pods requesting them are scheduled there."""
        at = f"/status/capacity/{resource.replace('/', '~1')}"
        patch = json.dumps([{"op": "add", "path": at, "value": str(count)}])
        self.kubectl("patch", "node", node, "--subresource=status", "--type=json", "-p", patch)


def kubectl() -> Path:
    """Return the path of the built kubectl, or of the machine's own.

    Raises:
        MissingError: neither exists.
    """
    made = cache.kube() / "bin" / "kubectl"
    if made.exists():
        return made
    if found := shutil.which("kubectl"):
        return Path(found)
    raise cache.MissingError("there is no kubectl: `make kube-build`, or install one")
