"""What an embedded Ray asks of the machine, before anything starts."""

from __future__ import annotations

import os
import re
import resource
import shutil
import tempfile
import threading
from collections import namedtuple
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray._private import accelerators
from ray._private.resource_and_label_spec import ResourceAndLabelSpec

from dljob.cli import main
from dljob.errors import PlacementError, UnreachableError, UsageError
from dljob.linux.process_limit import process_limits
from dljob.plan.model import GRAIN, JobPlan, MachineGroup
from dljob.plan.one_machine import largest_sizes
from dljob.plan.plan import plan
from dljob.runtime.backend import embedded, machine
from dljob.runtime.backend.embedded import EmbeddedRay, without_agent
from dljob.runtime.backend.machine import (
    EmbeddedNode,
    lay_out,
    machines_here,
    oversubscribed,
    parse_pretend,
    size_notes,
)
from dljob.runtime.process import environment
from dljob.spec.model import DLJobManifest


def group(name: str = "g", replicas: int = 1, **resources: float) -> MachineGroup:
    amounts = tuple(sorted((k, int(v * GRAIN)) for k, v in resources.items()))
    return MachineGroup(name, replicas, amounts, (("dljob.io/node-group", name),))


def test_each_planned_node_has_one_raylet():
    nodes = lay_out([group("a", 2, CPU=4, memory=2**30), group("b", 1, CPU=0.5)], {}, {})
    assert [n.name for n in nodes] == ["a-0", "a-1", "b-0"]
    assert nodes[0] == EmbeddedNode("a-0", {"CPU": 4.0, "memory": float(2**30)}, {"dljob.io/node-group": "a"}, {})
    assert nodes[2].resources == {"CPU": 0.5}


def test_eight_raylets_are_taken_and_nine_are_not():
    assert len(lay_out([group("a", 3, CPU=1), group("b", 5, CPU=1)], {}, {})) == 8
    with pytest.raises(PlacementError, match=r"the plan has 9 nodes; an embedded Ray starts at most 8"):
        lay_out([group("a", 4, CPU=1), group("b", 5, CPU=1)], {}, {})


def test_real_devices_are_dealt_out_and_never_twice():
    here = {"GPU": ("0", "1", "2", "3"), "NPU": ("0",)}
    a, b, c = lay_out([group("a", 2, GPU=1, CPU=1), group("b", 1, GPU=2, NPU=1)], {}, here)
    assert a.visible == {"CUDA_VISIBLE_DEVICES": "0"}
    assert b.visible == {"CUDA_VISIBLE_DEVICES": "1"}
    assert c.visible == {"CUDA_VISIBLE_DEVICES": "2,3", "ASCEND_RT_VISIBLE_DEVICES": "0"}
    with pytest.raises(PlacementError, match=r"5 GPU in all, this machine has 4: 1 are missing"):
        lay_out([group("a", 5, GPU=1)], {}, here)


def test_devices_that_are_not_here_can_be_pretended():
    nodes = lay_out([group("a", 2, NPU=8), group("b", 1, Custom=3)], {"NPU": 8, "Custom": 4}, {"NPU": ("0",)})
    assert [n.resources for n in nodes] == [{"NPU": 8.0}, {"NPU": 8.0}, {"Custom": 4.0}]
    assert all(not n.visible for n in nodes)
    with pytest.raises(
        PlacementError, match="has 8 NPU, --pretend declares 4 per raylet\n  dljob run FILE --pretend NPU=8"
    ):
        lay_out([group("a", 1, NPU=8)], {"NPU": 4}, {})


@pytest.mark.parametrize("said", ["", "0"])
def test_devices_are_pretended_whatever_a_variable_says_of_real_ones(said, tmp_path, monkeypatch):
    """A scheduler's shell may well have `CUDA_VISIBLE_DEVICES=`; Ray itself says here what it makes of it."""
    kinds = {"GPU": "CUDA_VISIBLE_DEVICES", "NPU": "ASCEND_RT_VISIBLE_DEVICES"}
    for variable in kinds.values():
        monkeypatch.setenv(variable, said)
    nodes = lay_out([group("a", 2, GPU=8, NPU=8, Custom=1), group("b")], {"GPU": 8, "NPU": 8, "Custom": 1}, {})
    assert [sorted(node.pretended) for node in nodes] == [sorted(kinds.values())] * 2 + [[]]
    here = EmbeddedRay(nodes)
    here.token_file = tmp_path / "token"
    monkeypatch.setattr(os, "environ", os.environ.copy())
    here._set_env()
    spec = ResourceAndLabelSpec(1, 8, 2**30, 2**27, {"NPU": 8}, {})
    assert spec.resolve(is_head=False, node_ip_address="127.0.0.1").num_gpus == 8
    here._restore()
    assert [os.environ[variable] for variable in kinds.values()] == [said, said]


def test_the_address_of_an_embedded_ray_is_that_of_its_gcs(tmp_path, monkeypatch):
    logs = str(tmp_path / "logs")
    head = SimpleNamespace(gcs_address="127.0.0.1:4321", get_logs_dir_path=lambda: logs, all_processes={})

    def start(_params: Any, serves: Callable[[Any], None]) -> Any:
        serves(head)
        return head

    monkeypatch.setattr(embedded.ray_private, "start_head", start)
    here = EmbeddedRay([])
    here.folder = tmp_path
    here._run_head()
    assert (here.address, here.log_dir) == ("127.0.0.1:4321", tmp_path / "logs")
    assert here._gcs_up.is_set(), "nodes may start"


@pytest.mark.parametrize(("load", "starts"), [(64.0, 2), (0.1, 1)])
def test_a_ray_that_misses_its_time_on_a_busy_machine_is_started_once_more(load, starts, tmp_path, monkeypatch):
    begun: list[Path] = []

    def start(here: EmbeddedRay) -> None:
        begun.append(here.folder)
        here._fail("Ray's nodes did not come up within 60 s")

    monkeypatch.setattr(embedded, "scratch_folder", lambda: Path(tempfile.mkdtemp(dir=tmp_path)))
    monkeypatch.setattr(EmbeddedRay, "_start", start)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    with pytest.raises(UnreachableError, match="did not come up"):
        EmbeddedRay([]).__enter__()
    assert len(set(begun)) == starts


def set_limit(kind: int, amount: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process have one limit, as an ordinary user, and an object store of 4 GiB."""
    none = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda of: (amount, amount) if of == kind else none)
    monkeypatch.setattr(os, "geteuid", lambda: 7)
    monkeypatch.setattr(machine, "process_limits", partial(process_limits, Path("/gone")))
    monkeypatch.setattr(machine, "lack_of_shared_memory", lambda _: "")
    monkeypatch.setattr(machine, "store_bytes", lambda *_: 4 << 30)


@pytest.mark.parametrize(
    ("kind", "amount", "words"),
    [
        (resource.RLIMIT_AS, 4000 << 20, "RLIMIT_AS.*4000 MiB.* 6656.*ulimit -v unlimited"),
        (resource.RLIMIT_FSIZE, 100 << 20, "RLIMIT_FSIZE.* 100 MiB; .* 4096.*ulimit -f unlimited"),
        (resource.RLIMIT_NPROC, 150, "ulimit -u of user 7 allows 150 .* 200 or more.*raise it"),
        (resource.RLIMIT_NOFILE, 63, "RLIMIT_NOFILE.* 63 open files.* 64 or more.*prlimit"),
    ],
)
def test_no_ray_starts_under_a_limit_that_would_end_it(
    kind: int, amount: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_limit(kind, amount, monkeypatch)
    monkeypatch.setattr(embedded, "scratch_folder", lambda: pytest.fail("the start went on"))
    with pytest.raises(UnreachableError) as refusal:
        EmbeddedRay([]).__enter__()
    assert re.search(words, f"{refusal.value.message} {refusal.value.hint}")


@pytest.mark.parametrize(
    ("kind", "amount"),
    [
        (resource.RLIMIT_AS, 6656 << 20),
        (resource.RLIMIT_FSIZE, 4 << 30),
        (resource.RLIMIT_NPROC, 1 << 20),
        (resource.RLIMIT_NOFILE, 64),
    ],
)
def test_a_limit_with_room_for_a_ray_is_no_trouble(kind: int, amount: int, monkeypatch: pytest.MonkeyPatch) -> None:
    set_limit(kind, amount, monkeypatch)
    assert machine.limit_trouble(1) is None


def test_the_end_of_a_ray_waits_for_no_thread_that_ray_holds(monkeypatch):
    """A GCS that is killed while the head asks it is waited for in C++, for a minute."""
    gcs_call = threading.Event()
    monkeypatch.setattr(embedded, "LEAVE_S", 0.01)
    ray = EmbeddedRay([])
    ray._spawn("head", lambda: gcs_call.wait() and pytest.fail("no GCS answers"))
    ray.close()
    assert main._hangs_in_ray(), "the process must not wait for it either"
    (thread,) = ray._threads
    ray._prepare()
    gcs_call.set()
    thread.join()
    assert not ray._errors, "of the next start"
    assert not main._hangs_in_ray()


@pytest.mark.parametrize("value", ["NPU", "NPU=", "=8", "NPU=0", "NPU=-1", "NPU=1.5", "CPU=8", "memory=8"])
def test_malformed_pretended_devices_are_refused(value):
    with pytest.raises(UsageError, match=r"--pretend .*: not a device and a number"):
        parse_pretend([value])


def test_pretended_devices_are_parsed():
    assert parse_pretend(["NPU=8", "GPU=1"]) == {"NPU": 8, "GPU": 1}
    assert parse_pretend([]) == {}


def test_cpus_may_be_shared_and_it_is_said():
    groups = [group("a", 2, CPU=4)]
    assert oversubscribed(groups, 2) == "8 CPUs are planned, this machine has 2: ranks share them"
    assert oversubscribed(groups, 8) == ""


def _engines(most: int, **more: Any) -> JobPlan:
    engine = {"name": "engine", "entrypoint": {"class": "m.E"}, "minReplicas": 1, "maxReplicas": most, **more}
    spec = {"roles": [{**engine, "resources": {"cpu": "1"}, "driver": False}]}
    return plan(DLJobManifest.model_validate({"metadata": {"name": "job"}, "spec": spec}))


def test_machines_have_room_for_the_growth_of_roles(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    fits, wide = _engines(3), _engines(9)
    assert size_notes(fits, machines_here(fits, {}, {})) == []
    (line,) = size_notes(wide, machines_here(wide, {}, {}))
    assert line == "on this machine engine may grow to 3 ranks, not to its maxReplicas 9"
    (line,) = size_notes(wide, list(wide.node_groups.values()))
    assert line == "on this machine engine may grow to 1 rank, not to its maxReplicas 9"


@pytest.mark.parametrize(
    ("pretend", "here", "most"),
    [({"GPU": 2}, 0, 2), ({}, 2, 2), ({}, 1, 1), ({"GPU": 1}, 8, 1)],
    ids=["pretended", "real", "none left", "exactly what is pretended"],
)
def test_devices_for_growth_are_those_that_are_declared_or_left(pretend, here, most, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    made, ids = _engines(3, accelerator={"count": "1"}), {"GPU": tuple(map(str, range(here)))}
    groups = machines_here(made, pretend, ids)
    (node,) = lay_out(groups, pretend, ids)
    assert (largest_sizes(made, groups), node.resources["GPU"]) == ({"engine": most}, pretend.get("GPU", most))


def test_devices_are_counted_from_their_files(tmp_path, monkeypatch):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "davinci0", "davinci_manager"):
        (tmp_path / name).touch()
    for variable in ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"):
        monkeypatch.delenv(variable, raising=False)
    found = machine.devices_here(tmp_path)
    assert found == {"GPU": ("0", "1"), "NPU": ("0",), "TPU": (), "HPU": ()}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "")
    assert machine.devices_here(tmp_path) == {"GPU": ("1",), "NPU": (), "TPU": (), "HPU": ()}


@pytest.mark.parametrize(
    ("said", "ids"), [("-1", ()), ("NoDevFiles", ()), ("", ()), ("1,-1,0", ("1",)), ("GPU-8f,0", ("GPU-8f", "0"))]
)
def test_devices_behind_an_impossible_one_are_hidden(said, ids, tmp_path, monkeypatch):
    for name in ("nvidia0", "nvidia1"):
        (tmp_path / name).touch()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", said)
    assert machine.devices_here(tmp_path)["GPU"] == ids


@pytest.mark.parametrize("driver", ["dxg", "kfd", "dri/renderD128"])
def test_gpus_without_files_of_nvidias_are_counted_by_ray(driver, tmp_path, monkeypatch):
    """What Ray hides from ranks that take none must be there to be taken."""
    amd = accelerators.AMDGPUAcceleratorManager
    monkeypatch.setattr(amd, "get_current_node_num_accelerators", staticmethod(lambda: 2))
    monkeypatch.setattr(accelerators, "get_accelerator_manager_for_resource", lambda _kind: amd)
    monkeypatch.delenv("HIP_VISIBLE_DEVICES", raising=False)
    environment.variable_of.cache_clear()
    try:
        assert machine.devices_here(tmp_path)["GPU"] == (), "no driver, no question"
        (tmp_path / driver).parent.mkdir(exist_ok=True)
        (tmp_path / driver).touch()
        assert machine.devices_here(tmp_path)["GPU"] == ("0", "1")
        monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
        here = machine.devices_here(tmp_path)
        assert here["GPU"] == ("1",)
        assert lay_out([group(GPU=1)], {}, here)[0].visible == {"HIP_VISIBLE_DEVICES": "1"}
    finally:
        environment.variable_of.cache_clear()


def test_stores_lie_on_disk_where_shared_memory_is_small(monkeypatch, tmp_path, caplog):
    usage = namedtuple("usage", "free")
    free = {"/dev/shm": 3 * machine.STORE_BYTES, str(tmp_path): 2**33}
    monkeypatch.setattr(shutil, "disk_usage", lambda at: usage(free[str(at)]))
    here = EmbeddedRay([])
    here.folder = tmp_path
    here._place_stores(2)
    assert (here._store_folder, caplog.messages) == (machine.SHM, [])
    here._place_stores(3)
    assert here._store_folder == tmp_path
    assert here._store > machine.STORE_BYTES, "as large as the disk lets it be"
    (line,) = caplog.messages
    assert line.startswith("/dev/shm is small: 4 object stores of Ray may need 320 MiB, 240 are free; they lie in ")
    monkeypatch.undo()
    assert "cannot be used: No such file" in machine.lack_of_shared_memory(0, tmp_path / "none")


@pytest.mark.parametrize(
    ("free", "memory", "each"),
    [(48, None, 4.8), (48, 20, 2.0), (8, 20, 0.8), (0.5, 20, 80 / 1024)],
    ids=["shared memory alone", "less memory than shared memory", "less shared memory", "no less than Ray takes"],
)
def test_stores_share_a_part_of_what_is_free(monkeypatch, free, memory, each):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(0, 0, int(free * 2**30)))
    store = machine.store_bytes(2, None if memory is None else int(memory * 2**30))
    assert store == pytest.approx(each * 2**30, abs=2)


@pytest.mark.parametrize(
    ("limit", "free", "load", "words"),
    [
        ("processes: 99 of 100", 0, 99.0, "processes: 99 of 100: "),
        ("", 300, 99.0, "300 MiB of memory are free in this container; a Ray with one raylet takes about 1024"),
        ("", 19 << 10, 40.0, "this machine is busy: its load is 40, and it has 2 CPUs"),
        ("", 19 << 10, 0.1, "dljob doctor"),
    ],
)
def test_a_ray_that_does_not_start_says_what_the_machine_lacks(limit, free, load, words, monkeypatch):
    monkeypatch.setattr(embedded, "reached_limit", lambda: limit)
    monkeypatch.setattr(embedded.memory_limit, "free", lambda: (free << 20, "in this container"))
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    with pytest.raises(UnreachableError) as seen:
        EmbeddedRay([])._fail("Ray's head did not start")
    assert (seen.value.hint or "").startswith(words)


def test_the_scratch_folder_is_private_and_short(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / ("x" * 100)))
    folder = machine.scratch_folder()
    try:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert len(str(folder / "n8" / "plasma")) <= machine.SOCKET_PATH_MAX
        assert folder.parent == Path("/tmp")
    finally:
        folder.rmdir()


def test_a_disk_without_room_is_passed_over(monkeypatch, tmp_path):
    usage = namedtuple("usage", "free")
    full = {str(tmp_path)}
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda at: usage(2**20 if str(at) in full else 2**40))
    folder = machine.scratch_folder()
    folder.rmdir()
    assert folder.parent == Path("/tmp")
    full.add("/tmp")
    with pytest.raises(UnreachableError, match=r"/tmp: 1 MiB are free, 64 are needed\n.*TMPDIR"):
        machine.scratch_folder()


@pytest.mark.parametrize("tmpdir", ["{}/none", ""], ids=["TMPDIR", "no TMPDIR"])
def test_a_machine_whose_every_disk_is_full_is_refused_with_each_folder(tmpdir, monkeypatch, tmp_path):
    def unusable() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp', '/var/tmp', '/usr/tmp', '/']")

    usage = namedtuple("usage", "free")
    monkeypatch.setattr(tempfile, "gettempdir", unusable)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _at: usage(2**20))
    monkeypatch.setenv("TMPDIR", tmpdir.format(tmp_path))
    said = "; ".join(
        f"{folder}: 1 MiB are free, 64 are needed" for folder in (tmpdir.format(tmp_path), "/tmp") if folder
    )
    with pytest.raises(UnreachableError, match=f"^no folder for Ray's files: {said}\n.*TMPDIR"):
        machine.scratch_folder()


def test_a_machine_without_a_writable_folder_is_refused(monkeypatch):
    def refuse(*_: Any, **__: Any) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    with pytest.raises(UnreachableError, match=r"no folder for Ray's files: .*: Permission denied\n.*TMPDIR"):
        machine.scratch_folder()


def test_a_raylet_starts_no_agent_and_finds_its_ports(tmp_path):
    words = ["raylet", f"--session_dir={tmp_path}", "--node_id=a1", "--dashboard_agent_command=python agent.py --x=1"]
    assert without_agent(words) == [*words[:3], "--dashboard_agent_command= "]
    ports = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert ports == dict.fromkeys(
        ("metrics_agent_port_a1", "metrics_export_port_a1", "dashboard_agent_listen_port_a1"), "-1"
    )
    assert without_agent(words[:2]) == words[:2], "of another Ray"
