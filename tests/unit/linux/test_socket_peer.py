"""The process at the other end of a Unix socket, as the kernel names it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from dljob.linux.socket_peer import peer

CONNECT = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.recv(1)"


def test_the_peer_of_a_socket_is_the_process_that_connected(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        with subprocess.Popen([sys.executable, "-c", CONNECT, str(tmp_path / "socket")]) as other:
            line, _ = listener.accept()
            with line:
                assert peer(line) == (other.pid, os.getuid())
