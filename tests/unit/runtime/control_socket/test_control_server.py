"""PrimeMaster's end of the control socket: whom it answers, what it refuses, what it leaves."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path

import pytest
from socket_kit import UID, Master, ask, closed, dial, serving

from dljob.runtime.control_socket import location, server
from dljob.runtime.control_socket.client import NoAnswerError, SocketLine
from dljob.runtime.control_socket.messages import REQUEST_BYTES, request

PIDS = request(UID, "pids", ())


def said(folder: Path) -> dict[str, str]:
    return json.loads((folder / "job.json").read_text())


def test_the_owner_is_answered_and_job_json_names_the_socket(tmp_path):
    with serving(tmp_path) as made:
        assert made.path == tmp_path / "control.sock"
        assert made.path.stat().st_mode & 0o777 == 0o600
        assert said(tmp_path)["socket"] == "control.sock"
        with dial(made.path) as line:
            assert ask(line, PIDS) == {"answer": {"master": 1}}
            assert ask(line, b"nonsense\n")["error"] == "UsageError"
            assert ask(line, PIDS) == {"answer": {"master": 1}}
    assert [path.name for path in tmp_path.iterdir()] == ["job.json"]


def test_a_moved_folder_leads_to_its_master_and_a_copied_entry_to_none(tmp_path):
    folder, copy, moved = (tmp_path / name for name in ("job", "copy", "moved"))
    copy.mkdir()
    with serving(folder):
        shutil.copy(folder / "job.json", copy)
        with pytest.raises(NoAnswerError, match=f"no process answers at {copy}/control.sock: No such file"):
            SocketLine(copy).ask(PIDS, 1.0)
        folder.rename(moved)
        assert json.loads(SocketLine(moved).ask(PIDS, 10.0)) == {"answer": {"master": 1}}


def test_another_user_is_refused_and_root_is_not(tmp_path, monkeypatch):
    with serving(tmp_path) as made:
        monkeypatch.setattr(server, "peer", lambda _: (1, os.geteuid() + 4711))
        with dial(made.path) as line:
            assert "may not control" in ask(line, PIDS)["message"]
            assert closed(line)
        monkeypatch.setattr(server, "peer", lambda _: (1, 0))
        with dial(made.path) as line:
            assert "answer" in ask(line, PIDS)


def test_a_request_over_a_mebibyte_ends_the_connection(tmp_path):
    with serving(tmp_path) as made, dial(made.path) as line:
        assert f"at most {REQUEST_BYTES} bytes" in ask(line, b"x" * (REQUEST_BYTES + 1))["message"]
        assert closed(line)


def test_the_seventeenth_client_is_refused(tmp_path):
    with serving(tmp_path) as made:
        lines = [dial(made.path) for _ in range(server.CLIENTS)]
        assert all("answer" in ask(line, PIDS) for line in lines)
        with dial(made.path) as late:
            assert "16 commands" in ask(late, b"")["message"]
        lines.pop().close()
        assert all("answer" in ask(line, PIDS) for line in lines)
        for line in lines:
            line.close()


def test_silent_clients_are_dropped(tmp_path):
    with serving(tmp_path, silent_s=0.01) as made, dial(made.path) as silent, dial(made.path) as slow:
        slow.sendall(PIDS[:10])
        assert closed(silent)
        assert closed(slow)


def test_a_stale_socket_is_replaced_and_one_of_a_later_master_is_left(tmp_path):
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(str(tmp_path / "control.sock"))
        held.listen()
        with serving(tmp_path) as first, dial(first.path) as line:
            assert "answer" in ask(line, PIDS)
            with serving(tmp_path) as second:
                first.close()
                with dial(second.path) as again:
                    assert "answer" in ask(again, PIDS)


def test_a_file_system_without_sockets_gets_it_elsewhere(tmp_path, short, monkeypatch):
    folder, elsewhere = tmp_path / "nfs", short
    bind = socket.socket.bind

    class Line(socket.socket):
        def bind(self, where: str) -> None:
            if where.startswith(str(folder)):
                raise PermissionError(1, "Operation not permitted")
            bind(self, where)

    monkeypatch.setattr(server.socket, "socket", Line)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(elsewhere))
    with serving(folder) as made:
        assert made.path is not None
        assert made.path.parent == elsewhere / "dljob"
        assert said(folder)["socket"] == str(made.path)
    assert list((elsewhere / "dljob").iterdir()) == []
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(location, "private_folders", lambda: iter(()))
    with serving(folder) as none:
        assert none.path is None
        assert "Operation not permitted" in said(folder)["socket_trouble"]


def test_a_job_that_commands_of_this_machine_do_not_find_has_no_socket(tmp_path):
    import asyncio

    made = server.ControlSocket(tmp_path, UID, Master().calls())
    asyncio.run(made.open())
    made.close()
    assert list(tmp_path.iterdir()) == []
