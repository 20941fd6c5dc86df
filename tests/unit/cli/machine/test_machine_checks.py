"""doctor: what it makes of this machine. A sound machine has no warning; each thing that is wrong gives one."""

from __future__ import annotations

import json
import resource
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest

from dljob.cli import main
from dljob.cli.machine import checks
from dljob.cli.machine.facts import Addresses, Facts, Leftovers, VisibleGpus, WrittenFolder
from dljob.linux.process_limit import ProcessLimit
from dljob.runtime.backend.machine import STORE_BYTES

GIB = 1 << 30
SOUND = Facts(
    addresses=Addresses("box", ("10.0.0.5",), ("127.0.0.1", "::1"), "10.0.0.5"),
    loopback=None,
    limits=None,
    ports=(32768, 60999),
    cpus=8,
    quota=None,
    memory=16 * GIB,
    memory_bound="on this machine",
    shm=8 * GIB,
    disks=(WrittenFolder("jobs", "/home/ada/.local/state/dljob/jobs", 90 * GIB, writable=True),
           WrittenFolder("Ray's files", "/tmp", 50 * GIB, writable=True)),
    files=(65536, 1 << 20),
    processes=(),
    devices={"GPU": 8},
    hiding={},
    torch=VisibleGpus(8, "12.6"),
    ray=VisibleGpus(8),
    modes=(),
    leftovers=Leftovers(),
)  # fmt: skip


def test_a_sound_machine_has_an_ok_line_for_each_check():
    found = checks.examine(SOUND)
    assert {(one.state, one.fix) for one in found} == {("ok", "")}
    assert [one.check for one in found] == ["host name", "localhost", "address", "loopback", "limits", "ports", "CPUs",
                                            "memory", "/dev/shm", "disk", "open files", "processes", "devices",
                                            "leftovers"]  # fmt: skip


def addresses(**more: Any) -> dict[str, Any]:
    return {"addresses": replace(SOUND.addresses, **more)}


def disk(free: int, *, writable: bool = True, use: str = "jobs") -> dict[str, Any]:
    return {"disks": (WrittenFolder(use, "/here", free, writable),)}


@pytest.mark.parametrize(
    ("different", "check", "state", "said", "fix"),
    [
        (addresses(resolved=()), "host name", "warn", "box does not resolve", "127.0.1.1 box"),
        (addresses(resolved=None), "host name", "warn", "did not answer in time", "/etc/hosts"),
        (addresses(localhost=("::1", "127.0.0.1")), "localhost", "warn", "localhost is ::1 first", "gai.conf"),
        (addresses(localhost=("::1",)), "localhost", "warn", "is ::1, not 127.0.0.1", "/etc/hosts"),
        (addresses(localhost=()), "localhost", "warn", "is unknown, not 127.0.0.1", "/etc/hosts"),
        (addresses(localhost=None), "localhost", "warn", "does not resolve in time", "/etc/hosts"),
        (addresses(outward=""), "address", "ok", "loopback alone", ""),
        ({"loopback": ("lo is down", "ip link set lo up")}, "loopback", "fail", "lo is down", "ip link set lo up"),
        ({"limits": ("RLIMIT_AS allows 3 MiB", "ulimit -v unlimited")}, "limits", "fail", "RLIMIT_AS allows 3 MiB",
         "ulimit -v unlimited"),
        ({"ports": (50000, 50099)}, "ports", "warn", "100 ports for connections (50000 to 50099)", "sysctl -w"),
        ({"ports": None}, "ports", "skip", "does not say", ""),
        ({"quota": 1.5}, "CPUs", "warn", "8 CPUs, of which the control group grants 1.5", "OMP_NUM_THREADS=1"),
        ({"quota": 8.0}, "CPUs", "ok", "8 CPUs", ""),
        ({"memory": GIB}, "memory", "ok", "1.0 GiB are free", ""),
        ({"memory": 300 << 20}, "memory", "warn", "300 MiB are free on this machine", "ps -eo"),
        ({"memory": 300 << 20, "memory_bound": "in this container"}, "memory", "warn", "in this container", "--memory"),
        ({"memory": None}, "memory", "skip", "free memory is unknown", ""),
        ({"shm": 64 << 20}, "/dev/shm", "warn", "64 MiB are free: enough for plans of at most 0", "--shm-size"),
        ({"shm": 4 * STORE_BYTES}, "/dev/shm", "warn", "enough for plans of at most 3 machines", "--shm-size"),
        ({"shm": None}, "/dev/shm", "warn", "there is none: the stores of Ray lie on disk", "--shm-size"),
        (disk(GIB), "disk", "ok", "1.0 GiB free in /here", ""),
        (disk(10 << 20), "disk", "fail", "/here, for jobs, has 10 MiB free", "dljob prune"),
        (disk(500 << 20, use="Ray's files"), "disk", "warn", "/here, for Ray's files, has 500 MiB free", "TMPDIR="),
        (disk(GIB, writable=False), "disk", "fail", "cannot be written to", "DLJOB_HOME="),
        ({"files": (1024, 4096)}, "open files", "warn", "at most 1024", "ulimit -n 4096"),
        ({"files": (1024, resource.RLIM_INFINITY)}, "open files", "warn", "at most 1024", "ulimit -n 65536"),
        ({"files": (1024, 1024)}, "open files", "warn", "at most 1024", "sudo prlimit --pid $$"),
        ({"files": (resource.RLIM_INFINITY,) * 2}, "open files", "ok", "no limit", ""),
        ({"processes": (ProcessLimit("pids.max of /g", 100, 9),)}, "processes", "warn",
         "pids.max of /g allows 100 processes and threads, 9 are in use; Ray starts", "--pids-limit"),
        ({"processes": (ProcessLimit("a", 9000, 9), ProcessLimit("pids.max of /g", 9000, 8999))}, "processes", "warn",
         "pids.max of /g allows 9000 processes and threads, 8999 are in use", "--pids-limit"),
        ({"processes": (ProcessLimit("pids.max of /g", 9000, 9),)}, "processes", "ok", "allows 9000 processes", ""),
        ({"torch": VisibleGpus(0, ""), "devices": {"GPU": 1}, "ray": VisibleGpus(1)}, "devices", "warn",
         "1 GPU; torch sees 0, Ray sees 1; this torch is built without CUDA", "pip install --force-reinstall torch"),
        ({"torch": VisibleGpus(0, "12.6")}, "devices", "warn", "torch sees 0, Ray sees 8", "nvidia-smi"),
        ({"torch": VisibleGpus(0, trouble="no answer within 30 s")}, "devices", "warn", "torch cannot be asked: no",
         "import torch"),
        ({"devices": {}, "torch": VisibleGpus(0), "ray": VisibleGpus(0)}, "devices", "ok", "no GPUs or NPUs", ""),
        ({"torch": None, "hiding": {"CUDA_VISIBLE_DEVICES": "0"}}, "devices", "ok",
         "8 GPU, and Ray see as many; CUDA_VISIBLE_DEVICES=0", ""),
        ({"leftovers": Leftovers(jobs=(("ppo", "a7efe1" * 5 + "00"),))}, "leftovers", "warn",
         "1 job whose runner is gone: ppo (a7efe1a7)", "dljob delete a7efe1a7"),
        ({"leftovers": Leftovers(processes=((7, "raylet"), (8, "gcs_server")))}, "leftovers", "warn",
         "2 processes of a Ray that is over: raylet 7, gcs_server 8", "kill -9 7 8"),
        ({"leftovers": Leftovers(folders=("/tmp/dlj-a b",), sockets=("/tmp/dljob-0/x.sock",) * 8)}, "leftovers", "warn",
         "1 unused folder of Ray: /tmp/dlj-a b; 8 sockets without a listener", "rm -r -- '/tmp/dlj-a b'; rm -r"),
    ],
)  # fmt: skip
def test_a_failed_check_is_told_with_its_evidence_and_fix(different, check, state, said, fix):
    found = {one.check: one for one in checks.examine(replace(SOUND, **different))}
    assert (found[check].state, said in found[check].message) == (state, True), found[check]
    assert fix in found[check].fix, found[check]
    assert bool(fix) == bool(found[check].fix)
    assert all(one.state == "ok" for name, one in found.items() if name != check)


@pytest.mark.parametrize(("loopback", "code"), [(None, 0), (("lo is down", "ip link set lo up"), 1)])
def test_the_command_fails_when_a_job_cannot_run_here(loopback, code, monkeypatch, capsys):
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(checks, "gather", lambda: replace(SOUND, loopback=loopback))
    assert main.run(["doctor", "-o", "json"]) == code
    found = {one["check"]: one["state"] for one in json.loads(capsys.readouterr().out)}
    assert found["loopback"] == ("fail" if code else "ok")
    assert found["cluster"] == "skip"


def test_a_question_about_a_cluster_is_not_about_this_machine(monkeypatch, capsys):
    monkeypatch.setattr(checks, "gather", lambda: pytest.fail("the machine was looked at"))
    monkeypatch.setenv("KUBECONFIG", "/nonexistent")
    assert main.run(["doctor", "--context", "nowhere", "-o", "json"]) == 1
    assert "/dev/shm" not in {one["check"] for one in json.loads(capsys.readouterr().out)}


def test_a_machine_without_ray_only_submits_and_is_not_looked_at(monkeypatch):
    monkeypatch.setattr(checks, "find_spec", lambda name: None if name == "ray" else find_spec(name))
    assert [(one.check, one.state) for one in checks.check_machine()] == [("machine", "skip")]
