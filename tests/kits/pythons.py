"""Environments for further Python versions, with all locked packages except torch, in the tests' cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UV = ROOT / ".uv" / "bin" / "uv"
VERSIONS = ("3.12", "3.13")
WITHOUT = ("torch", "tensordict")


def interpreter(version: str) -> str:
    """Return an interpreter of this machine; pyenv's programs before its shims, which exist for inactive versions too.

    Skips the test where there is none.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = sorted(pyenv.glob(f"{version}.*/bin/python{version}"))
    if python := os.fspath(found[-1]) if found else shutil.which(f"python{version}"):
        return python
    pytest.skip(f"no python{version} on this machine: pyenv install {version}")


def environment(version: str) -> Path:
    """Return the folder of this Python's environment; skips the test where it cannot be created."""
    python = interpreter(version)
    cache = Path(os.environ.get("DLJOB_CACHE") or Path.home() / ".cache" / "dljob")
    locked = hashlib.sha256((ROOT / "uv.lock").read_bytes() + (ROOT / "pyproject.toml").read_bytes()).hexdigest()[:12]
    home = cache / f"python-{version}-{locked}"
    if home.exists():
        return home
    cache.mkdir(parents=True, exist_ok=True)
    wanted = [
        "--locked",
        "--no-emit-workspace",
        "--no-default-groups",
        "--group=test",
        "--extra=runtime",
        "--extra=operator",
    ]
    with tempfile.TemporaryDirectory(dir=cache) as work:
        try:
            _uv(
                "export",
                "--quiet",
                *wanted,
                *[f"--prune={name}" for name in WITHOUT],
                f"--output-file={work}/wanted.txt",
            )
            _uv("venv", "--quiet", f"--python={python}", "--relocatable", f"{work}/new")
            _uv("pip", "sync", "--quiet", "--require-hashes", f"--python={work}/new/bin/python", f"{work}/wanted.txt")
        except (OSError, subprocess.SubprocessError) as error:
            said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
            pytest.skip(f"the environment of Python {version} cannot be made here, and {home} is not there: {said}")
        with suppress(OSError):  # Another run created it first.
            Path(work, "new").rename(home)
    return home


def _uv(*words: str) -> None:
    program = str(UV) if UV.exists() else "uv"
    subprocess.run([program, *words], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)


def installed(folder: Path) -> str:
    """Return a PYTHONPATH that makes the sources an installed package there; the metadata is written to a folder."""
    for wheel in ("dljob", "dljob-tools"):
        dist = distribution(wheel)
        info = folder / f"{wheel.replace('-', '_')}-{dist.version}.dist-info"
        info.mkdir(parents=True)
        for file in ("METADATA", "entry_points.txt"):
            (info / file).write_text(dist.read_text(file) or "")
    return os.pathsep.join(map(os.fspath, (ROOT / "workers", ROOT / "operator", folder)))


if __name__ == "__main__":
    for each in sys.argv[1:] or VERSIONS:
        with suppress(pytest.skip.Exception):
            print(environment(each))
