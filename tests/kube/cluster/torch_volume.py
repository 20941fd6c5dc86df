"""torch of the project's environment for pods, as a read-only volume, because its gigabytes are too large for an image.

A folder of the node holds read-only bind mounts of torch and its dependencies, and nothing else of the environment.
Pods use it by the claim `torch`: mount it and put its path on PYTHONPATH.
"""

from __future__ import annotations

import re
import subprocess
from importlib import metadata
from pathlib import Path

from cluster.handle import Cluster

NAME = "torch"


def needed(name: str = NAME) -> list[metadata.Distribution]:
    """Return a distribution with its installed dependencies; empty when it is not installed."""
    found: dict[str, metadata.Distribution] = {}
    todo = [name]
    while todo:
        key = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if key in found:
            continue
        try:
            found[key] = metadata.distribution(key)
        except metadata.PackageNotFoundError:
            continue  # A requirement of another platform or of an extra.
        todo += [re.split(r"[^\w.-]", r, maxsplit=1)[0] for r in found[key].requires or [] if "extra ==" not in r]
    return list(found.values())


def parts(distributions: list[metadata.Distribution]) -> list[Path]:
    """Return the top-level folders and files of distributions in site-packages."""
    tops = {
        d.locate_file(f.parts[0])
        for d in distributions
        for f in d.files or []
        if f.parts[0] not in ("..", "__pycache__")
    }
    return sorted(p for p in (Path(str(t)) for t in tops) if p.exists())


def bind(folder: Path) -> None:
    """Bind-mount torch and its dependencies into a folder; the folder is not created when torch is not installed."""
    for part in parts(needed()):
        at = folder / part.name
        at.parent.mkdir(parents=True, exist_ok=True)
        at.mkdir() if part.is_dir() else at.touch()
        subprocess.run(["mount", "--bind", "-o", "ro", str(part), str(at)], check=True)


def volume(cluster: Cluster, namespace: str) -> None:
    """Create the claim `torch` in a namespace of the real node's cluster."""
    assert cluster.run is not None
    claim(cluster, namespace, NAME, cluster.run / "node" / NAME)


def claim(cluster: Cluster, namespace: str, name: str, folder: Path) -> None:
    """Create a claim on a folder of the real node, for pods that read it."""
    size, mode = {"storage": "10Gi"}, ["ReadOnlyMany"]
    volume = {
        "accessModes": mode,
        "capacity": size,
        "storageClassName": "",
        "claimRef": {"namespace": namespace, "name": name},
        "hostPath": {"path": str(folder), "type": "Directory"},
    }
    named = {"name": f"{name}-{namespace}"}
    asked = {"accessModes": mode, "resources": {"requests": size}, "storageClassName": "", "volumeName": named["name"]}
    cluster.apply(
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": named, "spec": volume},
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": namespace},
            "spec": asked,
        },
    )
