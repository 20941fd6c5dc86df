"""A real openYuanrong datasystem: one worker process on loopback that contains the metadata service."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Datasystem:
    """A datasystem that runs for the `with` block; `environment` holds the variables that its clients need."""

    def __init__(self, megabytes: int = 512) -> None:
        self._folder = Path(
            tempfile.mkdtemp(prefix="dld-", dir="/tmp")
        )  # Short, because socket paths hold at most 107 bytes.
        self._megabytes = megabytes
        self._port, self._meta = free_port(), free_port()
        self.pid = 0

    @property
    def environment(self) -> dict[str, str]:
        logs = str(self._folder / "clients")
        return {
            "DATASYSTEM_HOST": "127.0.0.1",
            "DATASYSTEM_PORT": str(self._port),
            "DATASYSTEM_CLIENT_LOG_DIR": logs,
        }

    def __enter__(self) -> Self:
        said = self._dscli(
            "start", "-d", str(self._folder), "-w", "--worker_address", f"127.0.0.1:{self._port}",
            "--metastore_address", f"127.0.0.1:{self._meta}", "--start_metastore_service", "true",
            "--shared_memory_size_mb", str(self._megabytes),
        )  # fmt: skip
        found = re.search(r"success, PID: (\d+)", said)
        assert found, said
        self.pid = int(found[1])
        return self

    def __exit__(self, *_: Any) -> None:
        try:
            self._dscli("stop", "--worker_address", f"127.0.0.1:{self._port}")
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _dscli(self, *args: str) -> str:
        command = [str(Path(sys.executable).parent / "dscli"), *args]
        done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
