"""Forked ranks: main thread, true exit codes, signals, and nothing left behind. No Ray."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fork_kit import Server, alive

from dljob.runtime.forked_workers import clean_process
from dljob.runtime.forked_workers.server import FOLDER
from dljob.runtime.process.preload import Preload
from dljob.runtime.worker import forkserver, script


@pytest.fixture
def server(tmp_path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.close()


def wait_for(check, what: str, timeout: float = 20.0):
    end = time.monotonic() + timeout
    while not (got := check()):
        assert time.monotonic() < end, what
        time.sleep(0.01)
    return got


def armed(server: Server, rank: int = 0) -> None:
    wait_for(lambda: "armed" in server.log(rank), "the script did not come up")


def code(event) -> int:
    return os.waitstatus_to_exitcode(event["status"])


def test_script_runs_in_the_main_thread_of_its_own_group_without_ray(server):
    ended = server.run("module", "behave.py", args=["facts"])
    assert code(ended) == 0
    said = server.log()
    assert said.startswith("__main__ True ")
    assert "['behave.py', 'facts'] True False" in said


def test_module_runs_as_python_dash_m_does(server):
    assert code(server.run("module", "behave", args=["facts"])) == 0
    assert server.log().startswith("__main__ True ")


def test_a_script_that_ends_itself_tells_where_and_what_failed_before(server):
    words = server.run("module", "behave.py", args=["exit", "3"])["words"]
    assert (words["error_type"], words["message"]) == ("SystemExit", "sys.exit(3) (in run)")
    assert words["frame"].startswith("behave.py:")
    ended = server.run("module", "behave.py", args=["thread"], rank=1)
    assert (code(ended), ended["words"]) == (7, {})
    (earlier,) = ended["earlier"]
    assert earlier.startswith("thread loader raised KeyError: 'labels' at behave.py:")


def test_a_rank_is_bound_to_the_cores_near_its_device_before_it_is_anything(server):
    core = max(os.sched_getaffinity(0))
    near = {"mode": "node", "device": "GPU 3", "cores": [core], "error": ""}
    program = "import os; print(os.sched_getaffinity(0))"
    assert code(server.run("command", sys.executable, "-c", program, settings={"near": near})) == 0
    words, seen = server.log().splitlines()
    assert words.startswith(f"[dljob] bound to {core}, the cores near GPU 3")
    assert seen == str({core})


def test_a_rank_that_cannot_be_bound_does_not_begin_and_is_not_tried_again(server):
    near = {"mode": "node", "device": "GPU 3", "cores": [], "error": "RuntimeError: no accelerator"}
    ended = server.run("module", "behave.py", args=["facts"], settings={"near": near})
    assert (code(ended), ended["words"]["fatal"], ended["words"]["error_type"]) == (1, True, "BindingError")
    assert "RuntimeError: no accelerator; correct that, or remove the setting" in ended["words"]["message"]
    assert "__main__" not in server.log()


def test_a_rank_and_its_children_have_the_niceness_of_its_role(server):
    assert code(server.run("command", "nice", settings={"nice": 2})) == 0
    assert server.log() == f"{min(19, os.nice(0) + 2)}\n"


def test_a_rank_that_may_not_have_its_niceness_does_not_begin_and_is_not_tried_again(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "setpriority", refuse)
    monkeypatch.setattr(script.faulthandler, "enable", lambda **_: None)
    monkeypatch.setattr(script.outcome, "watch_earlier_errors", lambda *_: None)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.chdir(tmp_path)
    reads, writes = os.pipe()
    settings = {"near": None, "memory": (0.0, 0), "nice": -3}
    order = {"log": "", "output": b"", "env": {}, "code_dir": str(tmp_path), "entrypoint": ["module", "behave.py"]}
    assert script.run({**order, "args": [], "settings": settings, "words": writes, "supervisor": 0}) == 1
    words = json.loads(os.read(reads, 65536))
    for end in (reads, writes):
        os.close(end)
    assert (words["fatal"], words["error_type"]) == (True, "PriorityError")
    assert words["message"].startswith("nice: -3 asks for niceness ")


def test_an_exception_is_told_before_the_exit_handlers_have_run(server):
    server.fork("module", "behave.py", args=["slow end"])
    failing = server.next("failing")
    assert failing["words"]["error_type"] == "ValueError"
    server.helper.order("kill", 0, 1)
    ended = server.next("ended")
    assert (code(ended), ended["words"]) == (-signal.SIGKILL, failing["words"])


def test_a_crash_is_reported_as_a_signal_and_leaves_its_stack_in_the_log(server):
    assert code(server.run("module", "behave.py", args=["segv"])) == -signal.SIGSEGV
    assert "before" in server.log()
    assert "Segmentation fault" in server.log()


def test_interpreter_ends_in_its_own_way(server):
    assert code(server.run("module", "behave.py", args=["atexit"])) == 0
    assert server.log().split() == ["thread", "ran", "atexit", "ran"]


@pytest.mark.parametrize(("number", "said"), [("0", ["atexit ran"]), ("3", ["waits not", "atexit ran"])])
def test_a_script_that_failed_leaves_its_last_save_to_others(server, number, said):
    """One that ended well waits for the disk as `atexit` has it."""
    server.run("module", "behave.py", args=["save", number])
    assert server.log().splitlines() == said


@pytest.mark.parametrize(
    ("target", "kind", "frame"),
    [
        ("bad_import.py", "ModuleNotFoundError", "bad_import.py:1 in <module>"),
        ("bad_import", "ModuleNotFoundError", "bad_import.py:1 in <module>"),
        ("not_there.py", "FileNotFoundError", ""),
        ("not_there", "ImportError", ""),
    ],
)
def test_a_script_that_cannot_be_loaded_is_fatal(server, target, kind, frame):
    words = server.run("module", target)["words"]
    assert (words["fatal"], words["error_type"], words["frame"]) == (True, kind, frame)


@pytest.mark.parametrize(
    ("body", "fatal"),
    [
        ("import bad", True),
        ("def main():\n    from bad import x\nmain()", True),
        ("import importlib\nimportlib.import_module('bad')", True),
        ("import runpy\nrunpy.run_module('bad')", True),
        ("import ast\nast.literal_eval('x = ')", False),
        ("eval('x = ')", False),
        ("compile('x = ', 'made.py', 'exec')", False),
        ("raise SyntaxError('a line of the data')", False),
    ],
)
def test_bad_syntax_is_fatal_in_modules_and_may_be_tried_again_in_data(server, tmp_path, body, fatal):
    (tmp_path / "bad.py").write_text("x = 1\ny = (\n")
    (tmp_path / "uses.py").write_text(f"import os\nos.chdir('/')\n{body}\n")
    words = server.run("module", str(tmp_path / "uses.py"))["words"]
    assert (words["error_type"], words["fatal"]) == ("SyntaxError", fatal)
    assert f"(in {'import' if fatal else 'run'})" in words["message"]


def test_a_script_that_went_elsewhere_and_misses_a_file_may_be_tried_again(server):
    words = server.run("module", "behave.py", args=["astray"])["words"]
    assert (words["error_type"], words["fatal"]) == ("FileNotFoundError", False)
    assert "(in run)" in words["message"]


def test_late_import_error_may_be_tried_again(server):
    words = server.run("module", "late_import.py")["words"]
    assert (words["fatal"], words["error_type"]) == (False, "ModuleNotFoundError")


def test_command_runs_as_it_is(server):
    assert code(server.run("command", "bash", "-c", "echo hello $DLJOB_RANK; exit 7")) == 7
    assert server.log() == "hello 0\n"


def test_an_order_may_be_longer_than_a_message(server):
    env = {f"BIG{n}": "x" * 30_000 for n in range(20)}
    program = "import os; print(sum(len(v) for k, v in os.environ.items() if k.startswith('BIG')))"
    assert code(server.run("command", sys.executable, "-c", program, env=env)) == 0
    assert server.log() == "600000\n"
    assert code(server.run("module", "behave.py", args=["exit", "0"], incarnation=2)) == 0


def test_a_command_starts_with_the_signals_that_python_ignores_as_they_were(server):
    """`yes | head` ends by SIGPIPE, and says nothing of a broken pipe."""
    assert code(server.run("command", "bash", "-c", "yes | head -1; echo ${PIPESTATUS[0]}")) == 0
    assert server.log() == f"y\n{128 + signal.SIGPIPE}\n"
    assert code(server.run("command", "grep", "SigIgn", "/proc/self/status", rank=1)) == 0
    ignored = int(server.log(1).split()[1], 16)
    assert not any(ignored >> (number - 1) & 1 for number in (signal.SIGPIPE, signal.SIGXFSZ))


@pytest.mark.parametrize(("argv", "expected"), [("no-such-program", 127), ("./behave.py", 126)])
def test_command_that_cannot_run_is_fatal(server, argv, expected):
    ended = server.run("command", argv)
    assert code(ended) == expected
    assert ended["words"]["fatal"]
    assert "cannot run" in ended["words"]["message"]


def test_sigterm_reaches_the_whole_group_of_a_command(server):
    child = "trap 'echo child heard; exit 4' TERM; echo armed; while :; do sleep 0.05; done"
    server.fork("command", "bash", "-c", 'trap : TERM; bash -c "$0"; exit $?', child)
    armed(server)
    server.helper.order("term", 0, 1)
    assert code(server.next("ended")) == 4
    assert "child heard" in server.log()


def test_kill_ends_what_ignores_sigterm(server):
    server.fork("module", "behave.py", args=["deaf"])
    armed(server)
    server.helper.order("term", 0, 1)
    server.helper.order("kill", 0, 1)
    assert code(server.next("ended")) == -signal.SIGKILL


def test_stopped_rank_is_woken_to_hear_sigterm(server):
    server.fork("module", "behave.py", args=["handler"])
    armed(server)
    os.kill(server.next("started")["pid"], signal.SIGSTOP)
    server.helper.order("term", 0, 1)
    assert code(server.next("ended")) == 5


@pytest.mark.parametrize("how", ["well", "killed", "kill"])
def test_nothing_of_a_rank_outlives_it_not_even_daemons(server, tmp_path, how):
    note = tmp_path / "daemon"
    server.fork("module", "behave.py", args=["daemon", str(note), *([] if how == "well" else ["stay"])])
    pid = server.next("started")["pid"]
    if how != "well":
        armed(server)
    if how == "killed":
        os.kill(pid, signal.SIGKILL)
    if how == "kill":
        server.helper.order("kill", 0, 1)
    server.next("ended")
    left = [int(note.read_text()), int((tmp_path / "daemon.fork").read_text())]
    assert [p for p in left if alive(p)] == []


@pytest.mark.parametrize(
    ("script", "left"),
    [
        ("nohup sleep 61 & sleep 62 & :", ["sleep 61", "sleep 62"]),
        ("(setsid sh -c 'sleep 63; :' &) ; :", ["sh -c sleep 63; :", "sleep 63"]),
        ("sleep 0.05 &", []),
        ("exit 0", []),
        ("sleep 64 & exit 3", []),
    ],
)
def test_what_a_rank_leaves_running_at_a_good_end_is_named(server, script, left):
    ended = server.run("command", "sh", "-c", script)
    number, _, names = ended["left"].partition(": ")
    assert sorted(re.sub(r" \(pid \d+\)", "", names).split(", ") if names else []) == left
    words = f"{len(left)} process" + ("es still ran after its end and were killed" if left[1:] else "")
    assert number.startswith(words if left else "")


def test_of_many_processes_that_a_rank_leaves_running_some_are_named(server):
    left = server.run("command", "sh", "-c", "for n in 1 2 3 4 5 6 7; do sleep 66 & done")["left"]
    assert left.startswith("7 processes still ran after its end and were killed: sleep 66 (pid ")
    assert (left.count("sleep 66"), left.endswith(", 2 more")) == (5, True)


def test_what_still_runs_when_a_rank_is_told_to_end_is_not_named(server):
    server.fork("command", "sh", "-c", "trap 'exit 0' TERM; echo armed; sleep 65 & wait")
    wait_for(lambda: "armed" in server.log(), "the rank did not start")
    server.helper.order("term", 0, 1)
    ended = server.next("ended")
    assert (ended["status"], ended["left"]) == (0, "")


def test_what_a_script_prints_within_a_line_is_in_its_log_at_once(server, tmp_path):
    """As under `python -u`: a progress bar that is not flushed, also one of bytes."""
    (tmp_path / "bar.py").write_text(
        "import sys, time\nprint('.', end='')\nsys.stderr.write('5%')\nsys.stdout.buffer.write(b'!')\ntime.sleep(60)"
    )
    server.fork("module", "bar.py", code_dir=tmp_path)
    wait_for(lambda: server.log() == ".5%!", "it is not in the log")
    server.helper.order("kill", 0, 1)
    server.next("ended")


def test_ranks_share_the_stdin_of_their_command(server, tmp_path):
    """As under torchrun: also its position, and a rank that is started again goes on there."""
    (tmp_path / "lines").write_text("one\ntwo\nthree\n")
    read = "import os; print(os.read(0, 4).decode().strip())"
    for number in range(3):
        ended = server.run("command", sys.executable, "-c", read, rank=number, stdin=tmp_path / "lines")
        assert code(ended) == 0
    assert [server.log(rank).strip() for rank in range(3)] == ["one", "two", "thre"]


@pytest.mark.parametrize("fresh", [False, True])
def test_a_pipe_reaches_a_script_by_sys_stdin(server, tmp_path, fresh):
    (tmp_path / "read.py").write_text("import sys; print([line.strip() for line in sys.stdin], sys.stdin.isatty())")
    reader, writer = os.pipe()
    os.write(writer, b"yes\n" * 3)
    os.close(writer)
    path = f"/proc/{os.getpid()}/fd/{reader}"
    server.run("module", "read.py", code_dir=tmp_path, stdin=path, fresh=fresh)
    os.close(reader)
    assert server.log() == "['yes', 'yes', 'yes'] False\n"


@pytest.mark.parametrize("stdin", ["", "/no/such/file"])
def test_without_stdin_a_read_ends_at_once(server, stdin):
    server.run("command", sys.executable, "-c", "import sys; print(sys.stdin.read() == '')", stdin=stdin)
    assert server.log() == "True\n"


def test_a_fifo_without_a_writer_holds_no_fork_server_up(server, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    server.run("command", "true", stdin=tmp_path / "fifo")


def test_sibling_keeps_its_daemons(server, tmp_path):
    note = tmp_path / "daemon"
    server.fork("module", "behave.py", rank=1, args=["daemon", str(note), "stay"])
    armed(server, 1)
    server.run("module", "behave.py", rank=0, args=["exit", "0"])
    assert alive(int((tmp_path / "daemon.fork").read_text()))


def test_a_fork_server_from_a_template_is_as_one_that_was_started(tmp_path, monkeypatch):
    sockets = Path(tempfile.mkdtemp(dir="/tmp"))  # a short path, as a socket needs one
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "large.py").write_text("import os; os.environ['SET_BY_IMPORT'] = 'yes'")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "own"), *filter(None, sys.path)]))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as raylet:
        monkeypatch.setenv(FOLDER, f"{raylet.pid}:{sockets}")
        monkeypatch.setenv(clean_process.RAYLET, str(raylet.pid))
        server = Server(tmp_path, Preload(("large",)), env={"X": "1"})
        said = []
        for rank, args in enumerate(
            (["facts"], ["variables", "X", "SET_BY_IMPORT", FOLDER], ["modules", "large", "ray"])
        ):
            assert code(server.run("module", "behave.py", rank=rank, args=args)) == 0
            said.append(server.log(rank))
        assert "['behave.py', 'facts'] True False" in said[0]
        assert said[1:] == ["1 yes None\n", "True False\n"]
        assert code(server.run("module", "behave.py", rank=9, args=["files"])) == 0
        assert int(server.log(9)) < 10
        server.fork("module", "behave.py", rank=3, args=["stay"])
        pid = server.next("started")["pid"]
        armed(server, 3)
        os.kill(server.helper.pid, signal.SIGKILL)
        server.next("gone")
        wait_for(lambda: not alive(pid), "the rank outlived the fork server")
        assert server.helper.wait(20) == 128 + signal.SIGKILL
        raylet.kill()
    shutil.rmtree(sockets, ignore_errors=True)  # its template removes its own socket meanwhile


def test_killed_supervisor_takes_its_rank_along_and_is_reported(server):
    server.fork("module", "behave.py", args=["stay"])
    pid = server.next("started")["pid"]
    armed(server)
    supervisor = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    os.kill(supervisor, signal.SIGKILL)
    assert code(server.next("ended")) == -signal.SIGKILL
    wait_for(lambda: not alive(pid), "the rank outlived its supervisor")


def files_of(pid: int) -> list[int]:
    return sorted(int(each.name) for each in Path(f"/proc/{pid}/fd").iterdir())


def test_ranks_start_and_restart_beside_two_thousand_open_files_and_have_none_of_them(tmp_path):
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2_200:
        pytest.skip("ulimit -n is below 2,200")
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(2_000)]
    server = Server(tmp_path)
    try:
        for incarnation in (1, 2):
            assert code(server.run("module", "behave.py", args=["files"], incarnation=incarnation)) == 0
        assert [int(line) < 10 for line in server.log().split()] == [True, True]
        assert len(files_of(server.helper.pid)) < 10
    finally:
        server.close()
        for fd in held:
            os.close(fd)


def test_a_rank_that_finds_no_file_left_says_so_and_the_others_go_on(server, tmp_path):
    server.fork("module", "behave.py", rank=1, args=["stay"])
    armed(server, 1)
    limits, used = resource.prlimit(server.helper.pid, resource.RLIMIT_NOFILE), files_of(server.helper.pid)
    ends = []
    big = {"BIG": "x" * forkserver.MESSAGE_BYTES}
    # From none left to enough: whatever the server, the supervisor or the rank lacks is told.
    for more in range(8):
        resource.prlimit(server.helper.pid, resource.RLIMIT_NOFILE, (len(used) - 1 + more, limits[1]))
        env = {**big, "MORE": str(more)} if more % 2 else {}
        ended = server.run("module", "behave.py", args=["exit", "0"], incarnation=more + 1, env=env)
        ends.append(code(ended))
        if ends[-1]:
            assert ended["words"]["error_type"] == "OSError"
            assert "Too many open files" in ended["words"]["message"]
    assert (ends[0], ends[1], ends[-1]) == (1, 1, 0), ends
    resource.prlimit(server.helper.pid, resource.RLIMIT_NOFILE, limits)
    assert code(server.run("module", "behave.py", args=["exit", "0"], incarnation=20)) == 0
    server.helper.order("kill", 1, 1)
    assert server.next("ended")["rank"] == 1


@pytest.mark.parametrize("fresh", [False, True])
def test_neither_server_nor_rank_imports_anything_from_the_folder_where_ray_was_started(tmp_path, monkeypatch, fresh):
    (tmp_path / "json.py").write_text("raise SystemExit('a file of another user')")
    monkeypatch.chdir(tmp_path)
    server = Server(tmp_path)
    try:
        assert code(server.run("module", "behave.py", args=["exit", "0"], fresh=fresh)) == 0
        assert server.log() == ""
    finally:
        server.close()
