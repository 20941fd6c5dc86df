"""What a starter asks for, and of whom; everything else is done as Ray does it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob.runtime.forked_workers import server, starter
from dljob.runtime.forked_workers.raylet_command import SWITCH, WANTED, imports_env, is_forked, with_forked_workers
from dljob.runtime.forked_workers.starter import CONTEXT, request_of

PYTHON = "/venv/bin/python"
ENV = {"RAY_JOB_ID": "01000000", "HOME": "/root"}
WORDS = ["/ray/setup_worker.py", "/ray/default_worker.py", "--node-id=1", "--language=PYTHON"]


def asked(environ: dict[str, str] = ENV, /, *more: str, **context: object) -> starter.Request | None:
    told = [f"{CONTEXT}{json.dumps(context)}"] if context else []
    return request_of([*WORDS, *more, *told], environ, PYTHON)


def test_request_has_rays_program_and_the_environment():
    assert asked() == (["/ray/default_worker.py", "--node-id=1"], ENV)
    assert asked(ENV, env_vars={"A": "1"}, py_executable=PYTHON) == (
        ["/ray/default_worker.py", "--node-id=1"],
        {**ENV, "A": "1"},
    )


def test_variables_of_an_environment_are_expanded_as_ray_does_it():
    told = {"A": "${HOME}/x", "B": "$HOME:${NONE}:$NONE", "C": "${A}", "D": "${lower}"}
    found = asked(ENV, env_vars=told)
    assert found is not None
    wanted = {"A": "/root/x", "B": "/root::$NONE", "C": "/root/x", "D": "${lower}"}
    assert {name: found[1][name] for name in told} == wanted


@given(st.text(alphabet="${}AB_\\ 1", max_size=12))
def test_expansion_is_that_of_python(text):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", {"A": "a", "B1": "$A"})
        assert starter._expanded(text, {"A": "a", "B1": "$A"}) == os.path.expandvars(text)


def test_workers_that_only_ray_can_start():
    assert asked({"HOME": "/root"}) is None  # before any job: Ray would abort when it is loaded
    assert asked(ENV, "--worker-type=SPILL_WORKER") is None
    assert asked(ENV, py_executable="/other/python") is None
    assert asked(ENV, command_prefix=["podman"]) is None
    assert asked(ENV, override_worker_entrypoint="/x.py") is None
    assert request_of(["/ray/setup_worker.py"], ENV, PYTHON) is None


def test_each_environment_has_a_server_of_its_own():
    one, other = (starter.socket_of("/f", {**ENV, "A": value}, 7) for value in "12")
    assert one != other
    assert one == starter.socket_of("/f", {"A": "1", **ENV}, 7)
    assert one.startswith("/f/7-")


def test_number_of_servers_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(starter, "MOST", 1)
    of_another = starter.listening(f"{tmp_path}/1-of-another-raylet.sock")
    with of_another, starter.listening(f"{tmp_path}/77-other.sock"), pytest.raises(OSError, match="too many envir"):
        starter.reach(str(tmp_path), (["x"], ENV), 77)


def test_server_that_was_killed_leaves_room_for_another(tmp_path, monkeypatch):
    monkeypatch.setattr(starter, "MOST", 2)
    starter.listening(f"{tmp_path}/77-killed.sock").close()
    (tmp_path / f"77-other.sock{starter.UNFIT}").touch()
    thread = answers(starter.socket_of(str(tmp_path), {"HOME": "/root"}, 77), b"n")  # the template is the only one
    with pytest.raises(OSError, match="the template forks no server"):
        starter.reach(str(tmp_path), (["x"], ENV), 77)
    thread.join()


def answers(path: str, *given: bytes) -> threading.Thread:
    """Listen at a path, and answer each connection."""
    line = starter.listening(path)

    def answer() -> None:
        with line:
            for each in given:
                made, _ = line.accept()
                with made:
                    start = server._received(made)
                    for fd in start.files:
                        os.close(fd)
                    if start.line is not None:
                        start.line.close()
                    made.sendall(each)

    thread = threading.Thread(target=answer)
    thread.start()
    return thread


def test_template_that_was_killed_is_started_again(tmp_path, monkeypatch):
    starter.listening(starter.socket_of(str(tmp_path), {"HOME": "/root"}, 77)).close()
    begun: list[str] = []

    def start(line: socket.socket, path: str, *_: object) -> None:
        begun.append(path)
        line.close()

    monkeypatch.setattr(starter, "_start", start)
    with pytest.raises(ConnectionRefusedError):
        starter.reach(str(tmp_path), (["x"], ENV), 77)
    assert len(begun) == 1


def run_with(
    monkeypatch: pytest.MonkeyPatch, *ends: bytes | OSError, parents: Iterator[int] | None = None
) -> tuple[int | None, int]:
    """Run workers of servers that say these words and close; return the exit code and the number of workers asked."""
    left = list(ends)

    def reach(*_: object) -> socket.socket:
        if isinstance(said := left.pop(0), OSError):
            raise said
        mine, other = socket.socketpair()
        with other:
            other.sendall(said)
        return mine

    monkeypatch.setattr(starter, "reach", reach)
    monkeypatch.setattr(os, "getppid", lambda: next(parents) if parents else 77)
    code = starter.run_forked("/folder", (["x"], ENV))
    return code, len(ends) - len(left)


KILLED = bytes([128 + 9])


@pytest.mark.parametrize(
    ("ends", "code", "workers"),
    [
        ([b"yr" + bytes([7])], 7, 1),
        ([b"yr"], 1, 1),  # the server was killed, and later the worker
        ([b"yr" + KILLED], 137, 1),
        ([b"r"], 1, 1),  # the server was killed between the fork and its answer
        ([b"y" + bytes([3])], 3, 1),  # it has ended by itself, as it would again
        ([b"", b"yr\0"], 0, 2),  # the server was killed before it forked
        ([ConnectionResetError(), ConnectionRefusedError(), b"yr\0"], 0, 3),
        ([b"y", b"yr\0"], 0, 2),  # both were killed while the worker started
        ([b"y" + KILLED, b"yr\0"], 0, 2),
        ([b"y", b"y", b"y" + KILLED], None, 3),  # Ray may be luckier
        ([TimeoutError()], None, 1),
        ([b"n", b"n", b"n"], None, 3),
    ],
)
def test_worker_that_is_killed_before_its_raylet_knows_it_is_replaced(monkeypatch, ends, code, workers):
    """The raylet would wait for it for a minute, and each restart of a rank on that node behind it."""
    assert run_with(monkeypatch, *ends) == (code, workers)


def test_starter_whose_raylet_has_ended_starts_no_other_worker(monkeypatch):
    assert run_with(monkeypatch, b"y", parents=iter([77, 1])) == (1, 1)


def test_slow_template_holds_up_no_worker_of_another_environment(tmp_path):
    other = {**ENV, "A": "1"}
    slow = starter.listening(starter.socket_of(str(tmp_path), {"HOME": "/root"}, 77))
    given: list[OSError] = []

    def wait() -> None:
        try:
            starter.reach(str(tmp_path), (["x"], ENV), 77)
        except OSError as error:
            given.append(error)

    with slow:
        waiting = threading.Thread(target=wait)
        waiting.start()
        asked, _ = slow.accept()
        thread = answers(starter.socket_of(str(tmp_path), {"HOME": "/root", "A": "1"}, 77), starter.YES)
        with pytest.raises(ConnectionRefusedError):  # its template is no server, but makes its socket
            starter.reach(str(tmp_path), (["x"], other), 77)
        thread.join()
        assert waiting.is_alive()
        asked.close()
    waiting.join()
    assert len(given) == 1


@pytest.mark.parametrize(("import_s", "is_left"), [(0.0, False), (60.0, True)], ids=["hangs", "imports"])
def test_template_or_server_that_hangs_is_replaced(import_s, is_left, tmp_path, monkeypatch):
    monkeypatch.setattr(starter, "PATIENCE_S", 0.05)
    monkeypatch.setattr(starter, "IMPORT_S", import_s)
    monkeypatch.setattr(os, "getppid", lambda: 77)
    for env in (ENV, {"HOME": "/root"}):
        path = starter.socket_of(str(tmp_path), env, 77)
        with starter.listening(path):
            assert starter.run_forked(str(tmp_path), (["x"], ENV)) is None
            assert Path(path).exists() == is_left
        Path(path).unlink(missing_ok=True)


def test_starter_does_not_wait_for_ever_for_a_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(starter, "PATIENCE_S", 0.05)
    with starter.locked(f"{tmp_path}/a"), starter.locked(f"{tmp_path}/b"), pytest.raises(BlockingIOError):
        starter.locked(f"{tmp_path}/a")
    starter.locked(f"{tmp_path}/a").close()


def test_template_that_must_not_fork_is_not_asked(tmp_path):
    Path(starter.socket_of(str(tmp_path), {"HOME": "/root"}, 77) + starter.UNFIT).touch()
    with pytest.raises(OSError, match="start threads"):
        starter.reach(str(tmp_path), (["x"], ENV), 77)


def test_server_that_must_not_fork_is_not_asked_again(tmp_path):
    path = starter.socket_of(str(tmp_path), ENV, 77)
    Path(path + starter.UNFIT).touch()
    with pytest.raises(OSError, match="start threads"):
        starter.reach(str(tmp_path), (["x"], ENV), 77)
    assert (starter.YES, starter.UNFIT, starter.IDLE_S) == (server.YES, server.UNFIT, server.IDLE_S)


def test_standard_files_that_are_closed_are_opened():
    code = "import os\nfrom dljob.runtime.forked_workers import starter\nstarter.open_standard_files()\n"
    code += "os.write(2, ' '.join(os.readlink(f'/proc/self/fd/{fd}') for fd in (0, 1)).encode())"
    words = ["sh", "-c", 'exec "$@" <&- >&-', "sh", sys.executable, "-c", code]
    done = subprocess.run(words, stderr=subprocess.PIPE, text=True, check=True)
    assert done.stderr.split() == [os.devnull] * 2


def test_request_arrives_with_the_files_of_the_starter(tmp_path):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{tmp_path}/s")
        listening.listen()
        with starter.ask(f"{tmp_path}/s", (["a", "b"], {"X": "é" * 9000})):
            line, _ = listening.accept()
            start = server._received(line)
            line.close()
    assert (start.argv, start.env, start.folder, start.starter) == (
        *(["a", "b"], {"X": "é" * 9000}),
        *(os.getcwd(), os.getpid()),  # noqa: PTH109 - as it is sent
    )
    assert [os.fstat(fd).st_ino for fd in start.files] == [os.fstat(fd).st_ino for fd in (0, 1, 2)]
    for fd in start.files:
        os.close(fd)


def test_raylets_command_gets_the_starter_before_its_words():
    import sys

    words = f"{sys.executable} /ray/setup_worker.py /ray/default_worker.py --x=1"
    command = ["/ray/raylet", "--a=b", f"--python_worker_command={words}", "--c=d"]
    (*_, made, _) = with_forked_workers(command, Path("/f"), {})
    assert made == f"--python_worker_command={sys.executable} -I -S {starter.__file__} /f {words.partition(' ')[2]}"
    assert with_forked_workers(command, Path("/f"), {SWITCH: "0"}) == command


@pytest.mark.parametrize("words", ["python3 /ray/setup_worker.py x", "{python} /ray/default_worker.py x"])
def test_unfamiliar_command_of_a_raylet_stays(words):
    import sys

    command = ["/ray/raylet", f"--python_worker_command={words.format(python=sys.executable)}"]
    assert with_forked_workers(command, Path("/f"), {}) == command
    assert with_forked_workers(["/ray/raylet"], Path("/f"), {}) == ["/ray/raylet"]


def test_modules_are_asked_for_where_workers_are_forked():
    assert imports_env(("torch", "torch.distributed"), {SWITCH: "1"}) == ((WANTED, "torch,torch.distributed"),)
    assert imports_env(("torch",), {}) == imports_env((), {SWITCH: "1"}) == ()
    assert (SWITCH, WANTED) == (server.SWITCH, server.WANTED)
    assert [is_forked({SWITCH: value}) for value in "10"] == [True, False]
    assert not is_forked({})
