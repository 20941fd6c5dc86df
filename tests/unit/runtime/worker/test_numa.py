"""Cores near a rank's device: what torch takes on a machine that stands in for one with GPUs, and how it is obeyed."""

from __future__ import annotations

import builtins
import io
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from dljob.master.state.actions import RankStart
from dljob.runtime.worker import numa

CPUS, NODES, DEVICES = 8, 4, 8
"""A machine of two sockets: CPUs of each of four NUMA nodes, two to a core, four to a cache; two devices to a node."""


def sysfs(path: str) -> str | None:
    """What Linux says of that machine."""
    if found := re.fullmatch(r"/sys/bus/pci/devices/0000:(..):00.0/numa_node", path):
        return str(int(found[1], 16) // (DEVICES // NODES))
    if found := re.fullmatch(r"/sys/devices/system/node/node(\d+)/cpulist", path):
        first = int(found[1]) * CPUS
        return f"{first}-{first + CPUS - 1}"
    if found := re.fullmatch(r"/sys/devices/system/cpu/cpu(\d+)/(.+)", path):
        cpu = int(found[1])
        return {
            "topology/physical_package_id": str(cpu // (CPUS * NODES // 2)),
            "topology/thread_siblings_list": f"{cpu & ~1}-{cpu | 1}",
            "cache/index0/type": "Unified",
            "cache/index0/level": "3",
            "cache/index0/shared_cpu_list": f"{cpu & ~3}-{cpu | 3}",
        }.get(found[2])
    return f"0-{NODES - 1}" if path == "/sys/devices/system/node/possible" else None


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    really, listdir = builtins.open, os.listdir

    def opened(path: Any, *args: Any, **more: Any) -> Any:
        said = sysfs(str(path))
        return really(path, *args, **more) if said is None else io.StringIO(said)

    def properties(index: int) -> SimpleNamespace:
        return SimpleNamespace(pci_domain_id=0, pci_bus_id=index, pci_device_id=0)

    monkeypatch.setattr(builtins, "open", opened)
    monkeypatch.setattr(os, "listdir", lambda path=".": ["index0"] if str(path).endswith("/cache") else listdir(path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(CPUS * NODES)))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: "cuda")
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: DEVICES)
    monkeypatch.setattr(torch, "get_device_module", lambda _: SimpleNamespace(get_device_properties=properties))


def said(capsys: pytest.CaptureFixture[str], mode: str, *devices: str) -> dict[str, str]:
    """What the process that looks prints, the cores as Linux writes them."""
    numa.main(mode, devices, "CUDA_VISIBLE_DEVICES")
    found = json.loads(capsys.readouterr().out)
    return {device: error or numa.ranges(cores) for device, (cores, error) in found.items()}


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("mode", "third", "fourth"),
    [
        ("node", "8-15", "8-15"),
        ("socket", "0-15", "0-15"),
        ("exclusive", "8-11", "12-15"),
        ("core-complex", "8-11", "12-15"),
    ],
)
def test_the_cores_are_those_that_torch_takes(mode, third, fourth, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert said(capsys, mode, "2", "3") == {"2": third, "3": fourth}
    assert "CUDA_VISIBLE_DEVICES" not in os.environ, "torch divides the cores among all devices of the machine"


@pytest.mark.usefixtures("machine")
def test_ids_that_are_no_numbers_count_as_they_are_shown(capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-c")
    assert said(capsys, "node", "GPU-a", "GPU-b", "GPU-c") == {"GPU-a": "0-7", "GPU-b": "0-7", "GPU-c": "8-15"}
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b,GPU-c"


@pytest.mark.usefixtures("machine")
def test_a_device_that_torch_refuses_is_told_in_its_words(capsys, monkeypatch):
    import torch

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert said(capsys, "node", "0", "7") == {
        "0": "0-1",
        "7": "BindingError: Must bind to a non-empty set of CPU indices",
    }
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert said(capsys, "node", "0") == {"0": "RuntimeError: No accelerator available for NUMA binding"}
    monkeypatch.setitem(sys.modules, "torch.numa.binding", None)
    assert "has no torch.numa.binding" in said(capsys, "node", "0")["0"]


def test_the_numa_probe_runs_in_a_process_of_its_own():
    """As it is here: without a device there is nothing to be near to."""
    torch = pytest.importorskip("torch")
    near = numa.probe_cores("node", ("0",), "CUDA_VISIBLE_DEVICES")["0"]
    if torch.accelerator.is_available():
        assert set(near.cores) <= os.sched_getaffinity(0), near
    else:
        assert near == numa.Near(error="RuntimeError: No accelerator available for NUMA binding")


@pytest.mark.parametrize(
    ("boot", "seconds", "words"),
    [
        ("import sys; sys.exit('no room')", 60.0, "ended with code 1: no room"),
        ("import time; time.sleep(60)", 0.2, "torch did not report its cores within 0.2 s"),
    ],
)
def test_a_numa_probe_that_fails_is_told(boot, seconds, words, monkeypatch):
    monkeypatch.setattr(numa, "_BOOT", boot)
    monkeypatch.setattr(numa, "LOOK_S", seconds)
    found = numa.probe_cores("node", ("0", "1"), "CUDA_VISIBLE_DEVICES")
    assert [words in near.error for near in found.values()] == [True, True], found


def start(index: int, *ids: str) -> RankStart:
    return RankStart(0, 1, 0, 1, 0, devices=(("GPU", ids),) if ids else (), device_index=index)


def test_a_host_looks_once_for_all_its_ranks(monkeypatch):
    asked: list[tuple[str, ...]] = []

    def looked(mode: str, devices: tuple[str, ...], *more: object) -> dict[str, numa.Near]:
        assert (mode, *more) == ("node", "CUDA_VISIBLE_DEVICES", ("/opt/python", "/lib"), ["/site"])
        asked.append(devices)
        return {device: numa.Near((int(device),)) for device in devices}

    monkeypatch.setattr(numa, "probe_cores", looked)
    monkeypatch.setattr(numa, "variable_of", lambda _: "CUDA_VISIBLE_DEVICES")
    cores = numa.Cores("node", ("/opt/python", "/lib"), ["/site"])
    ranks = [start(index, "4", "5") for index in (0, 1)]
    cores.find(ranks, "GPU")
    cores.find(ranks, "GPU")
    assert asked == [("4", "5")]
    assert cores.of(ranks[1], "GPU") == {"mode": "node", "device": "GPU 5", "cores": (5,), "error": ""}
    nothing = cores.of(start(0), "GPU")
    assert nothing is not None
    assert nothing["error"] == "Ray assigned no GPU to it"


def test_no_numa_probe_runs_where_no_rank_is_bound(monkeypatch):
    monkeypatch.setattr(numa, "probe_cores", None)
    cores = numa.Cores("")
    cores.find([start(0, "4")], "GPU")
    assert cores.of(start(0, "4"), "GPU") is None


BOUND = """
import os, threading
from dljob.runtime.worker import numa
go = threading.Event()
seen = {}
def inherits(name):
    go.wait()
    seen[name] = os.sched_getaffinity(0)
def own():
    os.sched_setaffinity(0, last)
    placed.set()
    inherits("own")
first, last = (lambda all: ({all[0]}, {all[-1]}))(sorted(os.sched_getaffinity(0)))
placed = threading.Event()
threads = [threading.Thread(target=inherits, args=("like",)), threading.Thread(target=own)]
for thread in threads: thread.start()
placed.wait()
print(numa.bind({"mode": "node", "device": "GPU 3", "cores": list(first), "error": ""}))
go.set()
for thread in threads: thread.join()
print(os.sched_getaffinity(0) == first, seen["like"] == first, seen["own"] == last)
"""


def test_all_threads_are_bound_but_those_with_a_place_of_their_own():
    ran = subprocess.run([sys.executable, "-c", BOUND], capture_output=True, text=True, check=True)
    words, kept = ran.stdout.splitlines()
    assert kept == "True True True"
    first = min(os.sched_getaffinity(0))
    assert words == f"bound to {first}, the cores near GPU 3 (accelerator.numaBinding, --numa-binding=node)"


def test_a_rank_that_cannot_be_bound_is_told_why_and_what_to_do():
    with pytest.raises(numa.BindingError) as refused:
        numa.bind({"mode": "node", "device": "GPU 3", "cores": (), "error": "RuntimeError: none"})
    assert str(refused.value).startswith("not bound to cores near GPU 3 (accelerator.numaBinding, --numa-binding=node)")
    assert "RuntimeError: none; correct that, or remove the setting" in str(refused.value)


def test_cores_that_are_not_there_any_more_are_a_reason_and_no_fault_of_the_script():
    before = os.sched_getaffinity(0)
    with pytest.raises(numa.BindingError, match=r"not bound to 4095, the cores near GPU 3 .*the rank may run on "):
        numa.bind({"mode": "node", "device": "GPU 3", "cores": [4095], "error": ""})
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(("cores", "words"), [([], ""), ([3], "3"), ([5, 0, 1, 2, 9, 8], "0-2,5,8-9")])
def test_cores_are_written_as_linux_does(cores, words):
    assert numa.ranges(cores) == words


def test_the_numa_probe_imports_nothing_from_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit('a file of another user')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(numa, "_BOOT", "import json; print(json.dumps({'0': [[1], '']}))")
    assert numa.probe_cores("node", ("0",), "CUDA_VISIBLE_DEVICES") == {"0": numa.Near((1,))}
