"""The kubectl lines of the how-tos, as they stand, on a real API server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cluster import cache
from cluster.handle import Cluster, kubectl

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kits"))

from pages import BLOCKS

NAME = "test_the_kubectl_lines_of_the_pages_run"
LINES = [
    line.removeprefix("$ ")
    for block in BLOCKS
    if block.kind == "commands" and block.value.endswith(NAME)
    for line in block.text.replace("\\\n", " ").splitlines()
    if line.removeprefix("$ ").startswith("kubectl ")
]
JOB = (cache.ROOT / "examples" / "hello-cpu" / "dljob.yaml").read_text(encoding="utf-8").partition("\n---")[0]
SPACES = {"team": ("hello", "ppo"), "default": ("sft",)}
"""The jobs that the lines are about; no operator is there, so nothing happens to them."""


def test_the_kubectl_lines_of_the_pages_run(plane: Cluster, tmp_path: Path) -> None:
    (tmp_path / "kubectl").symlink_to(kubectl())
    (tmp_path / "dljob.yaml").write_text(JOB)
    env = {**os.environ, "KUBECONFIG": str(plane.kubeconfig), "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def run(line: str) -> None:
        done = subprocess.run(["bash", "-c", line], env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}: {done.stderr}"

    try:
        plane.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}},
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}},
        )
        capacity = '{"status": {"capacity": {"cpu": "1"}}}'
        plane.kubectl("patch", "node", "node", "--subresource=status", "--type=merge", "-p", capacity)
        for space, names in SPACES.items():
            for name in names:
                plane.kubectl("apply", "-n", space, "-f", "-", stdin=JOB.replace("name: hello}", f"name: {name}}}", 1))
        assert len(LINES) >= 8
        for line in LINES:
            run(line)
        assert plane.get("dljob", "ppo", "-n", "team")["spec"]["suspend"] is True
        assert plane.get("node", "node")["status"]["capacity"]["huawei.com/Ascend910"] == "8"
    finally:
        plane.kubectl("delete", "dljob", "hello", "sft", "--ignore-not-found")
        plane.kubectl("delete", "node", "node", "--ignore-not-found")
        plane.kubectl("delete", "namespace", "team", "--wait=false", "--ignore-not-found")
