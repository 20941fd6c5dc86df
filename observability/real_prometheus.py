"""A real Prometheus on loopback for tests and pictures: found on PATH, or Debian's package unpacked, not installed."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

START_S = 30.0
"""How long Prometheus may take until it answers."""


class UnavailableError(Exception):
    """There is no Prometheus to be had here; the message says why."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Paths of the two programs."""

    prometheus: Path
    promtool: Path


def programs() -> Programs:
    """From PATH, else from the user's cache folder, else out of Debian's package, which then stays in that folder.

    Raises:
        UnavailableError: Neither is there.
    """
    if (server := shutil.which("prometheus")) and (tool := shutil.which("promtool")):
        return Programs(Path(server), Path(tool))
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "dljob" / "prometheus"
    cached = Programs(cache / "usr/bin/prometheus", cache / "usr/bin/promtool")
    cache.parent.mkdir(parents=True, exist_ok=True)
    with cache.with_suffix(".lock").open("w") as lock:  # tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not cached.promtool.exists():
            _unpack(cache)
    return cached


def _unpack(into: Path) -> None:
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise UnavailableError("no prometheus on PATH, and no apt-get and dpkg to fetch Debian's package with")
    with tempfile.TemporaryDirectory(dir=into.parent) as folder:
        got = subprocess.run(
            ["apt-get", "download", "prometheus"], cwd=folder, capture_output=True, text=True, check=False, timeout=300
        )
        packages = list(Path(folder).glob("prometheus_*.deb"))
        if not packages:
            raise UnavailableError(f"apt-get download prometheus: {got.stderr.strip() or got.stdout.strip()}")
        unpacked = Path(folder) / "unpacked"
        subprocess.run(["dpkg", "-x", packages[0], unpacked], check=True, timeout=120)
        shutil.rmtree(into, ignore_errors=True)
        unpacked.rename(into)


def promtool(*arguments: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run promtool; its exit status is the caller's to look at."""
    command = [programs().promtool, *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=120)


def backfill(text: str, data: Path) -> None:
    """Make blocks of samples in OpenMetrics' text with timestamps, in a data folder of a Prometheus not yet started."""
    data.mkdir(parents=True, exist_ok=True)
    source = data.parent / "recording.txt"
    source.write_text(text, encoding="utf-8")
    done = promtool("tsdb", "create-blocks-from", "openmetrics", "--quiet", source, data)
    source.unlink()
    if done.returncode:
        raise RuntimeError(f"promtool tsdb create-blocks-from openmetrics: {done.stderr.strip()}")


@dataclass(frozen=True, slots=True)
class Server:
    """A running Prometheus."""

    address: str
    """http://127.0.0.1:port"""

    def query(self, expr: str, at: float | None = None) -> list[dict[str, Any]]:
        """The instant vector of an expression, at `at` (unix seconds) or now."""
        when = {} if at is None else {"time": repr(at)}
        return self._get("query", {"query": expr, **when})["result"]

    def query_range(self, expr: str, begin: float, end: float, step: float) -> list[dict[str, Any]]:
        """The matrix of an expression."""
        span = {"start": repr(begin), "end": repr(end), "step": repr(step)}
        return self._get("query_range", {"query": expr, **span})["result"]

    def label_values(self, label: str, match: str, begin: float, end: float) -> list[str]:
        """Values of a label among the series that match."""
        span = {"match[]": match, "start": repr(begin), "end": repr(end)}
        return self._get(f"label/{label}/values", span)

    def targets(self) -> list[dict[str, Any]]:
        """What is scraped now: scrapePool, scrapeUrl, labels, health, lastError."""
        return self._get("targets", {"state": "active"})["activeTargets"]

    def _get(self, path: str, parameters: Mapping[str, str]) -> Any:  # noqa: ANN401 - JSON
        url = f"{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - http on loopback
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{path} {dict(parameters)}: {error.read().decode(errors='replace')}") from error


@contextmanager
def serving(folder: Path, config: str = "{}", flags: Sequence[str] = ()) -> Generator[Server]:
    """A Prometheus over `folder`/data, gone when the block ends. `config` is prometheus.yml, which may be JSON."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "prometheus.yml").write_text(config, encoding="utf-8")
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(["nice", "-n", "10"] if shutil.which("nice") else []),
                programs().prometheus,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                "--storage.tsdb.retention.time=100y",
                f"--web.listen-address=127.0.0.1:{port}",
                *flags,
            ],
            stdout=log,
            stderr=log,
        )
    try:
        server = Server(f"http://127.0.0.1:{port}")
        _wait(server, process, folder / "prometheus.log")
        yield server
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until it is ready: it has no other sign of that than its answer."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{server.address}/-/ready", timeout=1):  # noqa: S310 - http on loopback
                return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"Prometheus did not start: {log.read_text(errors='replace')[-2000:]}")
