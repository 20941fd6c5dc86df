"""A private Redis server from Debian's package, unpacked once into the tests' cache and never installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from gateway_kit import eventually, free_port

DEBIAN = ("redis-server", "redis-tools", "libatomic1", "libjemalloc2", "liblzf1")
PASSWORD = "told-by-a-secret"


def root() -> Path:
    """Return the folder of the unpacked packages; skips the test where they are not available."""
    home = Path(os.environ.get("DLJOB_CACHE") or Path.home() / ".cache" / "dljob") / "redis"
    if home.exists():
        return home
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        pytest.skip("Redis is unpacked from Debian's packages: it takes apt-get and dpkg")
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent) as work:
        fetch = ["apt-get", "-o", "APT::Sandbox::User=root", "download", *DEBIAN]
        if subprocess.run(fetch, cwd=work, capture_output=True, check=False).returncode:
            pytest.skip(f"Debian's packages cannot be fetched here, and {home} is not there: {' '.join(DEBIAN)}")
        for package in Path(work).glob("*.deb"):
            subprocess.run(["dpkg", "-x", str(package), f"{work}/root"], check=True)
        Path(work, "root").rename(home)
    return home


@contextmanager
def redis() -> Iterator[str]:
    """Run a Redis that requires PASSWORD for the block; yields host:port."""
    made, port = root(), free_port()
    env = {**os.environ, "LD_LIBRARY_PATH": str(made / "usr/lib/x86_64-linux-gnu")}
    with tempfile.TemporaryDirectory(prefix="dlr-") as folder:
        log = Path(folder) / "log"
        words = ["--port", str(port), "--bind", "127.0.0.1", "--requirepass", PASSWORD, "--dir", folder, "--save", ""]
        with log.open("wb") as out:
            server = subprocess.Popen([made / "usr/bin/redis-server", *words], env=env, stdout=out, stderr=out)
        try:
            eventually(lambda: "Ready to accept connections" in log.read_text(), 30, log.read_text)
            yield f"127.0.0.1:{port}"
        finally:
            server.kill()
            server.wait()


if __name__ == "__main__":
    print(root())
