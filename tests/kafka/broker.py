"""Kafka's own broker for tests: jars of Maven Central, locked by their hashes, and one KRaft node on loopback."""

from __future__ import annotations

import hashlib
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

HERE = Path(__file__).parent
CACHE = Path.home() / ".cache" / "dljob-kafka"
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"


class MissingError(Exception):
    """The broker cannot be had here; the message says why."""


def jars(cache: Path = CACHE) -> Path:
    """Return the folder of the broker's jars, fetched by Maven where it lacks one; each is checked by its hash."""
    if shutil.which("java") is None:
        raise MissingError("there is no Java here")
    locked = dict(reversed(line.split()) for line in (HERE / "jars.sha256").read_text().splitlines())
    folder = cache / hashlib.sha256((HERE / "jars.sha256").read_bytes()).hexdigest()[:16]
    if not all((folder / name).exists() for name in locked):
        if shutil.which("mvn") is None:
            raise MissingError("there is no Maven here to fetch the broker's jars with")
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
        line = ["mvn", "-q", "-B", "-f", HERE / "pom.xml", *goal]
        said = subprocess.run(line, capture_output=True, text=True, check=False)
        if said.returncode:
            raise MissingError(f"Maven has no jars of the broker: {said.stdout[-300:]}")
    for name, digest in locked.items():
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
            raise MissingError(f"{folder / name} is not the jar that is locked")
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Broker:
    """One node that is broker and controller. `kill` ends it as a crash does; `start` starts it on the same data."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self._jars = jars()
        self._process: subprocess.Popen[bytes] | None = None
        control = free_port()
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{control}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{control}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(folder / "data"),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "auto.create.topics.enable": "false",
            "log.retention.check.interval.ms": "300000",
        }
        folder.mkdir(parents=True, exist_ok=True)
        self._settings = folder / "server.properties"
        self._settings.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self._java("kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(self._settings)).wait(120)

    @property
    def uri(self) -> str:
        return f"kafka://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the node, and wait until it answers."""
        self._process = self._java("kafka.Kafka", str(self._settings))
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.1)
        self.kill()
        raise MissingError(f"the broker did not start: {(self.folder / 'log').read_text()[-2000:]}")

    def kill(self) -> None:
        """End the node at once."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def _java(self, *arguments: str) -> subprocess.Popen[bytes]:
        # Little compilation: a test is over before that pays.
        line = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx384m", "-cp", f"{self._jars}/*", *arguments]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(line, stdout=log, stderr=log)
