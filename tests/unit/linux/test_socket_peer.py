"""The process at the other end of a Unix socket, as the kernel names it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from unittest.mock import Mock

import pytest

from dljob.errors import CheckpointError, UnreachableError
from dljob.linux.socket_peer import connect_to_own, peer
from dljob.runtime.checkpoint.client import CheckpointClient
from dljob.runtime.checkpoint.model import CheckpointLocation
from dljob.runtime.forked_workers import starter
from dljob.runtime.process.rank_link import RankLink

CONNECT = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.recv(1)"
LISTEN = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
lines = [socket.socket(socket.AF_UNIX, kind) for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET)]
for line, name in zip(lines, sys.argv[1:]):
    line.bind("\\0" + name)
    line.listen()
print(os.getpid(), flush=True)
sys.stdin.read()
"""


def test_the_peer_of_a_socket_is_the_process_that_connected(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        with subprocess.Popen([sys.executable, "-c", CONNECT, str(tmp_path / "socket")]) as other:
            line, _ = listener.accept()
            with line:
                assert peer(line) == (other.pid, os.getuid())


@pytest.fixture
def of_another_user() -> Iterator[tuple[int, str]]:
    """A process of another user that has bound two abstract addresses: its pid and their common beginning."""
    if os.geteuid() != 0:
        pytest.skip("only root can start a process of another user")
    name = f"dljob-test-{os.getpid()}"
    command = [sys.executable, "-c", LISTEN, f"{name}-stream", f"{name}-packets"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        yield int(process.stdout.readline()), name
        process.kill()


def test_nothing_is_sent_to_another_user_s_process(of_another_user: tuple[int, str]) -> None:
    pid, name = of_another_user
    said = f"process {pid} of user 65534 listens there"
    with socket.socket(socket.AF_UNIX) as line, pytest.raises(PermissionError, match=said):
        connect_to_own(line, f"\0{name}-stream")
    with pytest.raises(UnreachableError, match=said):
        RankLink(f"@{name}-stream", Mock())
    with pytest.raises(PermissionError, match="another user listens there"):
        starter.ask(f"\0{name}-stream", (["default_worker.py"], {"API_KEY": "secret"}))
    place = CheckpointLocation(f"@{name}-packets", "/nowhere", "w/0", 0, 1, 1, 1, 1, "w/0")
    with pytest.raises(CheckpointError, match=f"the saver does not answer: {said}"):
        CheckpointClient(lambda: asdict(place), print).save(1, {"a": 1}, persist=True)
