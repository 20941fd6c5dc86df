"""A template and servers of workers: what they fork, how ends are told, when they end. Workers are plain programs."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dljob.runtime.forked_workers import clean_process, processes, server, starter, worker_ends

WAIT_S = 30.0
SERVE = """
import sys
from dljob.runtime.forked_workers import server
server.LIBRARIES, server.IDLE_S = tuple(sys.argv.pop().split()), float(sys.argv.pop())
server.REGISTER_S = float(sys.argv.pop())
server.IMPORTS = ("wave",)
server.main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
"""
WORKER = """
import json, os, sys
told = {"pid": os.getpid(), "env": os.environ.get("X"), "argv": sys.argv[1:], "cwd": os.getcwd()}
told |= {"first": sys.path[0], "leads": os.getsid(0) == os.getpid(), "known": "colorsys" in sys.modules}
told |= {"fds": len(os.listdir("/proc/self/fd")), "above": os.getppid(), "later": "wave" in sys.modules}
print(json.dumps(told), flush=True)
if "work" in sys.argv:
    os.execv(sys.executable, ["ray::Own", "-c", "input()"])
if "wait" in sys.argv:
    sys.stdin.read()
sys.exit(7)
"""


class Served:
    """A server, and connections to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = f"{folder}/server.sock"
        self.program = folder / "worker.py"
        self.program.write_text(WORKER)
        self.raylet = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.process: subprocess.Popen[bytes] | None = None
        self.left: list[Any] = []

    def start(
        self, imports: str = "colorsys", idle_s: float = 60.0, first_s: float = 60.0, register_s: float = 60.0
    ) -> None:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(self.path)
            listening.listen()
            listening.set_inheritable(True)
            own = [str(listening.fileno()), self.path, str(first_s), str(self.raylet.pid)]
            words = [*own, str(register_s), str(idle_s), imports]
            command = [sys.executable, "-c", SERVE, *words]
            self.process = subprocess.Popen(command, pass_fds=[listening.fileno()])

    def serve(self, name: str) -> str:
        """Have the template fork a server; return its path."""
        path = f"{self.folder}/{name}.sock"
        with starter.ask(self.path, ([path], {**os.environ, "X": "1"}), starter.SERVER) as line:
            line.settimeout(WAIT_S)
            assert line.recv(1) == starter.YES
            # A server has no starter that waits for its end.
            assert line.recv(1) == b""
        return path

    def ask(self, *words: str, path: str = "") -> tuple[socket.socket, dict[str, object]]:
        """Have a worker forked; return the connection, and what it prints."""
        reader, writer = os.pipe()
        before, stdin = os.dup(1), os.dup(0)
        waits, release = os.pipe()
        try:
            os.dup2(writer, 1)
            os.dup2(waits, 0)
            line = starter.ask(path or self.path, ([str(self.program), *words], {**os.environ, "X": "1"}))
        finally:
            os.dup2(before, 1)
            os.dup2(stdin, 0)
            for fd in (before, stdin, writer, waits):
                os.close(fd)
        self.left += [line, os.fdopen(release, "wb")]
        line.settimeout(WAIT_S)
        assert line.recv(1) == starter.YES
        with os.fdopen(reader) as out:
            told = json.loads(out.readline())
        return line, told

    def close(self) -> None:
        self.raylet.kill()
        self.raylet.wait(WAIT_S)
        for each in (*self.left, self.raylet.stdin):
            each.close()
        if self.process is not None:
            self.process.wait(WAIT_S)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path)
    yield made
    made.close()


def lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def eventually(check: Callable[[], bool]) -> bool:
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        if check():
            return True
        time.sleep(0.01)
    return False


def gone(pid: int) -> bool:
    return eventually(lambda: not lives(pid))


def files_of(pid: int) -> set[int]:
    return {int(each.name) for each in Path(f"/proc/{pid}/fd").iterdir()}


def leave_free(pid: int, used: set[int], free: int) -> None:
    """Leave a process so many numbers for further files, once it has those alone that it had."""
    end = time.monotonic() + WAIT_S
    while (now := files_of(pid)) != used:
        assert time.monotonic() < end, (now, used)
        time.sleep(0.01)
    # From 4 on: `poll` takes no more than the limit, and four are watched.
    most = next(n for n in range(4, 1000) if n - sum(fd < n for fd in used) == free)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def first_word(path: str, request: starter.Request, kind: str = starter.WORKER) -> bytes:
    """The first byte that a server says; empty where it says none."""
    with contextlib.suppress(ConnectionError), starter.ask(path, request, kind) as line:
        line.settimeout(WAIT_S)
        return line.recv(1)
    return b""


def test_how_a_worker_ended_is_known_on_its_node_for_a_while(served, monkeypatch):
    served.path = f"{served.folder}/{served.raylet.pid}-0.sock"
    monkeypatch.setenv(server.FOLDER, f"{served.raylet.pid}:{served.folder}")
    monkeypatch.setenv(clean_process.RAYLET, str(served.raylet.pid))
    served.start()
    ends = {}
    for word in ("", "wait"):
        line, told = served.ask(word)
        if word:
            assert worker_ends.wait_status(int(str(told["pid"]))) is None, "it lives"
            os.kill(int(str(told["pid"])), signal.SIGKILL)
        assert line.recv(1), "its starter hears of it later than the file is written"
        ends[word] = worker_ends.wait_status(int(str(told["pid"])))
    assert {word: status and os.waitstatus_to_exitcode(status) for word, status in ends.items()} == {"": 7, "wait": -9}
    monkeypatch.setattr(worker_ends, "FRESH_S", 0.0)
    assert worker_ends.wait_status(int(str(told["pid"]))) is None, "the pid may be another process's by now"
    monkeypatch.setattr(worker_ends, "FRESH_S", 60.0)
    pid = int(str(told["pid"]))
    assert worker_ends.wait_status_beside(pid) is None, "its note is its own raylet's"
    monkeypatch.setenv(clean_process.RAYLET, "1")
    assert worker_ends.wait_status(pid) is None, "a Ray of user code has no such servers"
    monkeypatch.setenv(server.FOLDER, f"1:{served.folder}")
    assert (worker_ends.wait_status(pid), worker_ends.wait_status_beside(pid)) == (None, signal.SIGKILL)


def test_notes_of_ends_take_little_room(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "ENDS_BYTES", 100)
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(path := f"{tmp_path}/7-0.sock")
        line.listen()
        made = server.WorkerServer(line, path, os.getpid(), 1.0)
        for pid in range(100, 200):
            made._note(pid, 256)
        made.leave()
        os.close(made._raylet)
    lines = Path(path + server.ENDS).read_text().splitlines()
    assert lines[-1].startswith("199 256 ")
    assert len(lines) < 15


def test_worker_that_is_not_registered_in_time_ends_with_its_starter(served):
    served.start(register_s=0.0)
    line, told = served.ask("wait")
    line.close()
    assert gone(int(str(told["pid"])))


def test_server_ends_with_its_raylet(served):
    served.start()
    served.ask()
    served.close()
    assert served.process is not None
    assert served.process.returncode == 0
    assert not Path(served.path).exists()


def test_server_removes_the_folder_of_a_raylet_that_has_ended(served):
    forks = Path(tempfile.mkdtemp(prefix="dljob-forks-", dir="/tmp"))
    served.path = f"{forks}/7-0123456789abcdef.sock"
    (forks / "7-0123456789abcdef.sock.lock").touch()
    served.start(first_s=0.1)
    assert served.process is not None
    assert served.process.wait(WAIT_S) == 0
    assert [each.suffix for each in forks.iterdir()] == [".lock"], "the raylet lives, and may want another server"
    served.start()
    served.ask()
    served.close()
    assert not forks.exists()


def test_server_without_workers_ends(served):
    served.start(first_s=0.2)
    assert served.process is not None
    assert served.process.wait(WAIT_S) == 0
    assert not Path(served.path).exists()


def test_server_without_further_workers_ends_after_its_first(served):
    served.start(idle_s=0.2)
    line, _ = served.ask()
    assert line.recv(1) == bytes([7])
    assert served.process is not None
    assert served.process.wait(WAIT_S) == 0


STARTS_A_THREAD = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
LOADS_A_DRIVER = """
import _ctypes, ctypes, pathlib, shutil
library = pathlib.Path(__file__).with_name("libcuda.so.1")
shutil.copy(_ctypes.__file__, library)
ctypes.CDLL(str(library))
"""


@pytest.mark.parametrize("body", [STARTS_A_THREAD, LOADS_A_DRIVER])
def test_server_whose_imports_no_fork_would_survive_forks_nobody(served, body):
    (served.folder / "not_to_fork.py").write_text(body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(served.folder), prepend=os.pathsep)
        served.start("no_such_module not_to_fork")
    assert served.process is not None
    assert served.process.wait(WAIT_S) == 0
    assert Path(served.path + starter.UNFIT).exists()
    assert not Path(served.path).exists()


def test_server_of_a_package_with_threads_of_its_own_forks_nobody(served):
    if find_spec("pyarrow") is None:
        pytest.skip("pyarrow is not installed: the extra `data` brings it")
    served.start("pyarrow")
    assert served.process is not None
    assert served.process.wait(WAIT_S) == 0
    assert Path(served.path + starter.UNFIT).exists()


def test_template_ends_behind_its_last_server(served):
    served.start(idle_s=0.2)
    line, _ = served.ask(path=served.serve("one"))
    assert line.recv(1) == bytes([7])
    assert served.process is not None
    assert served.process.wait(WAIT_S) == 0
    assert not list(served.folder.glob("*.sock"))


def test_server_whose_path_is_taken_is_not_forked(served):
    served.start()
    Path(taken := f"{served.folder}/taken").touch()
    with starter.ask(served.path, ([taken], dict(os.environ)), starter.SERVER) as line:
        line.settimeout(WAIT_S)
        assert line.recv(1) == b""
    line, _ = served.ask()
    assert line.recv(1) == bytes([7])


def test_server_without_a_file_left_keeps_its_workers_and_makes_room_for_another(served):
    served.start()
    line, told = served.ask("wait")
    assert served.process is not None
    pid, used = served.process.pid, files_of(served.process.pid)
    request = ([str(served.program)], {**os.environ, "X": "1"})
    # For the connection, and the three files of the start; one less, and the kernel drops some of these.
    for free, granted in ((4, starter.YES), (3, b""), (1, b"")):
        leave_free(pid, used, free)
        assert first_word(served.path, request) == granted
    leave_free(pid, used, 0)
    assert first_word(served.path, request) == b""
    assert not Path(served.path).exists()
    os.kill(int(str(told["pid"])), signal.SIGKILL)
    assert line.recv(1) == bytes([128 + 9])


def test_request_that_breaks_off_is_no_start(served):
    served.start()
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(served.path)
        line.sendall((100).to_bytes(4, "big") + b"[")
    line, _ = served.ask()
    assert line.recv(1) == bytes([7])


def test_start_that_breaks_off_leaves_no_file_in_a_server(served):
    served.start()
    served.ask("wait")
    assert served.process is not None
    used = files_of(served.process.pid)
    for text in (b"\0", (100).to_bytes(4, "big") + b"[", (1).to_bytes(4, "big") + b"["):
        with socket.socket(socket.AF_UNIX) as broken:
            broken.connect(served.path)
            socket.send_fds(broken, [text], [0, 1, 2])
    Path(taken := f"{served.folder}/taken").touch()
    assert first_word(served.path, ([taken], dict(os.environ)), starter.SERVER) == b""
    # The server takes one connection after the other, so it is done with all of these.
    assert files_of(served.process.pid) == used


def test_libraries_begin_with_one_thread_and_get_their_number_later(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    with server.one_thread():
        assert {os.environ[name] for name in server.THREADS} == {"1"}
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert "MKL_NUM_THREADS" not in os.environ
    program = (
        "import numpy, os, sys\nfrom dljob.runtime.forked_workers import server\n"
        "tasks = lambda: len(os.listdir('/proc/self/task'))\n"
        "before = tasks()\ndel os.environ['OPENBLAS_NUM_THREADS']\n"
        "os.environ['OMP_NUM_THREADS'] = '3,2'\nserver.set_threads()\n"
        "a = numpy.ones((512, 512)); a @ a\nprint(before, tasks())"
    )
    env = {**os.environ, **dict.fromkeys(server.THREADS, "1")}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "3"], done.stderr


def test_processes_of_a_raylet_are_those_of_its_servers_too(served, monkeypatch):
    served.start()
    _, told = served.ask("wait")
    assert served.process is not None
    # The server of these tests is no program of its own.
    monkeypatch.setattr(processes, "SERVER", SERVE)
    monkeypatch.setattr(processes, "_serves", lambda words, raylet: SERVE in words and f"\0{raylet}\0" in words)
    found = processes.of_raylet(served.raylet.pid)
    assert found == [served.raylet.pid, served.process.pid, told["pid"]]


def test_server_is_known_by_its_program_and_its_raylet():
    words = ["python", processes.SERVER, "3", "/f/1-2.sock", "77", ""]
    assert processes._serves("\0".join(words), 77)
    assert not processes._serves("\0".join(words), 7)
    assert not processes._serves("\0".join(["python", "other.py", "77", ""]), 77)
