"""A release of the chart by the real helm, as the tests on a cluster use it."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from typing import Any

from cluster import cache
from cluster.handle import Cluster, KubectlError

CHART = cache.ROOT / "charts/dljob"


class HelmError(Exception):
    """Helm said no; the text is its own."""


@dataclass(frozen=True)
class Release:
    """A release of the chart in a namespace of its own."""

    cluster: Cluster
    namespace: str
    name: str = "dljob"

    def helm(self, *arguments: str, **values: Any) -> str:
        """What helm prints; `values` as --set-json gives them."""
        flags = [flag for key, value in values.items() for flag in ("--set-json", f"{key}={json.dumps(value)}")]
        done = subprocess.run(
            [str(cache.program("helm")), "--namespace", self.namespace, *arguments, *flags],
            env={**os.environ, "KUBECONFIG": str(self.cluster.kubeconfig)},
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        if done.returncode:
            raise HelmError(done.stderr + done.stdout)
        return done.stdout

    def install(self, *flags: str, **values: Any) -> str:
        """Install it, and take over the CustomResourceDefinition that the tests have applied."""
        return self.helm("install", self.name, str(CHART), "--take-ownership", *flags, **values)

    def get(self, what: str, name: str) -> dict[str, Any]:
        return self.cluster.get(what, name, "-n", self.namespace)

    def there(self, what: str, name: str) -> bool:
        return bool(self.cluster.kubectl("get", what, name, "-n", self.namespace, "--ignore-not-found"))

    def may(self, verb: str, what: str, namespace: str, user: str = "") -> bool:
        """Whether an account, the operator's when none is named, may do something."""
        who = user or f"system:serviceaccount:{self.namespace}:dljob"
        resource, _, part = what.partition("/")
        inner = [f"--subresource={part}"] if part else []
        try:
            self.cluster.kubectl("auth", "can-i", verb, resource, *inner, "-n", namespace, f"--as={who}", "--quiet")
        except KubectlError:
            return False
        return True

    def key(self) -> str:
        return self.get("secret", f"{self.name}-token-key")["data"]["key"]

    def arguments(self) -> list[str]:
        return self.get("deployment", self.name)["spec"]["template"]["spec"]["containers"][0]["args"]
