"""Images for the cluster's own pods, one static program each, written as OCI archives without a container engine.

The layout is that of the OCI image specification: `oci-layout`, `index.json`, and blobs by their sha256.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

from cluster import cache
from cluster.kuberay import IMAGE as KUBERAY

PAUSE = "dljob.test/pause:1"
COREDNS = "dljob.test/coredns:1"
KIND = "application/vnd.oci.image"


def layer(program: Path, name: str) -> bytes:
    """Return a reproducible tar with the program at `/name`."""
    data = program.read_bytes()
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), 0o755
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def archive(image: str, program: Path, out: Path, name: str, user: str = "0") -> None:
    """Write the archive of an image that runs the program as a numeric user."""
    blobs: dict[str, bytes] = {}

    def blob(kind: str, data: bytes) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"mediaType": f"{KIND}.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    content = blob("layer.v1.tar", layer(program, name))
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[cache.machine()],
        "os": "linux",
        "config": {"Entrypoint": [f"/{name}"], "User": user},
        "rootfs": {"type": "layers", "diff_ids": [content["digest"]]},
    }
    manifest = {"schemaVersion": 2, "mediaType": f"{KIND}.manifest.v1+json"}
    manifest |= {"config": blob("config.v1+json", json.dumps(config).encode()), "layers": [content]}
    top = blob("manifest.v1+json", json.dumps(manifest).encode())
    top["annotations"] = {"io.containerd.image.name": image, "org.opencontainers.image.ref.name": image}
    blobs["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [top]}).encode()
    blobs["oci-layout"] = json.dumps({"imageLayoutVersion": "1.0.0"}).encode()
    part = out.with_suffix(".part")
    with tarfile.open(part, "w") as tar:
        for path, data in blobs.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))
    part.rename(out)


def ensure() -> list[Path]:
    """Return the archives of the cluster's own images; missing ones are written."""
    folder = cache.kube() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    made: list[Path] = []
    for image, name, inside, user in (
        (PAUSE, "pause", "pause", "65532"),
        (COREDNS, "coredns", "coredns", "0"),  # it binds port 53
        (f"{KUBERAY}:1", "kuberay", "manager", "65532"),
    ):
        out = folder / f"{name}.tar"
        if not out.exists():
            archive(image, cache.program(name), out, inside, user)
        made.append(out)
    return made
