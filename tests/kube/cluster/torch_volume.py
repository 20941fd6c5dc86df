"""torch for pods: the one of the project's environment, as a read-only volume; its gigabytes are too much for an image.

A folder of the node holds torch and all that it needs, each bound read-only to where it is installed, and nothing
else of the environment. The claim `torch` leads pods to it: mount it, and put its path on PYTHONPATH.
"""

from __future__ import annotations

import re
import subprocess
from importlib import metadata
from pathlib import Path

from cluster.handle import Cluster

NAME = "torch"


def needed(name: str = NAME) -> list[metadata.Distribution]:
    """The installed distributions that one needs, itself among them; none when it is not installed."""
    found: dict[str, metadata.Distribution] = {}
    todo = [name]
    while todo:
        key = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if key in found:
            continue
        try:
            found[key] = metadata.distribution(key)
        except metadata.PackageNotFoundError:
            continue  # for another platform, or an extra
        todo += [re.split(r"[^\w.-]", r, maxsplit=1)[0] for r in found[key].requires or [] if "extra ==" not in r]
    return list(found.values())


def parts(distributions: list[metadata.Distribution]) -> list[Path]:
    """The top folders and files that distributions have in site-packages."""
    tops = {
        d.locate_file(f.parts[0])
        for d in distributions
        for f in d.files or []
        if f.parts[0] not in ("..", "__pycache__")
    }
    return sorted(p for p in (Path(str(t)) for t in tops) if p.exists())


def bind(folder: Path) -> None:
    """Bind torch and what it needs into a folder, which is not made when torch is not installed."""
    for part in parts(needed()):
        at = folder / part.name
        at.parent.mkdir(parents=True, exist_ok=True)
        at.mkdir() if part.is_dir() else at.touch()
        subprocess.run(["mount", "--bind", "-o", "ro", str(part), str(at)], check=True)


def volume(cluster: Cluster, namespace: str) -> None:
    """Give a namespace of the real node's cluster the claim `torch`."""
    assert cluster.run is not None
    size, mode = {"storage": "10Gi"}, ["ReadOnlyMany"]
    name = f"{NAME}-{namespace}"
    volume = {
        "accessModes": mode,
        "capacity": size,
        "storageClassName": "",
        "claimRef": {"namespace": namespace, "name": NAME},
        "hostPath": {"path": str(cluster.run / "node" / NAME), "type": "Directory"},
    }
    claim = {"accessModes": mode, "resources": {"requests": size}, "storageClassName": "", "volumeName": name}
    cluster.apply(
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume},
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": NAME, "namespace": namespace},
            "spec": claim,
        },
    )
