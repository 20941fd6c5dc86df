"""What a node sees of a rank's process: real processes, and the kernel's files made by hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dljob.master.state.hang import Where
from dljob.runtime.node import stacks
from dljob.runtime.node.stacks import DumpTarget

CODE = """
import threading
def spin():
    print("up", flush=True)
    while True:
        pass
threading.Thread(target=threading.Event().wait, name="other", daemon=True).start()
spin()
"""


@pytest.fixture
def spinner() -> Iterator[int]:
    """A Python process that spins in `spin`, with another thread that waits."""
    with subprocess.Popen([sys.executable, "-c", CODE], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process.pid
        process.kill()


def test_a_process_that_spins_is_seen_to_work_and_where_it_does(spinner):
    target = DumpTarget("w/0", spinner, spinner)
    (before,) = stacks.sample_processes([target], stacks=False)
    assert (before.sample.activity, before.sample.stopped, before.stack) == (Where.UNKNOWN, "", "")
    while stacks.cpu_seconds(spinner) < before.sample.cpu_s + 0.05:
        time.sleep(0.01)
    (seen,) = stacks.sample_processes([target], stacks=True)
    assert seen.sample.activity is Where.USER
    assert seen.sample.at_line.endswith(" in spin")
    assert seen.sample.runs
    assert seen.sample.cpu_s > before.sample.cpu_s
    assert '"MainThread" running' in seen.stack
    assert '"other" idle' in seen.stack


def test_a_stopped_process_or_one_whose_host_is_stopped_is_seen_to_be_and_has_a_stack(spinner):
    os.kill(spinner, signal.SIGSTOP)
    words = f"process {spinner} is stopped by a signal (state T)"
    while not stacks.why_stopped(spinner):
        time.sleep(0.01)
    (seen,) = stacks.sample_processes([DumpTarget("w/0", spinner, spinner)], stacks=True)
    assert seen.sample.stopped == words
    assert "spin (" in seen.stack
    (seen,) = stacks.sample_processes([DumpTarget("w/0", os.getpid(), spinner)], stacks=False)
    assert seen.sample.stopped == words


def process(proc: Path, state: str = "S", **files: str) -> int:
    """A process as /proc shows it."""
    folder = proc / "7"
    folder.mkdir(exist_ok=True)
    (folder / "stat").write_text(f"7 (a b) c) {state} 1 7 7 0 -1 0 0 0 0 0 150 50 0 0 20 0 1 0\n")
    for name, text in files.items():
        (folder / name).write_text(text)
    return 7


def test_the_states_and_control_groups_of_a_process_that_cannot_run(tmp_path):
    groups = tmp_path / "cgroups"
    (groups / "pod/a").mkdir(parents=True)
    assert stacks.why_stopped(process(tmp_path), tmp_path, groups) == ""
    assert "debugger" in stacks.why_stopped(process(tmp_path, "t"), tmp_path, groups)
    pid = process(tmp_path, wchan="do_freezer_trap")
    assert stacks.why_stopped(pid, tmp_path, groups) == "process 7 is in a frozen control group"
    pid = process(tmp_path, wchan="futex_wait", cgroup="4:memory:/\n0::/pod/a\n")
    assert stacks.why_stopped(pid, tmp_path, groups) == ""
    (groups / "pod/a/cgroup.events").write_text("populated 1\nfrozen 1\n")
    assert "frozen" in stacks.why_stopped(pid, tmp_path, groups)
    assert stacks.why_stopped(8, tmp_path, groups) == ""
    assert stacks.cpu_seconds(7, tmp_path) == 200 / os.sysconf("SC_CLK_TCK")
    assert stacks.cpu_seconds(8, tmp_path) == 0


def test_a_process_runs_where_one_of_its_threads_does_or_waits_for_a_cpu(tmp_path):
    pid = process(tmp_path, "S")
    for thread, state in (("7", "S"), ("8", "S")):
        (tmp_path / "7" / "task" / thread).mkdir(parents=True)
        (tmp_path / "7" / "task" / thread / "stat").write_text(f"{thread} (R) R) {state} 1 7\n")
    assert not stacks.runs(pid, tmp_path)
    (tmp_path / "7" / "task" / "8" / "stat").write_text("8 (a) R 1 7\n")
    assert stacks.runs(pid, tmp_path)
    (tmp_path / "7" / "task" / "8" / "stat").unlink()  # it ended as it was looked at
    assert not stacks.runs(pid, tmp_path)
    assert not stacks.runs(9, tmp_path)


# -- where a thread is


def frames(*files: str) -> list[dict[str, Any]]:
    return [{"filename": file, "name": f"f{n}", "line": n} for n, file in enumerate(files)]


@pytest.mark.parametrize("with_stacks", [False, True])
def test_a_process_that_a_debugger_holds_is_no_proof_of_a_hang(spinner, monkeypatch, with_stacks):
    monkeypatch.setattr(stacks, "why_stopped", lambda pid: f"process {pid} {stacks.HELD}")
    for program in (stacks.program(), ""):
        monkeypatch.setattr(stacks, "program", lambda program=program: program)
        (seen,) = stacks.sample_processes([DumpTarget("w/0", spinner, spinner)], stacks=with_stacks)
        assert (seen.sample.stopped, seen.sample.activity) == ("", Where.DEBUGGER)


LIB = "/usr/lib/python3.11"
SITE = f"{LIB}/site-packages"
DATA = f"{SITE}/dljob/runtime/data"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["train.py"], Where.USER),
        ([], Where.UNKNOWN),
        ([f"{SITE}/torch/distributed/distributed_c10d.py", "train.py"], Where.COLLECTIVE),
        (["train.py", f"{SITE}/torch/distributed/run.py"], Where.USER),
        ([f"{LIB}/threading.py", f"{SITE}/dljob/runtime/rpc/rpc.py", "train.py"], Where.CALL),
        ([f"{LIB}/threading.py", f"{SITE}/dljob/runtime/queues/data_queue.py", "train.py"], Where.CALL),
        ([f"{LIB}/threading.py", f"{SITE}/dljob/runtime/weights/channel.py", "train.py"], Where.CALL),
        ([f"{LIB}/threading.py", f"{SITE}/dljob/runtime/collectives/group.py", "train.py"], Where.CALL),
        ([f"{LIB}/threading.py", f"{SITE}/dljob/runtime/data/shards.py", "train.py"], Where.CALL),
        (
            [f"{SITE}/kafka/net/selector.py", *(f"{DATA}/{n}.py" for n in ("kafka_reader", "source")), "train.py"],
            Where.CALL,
        ),
        (
            [f"{LIB}/threading.py", f"{SITE}/dljob/runtime/process/worker_context.py", f"{DATA}/source.py", "train.py"],
            Where.CALL,
        ),
        (
            [
                f"{SITE}/ray/_private/worker.py",
                *(f"{SITE}/dljob/runtime/rpc/{n}.py" for n in ("direct", "futures")),
                "a.py",
            ],
            Where.CALL,
        ),
        ([f"{LIB}/threading.py", f"{SITE}/dljob/runtime/checkpoint/client.py", "train.py"], Where.CHECKPOINT),
        ([f"{LIB}/threading.py", f"{SITE}/dljob/runtime/process/worker_context.py", "train.py"], Where.ORDER),
        ([f"{LIB}/threading.py", "train.py"], Where.USER),
        ([f"{LIB}/pdb.py", f"{LIB}/cmd.py", f"{LIB}/bdb.py", "train.py"], Where.DEBUGGER),
        ([f"{SITE}/debugpy/_vendored/pydevd/pydevd.py", "train.py"], Where.DEBUGGER),
        (["train.py", f"{LIB}/bdb.py", f"{LIB}/pdb.py"], Where.USER),
        (
            [f"{LIB}/queue.py", f"{SITE}/torch/distributed/checkpoint/filesystem.py", "train.py"],
            Where.CHECKPOINT,
        ),
        ([f"{SITE}/torch/autograd/graph.py", "train.py"], Where.COLLECTIVE),
        (["model.py", f"{SITE}/torch/nn/parallel/distributed.py", "train.py"], Where.USER),
        ([f"{SITE}/mine/train.py", f"{SITE}/torch/distributed/run.py"], Where.USER),
        ([f"{LIB}/socket.py", f"{SITE}/dljob/runtime/worker/lifecycle.py"], Where.USER),
    ],
)
def test_the_call_of_the_innermost_user_frame_tells_where_a_thread_is(files, expected):
    assert stacks.activity_of(frames(*files)) is expected


def test_the_line_is_the_innermost_of_user_code():
    inner = f"{SITE}/torch/distributed/distributed_c10d.py"
    assert stacks.line(frames(inner, "/code/train.py")) == "train.py:1 in f1"
    assert stacks.line(frames(inner)) == ""


def test_the_call_of_torch_is_the_one_that_user_code_has_made():
    calls = [
        {"filename": f"{SITE}/torch/distributed/distributed_c10d.py", "name": "_wait", "line": 1},
        {"filename": f"{SITE}/torch/distributed/distributed_c10d.py", "name": "all_reduce", "line": 2},
        {"filename": f"{SITE}/torch/distributed/c10d_logger.py", "name": "wrapper", "line": 3},
        {"filename": "/code/train.py", "name": "step", "line": 4},
        {"filename": f"{SITE}/torch/distributed/run.py", "name": "main", "line": 5},
    ]
    assert stacks.torch_call(calls) == "all_reduce"
    assert stacks.torch_call(calls[3:]) == stacks.torch_call([]) == ""


def test_the_thread_that_runs_user_code_is_the_one_named_so_or_the_main_one():
    main, user = frames("main.py"), frames("user.py")
    threads = [{"thread_name": "MainThread", "os_thread_id": 7, "frames": main}]
    assert stacks.user_frames(threads, 7) == main
    assert stacks.user_frames([*threads, {"thread_name": "user", "frames": user}], 7) == user
    assert stacks.user_frames(threads, 8) == []


ENDED = """
import sys, threading
sys.path.insert(0, {workers!r})
from dljob.runtime.worker import script
{thread}
print("up", flush=True)
script.finish(0)
"""


@pytest.mark.parametrize(
    ("thread", "place"),
    [
        (
            "def keep(): threading.Event().wait()\nthreading.Thread(target=keep, name='c').start()",
            "c at <string>:5 in keep",
        ),
        ("threading.Thread(target=threading.Event().wait).start()", ""),
    ],
)
def test_a_script_that_has_ended_is_where_the_thread_is_that_keeps_it(thread, place):
    code = ENDED.format(thread=thread, workers=str(Path(stacks.__file__).parents[3]))
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        while not (
            seen := stacks.sample_processes([DumpTarget("w/0", process.pid, process.pid)], stacks=True)[0].sample
        ).at_line.startswith("the end"):
            assert process.poll() is None
        process.kill()
    keeper = f"thread {place}" if place else "a thread"
    assert seen.at_line == f"the end of its script, which waits for {keeper}: it is no daemon"


# -- where there is no stack


def test_the_reason_for_a_missing_stack_is_told(monkeypatch):
    end = time.monotonic() + 60
    found, why = stacks.dump(2**22 + 1, end)
    assert (found, why[:16]) == ([], "no stack: py-spy")
    assert stacks.dump(os.getpid(), time.monotonic()) == ([], "no stack: the time for all processes was over")
    monkeypatch.setattr(stacks, "program", lambda: "/nowhere/py-spy")
    assert "FileNotFoundError" in stacks.dump(1, end)[1]
    monkeypatch.setattr(stacks, "program", lambda: "")
    (seen,) = stacks.sample_processes([DumpTarget("w/0", os.getpid(), os.getpid())], stacks=True)
    assert seen.sample.activity is Where.UNKNOWN
    assert seen.stack == "no stack: py-spy is not installed here (it comes with ray[default])"


def test_errors_of_py_spy_are_told_in_words():
    assert "SYS_PTRACE" in stacks._reason("Error: Permission Denied: Try running again with elevated permissions")
    assert stacks._reason("Error: it\n\nCaused by:\n  bad") == "py-spy: bad"
    assert stacks._reason("") == "py-spy: failed without a message"


def test_py_spy_that_does_not_answer_is_given_up(monkeypatch, tmp_path):
    slow = tmp_path / "py-spy"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(stacks, "program", lambda: str(slow))
    monkeypatch.setattr(stacks, "EACH_S", 0.05)
    assert "did not answer" in stacks.dump(os.getpid(), time.monotonic() + 0.2)[1]


def test_py_spy_is_found_on_the_path_where_it_is_not_beside_python(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert stacks.program() == ""
    tool = tmp_path / "bin" / "py-spy"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    assert stacks.program() == str(tool)


def test_threads_with_the_user_s_code_come_first_in_the_text():
    def thread(name: str, file: str) -> dict[str, Any]:
        frame = {"name": "f", "filename": file, "line": 1}
        return {"thread_name": name, "os_thread_id": 1, "active": False, "owns_gil": False, "frames": [frame]}

    dljobs = thread("dljob-lines", "/x/site-packages/dljob/runtime/rpc/lines.py")
    threads = [dljobs, thread("loader", "/home/u/load.py"), thread("user", "/home/u/train.py")]
    assert [row for row in stacks.text(threads).splitlines() if row.startswith("thread")] == [
        'thread 1 "user" idle at train.py:1 in f',
        'thread 1 "loader" idle at load.py:1 in f',
        'thread 1 "dljob-lines" idle',
    ]


def test_the_line_of_who_holds_the_gil_is_of_any_thread(monkeypatch):
    def thread(name: str, file: str, *, owns_gil: bool) -> dict[str, Any]:
        frames = [{"name": "findall", "filename": "/usr/lib/python3.11/re.py", "line": 240}]
        frames += [{"name": "f", "filename": file, "line": 7}]
        return {"thread_name": name, "os_thread_id": 1, "active": True, "owns_gil": owns_gil, "frames": frames}

    main, call = "/home/u/train.py", "/home/u/reward.py"
    for owner, line in ((call, "reward.py:7 in f"), (main, "train.py:7 in f"), ("", "")):
        threads = [thread("MainThread", main, owns_gil=owner == main), thread("rpc_1", call, owns_gil=owner == call)]
        monkeypatch.setattr(stacks, "dump", lambda _pid, _end, threads=threads: (threads, ""))
        (seen,) = stacks.sample_processes([stacks.DumpTarget("r/0", os.getpid(), os.getpid())], stacks=True)
        assert seen.sample.gil_line == line
