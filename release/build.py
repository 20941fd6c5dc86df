"""`python release/build.py [PART ...]`: what a release holds, built here into dist/ by the locked tools.

Parts: `python` (sdist and wheels), `chart`, `images` (OCI archives, built without a container engine), `sbom` (the
packages of the lock, in CycloneDX). SHA256SUMS lists all of dist/. Nothing is uploaded.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "release"), str(ROOT / "tests/kube")]

from cluster import build as programs  # noqa: E402 - these folders have no package
from cluster import cache  # noqa: E402
from images import build as image_builder  # noqa: E402
from versions import version  # noqa: E402

EXTRAS = ("runtime", "kubernetes", "operator", "tools")
"""Of the images and of `pip install dljob[...]`: what the bill of materials lists. Torch comes from the user."""
WHEELS = {"dljob": ".", "dljob_operator": "operator", "dljob_tools": "workers/tools"}
"""Name of a wheel -> folder of its pyproject.toml."""
SUMS = "SHA256SUMS"


class BuildError(Exception):
    """A part cannot be built; the message says which, why, and what to do."""


def _run(command: Sequence[str], part: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise BuildError(f"{part}: `{' '.join(command)}` ended with {done.returncode}: {said}")
    return done.stdout


def packages(folder: Path) -> list[Path]:
    """Build the sdist, and the three wheels from the unpacked sdist, so that the sdist is known to be whole."""
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder.resolve()), "-t"]
    _run([*build, "sdist"], "python")
    sdist = folder / f"dljob-{version()}.tar.gz"
    with tempfile.TemporaryDirectory() as work:
        with tarfile.open(sdist) as tar:
            tar.extractall(work, filter="data")
        for place in WHEELS.values():
            _run([*build, "wheel"], "python", Path(work) / sdist.name.removesuffix(".tar.gz") / place)
    return [sdist, *(folder / f"{name}-{version()}-py3-none-any.whl" for name in WHEELS)]


def chart(folder: Path) -> list[Path]:
    """Package the chart."""
    _run([helm(), "package", str(ROOT / "charts/dljob"), "--destination", str(folder)], "chart")
    return [folder / f"dljob-{version()}.tgz"]


def helm() -> str:
    """The path of helm, built from its Go module where it is not there yet."""
    try:
        programs.ensure(("helm",))
        return str(cache.program("helm"))
    except (cache.MissingError, RuntimeError) as error:
        raise BuildError(f"chart: {error}") from error


def images(folder: Path) -> list[Path]:
    """Build both images, under the names that the chart gives them."""
    try:
        archives = image_builder.archives()
    except (cache.MissingError, RuntimeError) as error:
        raise BuildError(f"images: {error}") from error
    made: list[Path] = []
    for target, archive in zip(image_builder.TARGETS, archives, strict=True):
        made.append(folder / f"dljob-{target}-{version()}.oci.tar")
        rename(archive, made[-1], f"dljob/{target}:{version()}")
    return made


def rename(archive: Path, to: Path, name: str) -> None:
    """Copy an OCI archive, its image under another name."""
    with tarfile.open(archive) as old, tarfile.open(to, "w") as new:
        for entry in old:
            data = old.extractfile(entry)
            if entry.name == "index.json" and data:
                index = json.load(data)
                for manifest in index["manifests"]:
                    manifest["annotations"] |= dict.fromkeys(manifest["annotations"], name)
                text = json.dumps(index).encode()
                entry.size, data = len(text), io.BytesIO(text)
            new.addfile(entry, data)


def sbom(folder: Path) -> list[Path]:
    """Write the bill of materials of the lock: every package with version and hashes."""
    uv = ROOT / ".uv/bin/uv"
    extras = [f"--extra={extra}" for extra in EXTRAS]
    flags = ["--frozen", "--no-default-groups", "--quiet", *extras]
    text = _run([str(uv) if uv.exists() else "uv", "export", "--format=cyclonedx1.5", *flags], "sbom")
    path = folder / f"dljob-{version()}.cdx.json"
    path.write_text(text, encoding="utf-8")
    return [path]


PARTS: dict[str, Callable[[Path], list[Path]]] = {"python": packages, "chart": chart, "images": images, "sbom": sbom}


def sums(folder: Path) -> str:
    """A line of `sha256sum` for each file of a folder."""
    lines: list[str] = []
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.name != SUMS:
            with path.open("rb") as file:
                lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    return "".join(lines)


def main(arguments: Sequence[str], folder: Path = ROOT / "dist") -> int:
    """Build the named parts, or all; 0, 2 for an unknown part, 3 where this machine cannot build one."""
    if unknown := set(arguments) - set(PARTS):
        sys.stderr.write(f"unknown part {', '.join(sorted(unknown))}: there are {', '.join(PARTS)}\n")
        return 2
    folder.mkdir(exist_ok=True)
    for old in [path for path in folder.iterdir() if path.name.startswith(("dljob-", "dljob_")) and not arguments]:
        old.unlink()
    lacking: list[str] = []
    for part in arguments or PARTS:
        try:
            for path in PARTS[part](folder):
                sys.stdout.write(f"{os.path.relpath(path)}  {path.stat().st_size:,} bytes\n")
        except BuildError as error:
            lacking.append(str(error))
    (folder / SUMS).write_text(sums(folder), encoding="utf-8")
    sys.stderr.writelines(f"not built: {line}\n" for line in lacking)
    return 3 if lacking else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
