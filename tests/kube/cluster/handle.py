"""A test's handle of a cluster: its kubeconfig, reads, and kubectl for all else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from cluster import cache, processes
from cluster.reader import Query, RefusedError, reader


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
        """Return an object, or a list of objects, of the arguments of `kubectl get`.

        With `--ignore-not-found` an object that does not exist is an empty one.

        Raises:
            KubectlError: the API server refused, or could not be reached.
        """
        read, query = reader(self.kubeconfig), Query.parse(args)
        if read is None or query is None:
            text = self.kubectl("get", *args, "-o", "json")
            return json.loads(text) if text.strip() else {}
        try:
            return read.get(query)
        except (RefusedError, OSError, HTTPException) as error:
            raise KubectlError(f"get {' '.join(args)}: {error}") from error

    def apply(self, *documents: dict[str, Any] | Path) -> None:
        """Apply documents or files server-side: some CRDs are too large for the annotation of client-side apply."""
        for document in documents:
            what = ("-f", str(document)) if isinstance(document, Path) else ("-f", "-")
            text = "" if isinstance(document, Path) else json.dumps(document)
            self.kubectl("apply", "--server-side", "--force-conflicts", *what, stdin=text)

    def crds(self, *names: str) -> None:
        """Wait until custom resources are served."""

        def served(name: str) -> bool:
            status = self.get("crd", name, "--ignore-not-found").get("status", {})
            conditions = status.get("conditions") or ()  # null in a CRD that was just created
            true = [one["type"] for one in conditions if one["status"] == "True"]
            return status.get("acceptedNames", {}).get("plural") == name.partition(".")[0] and "Established" in true

        for name in names:
            processes.until(lambda name=name: served(name), 60, f"{name} to be served")

    def settle(self) -> None:
        """Wait until pods can be created, which needs the default namespace's service account."""
        account = ("serviceaccount", "default", "-n", "default", "--ignore-not-found")
        processes.until(lambda: self.get(*account), 60, "the default service account")

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
