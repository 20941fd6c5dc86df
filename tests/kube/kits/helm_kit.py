"""Releases of the chart by the real helm, for tests on a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import cache
from cluster.handle import Cluster, KubectlError

CHART = cache.ROOT / "charts/dljob"
VERSION: str = tomllib.loads((cache.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


class HelmError(Exception):
    """Helm failed; the text is its stderr."""


@dataclass(frozen=True)
class Release:
    """A release of the chart in its own namespace."""

    cluster: Cluster
    namespace: str
    name: str = "dljob"
    chart: Path = CHART

    def helm(self, *arguments: str, **values: Any) -> str:
        """Run helm with `values` as --set-json; returns its output."""
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
        """Install the chart and adopt the CustomResourceDefinition that the tests have applied."""
        return self.helm("install", self.name, str(self.chart), "--take-ownership", *flags, **values)

    def get(self, what: str, name: str) -> dict[str, Any]:
        return self.cluster.get(what, name, "-n", self.namespace)

    def there(self, what: str, name: str) -> bool:
        return bool(self.cluster.kubectl("get", what, name, "-n", self.namespace, "--ignore-not-found"))

    def may(self, verb: str, what: str, namespace: str, user: str = "") -> bool:
        """Return whether an account, by default the operator's, may do something."""
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
