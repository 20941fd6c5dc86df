"""A command's end of the control socket: every way in which nobody answers ends in a reason."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from socket_kit import UID, Master, serving

from dljob.errors import DeadlineError, UnreachableError
from dljob.master.state.views import Clue
from dljob.runtime.control_socket import client
from dljob.runtime.control_socket.client import LocalConnection, SocketLine


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "REACH_S", 0.02)


def connection(folder: Path, gone: Callable[[], str] = lambda: "") -> LocalConnection:
    return LocalConnection("ppo", UID, folder, SocketLine(folder), why_gone=gone)


@contextmanager
def holder(folder: Path, says: bytes | None) -> Iterator[None]:
    """A process that holds the socket of the job, and is no PrimeMaster: it says this, or nothing."""
    path = folder / "control.sock"
    (folder / "job.json").write_text(json.dumps({"socket": str(path)}))
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(str(path))
        line.listen()
        taken: list[socket.socket] = []

        def serve() -> None:
            try:
                while True:
                    taken.append(line.accept()[0])
                    if says is not None:
                        taken[-1].sendall(says)
                        taken[-1].shutdown(socket.SHUT_WR)
            except OSError:
                pass

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            line.shutdown(socket.SHUT_RDWR)
            thread.join()
            for each in taken:
                each.close()


def test_questions_and_orders_reach_primemaster(tmp_path):
    master = Master()
    with serving(tmp_path, master=master):
        own = connection(tmp_path)
        assert own.status()["phase"] == "Running"
        own.command("scale", "actor=2", by="pid 1")
        own.learned("actor/0", 1, Clue("kernel", "Out of memory"))
        assert master.asked == [("scale", "actor=2"), ("actor/0", 1, "kernel", "Out of memory")]
        assert own.notes()[0]["message"] == "scale"
        assert own.stacks("actor/0") == {"actor/0": "File x, line 1"}
        assert own.pids() == {"master": 1}
        assert own.final() is None
        with pytest.raises(DeadlineError):
            own.wait(0.001)


def test_an_ended_job_is_answered_for_by_its_folder(tmp_path):
    (tmp_path / "job.json").write_text("{}")
    (tmp_path / "status.json").write_text(json.dumps({"name": "ppo", "phase": "Failed"}))
    (tmp_path / "events.jsonl").write_text(json.dumps({"seq": 1}) + "\n")
    own = connection(tmp_path)
    assert own.wait()["phase"] == "Failed"
    assert own.status()["phase"] == "Failed"
    assert own.notes() == [{"seq": 1}]
    own.command("stop")


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({}, "has not opened its control socket yet"),
        ({"socket_trouble": "the disk is full"}, "the disk is full"),
        ({"socket": "/nowhere/x-1-2.sock"}, "is a copy: the job whose socket its job.json names runs elsewhere"),
        ({"socket": "control.sock"}, "no process answers at .*control.sock: No such file or directory"),
        ({"socket": "x" * 200}, "path too long"),
    ],
)
def test_a_missing_control_socket_is_refused_with_the_reason(entry, why, tmp_path):
    (tmp_path / "job.json").write_text(json.dumps(entry))
    with pytest.raises(UnreachableError, match=why):
        connection(tmp_path).pids()


@pytest.mark.usefixtures("_impatient")
def test_an_unreadable_job_json_is_refused(tmp_path):
    (tmp_path / "job.json").write_text("[")
    with pytest.raises(UnreachableError, match="cannot be read"):
        connection(tmp_path).pids()


def test_a_job_whose_runner_is_gone_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "REACH_S", 1000)
    (tmp_path / "job.json").write_text("{}")
    with pytest.raises(UnreachableError, match="its runner"):
        connection(tmp_path, gone=lambda: "its runner ended").pids()


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize(
    ("says", "why"),
    [
        (None, "does not answer"),
        (b"", "the connection was closed"),
        (b"220 mail\n", "does not answer as PrimeMaster does"),
        (b'{"error": "UnreachableError", "message": "this is the socket of job b"}\n', "this is the socket of job b"),
    ],
)
def test_a_control_socket_held_by_another_process_is_refused(says, why, tmp_path):
    with holder(tmp_path, says), pytest.raises(UnreachableError, match=why):
        connection(tmp_path).pids()


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("says", [None, b""])
def test_an_order_without_an_answer_stands_and_one_that_was_not_sent_does_not(says, tmp_path):
    with holder(tmp_path, says), pytest.raises(UnreachableError) as error:
        connection(tmp_path).command("stop")
    assert error.value.message.endswith("; the order stands")
    assert f"dljob status {UID[:8]}" in error.value.hint
    with pytest.raises(UnreachableError, match="Connection refused") as error:
        connection(tmp_path).command("stop")
    assert "the order stands" not in error.value.message
    assert "dljob status" not in error.value.hint


def test_a_socket_that_another_user_holds_gets_no_order(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "peer", lambda _: (99, os.getuid() + 4711))
    with holder(tmp_path, b""), pytest.raises(UnreachableError, match="held by process 99 of user") as error:
        connection(tmp_path).pids()
    assert "remove" in error.value.hint


class Fading:
    """Answers once, then never again."""

    def __init__(self) -> None:
        self.patience: list[float] = []

    def ask(self, request: bytes, seconds: float) -> bytes:
        self.patience.append(seconds)
        if len(self.patience) > 1:
            raise client.NoAnswerError("nobody is there")
        return b'{"answer": {"worker/0": 4711}}\n'


def test_a_client_that_has_reached_the_job_waits_longer_for_a_restarting_primemaster(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "REACH_S", 1000.0)
    monkeypatch.setattr(client, "AWAY_S", 0.02)
    line = Fading()
    job = LocalConnection("ppo", UID, tmp_path, line, why_gone=lambda: "")
    assert job.pids() == {"worker/0": 4711}
    with pytest.raises(UnreachableError, match="nobody is there"):
        job.pids()
    assert line.patience[0] > 900
    assert max(line.patience[1:]) < 1
