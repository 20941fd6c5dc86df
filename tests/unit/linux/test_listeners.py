"""Who listens on a port of this machine."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from dljob.linux import listeners

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_own_listener_is_found_by_its_port(host: str) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as server:
        try:
            server.bind((host, 0))
        except OSError:
            pytest.skip(f"no {host} on this machine")
        port = server.getsockname()[1]
        assert listeners.users_of(port) == frozenset()
        server.listen()
        assert listeners.users_of(port) == {os.getuid()}


def test_users_of_both_tables_are_told_and_connections_are_not(tmp_path: Path) -> None:
    row = "   0: 0100007F:2049 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  {uid}        0 7\n"
    (tmp_path / "tcp").write_text(HEAD + row.format(state="0A", uid=1000) + row.format(state="01", uid=3))
    assert listeners.users_of(0x2049, tmp_path) == {1000}
    (tmp_path / "tcp6").write_text(HEAD + row.format(state="0A", uid=1001))
    assert listeners.users_of(0x2049, tmp_path) == {1000, 1001}
    assert listeners.users_of(0x2050, tmp_path) == frozenset()
