"""The child that joins a Ray: killed when it hangs, with Ray's last words; it takes no variables but the token's."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from dljob.errors import UnreachableError
from dljob.runtime.control_socket.client import NoAnswerError
from dljob.runtime.control_socket.messages import request, result
from dljob.runtime.job import socket_relay

UID = "a" * 32
ADDRESS = "127.0.0.1:1"
JOINS = 'line.sendall(b\'{"answer": "ready"}\\n\')\n'
ECHOES = "line.sendall(b'{\"answer\": 7}\\n') if line.recv(2**20) else 0\n"


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the child does instead of joining a Ray, and how it was started."""
    popen, made = subprocess.Popen, {"does": "pass"}

    def start(words: list[str], **more: Any) -> Any:
        code = f"import os, socket, sys, time\nline = socket.socket(fileno={words[-3]})\n{made['does']}"
        made["started"] = popen([sys.executable, "-I", "-S", "-c", code], **more)
        made["env"] = more["env"]
        return made["started"]

    monkeypatch.setattr(socket_relay.subprocess, "Popen", start)
    return made


def test_questions_are_answered_until_the_block_ends(child):
    child["does"] = JOINS + ECHOES + "line.recv(1)"
    with socket_relay.Relay(ADDRESS, UID, {"RAY_AUTH_TOKEN_PATH": "/t", "LD_PRELOAD": "/x.so"}) as line:
        assert result(line.ask(request(UID, "pids", ()), 10)) == 7
    assert child["started"].returncode is not None
    assert child["env"]["RAY_AUTH_TOKEN_PATH"] == "/t"
    assert "LD_PRELOAD" not in child["env"]


def test_a_ray_init_that_hangs_is_killed(child, monkeypatch):
    monkeypatch.setattr(socket_relay, "JOIN_S", 0.3)
    child["does"] = "os.write(2, b'Failed to connect to GCS\\n')\ntime.sleep(1000)"
    with pytest.raises(UnreachableError, match=r"within 0.3 s: no answer.*other ways failed before: no socket"):
        socket_relay.Relay(ADDRESS, UID, {}, tried="no socket").__enter__()
    assert child["started"].returncode is not None


def test_a_child_that_ends_says_rays_last_words(child):
    child["does"] = "os.write(2, b'first\\nFailed to connect to GCS\\n')"
    with pytest.raises(UnreachableError, match="ended; Ray said: Failed to connect to GCS"):
        socket_relay.Relay(ADDRESS, UID, {}).__enter__()


def test_a_refusal_of_ray_is_told(child):
    child["does"] = 'line.sendall(b\'{"error": "UnreachableError", "message": "no token", "hint": "set it"}\\n\')'
    with pytest.raises(UnreachableError, match="no token; other ways failed before: x\n  set it"):
        socket_relay.Relay(ADDRESS, UID, {}, tried="x").__enter__()


def test_a_late_answer_is_never_taken_for_a_later_one(child):
    child["does"] = JOINS + "time.sleep(1000)"
    with socket_relay.Relay(ADDRESS, UID, {}) as line:
        with pytest.raises(NoAnswerError):
            line.ask(request(UID, "pids", ()), 0.01)
        with pytest.raises(NoAnswerError, match="is gone"):
            line.ask(request(UID, "pids", ()), 0.01)


class Job:
    uid = UID

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def command(self, kind: str, target: str, *, by: str, **order: str) -> None:
        self.asked.append((kind, target, by, order["id"]))

    def learned(self, target: str, incarnation: int, clue: Any) -> None:
        self.asked.append((target, incarnation, clue.text))

    def pids(self) -> dict[str, int]:
        return {"master": 1}

    def final(self) -> None:
        return None

    def wait(self, timeout_s: float) -> dict[str, Any]:
        from dljob.errors import DeadlineError

        raise DeadlineError(f"not within {timeout_s}")


def test_the_child_asks_ray_what_it_is_asked():
    job: Any = Job()
    for call, args in (("command", ("1", "stop", "job", "me")), ("learned", ("a/0", 1, "kernel", "oom"))):
        assert result(socket_relay._reply(job, request(UID, call, args))) is None
    assert job.asked == [("stop", "job", "me", "1"), ("a/0", 1, "oom")]
    assert result(socket_relay._reply(job, request(UID, "pids", ()))) == {"master": 1}
    assert result(socket_relay._reply(job, request(UID, "wait", (0.0,)))) is None
    assert result(socket_relay._reply(job, request(UID, "wait", (0.1,)))) is None
    with pytest.raises(UnreachableError):
        result(socket_relay._reply(job, request("b" * 32, "pids", ())))


def test_the_child_imports_nothing_from_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit('a file of another user')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(socket_relay, "JOIN_S", 60.0)
    with pytest.raises(UnreachableError, match="no Ray answers at"):
        socket_relay.Relay(ADDRESS, UID, {}).__enter__()
