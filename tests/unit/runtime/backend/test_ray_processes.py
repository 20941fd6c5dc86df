"""The file in which an embedded Ray's parent writes down its processes, with real children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dljob.runtime.backend import ray_processes
from dljob.runtime.backend.ray_processes import (
    ProcessFile,
    ProcessReader,
    error_log_sizes,
    keep_logs,
    read_end,
    written_since,
)
from dljob.runtime.backend.sweeper import MARK
from dljob.telemetry.process_ends import ProcessEnd

ERROR = "[2026-11-29 12:01:41,551 E 1 1] (raylet) agent_manager.cc:87: an agent failed\n"


def ended(command: str, logs: Path, number: int = 0) -> ProcessEnd:
    """Return how a child is said to have ended, and check that its parent can still collect its exit status."""
    with subprocess.Popen(["sh", "-c", command]) as child:
        pidfd = os.pidfd_open(child.pid)
        if number:
            child.send_signal(number)
        end = read_end("raylet", "cpu2-0", pidfd, child.pid, logs)
        os.close(pidfd)
        assert child.wait(5) == (-number if number else end.status and end.status >> 8)
        assert end.pid == child.pid
    return end


def test_the_exit_status_of_a_child_is_read_and_stays_for_its_parent(tmp_path):
    (tmp_path / "raylet.err").write_text(ERROR)
    by_itself = ended("exit 3", tmp_path)
    assert (by_itself.status, by_itself.error) == (3 << 8, "an agent failed")
    killed = ended("sleep 60", tmp_path, signal.SIGKILL)
    assert (killed.status, killed.error) == (9, ""), "an old error is no cause of a SIGKILL"


def test_each_end_is_read_once_and_a_line_only_when_it_is_whole(tmp_path):
    file, reader, end = ProcessFile(tmp_path), ProcessReader(tmp_path), ProcessEnd("raylet", "cpu2-0", 7, 9)
    assert reader.new_ends() == []
    file.add_start("gcs_server", "the head", 5)
    file.add_start("raylet", "cpu2-0", 7)
    with (tmp_path / "processes.jsonl").open("a") as half:
        half.write('{"program": ')
        half.flush()
        assert (reader.new_ends(), reader.raylets) == ([], {"cpu2-0": 7})
        half.write('"raylet", "node": "cpu2-1", "pid": 8}\n')
    file.add_end(end)
    assert (reader.new_ends(), reader.raylets) == ([end], {"cpu2-0": 7, "cpu2-1": 8})
    assert reader.new_ends() == []
    assert ProcessReader(None).new_ends() == [], "another Ray has no such file"


def test_a_stopped_raylet_is_said_to_be_stopped(tmp_path):
    file, reader = ProcessFile(tmp_path), ProcessReader(tmp_path)
    with subprocess.Popen(["sleep", "60"]) as child:
        file.add_start("raylet", "cpu2-0", child.pid)
        reader.new_ends()
        assert reader.why_silent("cpu2-0") == ""
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        assert reader.why_silent("cpu2-0") == f"its raylet (pid {child.pid}) is stopped (state T)"
        assert reader.why_silent("cpu2-1") == "", "nothing is known of that node"
        child.kill()


def test_what_raylets_wrote_since_is_read(tmp_path, monkeypatch):
    monkeypatch.delenv(MARK, raising=False)
    assert error_log_sizes() == {}, "another Ray's logs lie elsewhere"
    monkeypatch.setenv(MARK, str(tmp_path))
    head, node = (tmp_path / name / "session_1" / "logs" for name in ("n0", "n1"))
    head.mkdir(parents=True)
    (tmp_path / "n0" / "session_latest").symlink_to(head.parent)
    (head / "raylet.err").write_text("before\n")
    sizes = error_log_sizes()
    assert [*sizes.values()] == [7]
    assert written_since(sizes) == ""
    node.mkdir(parents=True)
    (node / "raylet.err").write_text("of a later one\n")
    with (head / "raylet.err").open("a") as file:
        file.write("since\n")
    assert sorted(written_since(sizes).splitlines()) == ["of a later one", "since"]


def test_logs_of_rays_processes_are_kept_without_those_of_workers(tmp_path):
    ray, job = tmp_path / "ray", tmp_path / "job"
    job.mkdir()
    assert keep_logs(ray, job) is None
    for folder in ("n0/session_1/logs", "n1/session_1/logs"):
        (ray / folder).mkdir(parents=True)
        for name in ("raylet.err", "worker-1.out"):
            (ray / folder / name).write_text(f"{folder} {name}")
    (ray / "n0/session_latest").symlink_to("session_1")
    assert keep_logs(ray, job) == job / "ray-logs"
    kept = {file.name: file.read_text() for file in (job / "ray-logs").iterdir()}
    assert kept == {"head-raylet.err": "n0/session_1/logs raylet.err", "n1-raylet.err": "n1/session_1/logs raylet.err"}


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ("true", "the loopback interface lo is down\n  sudo ip link set lo up"),
        ("ip link set lo up; ip address del 127.0.0.1/8 dev lo", "no interface has this address (IPv6 alone?)"),
        ("ip link set lo up; ip rule add pref 0 prohibit && ip rule del pref 0 lookup local", "a firewall may drop"),
    ],
    ids=["down", "no IPv4", "refused"],
)
def test_no_ray_starts_where_its_processes_cannot_meet(network, words):
    code = "from dljob.runtime.backend.ray_processes import check_loopback; check_loopback()"
    script = f'{network}; exec "$0" -c "$1"'
    new_network = subprocess.run(  # a network that begins with its loopback down
        ["unshare", "-rn", "sh", "-c", script, sys.executable, code], capture_output=True, text=True, check=False
    )
    assert "UnreachableError: Ray cannot start: its processes meet at 127.0.0.1, and " in new_network.stderr
    assert words in new_network.stderr


def test_the_loopback_of_this_machine_brings_a_byte():
    ray_processes.check_loopback()
