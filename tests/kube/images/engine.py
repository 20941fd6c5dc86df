"""buildah without an installation: Debian's program unpacked into the cache folder, its storage and settings there too.

RUN steps are isolated by chroot alone, so neither a container runtime nor a network of its own is needed; they see this
machine's certificates, as behind a company's proxy.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import cache

# buildah and debootstrap, and what they need that a small Debian does not have.
DEBIAN = (
    *("buildah", "golang-github-containers-common", "golang-github-containers-image", "debootstrap"),
    *("libgpgme11", "libassuan0", "libsubid4", "libdevmapper1.02.1", "libseccomp2", "debian-archive-keyring"),
)
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"

REFERENCE = "org.opencontainers.image.ref.name"


def digest(*parts: str | bytes) -> str:
    """Sixteen hex digits of what was given, each with its length."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        whole.update(f"{len(data)}:".encode() + data)
    return whole.hexdigest()[:16]


def unpacked() -> Path:
    """The root folder of the packages, unpacked once.

    Raises:
        MissingError: this is no Debian, or its packages cannot be fetched.
    """
    target = cache.home() / "tools" / digest(*DEBIAN)
    if target.exists():
        return target
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise cache.MissingError("the images are built with Debian's buildah: it takes apt-get and dpkg")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        fetch = ["apt-get", "-o", "APT::Sandbox::User=root", "download", *DEBIAN]
        done = subprocess.run(fetch, cwd=work, capture_output=True, text=True, check=False)
        if done.returncode:
            raise cache.MissingError(f"Debian's packages of buildah cannot be fetched: {done.stderr.strip()[-1000:]}")
        root = Path(work) / "root"
        for package in sorted(Path(work).glob("*.deb")):
            subprocess.run(["dpkg", "-x", str(package), str(root)], check=True)
        root.chmod(0o755)
        root.rename(target)
    return target


@dataclass(frozen=True)
class Engine:
    """One buildah with its storage below a folder."""

    root: Path
    folder: Path
    driver: str

    @classmethod
    def make(cls, folder: Path) -> Engine:
        """An engine that keeps everything below a folder.

        Raises:
            MissingError: no root rights, or no packages.
        """
        if os.geteuid() != 0:
            raise cache.MissingError("building images takes root: layers hold files of several users")
        engine = cls(unpacked(), folder, "overlay" if overlays(folder) else "vfs")
        engine.settings()
        return engine

    def settings(self) -> None:
        """Write what buildah would look for under /etc, and what RUN steps find there."""
        for name, text in {
            "policy.json": json.dumps({"default": [{"type": "insecureAcceptAnything"}]}),
            "registries.conf": "unqualified-search-registries = []\n",
            "containers.conf": "[containers]\n",
            "storage.conf": f'[storage]\ndriver = "{self.driver}"\n',
            "pip.conf": f"[global]\ncert = {CERTIFICATES}\n",
            "uv.toml": "system-certs = true\n",
        }.items():
            path = self.folder / "etc" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        for name in ("tmp", "var"):
            (self.folder / name).mkdir(exist_ok=True)
        self.libraries()

    def libraries(self) -> None:
        """Make a loader's cache with the unpacked libraries: buildah runs itself again without LD_LIBRARY_PATH."""
        etc, triple = self.folder / "etc", f"{cache.machine()}-linux-gnu"
        (etc / "ld.so.conf").write_text(
            f"include /etc/ld.so.conf\n{self.root}/usr/lib/{triple}\n{self.root}/lib/{triple}\n", encoding="utf-8"
        )
        command = ["ldconfig", "-X", "-f", f"{etc}/ld.so.conf", "-C", f"{etc}/ld.so.cache"]
        subprocess.run(command, env=self.env(), check=True, capture_output=True)

    def env(self) -> dict[str, str]:
        """The environment of the unpacked programs."""
        etc = self.folder / "etc"
        return os.environ | {
            "PATH": f"{self.root}/usr/sbin:{self.root}/usr/bin:{os.environ['PATH']}:/usr/sbin:/sbin",
            "CONTAINERS_CONF": f"{etc}/containers.conf",
            "CONTAINERS_STORAGE_CONF": f"{etc}/storage.conf",
            "CONTAINERS_REGISTRIES_CONF": f"{etc}/registries.conf",
            "BUILDAH_ISOLATION": "chroot",
            "DEBOOTSTRAP_DIR": f"{self.root}/usr/share/debootstrap",
            "TMPDIR": f"{self.folder}/tmp",
        }

    def buildah(self, command: str, *arguments: str) -> str:
        """Run one of buildah's commands; what it prints.

        Raises:
            RuntimeError: it failed; with the end of what it said.
        """
        # In a mount namespace of its own: the loader's cache and the place of the cache of layers, which cannot be
        # named, are laid over the machine's, and no mount outlives this.
        over = 'mount --bind "$0/etc/ld.so.cache" /etc/ld.so.cache && mount --bind "$0/var" /var/lib && exec "$@"'
        line = ["unshare", "--mount", "sh", "-c", over, str(self.folder), "buildah"]
        line += ["--root", f"{self.folder}/storage", "--runroot", f"{self.folder}/run"]
        line += ["--storage-driver", self.driver, command]
        if command in ("build", "push", "from"):
            line += ["--signature-policy", f"{self.folder}/etc/policy.json"]
        done = subprocess.run(
            [*line, *arguments],
            env=self.env(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"buildah {command} {' '.join(arguments)}: {done.stdout.strip()[-4000:]}")
        return done.stdout

    def has(self, image: str) -> bool:
        """Whether the storage has an image."""
        return image in self.buildah("images", "--noheading", "--format", "{{.Name}}:{{.Tag}}").split()

    def build(self, context: Path, file: Path, image: str, *arguments: str) -> str:
        """Build an image from a folder, with the layers of earlier builds; what the build said."""
        trust = [
            (CERTIFICATES, CERTIFICATES),
            (f"{self.folder}/etc/pip.conf", "/etc/pip.conf"),
            (f"{self.folder}/etc/uv.toml", "/etc/uv/uv.toml"),
        ]
        volumes: Sequence[str] = [f"--volume={at}:{to}:ro" for at, to in trust if Path(at).exists()]
        flags = ["--layers", "--network=host", f"--tag={image}", f"--file={file}", *volumes]
        return self.buildah("build", *flags, *arguments, str(context))

    def save(self, image: str, archive: Path) -> None:
        """Write an image as an OCI archive, whole or not at all."""
        layout = self.folder / "layout"
        self.buildah("push", "--compression-format=zstd", "--compression-level=1", image, f"oci:{layout}:{image}")
        index = json.loads((layout / "index.json").read_text(encoding="utf-8"))
        named = [top for top in index["manifests"] if "annotations" in top]  # an image of before has lost its name
        (layout / "index.json").write_text(json.dumps(index | {"manifests": named}), encoding="utf-8")
        blobs = {top["annotations"][REFERENCE]: (top, closure(layout, top)) for top in named}
        top, mine = blobs[image]
        top["annotations"]["io.containerd.image.name"] = image
        part = archive.with_suffix(".part")
        with tarfile.open(part, "w") as tar:
            tar.add(layout / "oci-layout", "oci-layout")
            data = json.dumps({"schemaVersion": 2, "manifests": [top]}).encode()
            entry = tarfile.TarInfo("index.json")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
            for blob in sorted(mine):
                tar.add(layout / blob, blob)
        part.rename(archive)
        used = set[str]().union(*(inside for _, inside in blobs.values()))
        for path in layout.glob("blobs/sha256/*"):
            if str(path.relative_to(layout)) not in used:
                path.unlink()


def closure(layout: Path, top: dict[str, Any]) -> set[str]:
    """The blobs of an image, as paths in the layout: its manifest, its configuration, its layers."""

    def path(descriptor: dict[str, Any]) -> str:
        return f"blobs/{descriptor['digest'].replace(':', '/')}"

    manifest = json.loads((layout / path(top)).read_text(encoding="utf-8"))
    return {path(top), path(manifest["config"]), *map(path, manifest["layers"])}


def overlays(folder: Path) -> bool:
    """Whether the kernel lays one folder over another there: else every layer is a whole copy."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        for name in ("lower", "upper", "work", "merged"):
            (Path(work) / name).mkdir()
        options = ",".join(f"{name}dir={work}/{name}" for name in ("lower", "upper", "work"))
        mount = ["mount", "-t", "overlay", "overlay", "-o", options, f"{work}/merged"]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            return False
        subprocess.run(["umount", f"{work}/merged"], check=True)
    return True
