"""actionlint for the tests of the workflows, built from its Go module and kept in the tests' cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

MODULE = Path(__file__).parent / "actionlint"  # go.mod and go.sum, which pin it and all that it is made of
FLAGS = ("-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false", "-ldflags=-s -w")
"""Those of tests/kube/cluster/build.py: Go's own packages are compiled once for both."""
PACKAGE = "github.com/rhysd/actionlint/cmd/actionlint"


def actionlint() -> Path:
    """Return the path of the program; skips the test where it cannot be built."""
    cache = Path(os.environ.get("DLJOB_CACHE") or Path.home() / ".cache" / "dljob") / "actionlint"
    pinned = b"".join((MODULE / name).read_bytes() for name in ("go.mod", "go.sum"))
    program = cache / hashlib.sha256(pinned).hexdigest()[:12]
    if program.exists():
        return program
    if shutil.which("go") is None:
        pytest.skip("actionlint is built from its Go module, and there is no Go: install the version of its go.mod")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as work:
        build = ["go", "build", "-mod=readonly", *FLAGS, "-o", f"{work}/new", PACKAGE]
        env = {**os.environ, "CGO_ENABLED": "0"}
        done = subprocess.run(build, cwd=MODULE, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"actionlint cannot be built here: {done.stderr.strip()[-500:]}")
        with suppress(OSError):  # Another run built it first.
            Path(work, "new").rename(program)
    return program
